//! Several limits of one policy, in memory and through the real store over a Redis in this process (docs/guarantees.md I-32).

#![allow(clippy::unwrap_used)] // a failed test panics, also in helpers

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use phalanx::policy::{LimitCost, LimitKey, LimitSpec, MissingTag, RateOverride};
use phalanx::{
    Consistency, Context as TaskContext, Decision, Error, Event, EventKind, Kind, OnDegraded, Pipeline, Policy,
    RateLimitSpec, RejectionCode, ResilienceModule, Source, Tags, scope,
};
use phalanx_testkit::FaultyRedis;
use tokio::time::{advance, sleep};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

type Answer = (Result<(), Error<Kind>>, Decision);

fn tenant(permits: u64) -> LimitSpec {
    LimitSpec::per_second(permits).key(LimitKey::tag("tenant"))
}

/// Ten in all, seven a route, and five a tenant.
fn three() -> Policy {
    Policy::named("api")
        .limit("all", LimitSpec::per_second(10).key(LimitKey::Policy))
        .limit("route", LimitSpec::per_second(7))
        .limit("tenant", tenant(5))
}

fn memory(policy: Policy) -> ResilienceModule {
    ResilienceModule::in_memory().policy(policy).build().unwrap()
}

fn server() -> FaultyRedis {
    let redis = FaultyRedis::new();
    redis.set_latency(MS / 2);
    redis
}

fn replica(redis: &FaultyRedis, policy: Policy) -> ResilienceModule {
    ResilienceModule::with_redis(redis).service("shop").policy(policy).build().unwrap()
}

async fn call(module: &ResilienceModule, route: &str, tenant: &str, cost: u32) -> Answer {
    let call = module.call("api", route).tag("tenant", tenant).cost(cost);
    call.run_recorded(async || Ok::<_, Kind>(())).await
}

/// The limit that rejects a call; none if it is admitted.
async fn rejected_by(module: &ResilienceModule, route: &str, tenant: &str, cost: u32) -> Option<&'static str> {
    let (result, decision) = call(module, route, tenant, cost).await;
    let rejection = *result.err()?.rejection().unwrap();
    assert!(matches!(rejection.code(), RejectionCode::RateLimited | RejectionCode::CostAboveBurst), "{rejection}");
    assert_eq!(rejection.limit(), decision.limit);
    Some(rejection.limit().unwrap())
}

