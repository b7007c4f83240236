//! Redis is killed and restarted without its data.

use phalanx::{BreakerSpec, Policy, RateLimitSpec, RejectionCode, Source};
use phalanx_integration_tests::replica::{Command, DependencyBehavior, Load, LoggedKind, Moment, Setup};
use phalanx_testkit::server::RedisProcess;
use tokio::time::sleep;

use crate::harness::{MS, SECOND, WAIT_TIMEOUT, exclusive, fleet, meet, replica};

#[tokio::test]
async fn an_empty_redis_after_a_kill_costs_one_burst_and_open_circuits_are_restored() {
    const RATE: u64 = 300;
    const BURST: u64 = 90;
    let _exclusive = exclusive().await;
    let redis = RedisProcess::start().await;
    let budget = 100 * MS;
    let setup = Setup::new(redis.url())
        .store_budget(budget)
        .policy(Policy::named("limited").rate_limit(RateLimitSpec::per_second(RATE).burst(BURST)))
        .policy(Policy::named("guarded").breaker(BreakerSpec::consecutive_failures(1).break_for(60 * SECOND)));
    let replicas = fleet::<3>(&setup).await;
    // All replicas use the breaker, then one trips it.
    for replica in &replicas {
        replica.run(Load::once("guarded", "r")).await;
    }
    replicas[0].execute(Command::SetDependency(DependencyBehavior::Fail)).await;
    replicas[0].run(Load::once("guarded", "r")).await;
    replicas[0].execute(Command::SetDependency(DependencyBehavior::Succeed)).await;
    for replica in &replicas {
        replica
            .until(WAIT_TIMEOUT, "open", |seen| {
                seen.events.iter().any(|event| matches!(event.kind, LoggedKind::Opened { .. }))
            })
            .await;
    }

    let began = Moment::now();
    for replica in &replicas {
        let load = Load::lasting("limited", "r", 60 * SECOND).callers(10).pause(10 * MS).excluding_starvation(&[]);
        replica.start_load(load).await;
    }
    sleep(300 * MS).await;
    let killed = Moment::now();
    redis.kill();
    sleep(300 * MS).await;
    redis.restart().await;
    let restarted = Moment::now();
    let mut outages = Vec::new();
    for replica in &replicas {
        let seen = replica.until(WAIT_TIMEOUT, "the store recovers", |seen| seen.recoveries() == 1).await;
        let back = seen.moments(|kind| matches!(kind, LoggedKind::Recovered { .. }))[0];
        outages.push(back.since(killed));
        assert!(back.since(restarted) <= 2_500 * MS, "recovered {:?} after the restart", back.since(restarted));
    }
    for replica in &replicas {
        replica
            .until(WAIT_TIMEOUT, "the loss is emitted", |seen| {
                !seen.moments(|kind| *kind == LoggedKind::StateLost).is_empty()
            })
            .await;
    }
    let mut reports = Vec::new();
    for replica in &replicas {
        reports.push(replica.execute(Command::Stop).await);
    }
    let ended = Moment::now();

    let admitted: u64 = reports.iter().map(|seen| seen.tally.admitted()).sum();
    let by_fleet: u64 = reports.iter().map(|seen| seen.tally.admitted_by(Source::Fleet)).sum();
    let (rate, burst, share) = (RATE as f64, BURST as f64, 1.0 / 3.0);
    let degraded: f64 = outages.iter().map(|outage| share * (burst + rate * outage.as_secs_f64())).sum();
    let most = burst + rate * ended.since(began).as_secs_f64() + degraded + burst;
    let worst = reports.iter().map(|seen| seen.tally.store_waits.worst).max().unwrap();
    println!(
        "{admitted} admitted in {:?} ({by_fleet} by the fleet), at most {most:.0}, of which {degraded:.0} degraded; outages {outages:?}; worst wait {worst:?}",
        ended.since(began)
    );
    for seen in &reports {
        assert_eq!((seen.outages(), seen.recoveries()), (vec!["refused"], 1), "one outage, emitted once");
        let lost = seen.moments(|kind| *kind == LoggedKind::StateLost);
        assert_eq!(lost.len(), 1, "the loss is emitted once");
        assert_eq!(seen.tally.reasons(), [RejectionCode::RateLimited.name()], "callers are rejected by the limit only");
        let lost = seen.tally.max_lost;
        assert!(lost <= 3 * budget + 5 * MS, "a caller lost {lost:?} at a budget of {budget:?}");
    }
    assert!(admitted as f64 <= most, "{admitted} admitted, at most {most:.1}");
    assert!(by_fleet > 0 && admitted as f64 > 0.8 * rate * ended.since(began).as_secs_f64(), "{admitted} admitted");

    // A new replica finds the circuit open, because the others have restored it: within a second after they noticed the loss.
    redis.until(&["KEYS", "*:b:*"], |keys| !keys.is_empty()).await;
    let newcomer = replica(&setup);
    meet(&newcomer).await;
    let tally = newcomer.run(Load::once("guarded", "r")).await.tally;
    assert_eq!(
        tally.rejected.get(RejectionCode::CircuitOpen.name()).and_then(|by| by.get("fleet")),
        Some(&1),
        "{tally:#?}"
    );
}
