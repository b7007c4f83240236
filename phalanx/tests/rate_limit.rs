//! The rate limit as a stage: rejections, costs, waiting, and which calls return their permit.

mod support;

use phalanx::*;
use support::*;
use tokio::time::Instant;

fn limited(spec: RateLimitSpec) -> Policy {
    Policy::named("p").rate_limit(spec)
}

async fn ok() -> Result<u32, Failure> {
    Ok(1)
}

#[tokio::test(start_paused = true)]
async fn an_empty_bucket_rejects_at_once_with_a_retry_after() {
    let module = module(limited(RateLimitSpec::per_second(10).burst(2)));
    for _ in 0..2 {
        assert!(module.run("p", (), ok).await.is_ok());
    }
    let rejected = *module.run("p", (), ok).await.unwrap_err().rejection().unwrap();
    assert_eq!((rejected.code(), rejected.retry_after()), (RejectionCode::RateLimited, Some(100 * MS)));
    assert_eq!((rejected.kind(), rejected.status(), rejected.policy()), (Kind::Throttled, 429, Some("p")));
    tokio::time::advance(100 * MS).await;
    assert!(module.run("p", (), ok).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn every_route_has_its_own_bucket() {
    let module = module(limited(RateLimitSpec::per_second(1)));
    assert!(module.run("p", "eu", ok).await.is_ok());
    assert!(module.run("p", "us", ok).await.is_ok());
    assert!(module.run("p", (), ok).await.is_ok());
    assert_eq!(code(module.run("p", "eu", ok).await), RejectionCode::RateLimited);
}

#[tokio::test(start_paused = true)]
async fn a_cost_takes_that_many_permits_and_the_record_has_the_rest() {
    let module = module(limited(RateLimitSpec::per_second(10)));
    let (_, record) = module.call("p", ()).cost(7).run_recorded(ok).await;
    assert_eq!(record.remaining, Some(3));
    assert_eq!(code(module.call("p", ()).cost(4).run(ok).await), RejectionCode::RateLimited);
    assert_eq!(module.pipeline("p", ()).unwrap().available_permits().await, Some(3));
}

#[tokio::test(start_paused = true)]
async fn a_cost_above_the_burst_is_a_mistake_of_the_call_and_takes_nothing() {
    let vendor = limited(RateLimitSpec::per_second(10).max_wait(60 * SECOND))
        .retry(RetrySpec::attempts(3).on([Kind::Throttled]));
    let module = module(vendor);
    for cost in [11, u32::MAX] {
        let never = *module.call("p", ()).cost(cost).run(ok).await.unwrap_err().rejection().unwrap();
        assert_eq!((never.code(), never.retry_after()), (RejectionCode::CostAboveBurst, None));
        assert_eq!((never.kind(), never.status(), never.policy()), (Kind::Validation, 400, Some("p")));
    }
    assert_eq!(module.pipeline("p", ()).unwrap().available_permits().await, Some(10));
    assert!(module.call("p", ()).cost(10).run(ok).await.is_ok());
    assert!(module.call("p", ()).cost(0).run(ok).await.is_ok(), "a call that costs nothing needs no permit");
}

#[tokio::test(start_paused = true)]
async fn waiting_calls_are_admitted_in_order() {
    let module = module(limited(RateLimitSpec::per_second(10).burst(1).max_wait(SECOND)));
    let start = Instant::now();
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..4_u32 {
        let module = module.clone();
        calls.spawn(async move {
            let answer = module.run("p", (), || async move { Ok::<_, Failure>(number) }).await;
            (answer.unwrap(), start.elapsed())
        });
        tokio::task::yield_now().await;
    }
    let mut served = calls.join_all().await;
    served.sort();
    assert_eq!(served, [0, 1, 2, 3].map(|n: u32| (n, 100 * n * MS)));
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_gives_up_returns_its_permit() {
    let module = module(limited(RateLimitSpec::per_second(10).burst(1).max_wait(SECOND)));
    assert!(module.run("p", (), ok).await.is_ok());
    let waiter = module.run("p", (), ok);
    assert!(tokio::time::timeout(50 * MS, waiter).await.is_err());
    let start = Instant::now();
    assert!(module.run("p", (), ok).await.is_ok());
    assert_eq!(start.elapsed(), 50 * MS, "as if the other call had never waited");
}

#[tokio::test(start_paused = true)]
async fn the_order_is_kept_when_a_waiter_in_the_middle_gives_up() {
    let module = module(limited(RateLimitSpec::per_second(1).max_wait(9 * SECOND)));
    let start = Instant::now();
    let call = |module: ResilienceModule| async move { module.run("p", (), ok).await.map(|_| start.elapsed()) };
    let mut calls: Vec<_> = (0..4).map(|_| tokio::spawn(call(module.clone()))).collect();
    tokio::task::yield_now().await;
    calls.remove(1).abort();
    tokio::task::yield_now().await;
    calls.push(tokio::spawn(call(module.clone())));
    let mut starts = Vec::new();
    for call in calls {
        starts.push(call.await.unwrap().unwrap());
    }
    assert_eq!(starts, [0, 2, 3, 4].map(|second: u32| second * SECOND), "in order, and never two at once");
}

#[tokio::test(start_paused = true)]
async fn a_call_does_not_wait_beyond_its_deadline() {
    let module = module(limited(RateLimitSpec::per_second(1).max_wait(10 * SECOND)));
    assert!(module.run("p", (), ok).await.is_ok());
    let rejected = module.call("p", ()).within(500 * MS).run(ok).await;
    assert_eq!(code(rejected), RejectionCode::RateLimited);
}

#[tokio::test(start_paused = true)]
async fn a_call_rejected_by_an_inner_stage_returns_its_permit() {
    let breaker = BreakerSpec::consecutive_failures(1).break_for(60 * SECOND);
    let module = module(limited(RateLimitSpec::per_second(5)).breaker(breaker));
    let pipeline = module.pipeline("p", ()).unwrap();
    assert!(pipeline.run(|| async { Err::<u32, _>(BROKEN) }).await.is_err());
    for _ in 0..100 {
        assert_eq!(code(pipeline.run(ok).await), RejectionCode::CircuitOpen);
    }
    assert_eq!(pipeline.available_permits().await, Some(4), "only the call that ran keeps its permit");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_ran_keeps_its_permit_whatever_its_outcome() {
    let module = module(limited(RateLimitSpec::per_second(5)).timeout(10 * MS));
    let pipeline = module.pipeline("p", ()).unwrap();
    assert!(pipeline.run(hang).await.is_err());
    assert!(tokio::time::timeout(MS, pipeline.run(hang)).await.is_err());
    assert_eq!(pipeline.available_permits().await, Some(3));
}

/// A guard before the rate limit that takes ten seconds.
struct SlowGuard(Clock);

impl guard::Guard for SlowGuard {
    fn name(&self) -> &str {
        "slow"
    }

    fn order(&self) -> u16 {
        1
    }

    fn admit(&self, _: &guard::CallInfo<'_>) -> Result<(), Rejection> {
        self.0.advance(10 * SECOND);
        Ok(())
    }
}

#[tokio::test]
async fn the_time_of_permits_is_that_after_the_guards_before_the_limit() {
    let clock = Clock::manual();
    let policy = limited(RateLimitSpec::per_second(1)).guard(SlowGuard(clock.clone()));
    let module = ResilienceModule::in_memory().clock(clock).policy(policy).build().unwrap();
    for _ in 0..3 {
        assert!(module.run("p", (), ok).await.is_ok(), "ten seconds have passed since the last permit");
    }
    assert_eq!(module.pipeline("p", ()).unwrap().available_permits().await, Some(0), "and none since this one");
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_is_nearly_used_up_is_an_event_once_every_per() {
    let log = Log::default();
    let spec = RateLimitSpec::per_second(10).burst(20).near_limit(0.75);
    let module = ResilienceModule::in_memory().observer(log.clone()).policy(limited(spec)).build().unwrap();
    let call = |cost| module.call("p", ()).cost(cost).run(ok);
    assert!(call(14).await.is_ok());
    assert_eq!(log.count("NearLimit"), 0, "six are left");
    for _ in 0..5 {
        assert!(call(1).await.is_ok());
    }
    assert_eq!(log.count("NearLimit"), 1);
    assert!(call(20).await.is_err());
    tokio::time::advance(SECOND).await;
    assert!(call(20).await.is_err(), "a rejection that leaves eleven");
    assert_eq!(log.count("NearLimit"), 1);
    assert!(call(10).await.is_ok());
    assert_eq!(log.count("NearLimit"), 2);
}

#[tokio::test(start_paused = true)]
async fn the_keys_that_are_rejected_most_are_counted() {
    let module = module(limited(RateLimitSpec::per_second(1)));
    for route in 0..100_u32 {
        for _ in 0..=route % 7 {
            let _ = module.run("p", &*route.to_string(), ok).await;
        }
    }
    let _ = module.call("p", "97").cost(2).run(ok).await;
    let top = module.top_rejected(2);
    assert_eq!((top[0].key.route(), top[0].count - top[0].overcount), (Some("97"), 7), "{top:?}");
    assert_eq!(top.len(), 2);
}
