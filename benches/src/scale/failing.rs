//! A dependency that fails wholly: after a few healthy seconds every call on every route fails, until every replica has seen
//! every circuit open.
//!
//! The share of failures reaches the threshold when as many calls have failed as had succeeded, `due_ms` after the first
//! failure; what comes after that is the fleet's.

use std::error::Error;
use std::thread::{self, sleep};
use std::time::Duration;

use super::Case;
use super::counters::{Counters, Probe};
use super::load::{Load, Opened, Order, Reply};
use super::processes::Processes;
use crate::figures::{Bar, Row};
use crate::monotonic::monotonic;
use crate::server::Server;

/// Calls of each circuit.
const CALLS_PER_S: f64 = 10.0;
const HEALTHY: Duration = Duration::from_secs(3);
/// The time between two readings of the counters.
const STEP: Duration = Duration::from_millis(50);

const MAX_CPU_PERCENT: f64 = 15.0;

pub(crate) fn measure(case: &Case) -> Result<Vec<Row>, Box<dyn Error>> {
    let server = Server::start()?;
    let mut processes = Processes::start(case, &server, Load::Failing)?;
    let mut probe = Probe::open(&server)?;
    let calling = monotonic();
    processes.order(Order::Call { per_s: CALLS_PER_S })?;
    sleep(HEALTHY);

    let (calls, before, failing) = (processes.count()?, probe.read()?, monotonic());
    processes.order(Order::Fail)?;
    let (opened, readings) = await_open(&mut processes, &mut probe)?;
    let calls = processes.count()?.since(calls);
    if opened.circuits < case.circuits() {
        return Err(format!("only {} of {} circuits opened", opened.circuits, case.circuits()).into());
    }
    let after = readings.iter().find(|reading| reading.at >= opened.last).ok_or("no reading after the trip")?;
    let (used, milliseconds) = (after.since(&before), |from: u64, to: u64| to.saturating_sub(from) as f64 / 1e6);
    let row = Row::value(case.name(), used.cpu_percent(), "% of a core");
    let row = case
        .with_bar(row, Bar::AtMost(MAX_CPU_PERCENT), calls.is_valid())
        .with("due_ms", milliseconds(calling, failing))
        .with("first_open_ms", milliseconds(failing, opened.first))
        .with("all_open_ms", milliseconds(failing, opened.last));
    Ok(vec![calls.figures(used.figures(row))])
}

/// Reads the counters until every circuit is open.
fn await_open(processes: &mut Processes, probe: &mut Probe) -> Result<(Opened, Vec<Counters>), Box<dyn Error>> {
    thread::scope(|scope| {
        let waiting = scope.spawn(|| processes.order(Order::AwaitOpen).map_err(|error| error.to_string()));
        let mut readings = Vec::new();
        while !waiting.is_finished() {
            sleep(STEP);
            readings.push(probe.read()?);
        }
        readings.push(probe.read()?);
        let replies = waiting.join().map_err(|_| "a panic")??;
        let opened = replies.into_iter().filter_map(|reply| match reply {
            Reply::Opened(opened) => Some(opened),
            _ => None,
        });
        let opened = opened.reduce(|a, b| Opened {
            circuits: a.circuits + b.circuits,
            first: a.first.min(b.first),
            last: a.last.max(b.last),
        });
        Ok((opened.ok_or("no reply")?, readings))
    })
}
