//! The guarantees of the breaker, one by one.

mod clocks;
mod histories;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// A breaker with its spec and a manual clock.
struct Rig {
    breaker: Breaker,
    spec: BreakerSpec,
    now: Time,
}

impl Rig {
    fn new(spec: BreakerSpec) -> Self {
        let now = Time::from_micros(1_000_000_000);
        Self { breaker: Breaker::new(now, &spec), spec, now }
    }

    fn wait(&mut self, by: Duration) {
        self.now = self.now.after(by);
    }

    fn admit(&mut self) -> Result<Ticket, RejectionCode> {
        match self.breaker.admit(self.now, &self.spec).0 {
            Admission::Admitted(ticket) => Ok(ticket),
            Admission::Rejected { code, .. } => Err(code),
        }
    }

    fn end(&mut self, ticket: Ticket, outcome: Outcome) -> Option<Transition> {
        self.end_after(ticket, outcome, Duration::from_millis(1))
    }

    fn end_after(&mut self, ticket: Ticket, outcome: Outcome, latency: Duration) -> Option<Transition> {
        let sample = Sample { outcome, latency };
        self.breaker.record(self.now, &self.spec, ticket, sample, 0.5)
    }

    /// A whole call; panics if it is rejected.
    fn call(&mut self, outcome: Outcome) -> Option<Transition> {
        let ticket = self.admit().expect("admitted");
        self.end(ticket, outcome)
    }

    fn trip(&mut self) -> Transition {
        for _ in 0..1_000 {
            if let Some(transition) = self.call(Outcome::Failure) {
                return transition;
            }
        }
        panic!("a thousand failures did not trip it");
    }

    fn phase(&self) -> Phase {
        self.breaker.phase()
    }
}

fn ratio() -> BreakerSpec {
    BreakerSpec::failure_ratio(0.5).window(10 * SECOND).min_throughput(10).break_for(30 * SECOND)
}

#[test]
fn it_trips_at_the_ratio_and_not_before_the_minimum() {
    let mut rig = Rig::new(ratio());
    for _ in 0..9 {
        assert_eq!(rig.call(Outcome::Failure), None);
    }
    let opened = rig.call(Outcome::Failure).unwrap();
    assert_eq!((opened.from, opened.to), (Phase::Closed, Phase::Open));
    assert_eq!(opened.break_for, Some(30 * SECOND));
    assert_eq!(rig.admit(), Err(RejectionCode::CircuitOpen));
}

#[test]
fn below_the_ratio_it_stays_closed() {
    let mut rig = Rig::new(ratio());
    for _ in 0..100 {
        rig.call(Outcome::Success);
        rig.call(Outcome::Success);
        assert_eq!(rig.call(Outcome::Failure), None);
    }
}

#[test]
fn a_burst_of_failures_across_a_window_edge_trips() {
    let mut rig = Rig::new(ratio());
    rig.now = Time::from_micros(9_999_000);
    for _ in 0..5 {
        rig.call(Outcome::Failure);
    }
    rig.wait(Duration::from_millis(2));
    for _ in 0..4 {
        assert_eq!(rig.call(Outcome::Failure), None);
    }
    assert!(rig.call(Outcome::Failure).is_some());
}

#[test]
fn old_failures_age_out() {
    let mut rig = Rig::new(ratio());
    for _ in 0..9 {
        rig.call(Outcome::Failure);
    }
    rig.wait(11 * SECOND);
    assert_eq!(rig.call(Outcome::Failure), None);
    assert_eq!(rig.breaker.inspect(rig.now).failures, 1);
}

#[test]
fn failures_in_a_row_trip_and_a_success_between_starts_over() {
    let mut rig = Rig::new(BreakerSpec::consecutive_failures(3));
    rig.call(Outcome::Failure);
    rig.call(Outcome::Failure);
    rig.call(Outcome::Success);
    rig.call(Outcome::Failure);
    assert_eq!(rig.call(Outcome::Failure), None);
    assert!(rig.call(Outcome::Failure).is_some());
}

#[test]
fn slow_calls_trip_even_when_they_succeed() {
    let spec = BreakerSpec::slow_call_ratio(0.8, SECOND).min_throughput(5);
    let mut rig = Rig::new(spec);
    for last in 0..5 {
        let ticket = rig.admit().unwrap();
        let transition = rig.end_after(ticket, Outcome::Success, SECOND);
        assert_eq!(transition.is_some(), last == 4);
    }
}

