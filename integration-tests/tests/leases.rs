//! Leased rate limits through the real store, over a Redis in this process, in virtual time (docs/guarantees.md I-31).

#![allow(clippy::unwrap_used)] // a failed test panics, also in helpers

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use phalanx::store::{RateLimitStore, StateKey, Store, Take};
use phalanx::{Consistency, Kind, Pipeline, Policy, RateLimitSpec, ResilienceModule, Source};
use phalanx_core::store::AcquireRequest;
use phalanx_testkit::FaultyRedis;
use tokio::time::{Instant, sleep};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// A server half a millisecond away.
fn server() -> FaultyRedis {
    let redis = FaultyRedis::new();
    redis.set_latency(MS / 2);
    redis
}

fn leased(per_second: u64) -> RateLimitSpec {
    RateLimitSpec::per_second(per_second).consistency(Consistency::Leased)
}

fn module(redis: &FaultyRedis, spec: RateLimitSpec) -> ResilienceModule {
    let policy = Policy::named("api").rate_limit(spec);
    ResilienceModule::with_redis(redis).service("shop").policy(policy).build().unwrap()
}

fn pipeline(module: &ResilienceModule) -> Pipeline {
    module.pipeline("api", ()).unwrap()
}

/// What a replica's calls were decided by.
#[derive(Debug, Default, PartialEq, Eq)]
struct Calls {
    leased: u64,
    exact: u64,
    degraded: u64,
    rejected: u64,
    /// When each was admitted, in microseconds since the first.
    times: Vec<u64>,
}

impl Calls {
    const fn admitted(&self) -> u64 {
        self.leased + self.exact + self.degraded
    }
}

/// Calls so often a second, for a time.
async fn call(pipeline: &Pipeline, per_second: u64, time: Duration) -> Calls {
    let (start, mut calls) = (Instant::now(), Calls::default());
    while start.elapsed() < time {
        // A thousand steps a second, each with its share of the calls.
        let step = start.elapsed().as_millis() as u64;
        for _ in per_second * step / 1_000..per_second * (step + 1) / 1_000 {
            let (result, record) = pipeline.call().run_recorded(|| async { Ok::<_, Kind>(()) }).await;
            if result.is_err() {
                calls.rejected += 1;
                continue;
            }
            calls.times.push(start.elapsed().as_micros() as u64);
            match record.source {
                Source::Leased => calls.leased += 1,
                Source::Fleet => calls.exact += 1,
                _ => calls.degraded += 1,
            }
        }
        tokio::time::sleep_until(start + MS * (step as u32 + 1)).await;
    }
    calls
}

/// Calls on all replicas at the same time, each at its own rate.
async fn call_all(pipelines: &[Pipeline], demands: &[u64], time: Duration) -> Vec<Calls> {
    let start = |(pipeline, demand): (&Pipeline, &u64)| {
        let (pipeline, demand) = (pipeline.clone(), *demand);
        tokio::spawn(async move { call(&pipeline, demand, time).await })
    };
    let running: Vec<_> = pipelines.iter().zip(demands.iter().cycle()).map(start).collect();
    let mut calls = Vec::new();
    for running in running {
        calls.push(running.await.unwrap());
    }
    calls
}

/// The most calls beyond rate × time in any window.
fn most(times: &mut [u64], per_second: f64) -> f64 {
    times.sort_unstable();
    let (mut level, mut most, mut last) = (0.0_f64, 0.0_f64, 0);
    for at in times {
        level = (level - (*at - last) as f64 * per_second / 1e6).max(0.0) + 1.0;
        (most, last) = (most.max(level), *at);
    }
    most
}

#[tokio::test(start_paused = true)]
async fn a_replica_with_demand_decides_without_a_round_trip() {
    let redis = server();
    let module = module(&redis, leased(10_000));
    let kept = pipeline(&module);
    call(&kept, 2_000, 300 * MS).await;
    let before = redis.runs_of("rate_limit_acquire");
    let calls = call(&kept, 2_000, SECOND).await;
    assert_eq!((calls.admitted(), calls.rejected, calls.degraded), (2_000, 0, 0));
    assert!(calls.leased >= 1_990, "{} of 2,000", calls.leased);
    assert!(redis.runs_of("rate_limit_acquire") - before <= 10);
    let leases = module.redis_store().unwrap().leased_permits();
    assert!(leases.held > 0 && leases.expired == 0 && leases.returned <= 200, "{leases:?}");
    assert!(leases.drawn >= leases.held + calls.leased);
}

