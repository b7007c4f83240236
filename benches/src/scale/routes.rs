//! Many routes in one replica: the memory of each, here and in Redis, and the time of its first call.

use std::error::Error;

use super::Case;
use super::counters::Probe;
use super::load::{FirstCalls, Load, Order, Reply};
use super::processes::Processes;
use crate::figures::Row;
use crate::server::Server;

pub(crate) fn measure(case: &Case) -> Result<Vec<Row>, Box<dyn Error>> {
    let breaker = with(case, case.name(), Load::NewRoutes)?;
    let limited = with(case, format!("{}.with_limit", case.name()), Load::NewLimitedRoutes)?;
    Ok(vec![breaker, limited])
}

fn with(case: &Case, name: String, load: Load) -> Result<Row, Box<dyn Error>> {
    let server = Server::start()?;
    let mut processes = Processes::start(case, &server, load)?;
    let mut probe = Probe::open(&server)?;
    let before = probe.read()?;
    let Reply::FirstCalls(calls) = processes.order_first(Order::FirstCalls)? else {
        return Err("no first calls".into());
    };
    let after = probe.read()?;
    let used = after.since(&before);
    let per_route = |bytes: f64| bytes / f64::from(case.routes);
    let FirstCalls { p50_us, p99_us, rss_before, rss_after } = calls;
    let row = Row::value(name, per_route(rss_after.saturating_sub(rss_before) as f64), "bytes/route")
        .with("redis_bytes_per_route", per_route((after.memory - before.memory).max(0.0)))
        .with("first_call_p50_us", p50_us)
        .with("first_call_p99_us", p99_us)
        .with("scripts_per_route", per_route(used.scripts));
    Ok(processes.count()?.degraded_figure(row))
}