#[test]
fn a_high_quantile_trips_only_if_it_lasts() {
    let mut rig = Rig::new(BreakerSpec::latency(0.95, SECOND, 5 * SECOND));
    let observe = |rig: &mut Rig, seconds| {
        let value = Some(seconds * SECOND);
        rig.breaker.observe_quantile(rig.now, &rig.spec, value, 0.0)
    };
    assert_eq!(observe(&mut rig, 2), None);
    rig.wait(4 * SECOND);
    assert_eq!(observe(&mut rig, 1), None, "within the threshold: starts over");
    rig.wait(2 * SECOND);
    assert_eq!(observe(&mut rig, 2), None);
    rig.wait(5 * SECOND);
    assert_eq!(observe(&mut rig, 2).unwrap().to, Phase::Open);
}

#[test]
fn after_the_break_one_probe_is_admitted_and_the_next_call_rejected() {
    let mut rig = Rig::new(ratio());
    rig.trip();
    rig.wait(30 * SECOND - Duration::from_micros(1));
    assert_eq!(rig.admit(), Err(RejectionCode::CircuitOpen));
    rig.wait(Duration::from_micros(1));
    let probe = rig.admit().unwrap();
    assert_eq!(rig.admit(), Err(RejectionCode::ProbeQuota));
    assert_eq!(rig.end(probe, Outcome::Success).unwrap().to, Phase::Closed);
}

#[test]
fn a_failed_probe_opens_it_again() {
    let mut rig = Rig::new(ratio());
    rig.trip();
    rig.wait(30 * SECOND);
    let probe = rig.admit().unwrap();
    assert_eq!(rig.end(probe, Outcome::Failure).unwrap().to, Phase::Open);
    assert_eq!(rig.admit(), Err(RejectionCode::CircuitOpen));
}

#[test]
fn a_probe_that_is_cancelled_or_neutral_gives_its_lease_back() {
    let mut rig = Rig::new(ratio());
    rig.trip();
    rig.wait(30 * SECOND);
    for outcome in [Outcome::Cancelled, Outcome::Neutral] {
        let probe = rig.admit().unwrap();
        assert_eq!(rig.end(probe, outcome), None);
        assert_eq!(rig.phase(), Phase::HalfOpen);
    }
    assert!(rig.admit().is_ok());
}

#[test]
fn a_lost_probe_is_replaced_when_its_lease_expires() {
    let mut rig = Rig::new(ratio().probe_lease(2 * SECOND));
    rig.trip();
    rig.wait(30 * SECOND);
    let lost = rig.admit().unwrap();
    rig.wait(2 * SECOND);
    let next = rig.admit().unwrap();
    assert_eq!(rig.end(lost, Outcome::Failure), None, "it was replaced");
    assert_eq!(rig.end(next, Outcome::Success).unwrap().to, Phase::Closed);
}

#[test]
fn a_probe_that_ends_after_its_lease_still_counts_unless_it_was_replaced() {
    let mut rig = Rig::new(ratio().probe_lease(2 * SECOND));
    rig.trip();
    rig.wait(30 * SECOND);
    let late = rig.admit().unwrap();
    rig.wait(60 * SECOND);
    assert_eq!(rig.end(late, Outcome::Success).unwrap().to, Phase::Closed);
}

#[test]
fn a_success_from_before_the_trip_does_not_close_a_half_open_circuit() {
    let mut rig = Rig::new(ratio());
    let early = rig.admit().unwrap();
    rig.trip();
    assert_eq!(rig.end(early, Outcome::Success), None);
    rig.wait(30 * SECOND);
    let probe = rig.admit().unwrap();
    assert_eq!(rig.end(early, Outcome::Success), None);
    assert_eq!(rig.phase(), Phase::HalfOpen);
    rig.end(probe, Outcome::Success);
    assert_eq!(rig.end(early, Outcome::Failure), None);
    assert_eq!(rig.breaker.inspect(rig.now).failures, 0);
}

#[test]
fn a_failure_while_open_does_not_prolong_the_break() {
    let mut rig = Rig::new(ratio());
    let early = rig.admit().unwrap();
    rig.trip();
    rig.wait(29 * SECOND);
    assert_eq!(rig.end(early, Outcome::Failure), None);
    rig.wait(SECOND);
    assert!(rig.admit().is_ok());
}

