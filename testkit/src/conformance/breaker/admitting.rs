//! Cases of `BreakerStore::admit`.

use super::*;

pub async fn an_open_circuit_rejects_and_names_the_end_of_the_break<B: Bed>() {
    let fleet = Fleet::<B>::tripped(&brittle()).await;
    for replica in [&fleet.one, &fleet.two] {
        let answer = replica.ask().await;
        assert_eq!((answer.admitted, answer.transition), (Err(circuit_open(BREAK)), None));
    }
    fleet.advance(10 * SECOND + MICRO).await;
    assert_eq!(fleet.one.admit().await, Err(circuit_open(20 * SECOND - MICRO)));
    fleet.advance(20 * SECOND - 2 * MICRO).await;
    assert_eq!(fleet.two.admit().await, Err(circuit_open(MICRO)));
    fleet.assert_phase(Phase::Open, FIRST_OPEN).await;
    fleet.advance(MICRO).await;
    assert!(fleet.two.admit().await.is_ok(), "admitted when the reported break is over");
}

pub async fn after_the_break_the_allowed_number_of_probes_passes<B: Bed>() {
    let fleet = Fleet::<B>::tripped(&brittle().probes(3, 3)).await;
    fleet.advance(BREAK).await;
    let first = fleet.one.ask().await;
    assert_eq!(first.transition, change(Phase::Open, Phase::HalfOpen, FIRST_HALF_OPEN));
    fleet.bed.sync_all().await;
    let mut leases = Vec::new();
    for ticket in [first.admitted, fleet.two.admit().await, fleet.one.admit().await] {
        let ticket = ticket.expect("admitted");
        assert_eq!(ticket.epoch, FIRST_HALF_OPEN);
        leases.push(ticket.lease.expect("a probe holds a lease"));
    }
    leases.sort_unstable();
    leases.dedup();
    assert_eq!(leases.len(), 3, "leases are distinct");
    for replica in [&fleet.one, &fleet.two] {
        let answer = replica.ask().await;
        assert_eq!((answer.admitted, answer.transition), (Err(PROBE_QUOTA), None));
        assert_eq!(replica.view().await.probes, 3);
    }
}

pub async fn a_lost_probe_is_replaced_when_its_lease_expires<B: Bed>() {
    let (fleet, lost) = Fleet::<B>::probing(&brittle().probe_lease(2 * SECOND)).await;
    fleet.advance(2 * SECOND - MICRO).await;
    assert_eq!(fleet.two.admit().await, Err(PROBE_QUOTA));
    assert_eq!(fleet.two.view().await.probes, 1);
    fleet.advance(MICRO).await;
    assert_eq!(fleet.two.view().await.probes, 0);
    let next = fleet.two.admitted().await;
    assert_eq!(fleet.one.admit().await, Err(PROBE_QUOTA));
    // The lost probe ends after its lease expired: it neither opens the circuit nor frees the new probe's slot.
    fleet.end(&fleet.one, lost, Outcome::Failure, None).await;
    fleet.assert_phase(Phase::HalfOpen, FIRST_HALF_OPEN).await;
    assert_eq!(fleet.one.admit().await, Err(PROBE_QUOTA));
    let closed = change(Phase::HalfOpen, Phase::Closed, SECOND_CLOSED);
    fleet.end(&fleet.two, next, Outcome::Success, closed).await;
}

pub async fn a_ramp_admits_a_growing_share<B: Bed>() {
    let (fleet, probe) = Fleet::<B>::probing(&brittle().ramp(8 * SECOND, 4)).await;
    let closed = change(Phase::HalfOpen, Phase::Closed, SECOND_CLOSED);
    fleet.end(&fleet.one, probe, Outcome::Success, closed).await;
    for share in [20, 40, 60, 80, 100] {
        let mut admitted = 0;
        for replica in [&fleet.one, &fleet.two].into_iter().cycle().take(100) {
            match replica.admit().await {
                Ok(ticket) => {
                    assert_eq!(ticket, Ticket { epoch: SECOND_CLOSED, lease: None });
                    admitted += 1;
                }
                Err(rejection) => assert_eq!(rejection, PROBE_QUOTA),
            }
        }
        assert_eq!(admitted, share, "of a hundred");
        fleet.advance(2 * SECOND).await;
    }
}