#[tokio::test(start_paused = true)]
async fn a_thousand_leased_calls_run_at_most_two_scripts() {
    let redis = server();
    let module = module(&redis, leased(200_000));
    let kept = pipeline(&module);
    call(&kept, 50_000, 300 * MS).await;
    let runs = || redis.runs_of("rate_limit_acquire") + redis.runs_of("rate_limit_lease");
    let before = runs();
    let calls = call(&kept, 50_000, 2 * SECOND).await;
    assert_eq!(calls.rejected, 0);
    let per_thousand = (runs() - before) as f64 * 1_000.0 / calls.leased as f64;
    assert!(per_thousand <= 2.0 && calls.leased >= 99_900, "{per_thousand} scripts, {} leased", calls.leased);
}

#[tokio::test(start_paused = true)]
async fn five_replicas_with_skewed_demand_stay_within_the_limit_and_use_it() {
    let redis = server();
    let modules: Vec<_> = (0..5).map(|_| module(&redis, leased(1_000))).collect();
    let kept: Vec<_> = modules.iter().map(pipeline).collect();
    let seconds = 6 * SECOND;
    let calls = call_all(&kept, &[700, 500, 150, 100, 50], seconds).await;
    let mut times: Vec<u64> = calls.iter().flat_map(|calls| calls.times.iter().copied()).collect();
    let admitted = times.len() as f64;
    assert!(calls.iter().map(|calls| calls.leased).sum::<u64>() > 3_000, "{calls:?}");
    assert!(most(&mut times, 1_000.0) <= 1_001.0);
    assert!((6_300.0..=7_001.0).contains(&admitted), "{admitted} of the burst and six seconds");
}