#[test]
fn several_probes_at_a_time_and_several_successes_can_be_required() {
    let mut rig = Rig::new(ratio().probes(2, 3));
    rig.trip();
    rig.wait(30 * SECOND);
    let (a, b) = (rig.admit().unwrap(), rig.admit().unwrap());
    assert_eq!(rig.admit(), Err(RejectionCode::ProbeQuota));
    assert_eq!(rig.end(a, Outcome::Success), None);
    assert_eq!(rig.end(a, Outcome::Success), None, "settled once");
    assert_eq!(rig.end(b, Outcome::Success), None);
    let c = rig.admit().unwrap();
    assert_eq!(rig.end(c, Outcome::Success).unwrap().to, Phase::Closed);
}

#[test]
fn breaks_grow_on_trips_in_a_row_and_start_over_after_a_quiet_window() {
    let mut rig = Rig::new(ratio().escalate(2.0, 100 * SECOND));
    let mut breaks = vec![rig.trip().break_for.unwrap()];
    for _ in 0..3 {
        rig.wait(breaks.last().copied().unwrap());
        let reopened = rig.call(Outcome::Failure).unwrap();
        breaks.push(reopened.break_for.unwrap());
    }
    assert_eq!(breaks, [30, 60, 100, 100].map(|seconds| seconds * SECOND));
    rig.wait(100 * SECOND);
    rig.call(Outcome::Success);
    assert_eq!(rig.trip().break_for, Some(100 * SECOND), "it was closed for less than a window");
    rig.wait(100 * SECOND);
    rig.call(Outcome::Success);
    rig.wait(10 * SECOND);
    assert_eq!(rig.trip().break_for, Some(30 * SECOND), "it was closed for a whole window");
}

#[test]
fn a_jittered_break_is_longer_by_at_most_its_share() {
    let mut rig = Rig::new(ratio().jitter(0.2));
    assert_eq!(rig.trip().break_for, Some(33 * SECOND)); // the random number is 0.5
}

#[test]
fn a_ramp_admits_a_growing_share_in_steps() {
    let mut rig = Rig::new(ratio().ramp(8 * SECOND, 4));
    rig.trip();
    rig.wait(30 * SECOND);
    rig.call(Outcome::Success);
    let mut shares = Vec::new();
    for _ in 0..5 {
        shares.push((0..100).filter(|_| rig.admit().is_ok()).count());
        rig.wait(2 * SECOND);
    }
    assert_eq!(shares, [20, 40, 60, 80, 100]);
    assert!(rig.breaker.admits_all());
}

#[test]
fn an_override_takes_precedence_over_the_phase() {
    let mut rig = Rig::new(ratio());
    rig.breaker.force(Some(Override::Open));
    assert_eq!(rig.admit(), Err(RejectionCode::ForcedOpen));

    rig.breaker.force(Some(Override::Closed));
    for _ in 0..50 {
        assert_eq!(rig.call(Outcome::Failure), None);
    }
    assert_eq!(rig.breaker.inspect(rig.now).failures, 50);

    rig.breaker.force(Some(Override::Disabled));
    rig.call(Outcome::Failure);
    assert_eq!(rig.breaker.inspect(rig.now).failures, 50);

    rig.breaker.force(Some(Override::MetricsOnly));
    assert_eq!(rig.call(Outcome::Failure).unwrap().to, Phase::Open);
    assert!(rig.admit().is_ok(), "its phase is open, and it still admits");

    rig.breaker.force(None);
    assert_eq!(rig.admit(), Err(RejectionCode::CircuitOpen));
}

#[test]
fn a_quantile_from_before_the_trip_does_not_open_a_circuit_that_has_just_closed() {
    let mut rig = Rig::new(BreakerSpec::latency(0.95, SECOND, Duration::ZERO).break_for(SECOND));
    let observe = |rig: &mut Rig| rig.breaker.observe_quantile(rig.now, &rig.spec, Some(2 * SECOND), 0.0);
    assert!(observe(&mut rig).is_some());
    rig.wait(SECOND);
    rig.call(Outcome::Success);
    assert_eq!((rig.phase(), observe(&mut rig)), (Phase::Closed, None));
    rig.wait(10 * SECOND);
    assert!(observe(&mut rig).is_some(), "a window later it counts");
}

