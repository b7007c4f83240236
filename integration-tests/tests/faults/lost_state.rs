//! State in Redis that is lost or corrupted at run time.

use phalanx::{BreakerSpec, Policy, RateLimitSpec, RejectionCode, Source};
use phalanx_integration_tests::replica::{Command, DependencyBehavior, Load, LoggedKind, Setup};
use phalanx_testkit::server::RedisProcess;
use phalanx_testkit::server::redis_cli::field;

use crate::harness::{MS, SECOND, WAIT_TIMEOUT, replica, replicas};

#[tokio::test]
async fn a_flush_emits_state_lost_and_replicas_restore_the_open_circuit() {
    let redis = RedisProcess::start().await;
    let spec = BreakerSpec::consecutive_failures(1).break_for(60 * SECOND);
    let setup = Setup::new(redis.url()).policy(Policy::named("guarded").breaker(spec)).generous_budget();
    let [mut one, other] = replicas(&setup).await;
    one.execute(Command::SetDependency(DependencyBehavior::Fail)).await;
    one.run(Load::once("guarded", "r")).await;
    one.until(WAIT_TIMEOUT, "open", |seen| {
        seen.events.iter().any(|event| matches!(event.kind, LoggedKind::Opened { .. }))
    })
    .await;
    redis.cli(&["FLUSHALL"]).await;
    for replica in [&one, &other] {
        let lost = |count: usize| count == 1;
        replica
            .until(2 * SECOND, "the loss is emitted", |seen| {
                lost(seen.moments(|kind| *kind == LoggedKind::StateLost).len())
            })
            .await;
    }
    // Replicas that had it open restore it with the same heartbeat or with the next periodic sync.
    let circuits = format!("ph2:{{test.{}:*}}:b:*", setup.environment);
    redis.until(&["KEYS", &circuits], |keys| !keys.is_empty()).await;
    let mut newcomer = replica(&setup).await;
    let tally = newcomer.run(Load::once("guarded", "r")).await.tally;
    assert_eq!(tally.rejected(RejectionCode::CircuitOpen), 1, "{tally:#?}");
    assert_eq!(tally.decided_by(Source::Fleet), 1, "{tally:#?}");
}

#[tokio::test]
async fn a_corrupted_key_is_repaired_and_is_not_an_outage() {
    let redis = RedisProcess::start().await;
    let policy = Policy::named("limited").rate_limit(RateLimitSpec::new(1_000, 10 * SECOND));
    let setup = Setup::new(redis.url()).policy(policy.breaker(BreakerSpec::failure_ratio(0.5))).generous_budget();
    let mut replica = replica(&setup).await;
    // A circuit without failures has no key.
    replica.execute(Command::SetDependency(DependencyBehavior::Fail)).await;
    replica.run(Load::once("limited", "r")).await;
    replica.execute(Command::SetDependency(DependencyBehavior::Succeed)).await;
    for corruption in [["RPUSH", "not ours"], ["SET", "1 inf nan -9e99"]] {
        for kind in ["r", "b"] {
            let pattern = format!("ph2:{{test.{}:*}}:{kind}:*", setup.environment);
            let keys = redis.until(&["KEYS", &pattern], |keys| !keys.is_empty()).await;
            for key in keys.lines() {
                redis.cli(&["DEL", key]).await;
                redis.cli(&[corruption[0], key, corruption[1]]).await;
            }
        }
        let before = replica.report().moments(|kind| *kind == LoggedKind::StateRepaired).len();
        // Good news alone is not sent, so it takes a failure to find the damage; and a damaged bucket starts empty.
        replica.execute(Command::SetDependency(DependencyBehavior::Fail)).await;
        replica.run(Load::lasting("limited", "r", 200 * MS).pause(50 * MS)).await;
        replica.execute(Command::SetDependency(DependencyBehavior::Succeed)).await;
        replica.start(Load::lasting("limited", "r", 600 * SECOND).pause(20 * MS));
        let both = |count: usize| count >= before + 2;
        let repaired = |kind: &LoggedKind| *kind == LoggedKind::StateRepaired;
        replica.until(WAIT_TIMEOUT, "both are repaired", |seen| both(seen.moments(repaired).len())).await;
        replica.until(WAIT_TIMEOUT, "calls are admitted", |seen| seen.tally.admitted() > 5).await;
        let seen = replica.execute(Command::Stop).await;
        assert_eq!(seen.tally.decided_by(Source::Degraded), 0, "{:#?}", seen.tally);
        assert_eq!(seen.outages(), Vec::<&str>::new());
    }
}

/// A foreign value of 64 MB under every key: no script reads all of it, which would hold up every other client. Measured in
/// the server's CPU time, because a busy machine stops processes for a while: copying one such value takes 150 ms of it.
#[tokio::test]
async fn a_huge_value_is_repaired_without_reading_all_of_it() {
    const HUGE: &str = "67108864";
    let redis = RedisProcess::start().await;
    let policy = Policy::named("limited").rate_limit(RateLimitSpec::new(1_000, 10 * SECOND));
    let setup = Setup::new(redis.url()).policy(policy.breaker(BreakerSpec::failure_ratio(0.5))).generous_budget();
    let mut replica = replica(&setup).await;
    replica.execute(Command::SetDependency(DependencyBehavior::Fail)).await;
    replica.run(Load::once("limited", "r")).await;
    redis.until(&["KEYS", "*:b:*"], |keys| !keys.is_empty()).await;
    for kind in ["*:r:*", "*:b:*"] {
        let keys = redis.cli(&["KEYS", kind]).await;
        assert!(!keys.is_empty(), "{kind}");
        for key in keys.lines() {
            redis.cli(&["SETRANGE", key, HUGE, "x"]).await;
        }
    }
    let before = cpu_millis(&redis).await;
    replica.start(Load::lasting("limited", "r", 600 * SECOND).pause(20 * MS));
    for kind in ["*:r:*", "*:b:*"] {
        for key in redis.cli(&["KEYS", kind]).await.lines() {
            redis.until(&["STRLEN", key], |length| length.parse::<u64>().is_ok_and(|length| length < 10_000)).await;
        }
    }
    replica.execute(Command::Stop).await;
    let took = cpu_millis(&redis).await - before;
    println!("repaired with {took} ms of CPU time");
    assert!(took < 200, "{took} ms of CPU time");
}

/// Returns the CPU time that the server has used.
async fn cpu_millis(redis: &RedisProcess) -> u64 {
    let info = redis.cli(&["INFO", "cpu"]).await;
    let seconds = |name| field(&info, name).unwrap().parse::<f64>().unwrap();
    ((seconds("used_cpu_user") + seconds("used_cpu_sys")) * 1_000.0) as u64
}
