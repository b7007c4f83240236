//! A call does not allocate, whether it is admitted, waits or is rejected.
//!
//! Measured by a counting allocator on the calling thread, after a warm-up for one-time allocations (thread-locals, the
//! first timers of a thread, the runtime's own lists). A call that is ready at once is polled manually; one that waits runs
//! on a runtime with a paused clock.

#![allow(clippy::unwrap_used)] // a failed expectation panics, in helpers too

#[path = "no_alloc/bulkhead_and_hedge.rs"]
mod bulkhead_and_hedge;
mod support;

use std::future::poll_fn;
use std::hint::black_box;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use allocation_counter::measure;
use phalanx::Clock;
use phalanx::estimate::p2_window::P2Window;
use phalanx::lifecycle::Gate;
use phalanx::policy::BudgetSpec;
use phalanx::store::LatencyDigestStore;
use phalanx::store::Rng;
use phalanx::store::StateKey;
use phalanx::telemetry::Metrics;
use phalanx::telemetry::prometheus::Page;
use phalanx::*;
use phalanx_store_memory::MemoryStore;
use phalanx_testkit::FaultyRedis;
use support::*;
use tokio::runtime::{Builder, Runtime};

/// Calls measured together: even one allocation in a hundred calls fails a test.
const CALLS: usize = 100;

const PLENTY: RateLimitSpec = RateLimitSpec::per_second(1_000_000);

/// A runtime with a paused clock, so that backoffs take no real time.
fn runtime() -> Runtime {
    Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
}

fn breaker() -> BreakerSpec {
    BreakerSpec::failure_ratio(0.5).min_throughput(1_000_000).window(10 * SECOND)
}

/// Rate limit, breaker, retry and timeout.
fn stack() -> Policy {
    Policy::named("p")
        .rate_limit(PLENTY)
        .breaker(breaker())
        .retry(RetrySpec::attempts(3).backoff(Backoff::exponential(MS)))
        .timeout(SECOND)
}

/// The same with a bulkhead: five stages.
fn stack5(bulkhead: BulkheadSpec) -> Policy {
    stack().bulkhead(bulkhead)
}

/// The same with a hedge: six stages.
fn stack6(hedge: HedgeSpec) -> Policy {
    stack5(BulkheadSpec::fixed(8)).hedge(hedge.budget(BudgetSpec::ratio(1.0).min_per_second(100))).idempotent()
}

fn module(policy: Policy) -> ResilienceModule {
    ResilienceModule::in_memory().seed(7).policy(policy).build().unwrap()
}

fn pipeline(policy: Policy) -> Pipeline {
    module(policy).pipeline("p", ()).unwrap()
}

/// A pipeline on a clock that stands still. A digest allocates when it receives the first latency of a new magnitude; on a
/// real clock that could be any call.
fn steady(policy: Policy) -> Pipeline {
    let module = ResilienceModule::in_memory().seed(7).clock(Clock::manual()).policy(policy).build().unwrap();
    module.pipeline("p", ()).unwrap()
}

/// Returns the allocations of a hundred rounds, after a hundred unmeasured ones.
fn allocations(mut round: impl FnMut()) -> u64 {
    let mut rounds = || (0..CALLS).for_each(|_| round());
    rounds();
    measure(rounds).count_total
}

/// Returns the allocations of a hundred awaited calls, after a hundred unmeasured ones.
fn allocations_of<T>(runtime: &Runtime, mut call: impl AsyncFnMut() -> T) -> u64 {
    let mut rounds = || {
        runtime.block_on(async {
            for _ in 0..CALLS {
                black_box(call().await);
            }
        });
    };
    rounds();
    measure(rounds).count_total
}

/// An operation that is ready at the second poll.
async fn pending_once(answer: Result<u32, Failure>) -> Result<u32, Failure> {
    let mut polled = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut polled, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
    answer
}

#[test]
fn a_call_through_a_gate_allocates_nothing_ready_or_pending() {
    let runtime = runtime();
    let module = module(stack());
    assert!(module.attach(&Gate::default()));
    let kept = module.pipeline("p", ()).unwrap();
    let ready = allocations_of(&runtime, async || kept.run(async || Ok::<u32, Failure>(1)).await);
    let pending = allocations_of(&runtime, async || kept.run(|| pending_once(Ok(1))).await);
    assert_eq!((ready, pending), (0, 0));
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations(|| drop(black_box(Box::new(1)))), CALLS as u64);
    assert_eq!(allocations_of(&runtime(), async || Box::pin(ok()).await), CALLS as u64);
}

