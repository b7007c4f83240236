//! A clock that steps back, a store that has lost the breaker, a spec that changes during a break.

use super::*;

impl Rig {
    fn back(&mut self, by: Duration) {
        self.now = Time::from_micros(self.now.as_micros() - by.as_micros() as u64);
    }

    fn break_left(&mut self) -> Duration {
        self.breaker.inspect(self.now).break_left.expect("open")
    }
}

#[test]
fn a_small_step_back_is_a_standstill() {
    let mut rig = Rig::new(ratio());
    rig.trip();
    rig.wait(29 * SECOND);
    assert_eq!(rig.admit(), Err(RejectionCode::CircuitOpen));
    let mut rig = Rig::new(ratio().probe_lease(SECOND));
    rig.trip();
    rig.wait(30 * SECOND);
    let probe = rig.admit().unwrap();
    rig.back(SECOND);
    assert_eq!(rig.admit(), Err(RejectionCode::ProbeQuota));
    assert_eq!(rig.end(probe, Outcome::Success).unwrap().to, Phase::Closed);
    assert_eq!(rig.breaker.at().since(rig.now), SECOND, "it closed at the latest time it had seen");
}

#[test]
fn a_large_step_back_moves_the_break_along_with_the_clock() {
    let mut rig = Rig::new(ratio());
    rig.wait(3_600 * SECOND);
    rig.trip();
    rig.back(3_600 * SECOND);
    assert_eq!(rig.break_left(), 30 * SECOND, "inspecting moves nothing");
    assert_eq!(rig.admit(), Err(RejectionCode::CircuitOpen));
    rig.wait(30 * SECOND - Duration::from_micros(1));
    assert_eq!(rig.admit(), Err(RejectionCode::CircuitOpen));
    rig.wait(Duration::from_micros(1));
    assert!(rig.admit().is_ok());
}

#[test]
fn a_large_step_back_moves_leases_and_forgets_the_window() {
    let mut rig = Rig::new(ratio().probe_lease(2 * SECOND));
    rig.trip();
    rig.wait(30 * SECOND);
    rig.admit().unwrap();
    rig.back(60 * SECOND);
    assert_eq!(rig.admit(), Err(RejectionCode::ProbeQuota));
    rig.wait(2 * SECOND);
    assert!(rig.admit().is_ok(), "the lease expired");

    let mut rig = Rig::new(ratio());
    for _ in 0..9 {
        rig.call(Outcome::Failure);
    }
    rig.back(60 * SECOND);
    assert_eq!(rig.call(Outcome::Failure), None);
    assert_eq!(rig.breaker.inspect(rig.now).failures, 1);
}

#[test]
fn a_shorter_break_in_the_spec_cuts_the_current_break() {
    let mut rig = Rig::new(ratio());
    rig.trip();
    let shorter = ratio().break_for(4 * SECOND).escalate(2.0, 8 * SECOND).jitter(0.5);
    rig.breaker.retune(&shorter);
    assert_eq!(rig.break_left(), 12 * SECOND);
    rig.breaker.retune(&ratio());
    assert_eq!(rig.break_left(), 12 * SECOND, "and none is prolonged");
}

#[test]
fn a_restored_breaker_continues_from_the_last_known_state() {
    let (spec, now) = (ratio().escalate(2.0, 60 * SECOND), Time::from_micros(1_000_000_000));
    let restore = |phase, left| {
        let overridden = Some(Override::MetricsOnly);
        let last = LastState { epoch: 7, phase, left, age: 3 * SECOND, escalation: 2, overridden };
        Breaker::restore(now, &spec, &last)
    };
    let open = restore(Phase::Open, 5 * SECOND);
    assert_eq!((open.phase(), open.epoch(), open.escalation()), (Phase::Open, 7, 2));
    assert_eq!(open.overridden(), Some(Override::MetricsOnly));
    assert_eq!(open.inspect(now).break_left, Some(5 * SECOND));
    let absurd = restore(Phase::Open, Duration::MAX);
    assert_eq!(absurd.inspect(now).break_left, Some(60 * SECOND));
    let half_open = restore(Phase::HalfOpen, 5 * SECOND);
    assert_eq!((half_open.phase(), half_open.inspect(now).break_left), (Phase::Open, Some(Duration::ZERO)));
    assert_eq!(restore(Phase::Closed, 5 * SECOND).phase(), Phase::Closed);
}

#[test]
fn a_restored_breaker_has_been_closed_for_as_long_as_was_known() {
    let spec = BreakerSpec::latency(0.9, SECOND, Duration::ZERO).escalate(2.0, 600 * SECOND);
    let now = Time::from_micros(1_000_000_000);
    for (age, trips, escalation) in [(9 * SECOND, false, 2), (10 * SECOND, true, 1)] {
        let last =
            LastState { epoch: 7, phase: Phase::Closed, left: Duration::ZERO, age, escalation: 2, overridden: None };
        let mut breaker = Breaker::restore(now, &spec, &last);
        let tripped = breaker.observe_quantile(now, &spec, Some(2 * SECOND), 0.0);
        assert_eq!((tripped.is_some(), breaker.escalation()), (trips, escalation), "closed for {age:?}");
    }
}

#[test]
fn a_rejection_forgets_no_lease() {
    let mut rig = Rig::new(ratio().probes(2, 1).probe_lease(2 * SECOND));
    rig.trip();
    rig.wait(30 * SECOND);
    let early = rig.admit().unwrap();
    rig.wait(SECOND);
    rig.admit().unwrap();
    rig.wait(SECOND);
    let fewer = ratio().probes(1, 1).probe_lease(2 * SECOND);
    rig.breaker.retune(&fewer);
    rig.spec = fewer;
    assert_eq!(rig.admit(), Err(RejectionCode::ProbeQuota));
    assert_eq!(rig.end(early, Outcome::Success).unwrap().to, Phase::Closed, "it was not replaced");
}
