//! All subscriptions cut at once, while every circuit of every replica is in use: the scripts that follow, compared with
//! those of the seconds before.

use std::error::Error;
use std::thread::sleep;
use std::time::Duration;

use super::Case;
use super::counters::{Counters, Probe};
use super::idle::CALLS_PER_S;
use super::load::Load;
use super::processes::Processes;
use crate::figures::{Bar, Row};
use crate::server::Server;

const STEADY: Duration = Duration::from_secs(5);
/// How long the server is watched after the cut, and how closely.
const AFTER: Duration = Duration::from_secs(4);
const STEP: Duration = Duration::from_millis(25);

const FIRST: Duration = Duration::from_secs(1);
const PEAK: Duration = Duration::from_millis(250);

/// The scripts of the first second: this multiple of a steady second, and this many more.
const MAX_FACTOR: f64 = 1.2;
const MAX_MORE: f64 = 200.0;

pub(crate) fn measure(case: &Case) -> Result<Vec<Row>, Box<dyn Error>> {
    let server = Server::start()?;
    let mut processes = Processes::start(case, &server, Load::Healthy)?;
    let mut probe = Probe::open(&server)?;
    processes.warm_up_and_call(case, CALLS_PER_S)?;
    let (calls, before) = (processes.count()?, probe.read()?);
    sleep(STEADY);
    let steady = probe.read()?.since(&before).scripts_per_s();
    let cut = probe.cut_subscriptions()?;
    let readings = probe.follow(STEP, AFTER)?;
    let calls = processes.count()?.since(calls);
    let row = Row::value(case.name(), scripts_within(&readings, FIRST), "scripts in 1 s");
    let row = case
        .with_bar(row, Bar::AtMost(MAX_FACTOR * steady + MAX_MORE), calls.is_valid() && cut >= case.replicas)
        .with("steady_per_s", steady)
        .with("peak_250ms", most_within(&readings, PEAK))
        .with("steady_250ms", steady * PEAK.as_secs_f64())
        .with("subscriptions_cut", cut.into())
        .with("subscribed_again", probe.subscriptions()? as f64);
    Ok(vec![calls.figures(row)])
}

/// Returns the scripts within `span` of the first reading.
fn scripts_within(readings: &[Counters], span: Duration) -> f64 {
    let Some((first, later)) = readings.split_first() else { return 0.0 };
    let end = later.iter().find(|reading| reading.since(first).span >= span).or(later.last());
    end.map_or(0.0, |end| per_span(first, end, span))
}

/// Returns the most scripts within any `span`.
fn most_within(readings: &[Counters], span: Duration) -> f64 {
    let from_each = (0..readings.len()).filter(|&from| {
        let last = readings.last();
        last.is_some_and(|last| last.since(&readings[from]).span >= span)
    });
    from_each.map(|from| scripts_within(&readings[from..], span)).fold(0.0, f64::max)
}

/// Returns the scripts between two readings, which are at least `span` apart, scaled to `span`.
fn per_span(first: &Counters, end: &Counters, span: Duration) -> f64 {
    let used = end.since(first);
    used.scripts * span.as_secs_f64() / used.span.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{most_within, scripts_within};
    use crate::scale::counters::Counters;

    #[test]
    fn the_peak_is_the_busiest_span_and_not_the_first() {
        let scripts = [0.0, 10.0, 20.0, 120.0, 220.0, 230.0, 240.0];
        let reading = |(step, scripts)| Counters::of_scripts(step as u64 * 100_000_000, scripts);
        let readings: Vec<_> = scripts.into_iter().enumerate().map(reading).collect();
        assert_eq!(scripts_within(&readings, Duration::from_millis(200)), 20.0);
        assert_eq!(most_within(&readings, Duration::from_millis(200)), 200.0);
    }
}
