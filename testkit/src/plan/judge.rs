//! Judges what was expected of a policy: a verdict, the measured figure, and where the figure comes from.

use std::ops::Range;
use std::time::Duration;

use phalanx::{Policy, RejectionCode};
use phalanx_core::breaker::Phase;

use super::Step;
use super::expectation::{BreakerState, Expectation};
use super::recording::{CallRecord, PolicyRecord, RequestRecord, quantile};
use super::traffic::window;

/// A rejection within this time is fast, and an answer within this time after the deadline is at the deadline.
const FAST: Duration = Duration::from_millis(10);
/// Timers of the runtime are no finer than this.
const TIMER_GRAIN: Duration = Duration::from_millis(1);
/// The share of the calls after the first trip that `fast_503` asks for.
const FAST_SHARE: f64 = 0.9;
/// The share of the calls that is served after a recovery.
const RECOVERED_SHARE: f64 = 0.99;
/// The p95 after a recovery, as a multiple of that before the fault.
const RECOVERED_LATENCY: f64 = 1.5;

/// The verdict on one expectation.
pub(super) struct Judgement {
    pub(super) passed: bool,
    /// The measured figure.
    pub(super) measured: String,
    /// Where the figure comes from.
    pub(super) source: String,
}

fn judgement(passed: bool, measured: impl Into<String>, source: impl Into<String>) -> Judgement {
    Judgement { passed, measured: measured.into(), source: source.into() }
}

/// What happened under one policy in a step.
pub(super) struct Trial<'a> {
    pub(super) step: &'a Step,
    pub(super) replicas: u32,
    /// The policy; none if the file has none of this name.
    pub(super) policy: Option<&'a Policy>,
    pub(super) record: &'a PolicyRecord,
    pub(super) requests: &'a [RequestRecord],
}

