//! Healthy circuits in use: every circuit of every replica is called at least once a second, and every call succeeds.

use std::error::Error;
use std::thread::sleep;
use std::time::Duration;

use super::Case;
use super::counters::Probe;
use super::load::Load;
use super::processes::Processes;
use crate::figures::{Bar, Row};
use crate::server::Server;

/// Calls of each circuit: a little more than one a second.
pub(crate) const CALLS_PER_S: f64 = 1.1;
const SPAN: Duration = Duration::from_secs(10);

const MAX_CPU_PERCENT: f64 = 3.0;

pub(crate) fn measure(case: &Case) -> Result<Vec<Row>, Box<dyn Error>> {
    let server = Server::start()?;
    let mut processes = Processes::start(case, &server, Load::Healthy)?;
    let mut probe = Probe::open(&server)?;
    processes.warm_up_and_call(case, CALLS_PER_S)?;
    let (calls, before) = (processes.count()?, probe.read()?);
    sleep(SPAN);
    let (used, calls) = (probe.read()?.since(&before), processes.count()?.since(calls));
    let row = Row::value(case.name(), used.cpu_percent(), "% of a core");
    // The bar is that of 100 replicas; the larger tables of fewer replicas are for comparison.
    let row = match case.replicas {
        100 => case.with_bar(row, Bar::AtMost(MAX_CPU_PERCENT), calls.is_valid()),
        _ => row,
    };
    Ok(vec![calls.figures(used.figures(row))])
}
