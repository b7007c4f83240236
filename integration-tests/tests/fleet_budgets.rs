//! Budgets and throttles with `scope = "fleet"`, over a Redis in this process and in virtual time: what the replicas share,
//! what a healthy route costs, and that no extra attempt is later for it.

#![allow(clippy::unwrap_used)] // a failed expectation panics, in helpers too

mod support;

use std::cell::Cell;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use phalanx::policy::{BudgetSpec, Jitter};
use phalanx::store::StateScope;
use phalanx::*;
use phalanx_testkit::FaultyRedis;
use support::*;
use tokio::time::{Instant, sleep};

/// Of the budgets of these tests: ten a window without calls.
const FLOOR: u32 = 10;

/// A retry for every ten calls, and one a second.
fn budget() -> BudgetSpec {
    BudgetSpec::ratio(0.1).min_per_second(1).scope(StateScope::Fleet)
}

fn retrying(backoff: Duration, budget: BudgetSpec) -> Policy {
    let backoff = Backoff::constant(backoff).jitter(Jitter::None);
    Policy::named("vendor").retry(RetrySpec::attempts(2).backoff(backoff).budget(budget))
}

fn hedging(delay: Duration, budget: BudgetSpec) -> Policy {
    Policy::named("vendor").hedge(HedgeSpec::after(delay).budget(budget)).idempotent()
}

/// The events, in order.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn count(&self, name: &str) -> usize {
        let is_named = |event: &&String| event.split(' ').next() == Some(name);
        self.0.lock().unwrap().iter().filter(is_named).count()
    }
}

impl Observer for Log {
    fn on_event(&self, event: &Event<'_>) {
        self.0.lock().unwrap().push(format!("{:?}", event.kind));
    }
}

fn replica(redis: &FaultyRedis, policy: Policy, log: &Log) -> ResilienceModule {
    let module = ResilienceModule::with_redis(redis).service("shop").seed(7).observer(log.clone());
    module.policy(policy).build().unwrap()
}

/// Replicas that know each other.
async fn fleet(redis: &FaultyRedis, replicas: usize, policy: Policy) -> (Vec<ResilienceModule>, Log) {
    redis.set_latency(MS);
    let log = Log::default();
    let fleet: Vec<_> = (0..replicas).map(|_| replica(redis, policy.clone(), &log)).collect();
    for module in &fleet {
        succeed(module).await;
    }
    sleep(3 * SECOND).await;
    assert!(fleet.iter().all(|module| module.replicas() == Some(replicas as u32)));
    (fleet, log)
}

async fn succeed(module: &ResilienceModule) {
    assert_eq!(module.run("vendor", "eu", ok).await, Ok(1));
}

/// Makes a call whose attempts all fail; returns their number.
async fn fail(module: &ResilienceModule) -> u32 {
    let (answer, record) = module.call("vendor", "eu").run_recorded(|| async { Err::<u32, _>(BROKEN) }).await;
    assert!(answer.is_err());
    record.attempts
}

/// Makes failing calls, one every 10 ms on each replica; returns the number of retries.
async fn fail_all(fleet: &[ResilienceModule], calls: u32) -> u32 {
    let mut retries = 0;
    for _ in 0..calls {
        for module in fleet {
            retries += fail(module).await - 1;
        }
        sleep(10 * MS).await;
    }
    retries
}

fn tally_keys(redis: &FaultyRedis) -> usize {
    redis.key_names().iter().filter(|key| [":t:", ":q:", ":h:"].iter().any(|kind| key.contains(kind))).count()
}

#[test]
fn a_description_names_what_the_fleet_shares() {
    let described = |policy: Policy| {
        let module = ResilienceModule::in_memory().policy(policy).build().unwrap();
        module.pipeline("vendor", ()).unwrap().describe().to_string()
    };
    let policy = |scope| {
        let hedge = HedgeSpec::after(50 * MS).budget(budget().scope(scope));
        retrying(MS, budget().scope(scope)).hedge(hedge).idempotent().throttle(ThrottleSpec::default().scope(scope))
    };
    let shared = described(policy(StateScope::Fleet));
    assert_eq!(shared.matches(", one budget for the fleet").count(), 2, "{shared}");
    assert_eq!(shared.matches(", of the fleet").count(), 1, "{shared}");
    assert!(!described(policy(StateScope::Process)).contains("fleet"));
}

