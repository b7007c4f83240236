//! Cases of `BreakerStore::force`, `reset`, `inspect` and `cached_phase`.

use super::*;

/// Trips on the first failure, and on any latency above a second.
fn nervous() -> BreakerSpec {
    brittle().or_latency(0.95, SECOND, Duration::ZERO)
}

pub async fn forced_open_rejects_everything<B: Bed>() {
    let fleet = Fleet::<B>::new(&brittle()).await;
    let early = fleet.two.admitted().await;
    fleet.force(&fleet.one, Some(Override::Open)).await;
    for _ in 0..3 {
        for replica in [&fleet.one, &fleet.two] {
            assert_eq!(replica.admit().await, Err((RejectionCode::ForcedOpen, None)));
            assert_eq!(replica.ask().await.source, Source::Forced);
        }
        fleet.advance(BREAK).await;
    }
    fleet.assert_view(BreakerView { overridden: Some(Override::Open), ..FRESH }).await;
    // The phase keeps changing below the override, and is visible once the override is released.
    fleet.end(&fleet.two, early, Outcome::Failure, TRIPPED).await;
    assert_eq!(fleet.one.admit().await, Err((RejectionCode::ForcedOpen, None)));
    fleet.force(&fleet.two, None).await;
    assert_eq!(fleet.one.admit().await, Err(circuit_open(BREAK)));
}

pub async fn forced_closed_admits_everything_and_never_trips<B: Bed>() {
    let fleet = Fleet::<B>::new(&nervous()).await;
    fleet.force(&fleet.one, Some(Override::Closed)).await;
    fleet.calls(50, Outcome::Failure).await;
    let counted = BreakerView { calls: 50, failures: 50, streak: 50, ..FRESH };
    fleet.assert_view(BreakerView { overridden: Some(Override::Closed), ..counted }).await;
    fleet.quantile(&fleet.two, Some(60 * SECOND), None).await;
    fleet.assert_phase(Phase::Closed, FIRST_CLOSED).await;
    fleet.force(&fleet.two, None).await;
    fleet.call(&fleet.one, Outcome::Failure, TRIPPED).await;
    // It also admits while the phase below is open.
    fleet.force(&fleet.two, Some(Override::Closed)).await;
    fleet.calls(4, Outcome::Failure).await;
    fleet.assert_phase(Phase::Open, FIRST_OPEN).await;
    assert_eq!(fleet.one.view().await.break_left, Some(BREAK));
}

pub async fn disabled_counts_nothing<B: Bed>() {
    let fleet = Fleet::<B>::new(&BreakerSpec::consecutive_failures(2).or_latency(0.95, SECOND, Duration::ZERO)).await;
    fleet.call(&fleet.one, Outcome::Failure, None).await;
    fleet.force(&fleet.one, Some(Override::Disabled)).await;
    let counted = BreakerView { calls: 1, failures: 1, streak: 1, ..FRESH };
    for outcome in [Outcome::Failure, Outcome::Success, Outcome::Failure] {
        fleet.calls(4, outcome).await;
        fleet.assert_view(BreakerView { overridden: Some(Override::Disabled), ..counted }).await;
    }
    fleet.quantile(&fleet.two, Some(60 * SECOND), None).await;
    fleet.force(&fleet.two, None).await;
    fleet.assert_view(counted).await;
    fleet.call(&fleet.two, Outcome::Failure, TRIPPED).await;
}

pub async fn metrics_only_admits_everything_and_still_changes_phase<B: Bed>() {
    let fleet = Fleet::<B>::new(&brittle()).await;
    fleet.force(&fleet.one, Some(Override::MetricsOnly)).await;
    fleet.call(&fleet.two, Outcome::Failure, TRIPPED).await;
    // Calls that would have been rejected are admitted, and their successes do not close the circuit.
    fleet.calls(4, Outcome::Success).await;
    fleet.assert_phase(Phase::Open, FIRST_OPEN).await;
    fleet.advance(BREAK).await;
    let probe = fleet.one.ask().await;
    assert_eq!(probe.transition, change(Phase::Open, Phase::HalfOpen, FIRST_HALF_OPEN));
    fleet.bed.sync_all().await;
    let probe = probe.admitted.expect("admitted");
    let beside_it = fleet.two.admitted().await;
    assert_eq!(beside_it, Ticket { epoch: FIRST_HALF_OPEN, lease: None });
    fleet.end(&fleet.two, beside_it, Outcome::Failure, None).await;
    let closed = change(Phase::HalfOpen, Phase::Closed, SECOND_CLOSED);
    fleet.end(&fleet.one, probe, Outcome::Success, closed).await;
    let overridden = Some(Override::MetricsOnly);
    fleet.assert_view(BreakerView { overridden, epoch: SECOND_CLOSED, ..FRESH }).await;
}

