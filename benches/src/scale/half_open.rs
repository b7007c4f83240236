//! Half-open circuits: one probe of each is under way and takes longer than the case, while the callers of every replica keep
//! asking.
//!
//! `probes` and `outages` are those since the start. A replica that becomes degraded decides by itself, and may then admit a
//! probe of its own for each circuit; without outages there are as many probes as routes.

use std::error::Error;
use std::thread::sleep;
use std::time::Duration;

use super::Case;
use super::counters::Probe;
use super::load::{Load, Order, SHORT_BREAK};
use super::processes::Processes;
use crate::figures::{Bar, Row};
use crate::server::Server;

/// Calls of each circuit of each replica.
const CALLS_PER_S: f64 = 20.0;
/// The time in which the first calls find the break over.
const WARM_UP: Duration = Duration::from_secs(4);
const SPAN: Duration = Duration::from_secs(8);

const MAX_CPU_PERCENT: f64 = 15.0;

pub(crate) fn measure(case: &Case) -> Result<Vec<Row>, Box<dyn Error>> {
    let server = Server::start()?;
    let mut processes = Processes::start(case, &server, Load::Probes)?;
    let mut probe = Probe::open(&server)?;
    processes.order_first(Order::FailOnce)?;
    sleep(SHORT_BREAK + Duration::from_millis(500));
    processes.order(Order::Call { per_s: CALLS_PER_S })?;
    sleep(WARM_UP);
    let (calls, before) = (processes.count()?, probe.read()?);
    sleep(SPAN);
    let (used, all_calls) = (probe.read()?.since(&before), processes.count()?);
    let calls = all_calls.since(calls);
    let row = Row::value(case.name(), used.cpu_percent(), "% of a core");
    let row = case
        .with_bar(row, Bar::AtMost(MAX_CPU_PERCENT), calls.is_valid())
        .with("probes", all_calls.admitted as f64)
        .with("outages", all_calls.outages as f64);
    Ok(vec![calls.figures(used.figures(row))])
}
