//! Cases of `BreakerStore::breaker`: resolving the breaker of a key.

use super::*;

pub async fn a_new_circuit_is_closed<B: Bed>() {
    let fleet = Fleet::<B>::new(&brittle()).await;
    fleet.assert_view(FRESH).await;
    for replica in [&fleet.one, &fleet.two] {
        let answer = replica.ask().await;
        let ticket = Ticket { epoch: FIRST_CLOSED, lease: None };
        assert_eq!((answer.admitted, answer.transition), (Ok(ticket), None));
    }
}

pub async fn the_same_key_is_the_same_circuit<B: Bed>() {
    let spec = BreakerSpec::consecutive_failures(2).break_for(BREAK);
    let fleet = Fleet::<B>::new(&spec).await;
    fleet.call(&fleet.one, Outcome::Failure, None).await;
    fleet.assert_view(BreakerView { calls: 1, failures: 1, streak: 1, ..FRESH }).await;
    fleet.call(&fleet.two, Outcome::Failure, TRIPPED).await;
    let latecomer = Replica::new(&fleet.bed, &StateKey::new("payments", "eu"), &spec);
    fleet.bed.sync_all().await;
    for replica in [&fleet.one, &fleet.two, &latecomer] {
        assert_eq!(replica.admit().await, Err(circuit_open(BREAK)));
    }
}

pub async fn different_keys_never_share_a_circuit<B: Bed>() {
    let bed = B::new().await;
    let circuits = keys_that_look_alike().map(|key| Replica::new(&bed, &key, &brittle()));
    // Each is fresh although all earlier ones tripped, and none is closed by a later one.
    for circuit in &circuits {
        assert_eq!(circuit.view().await, FRESH);
        let sample = Sample { outcome: Outcome::Failure, latency: QUICK };
        let (ticket, now) = (circuit.admitted().await, circuit.store.clock().now());
        circuit.store.record(&circuit.circuit, now, ticket, sample);
        bed.sync_all().await;
    }
    for circuit in &circuits {
        assert_eq!(circuit.admit().await, Err(circuit_open(BREAK)));
        assert_eq!(circuit.view().await.epoch, FIRST_OPEN);
    }
}

pub async fn another_threshold_reaches_a_living_circuit<B: Bed>() {
    let patient = BreakerSpec::consecutive_failures(5).window(WINDOW).break_for(BREAK);
    let fleet = Fleet::<B>::new(&patient).await;
    fleet.calls(2, Outcome::Failure).await;
    fleet.retune(&BreakerSpec { consecutive_failures: Some(3), break_duration: 2 * BREAK, ..patient }).await;
    fleet.assert_view(BreakerView { calls: 2, failures: 2, streak: 2, ..FRESH }).await;
    let tripped = opening(Phase::Closed, FIRST_OPEN, 2 * BREAK);
    fleet.call(&fleet.one, Outcome::Failure, tripped).await;
    assert_eq!(fleet.two.admit().await, Err(circuit_open(2 * BREAK)));
}

pub async fn another_window_keeps_what_was_counted<B: Bed>() {
    let patient = BreakerSpec::consecutive_failures(5).window(WINDOW).break_for(BREAK);
    let fleet = Fleet::<B>::new(&patient).await;
    fleet.calls(2, Outcome::Failure).await;
    let counted = BreakerView { calls: 2, failures: 2, streak: 2, ..FRESH };
    for window in [2 * WINDOW, WINDOW, 3 * WINDOW] {
        fleet.retune(&patient.clone().window(window)).await;
        fleet.assert_view(counted).await;
    }
    fleet.advance(4 * WINDOW).await;
    fleet.assert_view(BreakerView { streak: 2, ..FRESH }).await;
}