impl Trial<'_> {
    pub(super) fn judge(&self, expectation: Expectation) -> Judgement {
        match expectation {
            Expectation::Retries { most } => self.retries(most),
            Expectation::Breaker(state) => self.breaker(state),
            Expectation::Fast503 => self.fast_503(),
            Expectation::Recovers => self.recovers(),
            Expectation::Shed503 { most } => self.shed_503(most),
            Expectation::NoOom => self.no_oom(),
            Expectation::HopWithinRemaining => self.hop_within_remaining(),
            Expectation::Status504OnExceed => self.status_504_on_exceed(),
            Expectation::ExactlyOnce => self.exactly_once(),
        }
    }

    /// Returns the calls that began in a range of the step.
    fn calls(&self, range: Range<u64>) -> impl Iterator<Item = &CallRecord> + Clone {
        self.record.calls.iter().filter(move |call| range.contains(&call.start))
    }

    fn has_breaker(&self) -> bool {
        self.policy.is_some_and(|policy| policy.breaker.is_some())
    }

    /// Returns the phase at the end of the step.
    fn last_phase(&self) -> Phase {
        self.record.transitions.last().map_or(Phase::Closed, |(_, phase)| *phase)
    }

    /// Returns the time of the first trip in a range of the step.
    fn first_trip(&self, range: Range<u64>) -> Option<u64> {
        let open = self.record.transitions.iter().find(|(at, phase)| *phase == Phase::Open && range.contains(at));
        open.map(|(at, _)| *at)
    }

    fn retries(&self, most: u32) -> Judgement {
        let calls = self.calls(window(self.step)).count();
        let worst = self.calls(window(self.step)).map(|call| call.attempts.saturating_sub(1)).max().unwrap_or_default();
        let source = format!("decision records of {calls} calls during the fault");
        let plural = if worst == 1 { "retry" } else { "retries" };
        judgement(calls > 0 && worst <= most, format!("at most {worst} {plural} of a call"), source)
    }

    fn breaker(&self, state: BreakerState) -> Judgement {
        let source = "breaker transitions";
        if !self.has_breaker() {
            return judgement(false, "the policy has no breaker", "the policy file");
        }
        let during = self.first_trip(window(self.step));
        let trips = self.record.transitions.iter().filter(|(_, phase)| *phase == Phase::Open).count();
        let last = self.last_phase().name();
        let opened = match during {
            Some(at) => format!("opened {} after the fault began", seconds(at - window(self.step).start)),
            None => "did not open during the fault".to_owned(),
        };
        match state {
            BreakerState::Open => judgement(during.is_some(), opened, source),
            BreakerState::Maybe => {
                let measured = format!("{opened}, {last} at the end");
                judgement(self.last_phase() == Phase::Closed, measured, source)
            }
            BreakerState::Closed => judgement(trips == 0, format!("opened {trips} times, {last} at the end"), source),
        }
    }

    fn fast_503(&self) -> Judgement {
        let window = window(self.step);
        let Some(trip) = self.first_trip(window.clone()) else {
            return judgement(false, "the breaker did not open", "breaker transitions");
        };
        let calls = self.calls(trip..window.end).count();
        let fast = self.calls(trip..window.end).filter(|call| is_fast_503(call)).count();
        let share = share(fast, calls);
        let source = format!("decision records of {calls} calls from the first trip to the end of the fault");
        let measured = format!("{} answered with 503 within 10 ms and without an attempt", percent(share));
        judgement(calls > 0 && share >= FAST_SHARE, measured, source)
    }

    fn recovers(&self) -> Judgement {
        let window = window(self.step);
        let end = micros(self.step.total());
        // The last quarter of the recovery.
        let tail = end - (end - window.end) / 4..end;
        let calls = self.calls(tail.clone()).count();
        let served = self.calls(tail.clone()).filter(|call| call.is_served()).count();
        let p95 = |range: Range<u64>| {
            let mut latencies: Vec<u64> =
                self.calls(range).filter(|call| call.is_served()).map(|it| it.elapsed).collect();
            latencies.sort_unstable();
            quantile(&latencies, 0.95)
        };
        let (before, after) = (p95(0..window.start), p95(tail));
        let slower = match (before, after) {
            // A millisecond more is the grain of the timers.
            (Some(before), Some(after)) => after as f64 > before as f64 * RECOVERED_LATENCY + 1_000.0,
            _ => false,
        };
        let closed_at = self.record.transitions.iter().rev().find(|(at, it)| *it == Phase::Closed && *at >= window.end);
        let phase = match (self.has_breaker(), closed_at) {
            (false, _) => "no breaker".to_owned(),
            (true, Some((at, _))) if self.last_phase() == Phase::Closed => {
                format!("closed {} after the fault", seconds(at - window.end))
            }
            (true, _) => format!("breaker {}", self.last_phase().name()),
        };
        let latency = |p95: Option<u64>| p95.map_or("none".to_owned(), millis);
        let share = share(served, calls);
        let measured = format!(
            "{phase}; then {} served, p95 {} ({} before the fault)",
            percent(share),
            latency(after),
            latency(before)
        );
        let passed = calls > 0 && share >= RECOVERED_SHARE && !slower && self.last_phase() == Phase::Closed;
        let source = format!("breaker transitions, and {calls} calls of the last quarter of the recovery");
        judgement(passed, measured, source)
    }

    fn shed_503(&self, most: f64) -> Judgement {
        let window = window(self.step);
        let offered = self.calls(window.clone()).count();
        let served = self.calls(window.clone()).filter(|call| call.is_served()).count();
        let shed = self.calls(window).filter(|call| matches!(call.status, 429 | 503) && !call.admitted).count();
        let capacity = (self.record.capacity * self.step.duration.as_secs_f64()) as usize;
        let within = offered.min(capacity);
        let lost = share(within.saturating_sub(served), within);
        let measured = format!(
            "{} of {within} calls within capacity not served; {served} of {offered} served, {shed} shed with 503 or 429",
            percent(lost)
        );
        let source = format!("decision records; the dependency completes {:.0} calls a second", self.record.capacity);
        judgement(within > 0 && lost <= most, measured, source)
    }

    fn no_oom(&self) -> Judgement {
        let most = self.step.workload.max_in_flight.saturating_mul(self.replicas);
        let peak = self.record.peak_in_flight;
        let stuck = self.record.unanswered;
        let unanswered = if stuck > 0 { format!(", {stuck} never answered") } else { String::new() };
        let measured = format!("at most {peak} calls in flight of {most}{unanswered}");
        let source = format!("a gauge of the callers; the dependency's queue had at most {}", self.record.peak_queue);
        judgement(peak <= most && stuck == 0, measured, source)
    }

    fn hop_within_remaining(&self) -> Judgement {
        let (attempts, overrun) = (self.record.hop_attempts, self.record.hop_overrun);
        let measured = format!("attempts ran at most {} past the deadline", millis(micros(overrun)));
        let source = format!("the dependency's record of {attempts} attempts under a deadline");
        judgement(attempts > 0 && overrun <= TIMER_GRAIN, measured, source)
    }

    fn status_504_on_exceed(&self) -> Judgement {
        let exceeded = |request: &&RequestRecord| {
            request.code == Some(RejectionCode::DeadlineExceeded) || request.elapsed > request.budget
        };
        let late = |request: &&RequestRecord| {
            request.status != 504 || request.elapsed > request.budget.saturating_add(micros(FAST))
        };
        let total = self.requests.iter().filter(exceeded).count();
        let wrong = self.requests.iter().filter(exceeded).filter(late).count();
        let measured = match total {
            0 => "no request exceeded its deadline".to_owned(),
            _ => format!("{} of {total} requests past their deadline answered with 504 in time", total - wrong),
        };
        judgement(total > 0 && wrong == 0, measured, format!("{} requests with a deadline", self.requests.len()))
    }

    fn exactly_once(&self) -> Judgement {
        let Some(writes) = &self.record.writes else {
            return judgement(false, "there were no writes", "the dependency's record of effects");
        };
        // A write without any answer is not among those that were counted.
        let wrong = writes.misreported + u64::from(self.record.unanswered);
        let measured = format!(
            "of {} writes {} took effect once, {} more than once, {} never; {wrong} answered otherwise, {} repeated",
            writes.total, writes.once, writes.more, writes.never, writes.repeated
        );
        let passed = writes.repeated > 0 && writes.more == 0 && wrong == 0;
        judgement(passed, measured, "the dependency's record of effects by key, and decision records")
    }
}

fn is_fast_503(call: &CallRecord) -> bool {
    call.status == 503 && !call.admitted && call.elapsed <= micros(FAST)
}

fn share(part: usize, whole: usize) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn millis(micros: u64) -> String {
    format!("{:.1} ms", micros as f64 / 1_000.0)
}

fn seconds(micros: u64) -> String {
    format!("{:.1} s", micros as f64 / 1e6)
}
