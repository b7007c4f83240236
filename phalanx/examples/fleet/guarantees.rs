//! The guarantees of a fleet in numbers: what was observed, and whether each guarantee held.

use std::time::Duration;

use phalanx::RateLimitSpec;

use crate::faults::Fault;
use crate::observations::{Observations, Outage};
use crate::policy::ONE_PROBE;
use crate::recorder::{Recorder, Recording};
use crate::scenario::{Scenario, UpstreamState};
use crate::style::{Line, Style};
use crate::table::millis;

/// A trip reaches all replicas by push; if the push is lost, by the next sync (every 250 ms).
const MAX_TRIP_DELAY: Duration = Duration::from_millis(300);
/// A replica uses Redis again within this time after Redis is back.
const MAX_RECOVERY_DELAY: Duration = Duration::from_millis(2_500);
/// Under steady demand at least this fraction of the configured rate is granted.
const MIN_UTILIZATION: f64 = 0.95;

/// A guarantee and what was observed; `held` is `None` if the run gave no occasion to check it.
struct Guarantee {
    name: &'static str,
    held: Option<bool>,
    observed: String,
}

/// Checks all guarantees. Returns a line for each, and whether all held.
pub(crate) fn check(recorder: &Recorder, recording: &Recording) -> (Vec<Line>, bool) {
    let (scenario, observations) = (recorder.scenario(), &recording.observations);
    let Some(limit) = &recorder.policy().rate_limit else { return (Vec::new(), true) };
    let guarantees = [
        steady_rate(limit, observations, &scenario),
        total_rate(limit, observations, &scenario),
        trip_delay(observations),
        probe_quota(observations, &scenario),
        outages(observations, &scenario),
        degraded_decisions(observations),
        rejection_latency(observations),
    ];
    let held = guarantees.iter().all(|guarantee| guarantee.held != Some(false));
    (guarantees.iter().map(Guarantee::line).collect(), held)
}

impl Guarantee {
    fn line(&self) -> Line {
        let (style, label) = match self.held {
            Some(true) => (Style::Green, "held"),
            Some(false) => (Style::Red, "VIOLATED"),
            None => (Style::Dim, "-"),
        };
        Line::new()
            .with(Style::Plain, format!("  {:<9} ", self.name))
            .with(style, format!("{label:>8}   "))
            .with(Style::Dim, self.observed.as_str())
    }
}

/// Until the first fault, degraded replica or trip: never more calls than the configured rate and burst, and nearly all of
/// them.
fn steady_rate(limit: &RateLimitSpec, observations: &Observations, scenario: &Scenario) -> Guarantee {
    let fault = observations.faults.first().map(|(at, _)| *at);
    let degraded = observations.outages.iter().filter_map(|outages| outages.first()).map(|outage| outage.from);
    let opened = observations.openings().map(|opening| opening.first);
    let trouble = fault.into_iter().chain(degraded).chain(opened).min().unwrap_or(Duration::MAX);
    let until = scenario.end_of(UpstreamState::Healthy).min(trouble).min(scenario.now());
    let (rate, burst) = rate_and_burst(limit);
    let bound = |at: Duration| burst + rate * at.as_secs_f64();
    let stamps = || observations.admitted.iter().take_while(|at| **at <= until);
    let over = stamps().enumerate().any(|(before, at)| (before + 1) as f64 > bound(*at));
    let (admitted, most) = (stamps().count(), bound(until));
    let percent = admitted as f64 * 100.0 / most;
    let enough = percent >= MIN_UTILIZATION * 100.0 || until < Duration::from_secs(2);
    let seconds = until.as_secs_f64();
    let observed = format!(
        "{admitted} calls in the first {seconds:.1} s: {percent:.0} % of {burst:.0} + {rate:.0}/s x {seconds:.1} s"
    );
    Guarantee { name: "rate", held: Some(!over && enough), observed }
}

/// Over the whole run: the configured rate, plus the share that each replica may grant itself while degraded, plus one burst
/// for every restart of Redis that lost its state.
fn total_rate(limit: &RateLimitSpec, observations: &Observations, scenario: &Scenario) -> Guarantee {
    let (rate, burst) = rate_and_burst(limit);
    let length = scenario.now().min(scenario.length());
    let share = 1.0 / observations.outages.len().max(1) as f64;
    let outages = observations.outages.iter().flatten();
    let degraded: f64 = outages
        .map(|outage| outage.until.unwrap_or(length).saturating_sub(outage.from).as_secs_f64())
        .map(|seconds| share * (burst + rate * seconds))
        .sum();
    let restarts = observations.faults.iter().filter(|(_, fault)| *fault == Fault::RestartRedis).count() as f64;
    let most = burst + rate * length.as_secs_f64() + degraded + burst * restarts;
    let admitted = observations.admitted.len();
    let mut observed = format!("{admitted} calls, at most {most:.0}");
    if degraded > 0.0 || restarts > 0.0 {
        observed += &format!(" ({degraded:.0} of them for degraded replicas, {:.0} for lost state)", burst * restarts);
    }
    Guarantee { name: "total", held: Some(admitted as f64 <= most), observed }
}