#[tokio::test(start_paused = true)]
async fn the_retries_of_all_replicas_are_within_one_budget() {
    for replicas in [1, 3, 10] {
        let redis = FaultyRedis::new();
        let (fleet, log) = fleet(&redis, replicas, retrying(MS, budget())).await;
        // 90 calls in a second or two, with the one that each replica has made.
        let (calls, per_replica) = (90 + replicas as u32, 90 / replicas as u32);
        let retries = fail_all(&fleet, per_replica).await;
        let allowed = calls / 10 + FLOOR;
        assert!(retries <= allowed, "{replicas} replicas: {retries} retries of {allowed}");
        assert!(retries + 1 >= allowed, "{replicas} replicas: {retries} retries of {allowed} are granted");
        assert_eq!((log.count("Retry"), log.count("RetryBudgetExhausted")), (retries as usize, 90 - retries as usize));
    }
}

#[tokio::test(start_paused = true)]
async fn a_replica_may_use_what_the_others_leave() {
    let redis = FaultyRedis::new();
    let (fleet, _) = fleet(&redis, 10, retrying(MS, budget())).await;
    assert_eq!(
        fail_all(&fleet[..1], 30).await,
        FLOOR + 3,
        "the calls of the others are not known before they need a retry"
    );
}

#[tokio::test(start_paused = true)]
async fn a_healthy_route_sends_nothing() {
    let redis = FaultyRedis::new();
    let policy = retrying(MS, budget()).hedge(HedgeSpec::after(50 * MS).budget(budget())).idempotent();
    let policy = policy.throttle(ThrottleSpec::default().scope(StateScope::Fleet));
    let (fleet, _) = fleet(&redis, 2, policy).await;
    for _ in 0..1_000 {
        succeed(&fleet[0]).await;
        sleep(5 * MS).await;
    }
    assert_eq!((redis.runs_of("tally_sync"), tally_keys(&redis)), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_retry_is_not_later_than_its_backoff() {
    let redis = FaultyRedis::new();
    let (fleet, _) = fleet(&redis, 1, retrying(30 * MS, budget())).await;
    redis.set_latency(5 * MS);
    let start = Instant::now();
    assert_eq!(fail(&fleet[0]).await, 2);
    assert_eq!(start.elapsed(), 30 * MS, "the round trip of 10 ms passed during the backoff");
    assert_eq!(redis.runs_of("tally_sync"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_backoff_shorter_than_a_round_trip_waits_for_the_reply() {
    let redis = FaultyRedis::new();
    let (fleet, _) = fleet(&redis, 1, retrying(MS, budget())).await;
    assert_eq!(fail(&fleet[0]).await, 2); // loads the script
    redis.set_latency(5 * MS);
    let start = Instant::now();
    assert_eq!(fail(&fleet[0]).await, 2);
    assert!((10 * MS..13 * MS).contains(&start.elapsed()), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn no_retry_waits_for_the_budget_beyond_the_deadline() {
    let redis = FaultyRedis::new();
    let (fleet, log) = fleet(&redis, 1, retrying(6 * MS, budget()).deadline(10 * MS)).await;
    redis.hang();
    let start = Instant::now();
    assert_eq!(fail(&fleet[0]).await, 1);
    assert!(start.elapsed() <= 11 * MS, "{:?}", start.elapsed());
    assert_eq!((log.count("Retry"), log.count("RetryAbandoned")), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_retry_that_does_not_start_is_put_back() {
    let redis = FaultyRedis::new();
    let one_in_a_window = BudgetSpec { ratio: 0.0, min_per_second: 1, scope: StateScope::Fleet };
    let (fleet, log) = fleet(&redis, 2, retrying(100 * MS, one_in_a_window)).await;
    for _ in 0..3 * FLOOR {
        let mut call = pin!(fail(&fleet[0]));
        tokio::select! {
            _ = &mut call => unreachable!("the backoff is longer"),
            () = sleep(50 * MS) => {}
        }
    }
    assert_eq!(log.count("Retry"), 3 * FLOOR as usize, "each was granted, and dropped during its backoff");
    sleep(50 * MS).await;
    assert_eq!(fail_all(&fleet[1..], 20).await, FLOOR, "all of the budget is there");
}

#[tokio::test(start_paused = true)]
async fn a_hedge_is_not_later_than_its_delay_and_is_within_one_budget() {
    let redis = FaultyRedis::new();
    let (fleet, log) = fleet(&redis, 3, hedging(50 * MS, budget())).await;
    redis.set_latency(2 * MS);
    sleep(5 * SECOND).await; // heartbeats show how long a round trip takes
    let slow = async |module: &ResilienceModule| {
        let (start, second_at, attempts) = (Instant::now(), Cell::new(None), Cell::new(0));
        let operation = || {
            attempts.set(attempts.get() + 1);
            if attempts.get() == 2 {
                second_at.set(Some(start.elapsed()));
            }
            async {
                sleep(80 * MS).await;
                Ok::<_, Failure>(1)
            }
        };
        assert_eq!(module.run("vendor", "eu", operation).await, Ok(1));
        second_at.get()
    };
    let mut hedges = 0;
    for round in 0..30 {
        for module in &fleet {
            if let Some(at) = slow(module).await {
                hedges += 1;
                // The first request loads the script, which takes a second round trip.
                assert!(round == 0 || at == 50 * MS, "{at:?} in round {round}");
            }
        }
    }
    // The window holds at most 10 s of calls, of 80 ms each.
    let allowed = 93 / 10 + FLOOR as usize;
    assert!((allowed - 1..=allowed).contains(&hedges), "{hedges} of {allowed}");
    assert_eq!(log.count("Hedge"), hedges);
    assert!(log.count("HedgeBudgetExhausted") == 90 - hedges);
}

#[tokio::test(start_paused = true)]
async fn a_hedge_that_is_not_needed_any_more_is_put_back() {
    let redis = FaultyRedis::new();
    let two_in_ten = BudgetSpec { ratio: 0.0, min_per_second: 1, scope: StateScope::Fleet };
    let (fleet, log) = fleet(&redis, 1, hedging(50 * MS, two_in_ten)).await;
    let answers_after = async |latency: Duration| {
        let operation = || async move {
            sleep(latency).await;
            Ok::<_, Failure>(1)
        };
        assert_eq!(fleet[0].run("vendor", "eu", operation).await, Ok(1));
        sleep(20 * MS).await;
    };
    for _ in 0..3 * FLOOR {
        answers_after(49 * MS).await; // between the question and the hedge
    }
    assert!(redis.runs_of("tally_sync") > 0 && log.count("Hedge") == 0);
    for _ in 0..FLOOR {
        answers_after(80 * MS).await;
    }
    assert_eq!(log.count("Hedge"), FLOOR as usize);
}

#[tokio::test(start_paused = true)]
async fn without_redis_each_replica_has_its_share() {
    let redis = FaultyRedis::new();
    let (fleet, log) = fleet(&redis, 4, retrying(MS, budget())).await;
    redis.stop();
    sleep(SECOND).await;
    // 20 calls of its own, and the one before, by ten; a quarter of ten.
    let mut retries = Vec::new();
    for module in &fleet {
        let mut own = 0;
        for _ in 0..20 {
            own += fail(module).await - 1;
        }
        retries.push(own);
    }
    assert!(retries.iter().all(|retries| *retries == 4), "{retries:?}: 20 of 80 calls, and a quarter of ten");
    assert_eq!(log.count("RetryBudgetExhausted"), 4 * 16);
}

#[tokio::test(start_paused = true)]
async fn retries_without_redis_are_charged_afterwards() {
    let redis = FaultyRedis::new();
    let (fleet, _) = fleet(&redis, 2, retrying(MS, budget())).await;
    redis.stop();
    sleep(SECOND).await;
    let alone = fail_all(&fleet[..1], 20).await;
    assert!(alone > 0);
    redis.start();
    while fleet.iter().any(|module| module.store_mode() != Some(store::StoreMode::Shared)) {
        sleep(50 * MS).await;
    }
    let together = fail_all(&fleet, 20).await;
    let allowed = 62 / 10 + FLOOR;
    assert!(alone + together <= allowed, "{alone} + {together} of {allowed}");
    assert!(alone + together + 1 >= allowed, "{alone} + {together} of {allowed}");
}

/// Makes calls that are all rejected for load, until one is shed; returns how many ran.
async fn ran_until_shed(module: &ResilienceModule, most: usize) -> Option<usize> {
    for ran in 0..most {
        let answer = module.run("vendor", "eu", || async { Err::<u32, _>(Failure(Kind::Throttled)) }).await;
        let code = answer.unwrap_err().rejection().map(Rejection::code);
        if code == Some(RejectionCode::AdaptiveThrottle) {
            return Some(ran);
        }
    }
    None
}

#[tokio::test(start_paused = true)]
async fn a_replica_with_few_calls_sheds_by_the_calls_of_all() {
    let redis = FaultyRedis::new();
    for (scope, sheds) in [(StateScope::Process, false), (StateScope::Fleet, true)] {
        redis.flush_all();
        let throttle = ThrottleSpec::default().min_throughput(100).scope(scope);
        let (fleet, _) = fleet(&redis, 2, Policy::named("vendor").throttle(throttle)).await;
        assert!(ran_until_shed(&fleet[0], 500).await.is_some(), "the busy one sheds by its own calls");
        assert_eq!(ran_until_shed(&fleet[1], 1).await, None, "its first rejected call");
        sleep(SECOND).await;
        // With hundred rejected calls of the other, nearly every call is shed.
        assert_eq!(ran_until_shed(&fleet[1], 50).await.is_some(), sheds, "{scope:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_throttle_stops_reading_when_a_window_has_passed_without_trouble() {
    let redis = FaultyRedis::new();
    let throttle = ThrottleSpec::default().window(4 * SECOND).scope(StateScope::Fleet);
    let (fleet, _) = fleet(&redis, 1, Policy::named("vendor").throttle(throttle)).await;
    assert_eq!(fail(&fleet[0]).await, 1);
    let began = Instant::now();
    while began.elapsed() < 4 * SECOND {
        succeed(&fleet[0]).await;
        sleep(100 * MS).await;
    }
    let runs = redis.runs_of("tally_sync");
    assert!((15..=20).contains(&runs), "{runs} in 4 s, one every sync_interval of 250 ms");
    for _ in 0..50 {
        succeed(&fleet[0]).await;
        sleep(100 * MS).await;
    }
    assert!(redis.runs_of("tally_sync") - runs <= 1);
}

#[tokio::test(start_paused = true)]
async fn a_throttle_never_waits_for_redis() {
    let redis = FaultyRedis::new();
    let throttle = ThrottleSpec::default().scope(StateScope::Fleet);
    let (fleet, _) = fleet(&redis, 1, Policy::named("vendor").throttle(throttle)).await;
    redis.hang();
    let start = Instant::now();
    assert!(ran_until_shed(&fleet[0], 500).await.is_some(), "by its own calls");
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_at_any_await_leaves_no_mark_behind() {
    let floor = BudgetSpec { ratio: 0.0, min_per_second: 1, scope: StateScope::Fleet };
    for (policy, ends) in [(retrying(5 * MS, floor), Err(BROKEN)), (hedging(5 * MS, floor), Ok(1))] {
        let mut extras = Vec::new();
        for polls in 1..24 {
            let redis = FaultyRedis::new();
            let (fleet, _) = fleet(&redis, 1, policy.clone()).await;
            let attempts = Cell::new(0);
            let operation = || {
                attempts.set(attempts.get() + 1);
                async move {
                    sleep(10 * MS).await;
                    ends
                }
            };
            {
                let mut call = pin!(fleet[0].run("vendor", "eu", operation));
                for _ in 0..polls {
                    if poll_once(call.as_mut()).is_ready() {
                        break;
                    }
                    sleep(MS).await;
                }
            }
            let extra = attempts.replace(0) - 1;
            sleep(50 * MS).await;
            // Whatever was not used is there for the next calls.
            let mut left = 0;
            loop {
                let _ = fleet[0].run("vendor", "eu", operation).await;
                if attempts.replace(0) == 1 {
                    break;
                }
                left += 1;
            }
            assert_eq!(left + extra, FLOOR, "after {polls} polls");
            extras.push(extra);
        }
        assert!(extras.first() == Some(&0) && extras.last() == Some(&1), "{extras:?}");
    }
}
