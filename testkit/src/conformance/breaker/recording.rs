//! Cases of `BreakerStore::record` on an open or half-open circuit.

use super::*;

pub async fn a_cancelled_probe_gives_its_lease_back<B: Bed>() {
    let (fleet, mut probe) = Fleet::<B>::probing(&brittle()).await;
    // A neutral outcome is no evidence about the dependency, like a cancelled one.
    for outcome in [Outcome::Cancelled, Outcome::Neutral] {
        assert_eq!(fleet.two.admit().await, Err(PROBE_QUOTA));
        fleet.end(&fleet.one, probe, outcome, None).await;
        fleet.assert_phase(Phase::HalfOpen, FIRST_HALF_OPEN).await;
        assert_eq!(fleet.two.view().await.probes, 0);
        probe = fleet.two.admitted().await;
    }
    let closed = change(Phase::HalfOpen, Phase::Closed, SECOND_CLOSED);
    fleet.end(&fleet.two, probe, Outcome::Success, closed).await;
}

pub async fn a_probe_that_succeeds_closes_the_circuit<B: Bed>() {
    let (fleet, first) = Fleet::<B>::probing(&brittle().probes(1, 2)).await;
    fleet.end(&fleet.one, first, Outcome::Success, None).await;
    fleet.end(&fleet.one, first, Outcome::Success, None).await;
    fleet.assert_phase(Phase::HalfOpen, FIRST_HALF_OPEN).await;
    let second = fleet.two.admitted().await;
    let closed = change(Phase::HalfOpen, Phase::Closed, SECOND_CLOSED);
    fleet.end(&fleet.two, second, Outcome::Success, closed).await;
    fleet.assert_view(BreakerView { epoch: SECOND_CLOSED, ..FRESH }).await;
    for replica in [&fleet.one, &fleet.two, &fleet.one] {
        assert_eq!(replica.admit().await, Ok(Ticket { epoch: SECOND_CLOSED, lease: None }));
    }
}

pub async fn a_probe_that_fails_opens_it_again<B: Bed>() {
    let (fleet, good) = Fleet::<B>::probing(&brittle().probes(2, 2)).await;
    let bad = fleet.two.admitted().await;
    fleet.end(&fleet.one, good, Outcome::Success, None).await;
    fleet.advance(SECOND).await;
    let reopened = opening(Phase::HalfOpen, FIRST_HALF_OPEN + 1, BREAK);
    fleet.end(&fleet.two, bad, Outcome::Failure, reopened).await;
    assert_eq!(fleet.one.admit().await, Err(circuit_open(BREAK)), "a full break, starting now");
    fleet.advance(BREAK).await;
    let again = fleet.one.ask().await;
    assert_eq!(again.transition, change(Phase::Open, Phase::HalfOpen, FIRST_HALF_OPEN + 2));
    assert_eq!(fleet.two.view().await.probes, 1);
}

pub async fn a_late_outcome_of_an_earlier_epoch_changes_nothing<B: Bed>() {
    let fleet = Fleet::<B>::new(&brittle().probes(1, 1)).await;
    let early = [fleet.one.admitted().await, fleet.two.admitted().await, fleet.one.admitted().await];
    fleet.call(&fleet.two, Outcome::Failure, TRIPPED).await;
    fleet.end(&fleet.one, early[0], Outcome::Success, None).await;
    fleet.assert_phase(Phase::Open, FIRST_OPEN).await;
    fleet.advance(BREAK).await;
    let probe = fleet.two.admitted().await;
    fleet.end(&fleet.two, early[1], Outcome::Success, None).await;
    fleet.end(&fleet.one, early[2], Outcome::Failure, None).await;
    fleet.assert_phase(Phase::HalfOpen, FIRST_HALF_OPEN).await;
    assert_eq!(fleet.one.view().await.probes, 1);
    let closed = change(Phase::HalfOpen, Phase::Closed, SECOND_CLOSED);
    fleet.end(&fleet.two, probe, Outcome::Success, closed).await;
    for stale in [early[0], probe] {
        fleet.end(&fleet.one, stale, Outcome::Failure, None).await;
    }
    fleet.assert_view(BreakerView { epoch: SECOND_CLOSED, ..FRESH }).await;
}

pub async fn a_failure_while_open_does_not_prolong_the_break<B: Bed>() {
    let fleet = Fleet::<B>::new(&brittle().escalate(2.0, 600 * SECOND)).await;
    let early = [fleet.one.admitted().await, fleet.two.admitted().await];
    fleet.call(&fleet.two, Outcome::Failure, TRIPPED).await;
    fleet.advance(BREAK - MICRO).await;
    fleet.end(&fleet.one, early[0], Outcome::Failure, None).await;
    fleet.end(&fleet.two, early[1], Outcome::Failure, None).await;
    assert_eq!(fleet.two.view().await.break_left, Some(MICRO));
    assert_eq!(fleet.one.admit().await, Err(circuit_open(MICRO)));
    fleet.advance(MICRO).await;
    let probe = fleet.one.admitted().await;
    // Nor do they count as trips that escalate the next break.
    let reopened = opening(Phase::HalfOpen, FIRST_HALF_OPEN + 1, 2 * BREAK);
    fleet.end(&fleet.one, probe, Outcome::Failure, reopened).await;
}

pub async fn breaks_grow_on_trips_in_a_row<B: Bed>() {
    let fleet = Fleet::<B>::tripped(&brittle().escalate(2.0, 100 * SECOND)).await;
    let (mut epoch, mut wait) = (FIRST_OPEN, BREAK);
    for seconds in [60, 100, 100] {
        fleet.advance(wait).await;
        (epoch, wait) = (epoch + 2, seconds * SECOND);
        fleet.call(&fleet.two, Outcome::Failure, opening(Phase::HalfOpen, epoch, wait)).await;
        assert_eq!(fleet.one.admit().await, Err(circuit_open(wait)));
    }
    // Closed for less than a window: the next trip still escalates. Closed for a whole window: escalation starts over.
    for (held, seconds) in [(WINDOW - MICRO, 100), (WINDOW, 30)] {
        fleet.advance(wait).await;
        fleet.call(&fleet.one, Outcome::Success, change(Phase::HalfOpen, Phase::Closed, epoch + 2)).await;
        fleet.advance(held).await;
        (epoch, wait) = (epoch + 3, seconds * SECOND);
        fleet.call(&fleet.two, Outcome::Failure, opening(Phase::Closed, epoch, wait)).await;
    }
}