#[test]
fn an_admitted_call_that_is_ready_at_once_allocates_nothing() {
    let kept = pipeline(stack());
    assert_eq!(allocations(|| assert_eq!(at_once(kept.run(ok)), Ok(1))), 0);
    let runtime = runtime();
    let _inside = runtime.enter();
    assert_eq!(allocations(|| assert_eq!(at_once(kept.run(ok)), Ok(1))), 0);
}

/// Of the call, or of its task; whatever the number of limits.
#[test]
fn a_call_with_several_limits_and_a_tag_allocates_nothing() {
    use phalanx::policy::{LimitKey, LimitSpec};

    let limit = |key| LimitSpec::per_second(1_000_000).key(key);
    let policy = Policy::named("p")
        .rate_limit(PLENTY)
        .limit("all", limit(LimitKey::Policy))
        .limit("tenant", limit(LimitKey::tag("tenant")));
    let kept = pipeline(policy.clone());
    let tagged_call = || assert_eq!(at_once(kept.call().tag("tenant", "acme").run(ok)), Ok(1));
    assert_eq!(allocations(tagged_call), 0, "admitted");
    let task = runtime();
    let in_task = task.block_on(
        Tags::EMPTY.with("tenant", "acme").scope(async { allocations(|| assert_eq!(at_once(kept.run(ok)), Ok(1))) }),
    );
    assert_eq!(in_task, 0, "by the tag of its task");
    let rejected = pipeline(policy.limit("small", LimitSpec::new(1, HOUR)));
    let _ = at_once(rejected.call().tag("tenant", "acme").run(ok));
    let rejection = || {
        let error = at_once(rejected.call().tag("tenant", "acme").run(ok)).unwrap_err();
        assert_eq!(error.rejection().unwrap().limit(), Some("small"));
    };
    assert_eq!(allocations(rejection), 0, "rejected");
}

#[test]
fn a_leased_call_allocates_nothing() {
    let runtime = runtime();
    let _inside = runtime.enter();
    let redis = FaultyRedis::new();
    let policy = Policy::named("p").rate_limit(PLENTY.consistency(Consistency::Leased));
    let module = ResilienceModule::with_redis(&redis).policy(policy).build().unwrap();
    let kept = module.pipeline("p", ()).unwrap();
    runtime.block_on(async {
        for _ in 0..300 {
            for _ in 0..40 {
                assert_eq!(kept.run(ok).await, Ok(1));
            }
            tokio::time::sleep(MS).await;
        }
    });
    let held = module.redis_store().unwrap().leased_permits().held;
    assert!(held >= 3 * CALLS as u64, "{held}");
    let source = || at_once(kept.call().run_recorded(ok)).1.source;
    assert_eq!(source(), Source::Leased);
    assert_eq!(allocations(|| assert_eq!(at_once(kept.run(ok)), Ok(1))), 0);
    assert_eq!(source(), Source::Leased);
}

#[test]
fn a_metered_call_allocates_nothing_answered_failed_or_rejected() {
    let page = Page::new().unwrap();
    let metered = |policy: Policy| {
        let builder = ResilienceModule::in_memory().seed(7).policy(policy).metered_by(Metrics::of(page.meter()));
        builder.build().unwrap().pipeline("p", "r").unwrap()
    };
    let runtime = runtime();
    let kept = metered(stack5(BulkheadSpec::fixed(8)));
    assert_eq!(allocations(|| assert_eq!(at_once(kept.run(ok)), Ok(1))), 0);
    let bound = allocations_of(&runtime, async || kept.call().within(SECOND).run(|| pending_once(Ok(1))).await);
    let retried = allocations_of(&runtime, async || kept.run(|| pending_once(Err(BROKEN))).await);
    assert_eq!((bound, retried), (0, 0));
    let rejecting = metered(Policy::named("p").rate_limit(RateLimitSpec::per_second(1)));
    assert_eq!(allocations(|| drop(black_box(at_once(rejecting.run(ok))))), 0);
}

