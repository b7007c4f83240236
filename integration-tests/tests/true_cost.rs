//! The true cost of calls: settled by the result or by hand, in memory and over a Redis in this process, in virtual time
//! (docs/guarantees.md I-33).

#![allow(clippy::unwrap_used)] // a failed expectation panics, in helpers too

mod support;

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::time::Duration;

use phalanx::store::RateLimitStore;
use phalanx::*;
use phalanx_testkit::FaultyRedis;
use support::panicking::{caught, panic_quietly};
use support::*;
use tokio::time::{advance, sleep};

type Answer = Result<u32, Error<Failure>>;

/// A hundred permits, of which one comes back in an hour.
fn slow() -> RateLimitSpec {
    RateLimitSpec::new(1, HOUR).burst(100)
}

fn in_memory(spec: RateLimitSpec) -> Pipeline {
    let module = ResilienceModule::in_memory().policy(Policy::named("p").rate_limit(spec)).build().unwrap();
    module.pipeline("p", ()).unwrap()
}

fn module_on(redis: &FaultyRedis, spec: RateLimitSpec) -> ResilienceModule {
    let policy = Policy::named("p").rate_limit(spec);
    ResilienceModule::with_redis(redis).service("shop").policy(policy).build().unwrap()
}

/// A replica that has reached Redis.
async fn on(redis: &FaultyRedis, spec: RateLimitSpec) -> Pipeline {
    let pipeline = module_on(redis, spec).pipeline("p", ()).unwrap();
    while pipeline.call().cost(0).run_recorded(ok).await.1.source != Source::Fleet {
        sleep(10 * MS).await;
    }
    sleep(10 * MS).await;
    pipeline
}

/// The answer of a call is what it has cost.
fn answer(result: &Answer) -> Option<u32> {
    result.as_ref().ok().copied()
}

async fn costs(actual: u32) -> Result<u32, Failure> {
    Ok(actual)
}

