//! An exact limit far exceeded, by calls that do not wait: the scripts that rejections cost.

use std::error::Error;
use std::thread::sleep;
use std::time::Duration;

use super::Case;
use super::counters::Probe;
use super::load::{LIMIT, Load, Order};
use super::processes::Processes;
use crate::figures::{Bar, Row};
use crate::server::Server;

/// Calls of all replicas together.
const CALLS_PER_S: f64 = 20_000.0;
const WARM_UP: Duration = Duration::from_secs(3);
const SPAN: Duration = Duration::from_secs(8);

/// Scripts per 1,000 rejections.
const MAX_SCRIPTS: f64 = 5.0;

pub(crate) fn measure(case: &Case) -> Result<Vec<Row>, Box<dyn Error>> {
    let server = Server::start()?;
    let mut processes = Processes::start(case, &server, Load::Limited)?;
    let mut probe = Probe::open(&server)?;
    processes.order(Order::Call { per_s: CALLS_PER_S / f64::from(case.circuits()) })?;
    sleep(WARM_UP);
    let (calls, before) = (processes.count()?, probe.read()?);
    sleep(SPAN);
    let (used, calls) = (probe.read()?.since(&before), processes.count()?.since(calls));
    let per_1000 = used.scripts * 1_000.0 / calls.rejected.max(1) as f64;
    let row = Row::value(case.name(), per_1000, "scripts/1,000");
    let row = case
        .with_bar(row, Bar::AtMost(MAX_SCRIPTS), calls.is_valid())
        .with("cpu_percent", used.cpu_percent())
        .with("rejected_per_s", calls.rejected as f64 / used.span.as_secs_f64())
        .with("admitted_per_s", calls.admitted as f64 / used.span.as_secs_f64())
        .with("limit_per_s", LIMIT as f64);
    Ok(vec![calls.figures(used.figures(row))])
}