#[tokio::test(start_paused = true)]
async fn each_limit_counts_by_its_own_key_and_the_rejection_names_it() {
    let redis = server();
    for module in [memory(three()), replica(&redis, three())] {
        assert_eq!(rejected_by(&module, "eu", "acme", 5).await, None);
        assert_eq!(rejected_by(&module, "us", "acme", 1).await, Some("tenant"), "of all routes together");
        assert_eq!(rejected_by(&module, "eu", "other", 3).await, Some("route"));
        assert_eq!(rejected_by(&module, "us", "other", 5).await, None);
        assert_eq!(rejected_by(&module, "us", "third", 1).await, Some("all"));
        let (result, decision) = call(&module, "us", "third", 1).await;
        let text = result.unwrap_err().to_string();
        assert!(text.contains("rate_limited by all"), "{text}");
        assert_eq!(decision.remaining, Some(0));
        assert!(decision.retry_after.is_some_and(|after| after > 80 * MS && after <= SECOND / 10), "{decision:?}");
        sleep(SECOND).await;
        assert_eq!(rejected_by(&module, "us", "third", 1).await, None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_tag_comes_from_the_call_or_from_its_task() {
    let module = memory(Policy::named("api").limit("tenant", tenant(1)));
    let run = || module.run("api", (), || async { Ok::<_, Kind>(()) });
    let own = |name| module.call("api", ()).tag("tenant", name).run(async || Ok::<_, Kind>(()));
    let tags = Tags::EMPTY.with("tenant", "acme").with("plan", "free");
    tags.scope(async {
        assert!(run().await.is_ok());
        assert!(run().await.is_err(), "the tenant of the task");
        assert!(own("other").await.is_ok(), "a call's own tag comes first");
        // A spawned task has the tags only if it is given them, and so has a detached attempt.
        tokio::spawn(Tags::current().scope(scope(TaskContext::current(), async {})));
        let seen = module.call("api", ()).tag("tenant", "third");
        let seen = seen.run_detached(|| async { Ok::<_, Kind>(Tags::current().get("plan").map(str::to_owned)) });
        assert_eq!(seen.await.unwrap(), Some("free".to_owned()));
    })
    .await;
    assert!(own("acme").await.is_err(), "the bucket is the same one");
    assert!(run().await.is_ok(), "calls without the tag share one");
}

#[tokio::test(start_paused = true)]
async fn a_missing_tag_shares_one_bucket_or_is_exempt_or_is_rejected() {
    let with = |missing| {
        let limit = LimitSpec::per_second(4).key(LimitKey::Policy);
        memory(Policy::named("api").limit("all", limit).limit("tenant", tenant(1).missing(missing)))
    };
    let outcomes = async |module: &ResilienceModule| {
        let mut outcomes = Vec::new();
        for route in ["eu", "us", "us"] {
            let result = module.run("api", route, || async { Ok::<_, Kind>(()) }).await;
            outcomes.push(result.err().map(|error| error.rejection().unwrap().code()));
        }
        outcomes
    };
    let limited = Some(RejectionCode::RateLimited);
    assert_eq!(outcomes(&with(MissingTag::Share)).await, [None, limited, limited]);
    assert_eq!(outcomes(&with(MissingTag::Skip)).await, [None, None, None]);
    let rejects = with(MissingTag::Reject);
    assert_eq!(outcomes(&rejects).await, [Some(RejectionCode::InvalidTag); 3]);
    let pipeline = rejects.pipeline("api", "eu").unwrap();
    assert_eq!(pipeline.available_permits().await, Some(4), "nothing is charged");
    let only = memory(Policy::named("api").limit("tenant", tenant(1).missing(MissingTag::Skip)));
    assert_eq!(outcomes(&only).await, [None, None, None], "no limit applies");
}

#[tokio::test(start_paused = true)]
async fn a_tag_that_is_too_long_or_one_too_many_is_rejected_with_its_own_code_and_charges_nothing() {
    let module = memory(three());
    let long = "x".repeat(1_025);
    let code = |answer: Answer| answer.0.unwrap_err().rejection().unwrap().code();
    assert_eq!(code(call(&module, "eu", &long, 1).await), RejectionCode::InvalidTag);
    let many = module.call("api", "eu").tag("a", "").tag("b", "").tag("c", "").tag("tenant", "acme").tag("e", "");
    assert_eq!(code(many.run_recorded(async || Ok(())).await), RejectionCode::InvalidTag);
    let four = module.call("api", "eu").tag("a", "").tag("b", "").tag("c", "").tag("tenant", "acme");
    assert!(four.run(async || Ok::<_, Kind>(())).await.is_ok());
    assert_eq!(module.pipeline("api", "eu").unwrap().available_permits().await, Some(6), "one call was charged");
}

#[tokio::test(start_paused = true)]
async fn a_cost_is_the_calls_or_a_fixed_one_and_above_the_burst_it_is_rejected_for_good() {
    let redis = server();
    let requests = LimitSpec::per_second(3).cost(LimitCost::Fixed(1));
    let policy = || Policy::named("api").limit("requests", requests.clone()).limit("tokens", tenant(100));
    for module in [memory(policy()), replica(&redis, policy())] {
        let (result, decision) = call(&module, "eu", "acme", 101).await;
        assert_eq!(result.unwrap_err().rejection().unwrap().limit(), Some("tokens"));
        assert_eq!(decision.retry_after, None, "it never fits");
        for cost in [90, 0, 10] {
            assert_eq!(rejected_by(&module, "eu", "acme", cost).await, None);
        }
        assert_eq!(rejected_by(&module, "eu", "other", u32::MAX).await, Some("tokens"));
        assert_eq!(rejected_by(&module, "eu", "other", 0).await, Some("requests"));
    }
}

#[tokio::test(start_paused = true)]
async fn the_short_form_beside_others_is_a_limit_by_route_and_keeps_its_bucket() {
    let redis = server();
    let short = || Policy::named("api").rate_limit(RateLimitSpec::per_second(3));
    let both = || short().limit("tenant", tenant(100));
    for module in [memory(short()), replica(&redis, short())] {
        let module = &module;
        let run = |cost: u32| call(module, "eu", "acme", cost);
        assert!(run(2).await.0.is_ok());
        module.retune(both()).unwrap();
        assert!(run(1).await.0.is_ok());
        assert_eq!(rejected_by(module, "eu", "acme", 1).await, Some("rate_limit"), "two were spent before");
        module.retune(short()).unwrap();
        let rejection = *run(1).await.0.unwrap_err().rejection().unwrap();
        assert_eq!((rejection.code(), rejection.limit()), (RejectionCode::RateLimited, None));
    }
}

#[tokio::test(start_paused = true)]
async fn other_rates_hold_for_some_values_and_a_change_of_them_keeps_what_was_spent() {
    let redis = server();
    let with = |acme| Policy::named("api").limit("tenant", tenant(2).rate_for("acme", RateOverride::permits(acme)));
    for module in [memory(with(5)), replica(&redis, with(5))] {
        let module = &module;
        let by = |tenant: &'static str, cost| rejected_by(module, "eu", tenant, cost);
        assert_eq!((by("acme", 4).await, by("acme", 2).await), (None, Some("tenant")));
        assert_eq!((by("other", 2).await, by("other", 1).await), (None, Some("tenant")));
        // One is left, as many as fit into three.
        module.retune(with(3)).unwrap();
        sleep(2 * MS).await;
        assert_eq!((by("acme", 1).await, by("acme", 1).await), (None, Some("tenant")), "four of five were spent");
        sleep(SECOND).await;
        assert_eq!((by("acme", 3).await, by("acme", 1).await), (None, Some("tenant")));
    }
}

#[tokio::test(start_paused = true)]
async fn a_resolver_in_code_is_asked_once_for_a_value_and_again_after_a_change() {
    let (rate, asked) = (Arc::new(AtomicU64::new(3)), Arc::new(AtomicU64::new(0)));
    let policy = || {
        let (rate, asked) = (rate.clone(), asked.clone());
        let limit = tenant(1).rate_for("listed", RateOverride::permits(2)).resolver(move |value| {
            asked.fetch_add(1, Ordering::Relaxed);
            // One that would be a mistake in a file is ignored.
            (value != "listed")
                .then(|| RateOverride::permits(if value == "wrong" { 0 } else { rate.load(Ordering::Relaxed) }))
        });
        Policy::named("api").limit("tenant", limit)
    };
    let module = memory(policy());
    let by = |tenant: &'static str, cost| rejected_by(&module, "eu", tenant, cost);
    for _ in 0..3 {
        assert_eq!(by("acme", 1).await, None);
    }
    assert_eq!((by("acme", 1).await, asked.load(Ordering::Relaxed)), (Some("tenant"), 1));
    assert_eq!((by("listed", 2).await, by("wrong", 2).await), (None, Some("tenant")));
    rate.store(6, Ordering::Relaxed);
    assert_eq!(by("acme", 1).await, Some("tenant"), "fixed until the policy changes");
    module.retune(policy()).unwrap();
    assert_eq!(by("acme", 1).await, Some("tenant"), "asked again; what was spent stays spent");
    sleep(SECOND).await;
    assert_eq!((by("acme", 6).await, by("acme", 1).await), (None, Some("tenant")));
}

#[tokio::test(start_paused = true)]
async fn values_beyond_max_routes_share_one_bucket_and_known_ones_keep_theirs() {
    let seen = Arc::new(AtomicU64::new(0));
    let count = seen.clone();
    let observer = move |event: &Event<'_>| {
        count.fetch_add(u64::from(matches!(event.kind, EventKind::TagsExhausted)), Ordering::Relaxed);
    };
    let policy = Policy::named("api").limit("tenant", tenant(2));
    let module = ResilienceModule::in_memory().policy(policy).max_routes(3).observer(observer).build().unwrap();
    for tenant in ["a", "b", "c"] {
        assert_eq!(rejected_by(&module, "eu", tenant, 1).await, None);
    }
    for tenant in ["d", "e"] {
        assert_eq!(rejected_by(&module, "eu", tenant, 1).await, None, "of the shared bucket");
    }
    assert_eq!(rejected_by(&module, "eu", "f", 1).await, Some("tenant"), "a new value is no new burst");
    assert_eq!(rejected_by(&module, "eu", "a", 1).await, None);
    assert_eq!(seen.load(Ordering::Relaxed), 1, "one event");
    // Buckets that are full again make room.
    sleep(2 * SECOND).await;
    assert_eq!(rejected_by(&module, "eu", "g", 2).await, None);
    assert_eq!(rejected_by(&module, "eu", "h", 2).await, None);
}

fn poll_once<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Polls a call and lets time pass, so many times, and drops it then. Returns whether it has ended.
async fn drop_after(polls: usize, call: impl Future) -> bool {
    let mut call = pin!(call);
    for _ in 0..polls {
        if poll_once(call.as_mut()).is_ready() {
            return true;
        }
        // Requests and replies are on their way for half a millisecond each.
        for _ in 0..3 {
            tokio::task::yield_now().await;
            advance(MS / 4).await;
        }
    }
    false
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_anywhere_gives_the_permits_of_all_limits_back() {
    // So slow that a permit that is lost is missed for the rest of the test.
    let limit = |permits| LimitSpec::new(permits, Duration::from_secs(3_600)).max_wait(3_000 * SECOND);
    let policy = || {
        Policy::named("api")
            .limit("all", limit(10).key(LimitKey::Policy))
            .limit("route", limit(7))
            .limit("tenant", limit(2).key(LimitKey::tag("tenant")))
    };
    for waits in [false, true] {
        for in_memory in [true, false] {
            let mut ended = false;
            for polls in 1..30 {
                let redis = server();
                let module = if in_memory { memory(policy()) } else { replica(&redis, policy()) };
                // Two of two: the next waits for its tenant's permit.
                let first = u32::from(waits) * 2;
                assert!(call(&module, "eu", "acme", first).await.0.is_ok());
                let started = AtomicU64::new(0);
                let request = module.call("api", "eu").tag("tenant", "acme").cost(1);
                let operation = || {
                    started.fetch_add(1, Ordering::Relaxed);
                    async { Ok::<_, Kind>(()) }
                };
                let done = drop_after(polls, request.run(operation)).await;
                sleep(SECOND).await;
                let used = u32::from(started.load(Ordering::Relaxed) > 0);
                assert_eq!(done, used == 1, "polls {polls}");
                let pipeline = module.pipeline("api", "eu").unwrap();
                let left = u64::from(7 - first - used);
                assert_eq!(pipeline.available_permits().await, Some(left), "{polls} polls, in memory {in_memory}");
                // The tenant's as well.
                let rest = 2 - first - used;
                let no_wait = module.call("api", "eu").tag("tenant", "acme").cost(rest).within(MS * 20);
                assert!(rest == 0 || no_wait.run(async || Ok::<_, Kind>(())).await.is_ok(), "{polls} polls");
                if done {
                    ended = true;
                    break;
                }
            }
            assert_ne!(ended, waits, "a call that waits does not end, any other does");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn permits_are_given_back_if_a_later_stage_rejects() {
    let redis = server();
    let policy = || three().bulkhead(phalanx::BulkheadSpec::fixed(1));
    for module in [memory(policy()), replica(&redis, policy())] {
        let mut holder = Box::pin(
            module
                .call("api", "eu")
                .tag("tenant", "acme")
                .run(async || std::future::pending::<Result<(), Kind>>().await),
        );
        while module.pipeline("api", "eu").unwrap().available_slots() != Some(0) {
            assert!(poll_once(holder.as_mut()).is_pending());
            sleep(MS).await;
        }
        for _ in 0..20 {
            let (result, decision) = call(&module, "eu", "acme", 4).await;
            let rejection = *result.unwrap_err().rejection().unwrap();
            assert_eq!((rejection.code(), rejection.limit()), (RejectionCode::BulkheadFull, None));
            assert_eq!(decision.limit, Some("tenant"), "that with the fewest permits left");
            sleep(5 * MS).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn without_redis_every_limit_grants_its_own_share_or_none_is_charged() {
    let redis = server();
    let modules: Vec<_> = (0..2).map(|_| replica(&redis, three())).collect();
    for module in &modules {
        assert_eq!(rejected_by(module, "eu", "acme", 0).await, None);
    }
    sleep(3 * SECOND).await; // both know that there are two
    redis.stop();
    sleep(2 * SECOND).await;
    for module in &modules {
        // Half of each: five in all, three a route, two a tenant.
        assert_eq!(rejected_by(module, "eu", "acme", 2).await, None);
        assert_eq!(rejected_by(module, "eu", "acme", 1).await, Some("tenant"));
        let (result, decision) = call(module, "eu", "other", 1).await;
        assert!(result.is_ok() && decision.source == Source::Degraded);
        for _ in 0..5 {
            assert_eq!(rejected_by(module, "eu", "third", 1).await, Some("route"));
        }
        assert_eq!(rejected_by(module, "us", "fourth", 2).await, None, "rejected calls took nothing from `all`");
        assert_eq!(rejected_by(module, "ap", "fifth", 1).await, Some("all"));
    }
    redis.start();
    sleep(5 * SECOND).await;
    assert_eq!(rejected_by(&modules[0], "eu", "acme", 5).await, None, "shared again");
    assert_eq!(rejected_by(&modules[1], "eu", "acme", 1).await, Some("tenant"));
}

#[tokio::test(start_paused = true)]
async fn what_the_limits_granted_without_redis_is_charged_to_each_afterwards() {
    let slow = |permits| LimitSpec::new(permits, Duration::from_secs(3_600));
    let policy = Policy::named("api").limit("route", slow(20)).limit("tenant", slow(10).key(LimitKey::tag("tenant")));
    let redis = server();
    let module = replica(&redis, policy);
    assert_eq!(rejected_by(&module, "eu", "acme", 0).await, None);
    sleep(3 * SECOND).await;
    redis.stop();
    sleep(2 * SECOND).await;
    assert_eq!(rejected_by(&module, "eu", "acme", 6).await, None);
    redis.start();
    sleep(5 * SECOND).await;
    assert_eq!(rejected_by(&module, "eu", "acme", 5).await, Some("tenant"), "six of ten are charged");
    assert_eq!(rejected_by(&module, "eu", "acme", 4).await, None);
    assert_eq!(module.pipeline("api", "eu").unwrap().available_permits().await, Some(10));
}

#[tokio::test(start_paused = true)]
async fn on_degraded_decides_about_several_limits_too() {
    for (mode, code) in [(OnDegraded::Open, None), (OnDegraded::Closed, Some(RejectionCode::StoreUnavailable))] {
        let redis = server();
        let module = replica(&redis, three().on_degraded(mode));
        assert!(call(&module, "eu", "acme", 5).await.0.is_ok());
        redis.stop();
        sleep(2 * SECOND).await;
        for _ in 0..20 {
            let (result, _) = call(&module, "eu", "acme", 5).await;
            assert_eq!(result.err().map(|error| error.rejection().unwrap().code()), code);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn concurrent_callers_of_a_policy_share_scripts_whatever_their_tags() {
    let redis = server();
    let policy = Policy::named("api")
        .limit("all", LimitSpec::per_second(10).key(LimitKey::Policy).burst(1_000_000))
        .limit("tenant", tenant(10).burst(100_000));
    let module = replica(&redis, policy);
    assert_eq!(rejected_by(&module, "eu", "warm", 1).await, None);
    let before = redis.runs_of("rate_limit_acquire_all");
    let names: Vec<_> = (0..100).map(|tenant| format!("tenant {tenant}")).collect();
    let spawn = |name: &String| {
        let (module, name) = (module.clone(), name.clone());
        tokio::spawn(async move { call(&module, "eu", &name, 1).await })
    };
    let calls: Vec<_> = names.iter().cycle().take(1_000).map(spawn).collect();
    for call in calls {
        let (result, decision) = call.await.unwrap();
        assert!(result.is_ok() && decision.source == Source::Fleet);
    }
    let scripts = redis.runs_of("rate_limit_acquire_all") - before;
    assert!(scripts <= 40, "{scripts} for a thousand calls over 101 buckets");
    assert_eq!(redis.runs_of("rate_limit_acquire"), 0);
    let pipeline = module.pipeline("api", "eu").unwrap();
    assert_eq!(pipeline.available_permits().await, Some(1_000_000 - 1_001));
    for name in names.iter().step_by(13) {
        assert_eq!(rejected_by(&module, "eu", name, 100_000 - 9).await, Some("tenant"), "ten of its own are spent");
    }
}

#[tokio::test(start_paused = true)]
async fn a_rejection_is_remembered_until_its_retry_after_without_a_round_trip() {
    let redis = server();
    let slow = LimitSpec::new(1, Duration::from_secs(10)).key(LimitKey::tag("tenant"));
    let policy =
        Policy::named("api").limit("all", LimitSpec::per_second(1_000).key(LimitKey::Policy)).limit("tenant", slow);
    let module = replica(&redis, policy);
    assert_eq!(rejected_by(&module, "eu", "acme", 1).await, None);
    assert_eq!(rejected_by(&module, "eu", "acme", 1).await, Some("tenant"));
    let before = redis.runs_of("rate_limit_acquire_all");
    for _ in 0..500 {
        let (result, decision) = call(&module, "eu", "acme", 1).await;
        assert!(result.is_err() && decision.source == Source::Fleet && decision.limit == Some("tenant"));
        assert!(decision.retry_after.is_some_and(|after| after <= 10 * SECOND));
    }
    assert_eq!(redis.runs_of("rate_limit_acquire_all"), before, "no round trip");
    assert_eq!(rejected_by(&module, "eu", "other", 1).await, None, "another tenant is asked for");
}

#[tokio::test(start_paused = true)]
async fn leased_limits_are_granted_here_and_together_stay_within_each() {
    let redis = server();
    let leased = |spec: LimitSpec| spec.consistency(Consistency::Leased);
    let policy = || {
        Policy::named("api")
            .limit("all", leased(LimitSpec::per_second(4_000).key(LimitKey::Policy)))
            .limit("tenant", leased(tenant(2_000)))
    };
    let modules: Vec<_> = (0..2).map(|_| replica(&redis, policy())).collect();
    let mut sources = std::collections::BTreeMap::new();
    let mut admitted = [0_u64; 2];
    for _ in 0..2_000 {
        for (module, own) in modules.iter().zip(["acme", "other"]) {
            for tenant in [own, "acme"] {
                let (result, decision) = call(module, "eu", tenant, 1).await;
                if result.is_ok() {
                    *sources.entry(decision.source.name()).or_insert(0_u64) += 1;
                    admitted[usize::from(tenant == "other")] += 1;
                }
            }
        }
        sleep(MS).await;
    }
    assert!(admitted[0] <= 2_000 + 2_000 * 3, "{admitted:?} of one tenant in less than three seconds");
    let leased = sources.get("leased").copied().unwrap_or(0);
    let total: u64 = sources.values().sum();
    assert!(leased * 10 >= total * 8, "{sources:?}");
    let mixed = Policy::named("api").limit("all", leased_limit(4_000)).limit("tenant", tenant(2_000));
    let module = replica(&redis, mixed);
    for _ in 0..100 {
        let (_, decision) = call(&module, "eu", "third", 1).await;
        assert_eq!(decision.source, Source::Fleet, "one exact limit makes the decision exact");
    }
}

fn leased_limit(permits: u64) -> LimitSpec {
    LimitSpec::per_second(permits).consistency(Consistency::Leased)
}

#[tokio::test(start_paused = true)]
async fn a_lost_reply_is_decided_by_the_twins_and_costs_each_limit_at_most_once() {
    let redis = server();
    let module = replica(&redis, three());
    assert_eq!(rejected_by(&module, "eu", "acme", 1).await, None);
    redis.lose_reply("rate_limit_acquire_all", 1);
    let (result, decision) = call(&module, "eu", "acme", 1).await;
    assert!(result.is_ok() && decision.source == Source::Degraded, "{decision:?}");
    sleep(20 * MS).await;
    assert_eq!(rejected_by(&module, "eu", "acme", 3).await, Some("tenant"), "one of five was taken twice at most");
}

#[test]
fn a_description_lists_every_limit() {
    let module = memory(three().rate_limit(RateLimitSpec::per_second(9)));
    let pipeline: Pipeline = module.pipeline("api", "eu").unwrap();
    let text = pipeline.describe().to_string();
    for line in [
        "rate_limit 9 per 1s, burst 9",
        "limits     all: 10 per 1s, burst 10, by policy",
        "limits     tenant: 5 per 1s, burst 5, by tag:tenant",
    ] {
        assert!(text.contains(line), "{text}");
    }
}

/// A hundred tokens in all and fifty a tenant, by the cost of a call, and ten requests.
fn tokens() -> Policy {
    Policy::named("api")
        .limit("all", LimitSpec::per_second(100).key(LimitKey::Policy))
        .limit("requests", LimitSpec::per_second(10).cost(LimitCost::Fixed(1)))
        .limit("tenant", tenant(50))
}

#[tokio::test(start_paused = true)]
async fn a_settled_cost_reaches_every_limit_that_takes_it() {
    let redis = server();
    for module in [memory(tokens()), replica(&redis, tokens())] {
        let settled = async |tenant, estimate, actual| {
            let call = module.call("api", "eu").tag("tenant", tenant).cost(estimate);
            call.settle_cost(|_| Some(actual)).run(async || Ok::<_, Kind>(())).await
        };
        assert!(settled("acme", 40, 10).await.is_ok());
        sleep(10 * MS).await; // a refund is sent in the background
        assert_eq!(rejected_by(&module, "eu", "acme", 39).await, None, "thirty came back");
        assert_eq!(rejected_by(&module, "eu", "acme", 2).await, Some("tenant"));
        assert_eq!(rejected_by(&module, "eu", "other", 50).await, None, "of all limits");
        assert_eq!(rejected_by(&module, "eu", "third", 10).await, Some("all"));
        sleep(5 * SECOND).await;
        assert!(settled("acme", 40, 75).await.is_ok());
        sleep(10 * MS).await;
        let (result, decision) = call(&module, "eu", "acme", 1).await;
        assert_eq!((result.is_err(), decision.limit), (true, Some("tenant")), "a debt of 25");
        assert!(decision.retry_after.is_some_and(|after| after > 400 * MS), "{decision:?}");
        assert_eq!(rejected_by(&module, "eu", "other", 35).await, Some("all"), "75 of a hundred are spent");
        assert_eq!(rejected_by(&module, "eu", "other", 20).await, None);
        sleep(5 * SECOND).await;
        // Settling leaves the limit of requests alone, which all of them cost one.
        for _ in 0..10 {
            assert!(settled("acme", 2, 0).await.is_ok());
        }
        assert_eq!(rejected_by(&module, "eu", "acme", 1).await, Some("requests"));
        sleep(5 * SECOND).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_while_it_runs_has_paid_its_estimate_to_every_limit() {
    let redis = server();
    for module in [memory(tokens()), replica(&redis, tokens())] {
        {
            let call = module.call("api", "eu").tag("tenant", "acme").cost(40).settle_cost(|_| Some(1));
            let mut running = pin!(call.run(async || {
                std::future::pending::<()>().await;
                Ok::<_, Kind>(())
            }));
            tokio::select! {
                biased;
                _ = &mut running => unreachable!("it never ends"),
                () = sleep(10 * MS) => {}
            }
        }
        sleep(10 * MS).await;
        assert_eq!(rejected_by(&module, "eu", "acme", 12).await, Some("tenant"));
        assert_eq!(rejected_by(&module, "eu", "acme", 10).await, None);
        sleep(5 * SECOND).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_reservation_and_a_charge_by_hand_reach_the_limits_of_the_tasks_tags() {
    let redis = server();
    for module in [memory(tokens()), replica(&redis, tokens())] {
        let pipeline = module.pipeline("api", "eu").unwrap();
        let acme = Tags::EMPTY.with("tenant", "acme");
        let reservation = acme.clone().scope(pipeline.reserve_cost(40)).await.unwrap();
        assert_eq!(reservation.cost(), 40);
        assert_eq!(rejected_by(&module, "eu", "acme", 12).await, Some("tenant"));
        reservation.settle_cost(10);
        sleep(10 * MS).await;
        assert_eq!(rejected_by(&module, "eu", "acme", 39).await, None);
        sleep(5 * SECOND).await;
        acme.scope(async { pipeline.charge(45) }).await;
        sleep(10 * MS).await;
        assert_eq!(rejected_by(&module, "eu", "acme", 6).await, Some("tenant"));
        assert_eq!(rejected_by(&module, "eu", "other", 50).await, None);
        assert_eq!(pipeline.refund(45), 0, "with several limits, nothing is given back by hand");
        sleep(5 * SECOND).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_cost_above_the_burst_of_one_limit_is_a_mistake_of_the_call_and_takes_nothing() {
    let redis = server();
    for module in [memory(tokens()), replica(&redis, tokens())] {
        let (result, decision) = call(&module, "eu", "acme", 51).await;
        let rejection = *result.unwrap_err().rejection().unwrap();
        assert_eq!((rejection.code(), rejection.retry_after()), (RejectionCode::CostAboveBurst, None));
        assert_eq!((rejection.limit(), decision.limit), (Some("tenant"), Some("tenant")));
        assert_eq!(rejected_by(&module, "eu", "acme", 50).await, None);
        sleep(5 * SECOND).await;
    }
}