async fn permits(pipeline: &Pipeline) -> u64 {
    pipeline.available_permits().await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_cost_that_was_too_high_is_refunded_and_one_that_was_too_low_is_charged() {
    let model = in_memory(RateLimitSpec::per_second(10).burst(100));
    let ask = |actual| model.call().cost(20).settle_cost(answer).run(move || costs(actual));
    assert_eq!(ask(5).await, Ok(5));
    assert_eq!(permits(&model).await, 95);
    assert_eq!(ask(20).await, Ok(20));
    assert_eq!(permits(&model).await, 75);
    assert_eq!(ask(50).await, Ok(50));
    assert_eq!(permits(&model).await, 25);
    assert_eq!(ask(80).await, Ok(80));
    let rejected = *ask(1).await.unwrap_err().rejection().unwrap();
    assert_eq!(rejected.retry_after(), Some(7_500 * MS), "a debt of 55 permits, and 20");
    advance(7_500 * MS).await;
    assert_eq!(ask(0).await, Ok(0), "nothing at all");
    assert_eq!(permits(&model).await, 20);
}

#[tokio::test(start_paused = true)]
async fn what_was_refilled_while_the_call_ran_is_not_refunded_again() {
    let model = in_memory(RateLimitSpec::per_second(10).burst(100));
    let slow = || async {
        sleep(SECOND).await;
        costs(5).await
    };
    assert_eq!(model.call().cost(20).settle_cost(answer).run(slow).await, Ok(5));
    assert_eq!(permits(&model).await, 95, "ten were refilled, and five are refunded");
}

#[tokio::test(start_paused = true)]
async fn without_a_true_cost_the_estimate_stands() {
    let model = in_memory(slow());
    let ask = || model.call().cost(10).settle_cost(answer);
    assert_eq!(ask().run(|| async { Err::<u32, _>(BROKEN) }).await, Err(Error::Inner(BROKEN)));
    assert_eq!(permits(&model).await, 90, "the closure returns none");
    assert!(tokio::time::timeout(SECOND, ask().run(hang)).await.is_err());
    assert_eq!(permits(&model).await, 80, "dropped");
    assert_eq!(
        caught(AssertUnwindSafe(ask().run(|| async { panic_quietly::<Result<u32, Failure>>() }))).await,
        Err("boom")
    );
    assert_eq!(permits(&model).await, 70, "the operation panicked");
    let panics = |_: &Answer| panic_quietly::<Option<u32>>();
    assert_eq!(caught(AssertUnwindSafe(model.call().cost(10).settle_cost(panics).run(ok))).await, Err("boom"));
    assert_eq!(permits(&model).await, 60, "the closure panicked");
    assert_eq!(ask().run(ok).await, Ok(1), "the next call works");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_did_not_run_has_no_cost() {
    let limited = Policy::named("p").rate_limit(slow()).breaker(BreakerSpec::consecutive_failures(1));
    let module = ResilienceModule::in_memory().policy(limited).build().unwrap();
    let model = module.pipeline("p", ()).unwrap();
    let whatever = |_: &Answer| Some(90);
    let ask = |cost| model.call().cost(cost).settle_cost(whatever);
    assert!(ask(101).run(ok).await.is_err(), "above the burst");
    model.force(Some(policy::Override::Open)).await;
    assert!(ask(10).run(ok).await.is_err());
    assert_eq!(permits(&model).await, 100);
    model.force(None).await;
    assert!(ask(10).run(ok).await.is_ok());
    assert_eq!(permits(&model).await, 10);
    assert!(ask(11).run(ok).await.is_err(), "rate limited");
    assert_eq!(permits(&model).await, 10);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_at_any_await_has_cost_nothing_its_estimate_or_its_true_cost() {
    let mut seen = [0; 3];
    for debt in [0, 110] {
        for polls in 0..12 {
            let model = in_memory(RateLimitSpec::per_second(100).burst(100).max_wait(SECOND));
            model.charge(debt);
            let before = model.cached_permits().unwrap();
            let done = {
                let work = || async {
                    sleep(30 * MS).await;
                    costs(2).await
                };
                let mut call = pin!(model.call().cost(7).settle_cost(answer).run(work));
                let mut done = false;
                for _ in 0..polls {
                    done = poll_once(call.as_mut()).is_ready();
                    if done {
                        break;
                    }
                    advance(50 * MS).await;
                }
                done
            };
            advance(HOUR).await;
            assert_eq!(permits(&model).await, 100, "after an hour it is full: {before} before, {polls} polls");
            seen[if done { 2 } else { usize::from(polls > 1) }] += 1;
        }
    }
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
    // Without a refill, what is left says which it was.
    for (polls, left) in [(0, 100), (1, 93), (2, 98)] {
        let model = in_memory(slow());
        let work = || async {
            sleep(MS).await;
            costs(2).await
        };
        let mut call = Box::pin(model.call().cost(7).settle_cost(answer).run(work));
        for _ in 0..polls {
            let _ = poll_once(call.as_mut());
            advance(MS).await;
        }
        drop(call);
        assert_eq!(permits(&model).await, left, "{polls} polls");
    }
}

#[tokio::test(start_paused = true)]
async fn callers_that_wait_come_behind_the_debt_and_those_before_it_keep_their_places() {
    let model = in_memory(RateLimitSpec::per_second(10).burst(10).max_wait(2 * SECOND));
    model.charge(10);
    let waits = |by| {
        let model = model.clone();
        tokio::spawn(async move {
            sleep(by).await;
            let start = tokio::time::Instant::now();
            model.run(ok).await.unwrap();
            start.elapsed()
        })
    };
    let (first, second) = (waits(Duration::ZERO), waits(MS));
    sleep(MS / 2).await;
    model.charge(5);
    assert_eq!(first.await.unwrap(), 100 * MS);
    assert_eq!(second.await.unwrap(), 699 * MS, "five permits later");
}

#[tokio::test(start_paused = true)]
async fn a_reservation_is_settled_by_hand_or_stands() {
    let model = in_memory(slow());
    let reserved = model.reserve_cost(30).await.unwrap();
    assert_eq!((reserved.cost(), permits(&model).await), (30, 70));
    reserved.settle_cost(10);
    assert_eq!(permits(&model).await, 90);
    model.reserve_cost(10).await.unwrap().settle_cost(25);
    assert_eq!(permits(&model).await, 65);
    drop(model.reserve_cost(5).await.unwrap());
    assert_eq!(permits(&model).await, 60);
    let codes = [model.reserve_cost(61).await, model.reserve_cost(101).await].map(|no| no.unwrap_err().code());
    assert_eq!(codes, [RejectionCode::RateLimited, RejectionCode::CostAboveBurst]);
    assert_eq!(permits(&model).await, 60);

    let waiting = in_memory(RateLimitSpec::per_second(10).max_wait(SECOND));
    waiting.charge(10);
    let start = tokio::time::Instant::now();
    assert!(tokio::time::timeout(50 * MS, waiting.reserve_cost(3)).await.is_err(), "dropped: it gives its place back");
    assert_eq!(waiting.reserve_cost(3).await.unwrap().cost(), 3);
    assert_eq!(start.elapsed(), 300 * MS);
}

#[tokio::test(start_paused = true)]
async fn a_policy_without_a_limit_charges_nothing() {
    let module = ResilienceModule::in_memory().policy(Policy::named("p")).build().unwrap();
    let model = module.pipeline("p", ()).unwrap();
    model.charge(5);
    assert_eq!(model.refund(5), 0);
    model.reserve_cost(u32::MAX).await.unwrap().settle_cost(0);
    assert_eq!(model.call().cost(7).settle_cost(answer).run(ok).await, Ok(1));
}

#[tokio::test(start_paused = true)]
async fn no_more_is_refunded_by_hand_than_was_charged_and_has_not_been_refilled() {
    let model = in_memory(RateLimitSpec::per_second(10).burst(100));
    assert_eq!(model.refund(5), 0, "nothing was charged");
    model.charge(120);
    assert_eq!(model.refund(30), 30);
    assert_eq!(permits(&model).await, 10);
    advance(SECOND).await;
    assert_eq!(model.refund(u32::MAX), 80);
    assert_eq!(permits(&model).await, 100);
    assert_eq!(model.refund(1), 0);
}

#[tokio::test(start_paused = true)]
async fn all_replicas_pay_for_what_one_has_charged() {
    let redis = FaultyRedis::new();
    let (one, two) = (on(&redis, slow()).await, on(&redis, slow()).await);
    let ask = |actual| one.call().cost(20).settle_cost(answer).run(move || costs(actual));
    assert_eq!(ask(5).await, Ok(5));
    sleep(10 * MS).await;
    assert_eq!(permits(&two).await, 95);
    assert_eq!(ask(115).await, Ok(115));
    sleep(10 * MS).await;
    assert_eq!((permits(&one).await, permits(&two).await), (0, 0));
    let rejected = *two.run(ok).await.unwrap_err().rejection().unwrap();
    assert!(rejected.retry_after().unwrap() > 20 * HOUR, "{rejected}");
    two.charge(11);
    sleep(10 * MS).await;
    assert_eq!(two.refund(10), 10);
    sleep(10 * MS).await;
    let reserved = one.reserve_cost(1).await;
    assert!(reserved.unwrap_err().retry_after().unwrap() > 20 * HOUR, "the debt is as it was");
}

#[tokio::test(start_paused = true)]
async fn a_charge_arrives_once_whatever_becomes_of_requests_and_replies() {
    let faults: [fn(&FaultyRedis); 4] = [
        |redis| redis.lose_reply("rate_limit_charge", 1),
        |redis| redis.lose_request("rate_limit_charge", 1),
        |redis| redis.delay_request("rate_limit_charge", 1, 300 * MS),
        |redis| {
            redis.lose_reply("rate_limit_charge", 1);
            redis.delay_request("rate_limit_charge", 2, SECOND);
        },
    ];
    for (number, fault) in faults.into_iter().enumerate() {
        let redis = FaultyRedis::new();
        let model = on(&redis, slow()).await;
        assert!(model.run(ok).await.is_ok());
        fault(&redis);
        model.charge(5);
        sleep(20 * MS).await;
        model.charge(2);
        sleep(3 * SECOND).await;
        assert_eq!(redis.pending_faults(), 0, "fault {number}");
        assert_eq!(permits(&model).await, 92, "fault {number}");
        model.charge(1);
        sleep(SECOND).await;
        assert_eq!(permits(&model).await, 91, "fault {number}");
    }
}

#[tokio::test(start_paused = true)]
async fn while_redis_is_away_the_twin_pays_and_the_bucket_afterwards() {
    let redis = FaultyRedis::new();
    let model = on(&redis, slow()).await;
    assert!(model.run(ok).await.is_ok());
    redis.stop();
    let (_, record) = model.call().cost(10).settle_cost(answer).run_recorded(|| costs(5)).await;
    assert_eq!(record.source, Source::Degraded);
    sleep(SECOND).await;
    assert_eq!(permits(&model).await, 94);
    model.charge(200);
    let rejected = *model.run(ok).await.unwrap_err().rejection().unwrap();
    assert_eq!((rejected.source(), rejected.code()), (Source::Degraded, RejectionCode::RateLimited));
    assert_eq!(model.refund(7), 7);
    redis.start();
    sleep(10 * SECOND).await;
    let rejected = *model.run(ok).await.unwrap_err().rejection().unwrap();
    assert_eq!(rejected.source(), Source::Fleet);
    // One granted, five of the call without Redis, and 193 that were charged, of a hundred.
    let debt = rejected.retry_after().unwrap().as_secs_f64() / HOUR.as_secs_f64();
    assert!(debt > 99.5 && debt <= 100.0, "a debt of 99 permits, and one: {debt}");
}

#[tokio::test(start_paused = true)]
async fn a_charge_on_its_way_when_redis_goes_away_arrives_afterwards() {
    let redis = FaultyRedis::new();
    let model = on(&redis, slow()).await;
    assert!(model.run(ok).await.is_ok());
    redis.stop();
    model.charge(30);
    sleep(2 * SECOND).await;
    assert_eq!(permits(&model).await, 69, "the twin knows of it");
    redis.start();
    sleep(10 * SECOND).await;
    assert_eq!(permits(&model).await, 69);
}

#[tokio::test(start_paused = true)]
async fn leased_calls_are_settled_too() {
    let redis = FaultyRedis::new();
    redis.set_latency(MS / 2);
    let spec = RateLimitSpec::per_second(400).burst(400).consistency(Consistency::Leased);
    let model = on(&redis, spec).await;
    let mut leased = 0;
    for _ in 0..500 {
        let call = model.call().cost(2).settle_cost(answer);
        let (result, record) = call.run_recorded(|| costs(1)).await;
        assert_eq!(result, Ok(1));
        leased += u32::from(record.source == Source::Leased);
        sleep(4 * MS).await;
    }
    assert!(leased > 300, "{leased} of 500");
    sleep(2 * SECOND).await;
    assert_eq!(permits(&model).await, 400);
    // One that was expensive: nothing is granted until its debt is paid off, once blocks have ended.
    assert_eq!(model.call().cost(2).settle_cost(answer).run(|| costs(1_202)).await, Ok(1_202));
    sleep(200 * MS).await;
    let mut admitted = 0;
    for _ in 0..170 {
        admitted += u32::from(model.run(ok).await.is_ok());
        sleep(10 * MS).await;
    }
    assert_eq!(admitted, 0);
    sleep(200 * MS).await;
    assert!(model.run(ok).await.is_ok());
}

/// A charge by a store of its own, without a pipeline.
#[tokio::test(start_paused = true)]
async fn charges_of_many_cells_keep_apart() {
    let redis = FaultyRedis::new();
    let module = module_on(&redis, slow());
    let store = module.redis_store().unwrap();
    let buckets: Vec<_> =
        (0..20).map(|number| store.bucket(&store::StateKey::new("p", &number.to_string()), &slow())).collect();
    for (number, bucket) in buckets.iter().enumerate() {
        store.charge(bucket, number as u32);
    }
    sleep(SECOND).await;
    for (number, bucket) in buckets.iter().enumerate() {
        assert_eq!(store.peek(bucket, phalanx::store::Time::ZERO).await.permits(), 100 - number as u64);
    }
}