pub async fn a_reset_circuit_is_closed_and_old_tickets_are_void<B: Bed>() {
    let fleet = Fleet::<B>::new(&brittle().escalate(2.0, 600 * SECOND).ramp(8 * SECOND, 4)).await;
    let early = fleet.one.admitted().await;
    fleet.call(&fleet.two, Outcome::Failure, TRIPPED).await;
    let closed = change(Phase::Open, Phase::Closed, FIRST_OPEN + 1);
    assert_eq!(fleet.reset(&fleet.one).await, closed);
    fleet.assert_view(BreakerView { epoch: FIRST_OPEN + 1, ..FRESH }).await;
    fleet.end(&fleet.one, early, Outcome::Failure, None).await;
    fleet.assert_view(BreakerView { epoch: FIRST_OPEN + 1, ..FRESH }).await;
    // No ramp and no escalation are left: all calls are admitted, and the next break has its initial length.
    let mut last = fleet.one.admitted().await;
    for replica in [&fleet.two, &fleet.one, &fleet.two] {
        last = replica.admitted().await;
    }
    // Resetting a closed circuit causes no transition, but voids its tickets too.
    assert_eq!(fleet.reset(&fleet.two).await, None);
    fleet.end(&fleet.one, last, Outcome::Failure, None).await;
    fleet.assert_phase(Phase::Closed, FIRST_OPEN + 2).await;
    fleet.call(&fleet.one, Outcome::Failure, opening(Phase::Closed, FIRST_OPEN + 3, BREAK)).await;
}

pub async fn an_inspection_returns_the_counts<B: Bed>() {
    let spec = ratio().or_slow_call_ratio(0.9, SECOND).probes(2, 2).probe_lease(5 * SECOND);
    let fleet = Fleet::<B>::new(&spec).await;
    fleet.calls(5, Outcome::Success).await;
    let ticket = fleet.two.admitted().await;
    fleet.end_after(&fleet.two, ticket, Outcome::Success, SECOND, None).await;
    fleet.calls(3, Outcome::Failure).await;
    let seen = BreakerView { calls: 9, failures: 3, slow: 1, streak: 3, ..FRESH };
    fleet.assert_view(seen).await;
    fleet.assert_view(seen).await;
    fleet.advance(WINDOW).await;
    fleet.assert_view(BreakerView { streak: 3, ..FRESH }).await;
    fleet.calls(9, Outcome::Failure).await;
    fleet.call(&fleet.one, Outcome::Failure, TRIPPED).await;
    fleet.advance(SECOND).await;
    let break_left = Some(BREAK - SECOND);
    let open = BreakerView { phase: Phase::Open, epoch: FIRST_OPEN, break_left, ..FRESH };
    fleet.assert_view(open).await;
    // `inspect` does not end a break; `admit` does.
    fleet.advance(BREAK).await;
    fleet.assert_view(BreakerView { break_left: Some(Duration::ZERO), ..open }).await;
    fleet.one.admitted().await;
    fleet.two.admitted().await;
    let half_open = BreakerView { phase: Phase::HalfOpen, epoch: FIRST_HALF_OPEN, ..FRESH };
    fleet.assert_view(BreakerView { probes: 2, ..half_open }).await;
    fleet.advance(5 * SECOND).await;
    fleet.assert_view(half_open).await;
}

pub async fn the_cached_phase_comes_with_the_override<B: Bed>() {
    let fleet = Fleet::<B>::new(&brittle()).await;
    let assert_cached = |phase, overridden| {
        for replica in [&fleet.one, &fleet.two] {
            assert_eq!(replica.store.cached_phase(&replica.circuit), (phase, overridden));
        }
    };
    assert_cached(Phase::Closed, None);
    let ticket = fleet.one.admitted().await;
    let failed = Sample { outcome: Outcome::Failure, latency: QUICK };
    fleet.one.store.record(&fleet.one.circuit, fleet.one.store.clock().now(), ticket, failed);
    fleet.bed.sync_all().await;
    assert_cached(Phase::Open, None);
    fleet.force(&fleet.two, Some(Override::Closed)).await;
    assert_cached(Phase::Open, Some(Override::Closed));
    fleet.force(&fleet.one, None).await;
    fleet.advance(BREAK).await;
    let probe = fleet.two.admitted().await;
    fleet.bed.sync_all().await;
    assert_cached(Phase::HalfOpen, None);
    // A replica that joins later has the phase after its first call.
    let three = Replica::new(&fleet.bed, &fleet.key, &brittle());
    assert_eq!(three.admit().await, Err(PROBE_QUOTA));
    assert_eq!(three.store.cached_phase(&three.circuit), (Phase::HalfOpen, None));
    fleet.two.store.record(
        &fleet.two.circuit,
        fleet.two.store.clock().now(),
        probe,
        Sample { outcome: Outcome::Success, latency: QUICK },
    );
    fleet.bed.sync_all().await;
    assert_cached(Phase::Closed, None);
}
