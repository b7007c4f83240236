//! Idempotent requests: one effect, also if Redis is away when the handler ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::State;
use axum::http::{Request, StatusCode};
use axum::routing::post;
use phalanx_store_redis::RedisStore;
use phalanx_testkit::FaultyRedis;
use phalanx_tower::idempotency::{IdempotencyLayer, RedisIdempotency};
use tokio::time::{Instant, sleep};
use tower::ServiceExt;

use crate::harness::*;

#[derive(Clone, Default)]
struct Effects(Arc<AtomicUsize>);

/// A service of one replica whose handler takes this long, and has its effect at the end.
fn service(store: &RedisStore, effects: &Effects, takes: Duration) -> Router {
    let pay = move |State(effects): State<Effects>| async move {
        sleep(takes).await;
        format!("paid {}", effects.0.fetch_add(1, Ordering::SeqCst) + 1)
    };
    let layer = IdempotencyLayer::new(RedisIdempotency::over(store));
    Router::new().route("/pay", post(pay)).with_state(effects.clone()).layer(layer)
}

async fn pay(service: &Router) -> StatusCode {
    pay_and_read(service).await.0
}

/// Returns the status and the body of the answer.
async fn pay_and_read(service: &Router) -> (StatusCode, String) {
    let request = Request::post("/pay").header("idempotency-key", "k-17").body(Body::empty()).unwrap();
    let response = service.clone().oneshot(request).await.unwrap();
    let status = response.status();
    let body = to_bytes(response.into_body(), 1 << 16).await.unwrap();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

pub(crate) async fn review_1_4_an_answer_is_stored_after_an_outage_of_four_seconds() -> Seen {
    let redis = FaultyRedis::new();
    let (store, effects) = (replica(&redis, 1), Effects::default());
    meet(std::slice::from_ref(&store)).await;
    let service = service(&store, &effects, SECOND);
    let outage = async {
        sleep(900 * MS).await;
        redis.stop();
        sleep(4 * SECOND).await;
        redis.start();
    };
    let (first, ()) = tokio::join!(pay(&service), outage);
    assert_eq!((first, effects.0.load(Ordering::SeqCst)), (StatusCode::OK, 1), "the handler ran");
    recover(&store).await;
    sleep(35 * SECOND).await; // the lease is over
    let retry = pay(&service).await;
    let effects = effects.0.load(Ordering::SeqCst);
    promise(effects == 1, || {
        format!("{effects} effects of one key: Redis was away for 4 s when the handler ended; the retry got {retry}")
    })
}

pub(crate) async fn review_1_4_a_handler_that_has_lost_its_claim_does_not_finish_beside_the_next_one() -> Seen {
    let redis = FaultyRedis::new();
    let (one, other, effects) = (replica(&redis, 1), replica(&redis, 2), Effects::default());
    meet(&[one.clone(), other.clone()]).await;
    let services = [&one, &other].map(|store| service(store, &effects, 25 * SECOND));
    let first = tokio::spawn({
        let service = services[0].clone();
        async move { pay(&service).await }
    });
    sleep(5 * SECOND).await;
    redis.flush_all(); // the claim is lost
    let second = tokio::spawn({
        let service = services[1].clone();
        async move { pay(&service).await }
    });
    let renewals = redis.runs_of("idempotency_renew");
    sleep(15 * SECOND).await;
    assert!(redis.runs_of("idempotency_renew") > renewals, "the first handler tried to renew its claim");
    assert_eq!(effects.0.load(Ordering::SeqCst), 0, "both handlers are still running");
    let statuses = (first.await.unwrap(), second.await.unwrap());
    let effects = effects.0.load(Ordering::SeqCst);
    promise(effects == 1, || {
        format!(
            "{effects} effects of one key, {statuses:?}: 10 s before its effect the first handler could not renew its claim"
        )
    })
}

pub(crate) async fn review_1_4_an_outage_of_two_minutes_when_the_handler_ends_leaves_one_effect() -> Seen {
    let redis = FaultyRedis::new();
    let (one, other, effects) = (replica(&redis, 1), replica(&redis, 2), Effects::default());
    meet(&[one.clone(), other.clone()]).await;
    let services = [&one, &other].map(|store| service(store, &effects, SECOND));
    let start = Instant::now();
    // Each replica gets a retry every 300 ms, whatever the former one was answered.
    let retries = services.clone().map(|service| {
        tokio::spawn(async move {
            let mut answers = Vec::new();
            while start.elapsed() < 200 * SECOND {
                sleep(300 * MS).await;
                let answer = pay_and_read(&service).await;
                answers.push((start.elapsed(), answer));
            }
            answers
        })
    });
    let outage = async {
        sleep(900 * MS).await;
        redis.stop();
        sleep(120 * SECOND).await;
        redis.start();
    };
    let (first, ()) = tokio::join!(pay_and_read(&services[0]), outage);
    assert_eq!(first, (StatusCode::OK, "paid 1".to_owned()), "the handler ran");
    let [here, there] = retries;
    let (here, there) = (here.await.unwrap(), there.await.unwrap());
    let foreign = here.iter().chain(&there).find(|(_, answer)| answer.0 == StatusCode::OK && *answer != first);
    let local = here.iter().filter(|(at, answer)| *at < 120 * SECOND && *answer == first).count();
    let last = [&here, &there].map(|answers| answers.last().unwrap().1.clone());
    let effects = effects.0.load(Ordering::SeqCst);
    let kept = effects == 1 && foreign.is_none() && local > 100 && last == [first.clone(), first];
    promise(kept, || {
        format!(
            "{effects} effects; a retry that got another answer: {foreign:?}; {local} retries that the replica answered \
             while Redis was away; the last answers of both: {last:?}"
        )
    })
}

pub(crate) async fn review_1_4_a_claim_that_was_lost_and_is_free_is_taken_again() -> Seen {
    let redis = FaultyRedis::new();
    let (one, other, effects) = (replica(&redis, 1), replica(&redis, 2), Effects::default());
    meet(&[one.clone(), other.clone()]).await;
    let services = [&one, &other].map(|store| service(store, &effects, 25 * SECOND));
    let first = tokio::spawn({
        let service = services[0].clone();
        async move { pay_and_read(&service).await }
    });
    sleep(5 * SECOND).await;
    redis.flush_all();
    sleep(10 * SECOND).await; // a renewal finds that the claim is lost
    let retry = pay(&services[1]).await;
    let first = first.await.unwrap();
    let effects = effects.0.load(Ordering::SeqCst);
    let kept = retry == StatusCode::CONFLICT && first == (StatusCode::OK, "paid 1".to_owned()) && effects == 1;
    promise(kept, || format!("{effects} effects; the first request got {first:?}, a retry before its end {retry}"))
}

pub(crate) async fn review_1_4_a_reply_within_half_a_second_is_in_time() -> Seen {
    let redis = FaultyRedis::new();
    let (store, effects) = (replica(&redis, 1), Effects::default());
    meet(std::slice::from_ref(&store)).await;
    let service = service(&store, &effects, 10 * MS);
    redis.delay_request("idempotency_claim", 1, 400 * MS);
    redis.delay_request("idempotency_complete", 1, 400 * MS);
    let status = pay(&service).await;
    assert_eq!(redis.pending_faults(), 0, "both requests were late");
    promise(status == StatusCode::OK && store.mode() == phalanx_store_redis::StoreMode::Shared, || {
        format!("{status} and {:?}: the store budget is 20 ms, that of idempotency keys 500 ms", store.mode())
    })
}

pub(crate) async fn review_4_7_duplicates_are_notified_and_poll_only_in_case_a_push_was_lost() -> Seen {
    let redis = FaultyRedis::new();
    let (one, other, effects) = (replica(&redis, 1), replica(&redis, 2), Effects::default());
    meet(&[one.clone(), other.clone()]).await;
    let services = [&one, &other].map(|store| service(store, &effects, 2_500 * MS));
    let mut seen = Vec::new();
    for lost in [false, true] {
        redis.flush_all();
        redis.lose_pushes(lost);
        let (claims, pushes) = (redis.runs_of("idempotency_claim"), redis.pushes());
        let first = tokio::spawn({
            let service = services[0].clone();
            async move {
                pay(&service).await;
                Instant::now()
            }
        });
        sleep(100 * MS).await;
        let status = pay(&services[1]).await;
        let late = first.await.unwrap().elapsed();
        assert_eq!(status, StatusCode::OK, "it waited for the answer");
        seen.push((redis.runs_of("idempotency_claim") - claims, redis.pushes() - pushes, late));
    }
    // The first claim; of the duplicate: one, one that waits, one a second, and one after the push.
    let kept = seen[0].0 <= 6 && seen[0].2 < 20 * MS && seen[1].0 <= 6 && seen[1].2 <= SECOND;
    // A request that nothing waits for is not pushed.
    let pushes = redis.pushes();
    redis.flush_all();
    pay(&services[0]).await;
    let idle = redis.pushes() - pushes;
    promise(kept && idle == 0, || {
        format!(
            "claims, pushes and delay of a duplicate, with and without its push: {seen:?}; {idle} pushes for nothing"
        )
    })
}
