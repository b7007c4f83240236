//! Trial calls: so many for the whole fleet, and none is lost for ever.

use std::time::Duration;

use phalanx::{BreakerSpec, Policy, RejectionCode, Source};
use phalanx_integration_tests::replica::{Behaviour, Load, Order, Setup, Span};
use phalanx_integration_tests::server::Redis;

use crate::kit::{MS, PATIENCE, SECOND, fleet, quiet, trip};

/// 200 callers in each of three processes come at the end of the break.
async fn most_at_a_time(at_a_time: u32) -> usize {
    const SUCCESSES: u32 = 40;
    const BREAK: Duration = Duration::from_millis(500);
    let spec = BreakerSpec::consecutive_failures(1).break_for(BREAK).probes(at_a_time, SUCCESSES);
    let policy = Policy::named("guarded").breaker(spec.probe_lease(10 * SECOND));
    let replicas = fleet::<3>(&Setup::new(Redis::shared().await).policy(policy).patient()).await;

    trip(&replicas[0], "guarded", "r").await;
    for replica in &replicas {
        replica.obey(Order::Behave(Behaviour::Slowly(4 * MS))).await;
        replica.start_load(Load::lasting("guarded", "r", 60 * SECOND).callers(200).pause(20 * MS)).await;
    }
    // When the circuit has closed for all, the edge lies behind them.
    for replica in &replicas {
        let closed = |spans: usize, calls: u64| calls > spans as u64;
        let what = "the circuit is closed again";
        replica.until(PATIENCE, what, |seen| closed(seen.tally.probes.len(), seen.tally.admitted())).await;
    }
    let mut tallies = Vec::new();
    for replica in &replicas {
        tallies.push(replica.obey(Order::Enough).await.tally);
    }
    let spans: Vec<Span> = tallies.iter().flat_map(|tally| tally.probes.iter().copied()).collect();
    let count = |code| tallies.iter().map(|tally| tally.rejected(code)).sum::<u64>();
    let (open, quota) = (count(RejectionCode::CircuitOpen), count(RejectionCode::ProbeQuota));
    let most = Span::most_at_a_time(&spans);
    let by: Vec<_> = tallies.iter().map(|tally| tally.probes.len()).collect();
    println!("{by:?} probes, {most} at a time; rejected: {open} open, {quota} beyond {at_a_time} probes");
    assert!(spans.len() >= SUCCESSES as usize, "{} probes cannot have closed it", spans.len());
    assert!(open > 600 && quota > 600, "nobody stood at the edge: {open} rejected before it, {quota} after it");
    let alone: u64 = tallies.iter().map(|tally| tally.decided_by(Source::Degraded)).sum();
    assert_eq!(alone, 0, "decided without Redis");
    most
}

#[tokio::test]
async fn one_trial_call_at_a_time_passes_in_all_processes_together() {
    let _quiet = quiet().await;
    assert_eq!(most_at_a_time(1).await, 1);
}

#[tokio::test]
async fn three_trial_calls_at_a_time_pass_in_all_processes_together() {
    let _quiet = quiet().await;
    assert_eq!(most_at_a_time(3).await, 3);
}

#[tokio::test]
async fn a_killed_holder_of_a_trial_call_is_replaced_when_its_lease_is_over() {
    const LEASE: Duration = Duration::from_millis(800);
    let _quiet = quiet().await;
    let spec = BreakerSpec::consecutive_failures(1).break_for(200 * MS).probes(1, 1).probe_lease(LEASE);
    let setup = Setup::new(Redis::shared().await).policy(Policy::named("guarded").breaker(spec)).patient();
    let [holder, other] = fleet(&setup).await;

    trip(&holder, "guarded", "r").await;
    holder.obey(Order::Behave(Behaviour::Never)).await;
    holder.start_load(Load::lasting("guarded", "r", 60 * SECOND).pause(5 * MS)).await;
    let held = holder.until(PATIENCE, "a probe hangs", |seen| !seen.tally.at_dependency.is_empty()).await;
    let held = held.tally.at_dependency[0];
    other.start_load(Load::lasting("guarded", "r", 60 * SECOND).pause(5 * MS)).await;
    other.until(PATIENCE, "the place is taken", |seen| seen.tally.rejected(RejectionCode::ProbeQuota) > 0).await;
    holder.process().kill9();

    other.until(PATIENCE, "another probe passes", |seen| !seen.tally.probes.is_empty()).await;
    let tally = other.obey(Order::Enough).await.tally;
    let (after, rejected) = (tally.probes[0].from.since(held), tally.rejected(RejectionCode::ProbeQuota));
    println!("replaced {after:?} after the lease of {LEASE:?} began; {rejected} rejected meanwhile");
    // The lease began a round trip before the call that it allowed.
    assert!(after >= LEASE - 50 * MS, "replaced after {after:?}, while the lease of {LEASE:?} still ran");
    assert!(after <= LEASE + 100 * MS, "replaced after {after:?} only: the lease is {LEASE:?}, the pause 5 ms");
}
