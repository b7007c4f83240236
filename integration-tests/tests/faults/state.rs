//! What Redis holds, lost or spoilt while it runs.

use phalanx::{BreakerSpec, Policy, RateLimitSpec, RejectionCode, Source};
use phalanx_integration_tests::replica::{Behaviour, Heard, Load, Order, Setup};
use phalanx_integration_tests::server::Spawned;

use crate::kit::{MS, PATIENCE, SECOND, worker, workers};

#[tokio::test]
async fn a_flush_is_told_and_an_open_circuit_is_put_back_by_those_who_know_it() {
    let redis = Spawned::start().await;
    let spec = BreakerSpec::consecutive_failures(1).break_for(60 * SECOND);
    let setup = Setup::new(redis.url()).policy(Policy::named("guarded").breaker(spec)).patient();
    let [mut one, other] = workers(&setup).await;
    one.obey(Order::Behave(Behaviour::Badly)).await;
    one.run(Load::once("guarded", "r")).await;
    one.until(PATIENCE, "open", |seen| seen.told.iter().any(|told| matches!(told.kind, Heard::Opened { .. }))).await;
    redis.cli(&["FLUSHALL"]).await;
    for replica in [&one, &other] {
        let lost = |count: usize| count == 1;
        replica.until(2 * SECOND, "told", |seen| lost(seen.moments(|what| *what == Heard::StateLost).len())).await;
    }
    // Whoever knows it says so with the same sign of life, or one round later.
    let circuits = format!("ph1:{{{}:b:*", setup.environment);
    redis.until(&["KEYS", &circuits], |keys| !keys.is_empty()).await;
    let mut newcomer = worker(&setup).await;
    let tally = newcomer.run(Load::once("guarded", "r")).await.tally;
    assert_eq!(tally.rejected(RejectionCode::CircuitOpen), 1, "{tally:#?}");
    assert_eq!(tally.decided_by(Source::Fleet), 1, "{tally:#?}");
}

#[tokio::test]
async fn a_key_that_somebody_spoilt_heals_and_is_no_outage() {
    let redis = Spawned::start().await;
    let policy = Policy::named("limited").rate_limit(RateLimitSpec::new(1_000, 10 * SECOND));
    let setup = Setup::new(redis.url()).policy(policy.breaker(BreakerSpec::failure_ratio(0.5))).patient();
    let mut replica = worker(&setup).await;
    // A circuit without bad news is not kept at all.
    replica.obey(Order::Behave(Behaviour::Badly)).await;
    replica.run(Load::once("limited", "r")).await;
    replica.obey(Order::Behave(Behaviour::Well)).await;
    for spoil in [["RPUSH", "not ours"], ["SET", "1 inf nan -9e99"]] {
        for kind in ["r", "b"] {
            let pattern = format!("ph1:{{{}:{kind}:*", setup.environment);
            let keys = redis.until(&["KEYS", &pattern], |keys| !keys.is_empty()).await;
            for key in keys.lines() {
                redis.cli(&["DEL", key]).await;
                redis.cli(&[spoil[0], key, spoil[1]]).await;
            }
        }
        let told = replica.look().moments(|what| *what == Heard::StateRepaired).len();
        replica.start(Load::lasting("limited", "r", 600 * SECOND).pause(20 * MS));
        let both = |count: usize| count >= told + 2;
        let repaired = |what: &Heard| *what == Heard::StateRepaired;
        replica.until(PATIENCE, "both are repaired", |seen| both(seen.moments(repaired).len())).await;
        replica.until(PATIENCE, "calls pass", |seen| seen.tally.admitted() > 5).await;
        let seen = replica.obey(Order::Enough).await;
        assert_eq!(seen.tally.decided_by(Source::Degraded), 0, "{:#?}", seen.tally);
        assert_eq!(seen.outages(), Vec::<&str>::new());
    }
}