#[test]
fn an_unknown_quantile_changes_nothing_but_a_window_without_any_ends_the_period() {
    let mut rig = Rig::new(BreakerSpec::latency(0.95, SECOND, 12 * SECOND));
    let observe = |rig: &mut Rig, value| rig.breaker.observe_quantile(rig.now, &rig.spec, value, 0.0);
    for _ in 0..2 {
        assert_eq!(observe(&mut rig, Some(2 * SECOND)), None);
        rig.wait(10 * SECOND + Duration::from_micros(1));
    }
    assert_eq!(observe(&mut rig, Some(2 * SECOND)), None, "the period begins anew");
    for _ in 0..2 {
        rig.wait(6 * SECOND);
        assert_eq!(observe(&mut rig, None), None);
    }
    rig.wait(Duration::ZERO);
    assert_eq!(observe(&mut rig, Some(2 * SECOND)), None, "twelve seconds without a known quantile");
    rig.wait(6 * SECOND);
    assert_eq!(observe(&mut rig, Some(2 * SECOND)), None);
    rig.wait(6 * SECOND);
    assert_eq!(observe(&mut rig, Some(2 * SECOND)).unwrap().to, Phase::Open);
}

#[test]
fn an_override_ends_by_itself() {
    let mut rig = Rig::new(ratio());
    rig.breaker.force_until(Some(Override::Open), rig.now.after(SECOND));
    assert_eq!(rig.admit(), Err(RejectionCode::ForcedOpen));
    rig.wait(SECOND);
    assert_eq!(rig.breaker.inspect(rig.now).overridden, None);
    assert!(rig.admit().is_ok());
    assert_eq!(rig.breaker.overridden(), None);
}

#[test]
fn a_high_quantile_does_not_trip_under_an_override() {
    let mut rig = Rig::new(BreakerSpec::latency(0.95, SECOND, Duration::ZERO));
    for overridden in [Override::Closed, Override::Disabled] {
        rig.breaker.force(Some(overridden));
        assert_eq!(rig.breaker.observe_quantile(rig.now, &rig.spec, Some(2 * SECOND), 0.0), None);
    }
    rig.breaker.force(None);
    assert!(rig.breaker.observe_quantile(rig.now, &rig.spec, Some(2 * SECOND), 0.0).is_some());
}

#[test]
fn a_trip_reports_the_counts_of_the_window() {
    let mut rig = Rig::new(ratio());
    for _ in 0..4 {
        rig.call(Outcome::Success);
    }
    let seen = rig.trip().seen;
    assert_eq!((seen.calls, seen.failures), (10, 6));
}

#[test]
fn a_reset_circuit_is_as_new_and_old_tickets_are_void() {
    let mut rig = Rig::new(ratio());
    let early = rig.admit().unwrap();
    rig.trip();
    assert_eq!(rig.breaker.reset(rig.now, &rig.spec).unwrap().to, Phase::Closed);
    assert_eq!(rig.end(early, Outcome::Failure), None);
    assert!(rig.breaker.is_fresh(rig.now));
}

#[test]
fn a_new_threshold_and_a_new_window_keep_the_counts() {
    let mut rig = Rig::new(ratio());
    rig.call(Outcome::Failure);
    let stricter = BreakerSpec { failure_ratio: Some(0.1), ..ratio() };
    rig.breaker.retune(&stricter);
    assert_eq!(rig.breaker.inspect(rig.now).failures, 1);
    rig.breaker.retune(&ratio().window(20 * SECOND));
    assert_eq!(rig.breaker.inspect(rig.now).failures, 1);
}

#[test]
fn successes_counted_elsewhere_fall_into_their_slice_and_end_a_streak() {
    let mut rig = Rig::new(BreakerSpec::consecutive_failures(2));
    rig.call(Outcome::Failure);
    let slice = rig.now.as_micros() / 1_000_000;
    rig.breaker.record_successes(rig.now, &rig.spec, 1, slice, 5);
    assert_eq!(rig.call(Outcome::Failure), None, "not two in a row");
    rig.breaker.record_successes(rig.now, &rig.spec, 1, slice - 20, 5);
    rig.breaker.record_successes(rig.now, &rig.spec, 7, slice, 5);
    assert_eq!(rig.breaker.inspect(rig.now).calls, 7, "too old or of another epoch: not counted");
}