#[tokio::test(start_paused = true)]
async fn idle_replicas_give_their_permits_back_and_all_of_them_together_get_one_burst() {
    let redis = server();
    let modules: Vec<_> = (0..4).map(|_| module(&redis, leased(400))).collect();
    let kept: Vec<_> = modules.iter().map(pipeline).collect();
    for round in 0..6 {
        for kept in &kept {
            call(kept, 300, 90 * MS).await;
        }
        sleep(MS * 700 * (round % 2)).await;
    }
    sleep(2 * SECOND).await;
    for module in &modules {
        assert_eq!(module.redis_store().unwrap().leased_permits().held, 0);
    }
    assert_eq!(kept[0].available_permits().await, Some(400), "full again");
    let at_once = call_all(&kept, &[100_000], 4 * MS).await;
    let admitted: u64 = at_once.iter().map(Calls::admitted).sum();
    assert!((400..=404).contains(&admitted), "{admitted}");
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_leaves_gives_its_permits_back_at_once() {
    let redis = server();
    let (one, other) = (module(&redis, leased(400)), module(&redis, leased(400)));
    let (kept, watching) = (pipeline(&one), pipeline(&other));
    call(&kept, 300, 300 * MS).await;
    let leases = one.redis_store().unwrap().leased_permits();
    assert!(leases.held > 0, "{leases:?}");
    let before = watching.available_permits().await.unwrap();
    one.leave_fleet().await;
    let after = watching.available_permits().await.unwrap();
    assert!(after >= before + leases.held, "{before} and {} make {after}", leases.held);
    assert_eq!(one.redis_store().unwrap().leased_permits().held, 0);
}

#[tokio::test(start_paused = true)]
async fn blocks_are_closed_when_the_limit_changes() {
    let redis = server();
    let module = module(&redis, leased(400));
    let kept = pipeline(&module);
    for spec in [leased(800), RateLimitSpec::per_second(800), leased(800)] {
        let leases = spec.consistency == Consistency::Leased;
        call(&kept, 300, 300 * MS).await;
        let before = module.redis_store().unwrap().leased_permits();
        module.retune(Policy::named("api").rate_limit(spec)).unwrap();
        assert_eq!(call(&kept, 1_000, MS).await.rejected, 0);
        sleep(5 * MS).await;
        let after = module.redis_store().unwrap().leased_permits();
        assert!(after.returned >= before.returned + before.held.min(1), "{before:?} {after:?}");
        assert!(leases || after.held == 0, "{after:?}");
        let calls = call(&kept, 300, 300 * MS).await;
        assert_eq!(calls.leased > 0, leases, "{calls:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_large_cost_is_served_beside_leases_and_no_other_call_is_rejected_meanwhile() {
    let redis = server();
    let (one, other) = (module(&redis, leased(400)), module(&redis, leased(400)));
    let (kept, large) = (pipeline(&one), pipeline(&other));
    call(&kept, 200, SECOND).await;
    let ask = async || large.call().cost(385).run(|| async { Ok::<_, Kind>(()) }).await.is_ok();
    assert!(!ask().await, "the leases leave no room for it");
    let mut calls = Vec::new();
    while !ask().await {
        calls.push(call(&kept, 200, 20 * MS).await);
        assert!(calls.len() < 20, "{calls:?}");
    }
    assert!(calls.iter().all(|calls| calls.rejected == 0), "{calls:?}");
    assert!(calls.iter().any(|calls| calls.exact > 0), "draws were paused: {calls:?}");
}

#[tokio::test(start_paused = true)]
async fn without_redis_a_block_is_spent_until_it_ends_and_then_the_twin_decides() {
    let redis = server();
    let module = module(&redis, leased(2_000));
    let kept = pipeline(&module);
    call(&kept, 1_000, 400 * MS).await;
    redis.stop();
    sleep(MS).await;
    let held = module.redis_store().unwrap().leased_permits().held;
    let first = call(&kept, 1_000, 400 * MS).await;
    assert!(first.leased > 0 && first.leased <= held, "{} of {held}", first.leased);
    assert!(first.degraded > 200, "{first:?}");
    let later = call(&kept, 1_000, 200 * MS).await;
    assert_eq!(later.leased, 0, "every block has ended");
    redis.start();
    sleep(4 * SECOND).await;
    assert!(call(&kept, 1_000, 400 * MS).await.leased > 0);
}

#[tokio::test(start_paused = true)]
async fn a_lost_reply_costs_its_permits_once() {
    let redis = server();
    let module = module(&redis, leased(400));
    let kept = pipeline(&module);
    call(&kept, 200, 200 * MS).await;
    let before = module.redis_store().unwrap().leased_permits();
    redis.lose_reply("rate_limit_lease", 1);
    let calls = call(&kept, 200, SECOND).await;
    assert_eq!(redis.pending_faults(), 0, "it was lost");
    assert_eq!((calls.rejected, calls.degraded), (0, 0), "there is enough for all");
    assert!(module.redis_store().unwrap().leased_permits().drawn > before.drawn, "later draws are answered");
    sleep(SECOND).await;
    assert_eq!(kept.available_permits().await, Some(400), "nothing is missing for ever");
}

#[tokio::test(start_paused = true)]
async fn a_block_whose_reply_is_later_than_it_is_valid_is_never_spent() {
    let redis = server();
    let module = module(&redis, leased(400));
    let kept = pipeline(&module);
    call(&kept, 200, 200 * MS).await;
    redis.delay_replies(Some((2, 18 * MS)));
    let mut calls = call(&kept, 300, 2 * SECOND).await;
    redis.delay_replies(None);
    calls.times.extend(call(&kept, 2_000, SECOND).await.times.iter().map(|at| at + 2_000_000));
    assert!(most(&mut calls.times, 400.0) <= 401.0);
}

/// The bars of small limits: as leased ones they make exactly the round trips of exact ones.
#[tokio::test(start_paused = true)]
async fn small_limits_cost_no_more_scripts_than_exact_ones() {
    let cases = [(RateLimitSpec::per_second(10), 50, 20), (RateLimitSpec::per_second(1_000).burst(20), 3, 900)];
    for (spec, replicas, demand) in cases {
        let mut runs = Vec::new();
        for consistency in [Consistency::Exact, Consistency::Leased] {
            let redis = server();
            let build = |seed: u64| {
                let policy = Policy::named("api").rate_limit(spec.clone().consistency(consistency));
                ResilienceModule::with_redis(&redis).service("shop").seed(seed).policy(policy).build().unwrap()
            };
            let modules: Vec<_> = (1..=replicas).map(build).collect();
            let kept: Vec<_> = modules.iter().map(pipeline).collect();
            call_all(&kept, &[demand], 2 * SECOND).await;
            assert_eq!(redis.runs_of("rate_limit_lease"), 0);
            runs.push(redis.runs_of("rate_limit_acquire"));
        }
        assert!(runs[1] <= runs[0] + runs[0] / 20, "{runs:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_asks_beside_a_draw_holds_nothing_when_it_is_dropped_at_any_await() {
    for polls in 0..12 {
        let redis = server();
        let module = module(&redis, leased(400));
        let store = module.redis_store().unwrap().clone();
        let bucket = store.bucket(&StateKey::new("api", ()), &leased(400));
        let kept = pipeline(&module);
        call(&kept, 300, 300 * MS).await;
        // More than the block has, so that Redis is asked.
        let ask = AcquireRequest { cost: 60, max_wait: Duration::ZERO };
        {
            let mut asking = pin!(store.acquire(&bucket, store.clock().now(), ask));
            let mut context = Context::from_waker(Waker::noop());
            for _ in 0..polls {
                if let Poll::Ready(grant) = asking.as_mut().poll(&mut context) {
                    assert!(matches!(grant.take, Take::Granted { .. }));
                    store.refund(&bucket, ask.cost, grant.due, grant.source);
                    break;
                }
                sleep(MS / 3).await;
            }
        }
        sleep(5 * MS).await;
        let held = store.leased_permits().held;
        let level = kept.available_permits().await.unwrap();
        // 310 ms of refill keep level + leased at the burst, but for the permits that were spent lately.
        assert!(held + level >= 400 - 45, "{polls} polls: {held} held and {level} there");
        assert!(held + level <= 400);
    }
}