/// The trip of one replica reaches all replicas.
fn trip_delay(observations: &Observations) -> Guarantee {
    let name = "trip";
    let propagations: Vec<_> = observations.openings().map(|opening| opening.propagation(observations)).collect();
    let Some(first) = observations.openings().next() else {
        return Guarantee { name, held: None, observed: "the shared breaker never opened".into() };
    };
    let Some(worst) = propagations.iter().copied().collect::<Option<Vec<_>>>().and_then(|all| all.into_iter().max())
    else {
        let never = propagations.iter().filter(|propagation| propagation.is_none()).count();
        return Guarantee { name, held: Some(false), observed: format!("{never} trips did not reach all replicas") };
    };
    let (replica, delay) = (first.by + 1, first.propagation(observations).map_or_else(String::new, exact));
    let (count, worst_after, most) = (propagations.len(), exact(worst), millis(MAX_TRIP_DELAY));
    let observed = format!(
        "the first, by replica {replica}, reached all within {delay}; the slowest of {count} within {worst_after} (at most {most})"
    );
    Guarantee { name, held: Some(worst <= MAX_TRIP_DELAY), observed }
}

/// All replicas together send at most one probe at a time.
fn probe_quota(observations: &Observations, scenario: &Scenario) -> Guarantee {
    let (name, quota) = ("probes", ONE_PROBE.0 as usize);
    let mut breaks = observations.openings().map(|opening| opening.first).peekable();
    let mut counts = Vec::new();
    while let Some(from) = breaks.next() {
        let to = breaks.peek().copied().unwrap_or(Duration::MAX);
        counts.push(observations.probes.iter().filter(|(started_at, _)| (from..to).contains(started_at)).count());
    }
    if counts.iter().sum::<usize>() == 0 {
        return Guarantee { name, held: None, observed: "no probe was needed".into() };
    }
    let at_once = |at: Duration| observations.probes.iter().filter(|(from, to)| (*from..*to).contains(&at)).count();
    let most = observations.probes.iter().map(|(from, _)| at_once(*from)).max().unwrap_or(0);
    let list: Vec<_> = counts.iter().map(usize::to_string).collect();
    let failed =
        observations.probes.iter().filter(|(from, _)| scenario.state_at(*from) == UpstreamState::Failing).count();
    let observed = format!(
        "{} per break, {most} at a time (at most {quota}); {failed} failed, {} must succeed to close",
        list.join(", "),
        ONE_PROBE.1,
    );
    Guarantee { name, held: Some(most <= quota), observed }
}

/// Each replica reports an injected outage once, and recovers soon after Redis is back. Outages caused by a busy machine are
/// printed, not checked.
fn outages(observations: &Observations, scenario: &Scenario) -> Guarantee {
    let name = "outages";
    let at =
        |wanted: fn(Fault) -> bool| observations.faults.iter().find(|(_, fault)| wanted(*fault)).map(|(at, _)| *at);
    let survivors: Vec<_> = observations.survivors().map(|replica| &observations.outages[replica]).collect();
    let all: usize = survivors.iter().map(|outages| outages.len()).sum();
    let Some(started) = at(Fault::begins_outage) else {
        return Guarantee { name, held: None, observed: format!("none injected, {all} reported by the replicas") };
    };
    let ended = at(Fault::ends_outage).unwrap_or(scenario.length());
    let injected = |outage: &&Outage| outage.from < ended && outage.until.is_none_or(|until| until > started);
    let reported: Vec<_> = survivors.iter().map(|outages| outages.iter().filter(injected).count()).collect();
    let list: Vec<_> = reported.iter().map(usize::to_string).collect();
    let mut held = reported.iter().all(|count| *count == 1);
    let mut observed = format!("1 injected, reported {} times", list.join(" + "));
    if ended + MAX_RECOVERY_DELAY < scenario.now().min(scenario.length()) {
        let back = survivors.iter().map(|outages| outages.iter().rfind(injected).and_then(|outage| outage.until));
        let after = back.map(|back| back.map_or(Duration::MAX, |back| back.saturating_sub(ended))).max();
        let after = after.unwrap_or_default();
        held &= after <= MAX_RECOVERY_DELAY;
        observed += &format!(", recovered within {} (at most {})", millis(after), millis(MAX_RECOVERY_DELAY));
    }
    let more = all - reported.iter().sum::<usize>();
    if more > 0 {
        observed += &format!("; {more} more (busy machine)");
    }
    Guarantee { name, held: Some(held), observed }
}

/// The decisions made without Redis. Printed, not checked.
fn degraded_decisions(observations: &Observations) -> Guarantee {
    let decided: u64 = observations.outages.iter().flatten().map(|outage| outage.degraded_decisions).sum();
    let late: usize = observations.late_replies.iter().map(Vec::len).sum();
    let observed = format!("{decided} in outages, {late} because a single reply was late");
    Guarantee { name: "degraded", held: None, observed }
}

/// How long rejections took, whatever Redis did. Not checked: on a busy machine it measures the machine.
fn rejection_latency(observations: &Observations) -> Guarantee {
    let rejections = &observations.rejections;
    let observed = format!("rejections: p99 {}, slowest {}", exact(rejections.p99()), exact(rejections.slowest));
    Guarantee { name: "latency", held: None, observed }
}

fn rate_and_burst(limit: &RateLimitSpec) -> (f64, f64) {
    (limit.permits as f64 / limit.per.as_secs_f64(), limit.burst.unwrap_or(limit.permits) as f64)
}

/// Milliseconds with one decimal.
fn exact(duration: Duration) -> String {
    format!("{:.1} ms", duration.as_secs_f64() * 1_000.0)
}
