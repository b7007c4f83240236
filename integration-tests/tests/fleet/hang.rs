//! A Redis that hangs costs each caller little, and then nothing.
//!
//! How that is measured so that a busy machine cannot spoil it, at no lower bar:
//!
//! * time lost is a caller's own: from each call to its operation, summed over its calls that Redis did not answer,
//!   without the time in which the machine had no processor for a thread of the runtime (the kernel counts that; on a
//!   machine with room it is nothing);
//! * alone, no call may wait for anything: it must be decided in its first poll; and what it costs is the time in which
//!   its thread had a processor meanwhile, beside what a loop that does nothing costs in the same places.

use std::time::Duration;

use phalanx::{BreakerSpec, Policy, RateLimitSpec, Source};
use phalanx_integration_tests::replica::{Heard, Load, Moment, Order, Setup};
use phalanx_integration_tests::server::Spawned;
use tokio::time::sleep;

use crate::kit::{MS, PATIENCE, SECOND, meet, quiet, replica};

const BUDGET: Duration = Duration::from_millis(20);

fn policy() -> Policy {
    Policy::named("stack").rate_limit(RateLimitSpec::per_second(1_000_000)).breaker(BreakerSpec::failure_ratio(0.5))
}

async fn hang(callers: usize, pause: Duration, in_a_row: u64) {
    let _quiet = quiet().await;
    let redis = Spawned::start().await;
    let replica = replica(&Setup::new(redis.url()).policy(policy()).store_budget(BUDGET));
    meet(&replica).await;
    let load = Load::lasting("stack", "r", 60 * SECOND)
        .callers(callers)
        .pause(pause)
        .in_a_row(in_a_row)
        .counting_starvation(&[]);
    replica.start_load(load).await;
    replica.until(PATIENCE, "all is well", |seen| seen.tally.admitted() > callers as u64).await;

    redis.stop();
    sleep(1_500 * MS).await;
    let continued = Moment::now();
    redis.cont();
    replica.until(PATIENCE, "Redis is back", |seen| seen.recoveries() == 1).await;
    sleep(200 * MS).await;
    let seen = replica.obey(Order::Enough).await;

    let tally = &seen.tally;
    let recovered = seen.moments(|what| matches!(what, Heard::Recovered { .. }))[0];
    let (lost, after) = (tally.most_lost, recovered.since(continued));
    println!(
        "{callers} callers: lost at most {lost:?} each (and {:?} by the machine); alone: {:?}, on the processor {:?}, \
         control {:?}; back after {after:?}",
        tally.most_starved, tally.alone, tally.alone_on_processor, tally.control_on_processor,
    );
    assert_eq!((seen.outages(), seen.recoveries()), (vec!["timeout"], 1), "one outage, told once");
    assert_eq!(tally.rejected.len(), 0, "no caller was rejected: {:?}", tally.rejected);
    assert!(tally.decided_by(Source::Degraded) > callers as u64, "nobody called meanwhile: {tally:#?}");
    assert!(lost <= 3 * BUDGET + 5 * MS, "a caller lost {lost:?} at a budget of {BUDGET:?}");
    assert_eq!(tally.alone_and_parked, 0, "decided alone and yet had to wait, of {:?}", tally.alone);
    let [alone, control] = [tally.alone_on_processor, tally.control_on_processor];
    // As many take so long as take so long to do nothing, and one in a thousand: on a silent machine, p99.9 < 50 µs.
    let over = alone.share_from_50_us() - control.share_from_50_us();
    assert!(over <= 0.001, "a decision alone costs {alone:?}, to do nothing as long costs {control:?}");
    assert!(after <= 2_500 * MS, "Redis was back {after:?} before it decided again");
}

#[tokio::test]
async fn a_hanging_redis_costs_each_of_64_callers_three_budgets_and_then_nothing() {
    hang(64, 5 * MS, 4).await;
}

#[tokio::test]
async fn a_hanging_redis_costs_each_of_1000_callers_three_budgets_and_then_nothing() {
    hang(1_000, 250 * MS, 4).await;
}

/// Callers who come when they come, and then a thousand in one moment, again and again. Budgets are longer than usual,
/// because without optimisation so many calls take this process longer than that by themselves; and where the machine had
/// no processor for the replica or for Redis, it was not Redis that did not answer.
async fn crowd(routes: usize) {
    let _quiet = quiet().await;
    let redis = Spawned::start().await;
    let budget = 15 * BUDGET;
    for at_once in [false, true] {
        let replica = replica(&Setup::new(redis.url()).policy(policy()).store_budget(budget));
        meet(&replica).await;
        let load = Load::lasting("stack", "", 1_500 * MS).routes((0..routes).map(|n| n.to_string()));
        let load = load.counting_starvation(&[redis.process_id()]);
        replica.run(load.clone().callers(routes).pause(SECOND)).await; // every key is known
        let load = load.callers(1_000).pause(250 * MS);
        let tally = replica.run(if at_once { load.at_once() } else { load }).await.tally;
        let (calls, alone) = (tally.calls(), tally.decided_by(Source::Degraded));
        println!(
            "1,000 callers on {routes} keys, all at once: {at_once}: {calls} calls, waits {:?}; alone {alone}, of which \
             the machine starved all but {}",
            tally.asking, tally.unanswered,
        );
        assert_eq!(tally.unanswered, 0, "decided without Redis at {budget:?}; waits {:?}", tally.asking);
        assert!(calls > 2_000, "no crowd: {calls} calls");
    }
}

#[tokio::test]
async fn a_thousand_callers_on_one_key_of_a_healthy_redis_never_degrade() {
    crowd(1).await;
}

#[tokio::test]
async fn a_thousand_callers_on_64_keys_of_a_healthy_redis_never_degrade() {
    crowd(64).await;
}