#[test]
fn an_admitted_call_that_is_pending_once_allocates_nothing() {
    let (runtime, kept) = (runtime(), pipeline(stack()));
    let call = async || assert_eq!(kept.run(|| pending_once(Ok(1))).await, Ok(1));
    assert_eq!(allocations_of(&runtime, call), 0);

    // The same with manual polling: neither setting nor dropping a timer allocates.
    let _inside = runtime.enter();
    let by_hand = || {
        let mut call = pin!(kept.run(|| pending_once(Ok(1))));
        assert!(poll_once(call.as_mut()).is_pending());
        assert_eq!(poll_once(call.as_mut()), Poll::Ready(Ok(1)));
    };
    assert_eq!(allocations(by_hand), 0);
}

#[test]
fn a_call_with_a_deadline_allocates_nothing() {
    let (runtime, kept) = (runtime(), pipeline(stack().deadline(5 * SECOND)));
    assert_eq!(allocations_of(&runtime, async || assert_eq!(kept.run(ok).await, Ok(1))), 0);
    assert_eq!(allocations_of(&runtime, async || assert_eq!(kept.run(|| pending_once(Ok(1))).await, Ok(1))), 0);
    let within = async || assert_eq!(kept.call().within(SECOND).run(|| pending_once(Ok(1))).await, Ok(1));
    assert_eq!(allocations_of(&runtime, within), 0);
    let scoped = async || {
        let context = Context::EMPTY.with_timeout(SECOND).with_criticality(Criticality::Degraded);
        assert_eq!(scope(context, kept.run(|| pending_once(Ok(1)))).await, Ok(1));
    };
    assert_eq!(allocations_of(&runtime, scoped), 0);
}

#[test]
fn a_call_with_options_of_its_own_allocates_nothing() {
    let (runtime, kept) = (runtime(), pipeline(stack()));
    let recorded = async || {
        let call = kept.call().cost(2).classify(|result: &Result<u32, Failure>| match result {
            Ok(_) => Class::SUCCESS,
            Err(error) => error.classify(),
        });
        let (answer, decision) = call.fallback_value(7).run_recorded(|| pending_once(Ok(1))).await;
        assert_eq!((answer, decision.attempts), (Ok(1), 1));
    };
    assert_eq!(allocations_of(&runtime, recorded), 0);
}

#[test]
fn a_retried_call_allocates_nothing() {
    let (runtime, kept) = (runtime(), pipeline(stack()));
    for answer in [Err(BROKEN), Err(Failure(Kind::Domain))] {
        let call = async || assert!(kept.run(|| pending_once(answer)).await.is_err());
        assert_eq!(allocations_of(&runtime, call), 0, "{answer:?}");
    }
    let cut_off = async || assert!(kept.run(hang).await.is_err());
    assert_eq!(allocations_of(&runtime, cut_off), 0, "timeouts");
}

#[test]
fn a_call_that_waits_for_its_permit_allocates_nothing() {
    let runtime = runtime();
    let limit = RateLimitSpec::per_second(1_000).burst(1).max_wait(SECOND);
    let kept = runtime.block_on(async { pipeline(stack().rate_limit(limit)) });
    let start = runtime.block_on(async { tokio::time::Instant::now() });
    assert_eq!(allocations_of(&runtime, async || assert_eq!(kept.run(ok).await, Ok(1))), 0);
    assert!(runtime.block_on(async { start.elapsed() }) >= 199 * MS, "the calls waited");
}

#[test]
fn a_call_that_is_rejected_allocates_nothing() {
    let store = MemoryStore::seeded(Clock::manual(), 16, Rng::seeded(7));
    let (tripping, limit) = (BreakerSpec::consecutive_failures(1), RateLimitSpec::new(1, HOUR).burst(10));
    trip(&store, &tripping);
    let policy = stack().breaker(tripping).rate_limit(limit.clone());
    let kept = ResilienceModule::in_store(store.clone()).policy(policy).build().unwrap().pipeline("p", ()).unwrap();
    let rejected = || at_once(kept.run(ok)).unwrap_err().rejection().unwrap().code();
    assert_eq!(allocations(|| assert_eq!(rejected(), RejectionCode::CircuitOpen)), 0);
    drain(&store, &limit, 10);
    assert_eq!(allocations(|| assert_eq!(rejected(), RejectionCode::RateLimited)), 0);
}

