//! Probes: their number is limited for the whole fleet, and a lost one is replaced.

use std::time::Duration;

use phalanx::{BreakerSpec, Policy, RejectionCode, Source};
use phalanx_integration_tests::replica::{Command, DependencyBehavior, Load, Setup, Span};
use phalanx_testkit::server::Redis;

use crate::harness::{MS, SECOND, WAIT_TIMEOUT, exclusive, fleet, trip};

/// Returns the largest number of concurrent probes when 200 callers in each of three processes call as the break ends.
async fn max_concurrent(at_a_time: u32) -> usize {
    const SUCCESSES: u32 = 40;
    const BREAK: Duration = Duration::from_millis(500);
    let spec = BreakerSpec::consecutive_failures(1).break_for(BREAK).probes(at_a_time, SUCCESSES);
    let policy = Policy::named("guarded").breaker(spec.probe_lease(10 * SECOND));
    let replicas = fleet::<3>(&Setup::new(Redis::shared().await).policy(policy).generous_budget()).await;

    trip(&replicas[0], "guarded", "r").await;
    for replica in &replicas {
        replica.execute(Command::SetDependency(DependencyBehavior::SucceedAfter(4 * MS))).await;
        replica.start_load(Load::lasting("guarded", "r", 60 * SECOND).callers(200).pause(20 * MS)).await;
    }
    // Until the circuit has closed on all replicas.
    for replica in &replicas {
        let closed = |spans: usize, calls: u64| calls > spans as u64;
        let what = "the circuit is closed again";
        replica.until(WAIT_TIMEOUT, what, |seen| closed(seen.tally.probes.len(), seen.tally.admitted())).await;
    }
    let mut tallies = Vec::new();
    for replica in &replicas {
        tallies.push(replica.execute(Command::Stop).await.tally);
    }
    let spans: Vec<Span> = tallies.iter().flat_map(|tally| tally.probes.iter().copied()).collect();
    let count = |code| tallies.iter().map(|tally| tally.rejected(code)).sum::<u64>();
    let (open, quota) = (count(RejectionCode::CircuitOpen), count(RejectionCode::ProbeQuota));
    let most = Span::max_concurrent(&spans);
    let by: Vec<_> = tallies.iter().map(|tally| tally.probes.len()).collect();
    println!("{by:?} probes, {most} at a time; rejected: {open} open, {quota} beyond {at_a_time} probes");
    assert!(spans.len() >= SUCCESSES as usize, "{} probes cannot have closed it", spans.len());
    assert!(
        open > 600 && quota > 600,
        "too few calls around the end of the break: {open} rejected before it, {quota} after it"
    );
    let degraded: u64 = tallies.iter().map(|tally| tally.decided_by(Source::Degraded)).sum();
    assert_eq!(degraded, 0, "decided without Redis");
    most
}

#[tokio::test]
async fn one_probe_at_a_time_is_admitted_in_all_processes_together() {
    let _exclusive = exclusive().await;
    assert_eq!(max_concurrent(1).await, 1);
}

#[tokio::test]
async fn three_probes_at_a_time_are_admitted_in_all_processes_together() {
    let _exclusive = exclusive().await;
    assert_eq!(max_concurrent(3).await, 3);
}

#[tokio::test]
async fn a_killed_holder_of_a_probe_is_replaced_when_its_lease_expires() {
    const LEASE: Duration = Duration::from_millis(800);
    let _exclusive = exclusive().await;
    let spec = BreakerSpec::consecutive_failures(1).break_for(200 * MS).probes(1, 1).probe_lease(LEASE);
    let setup = Setup::new(Redis::shared().await).policy(Policy::named("guarded").breaker(spec)).generous_budget();
    let [holder, other] = fleet(&setup).await;

    trip(&holder, "guarded", "r").await;
    holder.execute(Command::SetDependency(DependencyBehavior::Hang)).await;
    holder.start_load(Load::lasting("guarded", "r", 60 * SECOND).pause(5 * MS)).await;
    let held = holder.until(WAIT_TIMEOUT, "a probe hangs", |seen| !seen.tally.at_dependency.is_empty()).await;
    let held = held.tally.at_dependency[0];
    other.start_load(Load::lasting("guarded", "r", 60 * SECOND).pause(5 * MS)).await;
    other
        .until(WAIT_TIMEOUT, "the probe slot is taken", |seen| seen.tally.rejected(RejectionCode::ProbeQuota) > 0)
        .await;
    holder.process().kill();

    other.until(WAIT_TIMEOUT, "another probe is admitted", |seen| !seen.tally.probes.is_empty()).await;
    let tally = other.execute(Command::Stop).await.tally;
    let (after, rejected) = (tally.probes[0].from.since(held), tally.rejected(RejectionCode::ProbeQuota));
    println!("replaced {after:?} after the lease of {LEASE:?} began; {rejected} rejected meanwhile");
    // The lease began one round trip before its call.
    assert!(after >= LEASE - 50 * MS, "replaced after {after:?}, before the lease of {LEASE:?} expired");
    // A busy machine may add a second; a lease that is never freed would be noticed by `until`.
    assert!(after <= LEASE + SECOND, "replaced only after {after:?}: the lease is {LEASE:?}, the pause 5 ms");
}