#[test]
fn a_call_by_name_on_a_known_route_allocates_nothing() {
    let (runtime, module) = (runtime(), module(stack()));
    assert_eq!(allocations_of(&runtime, async || assert_eq!(module.run("p", "stripe", ok).await, Ok(1))), 0);
    assert_eq!(allocations_of(&runtime, async || assert_eq!(module.run("p", (), ok).await, Ok(1))), 0);
    let pending = async || assert_eq!(module.run("p", "stripe", || pending_once(Ok(1))).await, Ok(1));
    assert_eq!(allocations_of(&runtime, pending), 0);
    let prepared = async || assert_eq!(module.call("p", "stripe").cost(2).run(ok).await, Ok(1));
    assert_eq!(allocations_of(&runtime, prepared), 0);
}

#[test]
fn a_call_on_a_pipeline_kept_since_before_a_change_of_policy_allocates_nothing() {
    let module = module(stack());
    let kept = module.pipeline("p", ()).unwrap();
    module.retune(stack().timeout(2 * SECOND)).unwrap();
    assert_eq!(allocations(|| assert_eq!(at_once(kept.run(ok)), Ok(1))), 0);
}

#[test]
fn successes_across_many_slices_of_the_window_allocate_nothing() {
    let clock = Clock::manual();
    let module = ResilienceModule::in_memory().clock(clock.clone()).policy(stack()).build().unwrap();
    let kept = module.pipeline("p", ()).unwrap();
    let call = |step: Duration| {
        clock.advance(step);
        assert_eq!(at_once(kept.run(ok)), Ok(1));
    };
    assert_eq!(allocations(|| call(300 * MS)), 0, "three calls a slice");
    assert_eq!(allocations(|| call(25 * SECOND)), 0, "a new window each");
}

#[test]
fn an_adaptive_throttle_and_a_watched_quantile_allocate_nothing() {
    let mut shedding = stack().throttle(ThrottleSpec::default());
    shedding.breaker = None;
    let kept = pipeline(shedding);
    assert_eq!(allocations(|| assert_eq!(at_once(kept.run(ok)), Ok(1))), 0);
    let kept = steady(stack().breaker(breaker().or_latency(0.95, SECOND, SECOND)));
    assert_eq!(allocations(|| assert_eq!(at_once(kept.run(ok)), Ok(1))), 0);
}

#[test]
fn recording_a_latency_and_reading_a_quantile_allocate_nothing() {
    let clock = Clock::manual();
    let store = MemoryStore::new(clock.clone());
    let digest = store.digest(&StateKey::new("p", ()), 10 * SECOND);
    let mut window = P2Window::new(10 * SECOND, 0.95);
    let round = || {
        clock.advance(100 * MS);
        let now = clock.now();
        for latency in [MS, 20 * MS, SECOND] {
            store.observe(&digest, now, latency);
            window.observe(now, latency);
        }
        black_box((
            store.quantile(&digest, now, 0.5),
            store.quantile_since(&digest, now, now, 0.5),
            window.quantile(now),
        ));
    };
    assert_eq!(allocations(round), 0);
}

#[test]
fn ten_thousand_routes_with_a_watched_quantile_fit_into_64_mebibytes() {
    let clock = Clock::manual();
    let policy = Policy::named("p").breaker(breaker().or_latency(0.95, SECOND, SECOND));
    let module = ResilienceModule::in_memory().clock(clock.clone()).policy(policy).build().unwrap();
    let taken = measure(|| {
        for route in 0..10_000 {
            let pipeline = module.pipeline("p", route.to_string().as_str()).unwrap();
            for takes in [10, 20, 50, 100] {
                let slow = || {
                    clock.advance(takes * MS);
                    ok()
                };
                assert_eq!(at_once(pipeline.run(slow)), Ok(1));
            }
        }
    });
    println!("{:.1} kB a route", taken.bytes_current as f64 / 10_000.0 / 1e3);
    assert!(taken.bytes_current < 64 << 20, "{} bytes", taken.bytes_current);
}
