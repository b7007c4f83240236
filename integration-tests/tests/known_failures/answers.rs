//! Idempotent requests: one effect, also if Redis is away when the handler ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, StatusCode};
use axum::routing::post;
use phalanx_store_redis::RedisStore;
use phalanx_testkit::FaultyRedis;
use phalanx_tower::idempotency::{IdempotencyLayer, RedisIdempotency};
use tokio::time::sleep;
use tower::ServiceExt;

use crate::harness::*;

#[derive(Clone, Default)]
struct Effects(Arc<AtomicUsize>);

/// A service of one replica whose handler takes this long, and has its effect at the end.
fn service(store: &RedisStore, effects: &Effects, takes: Duration) -> Router {
    let pay = move |State(effects): State<Effects>| async move {
        sleep(takes).await;
        effects.0.fetch_add(1, Ordering::SeqCst);
        "paid"
    };
    let layer = IdempotencyLayer::new(RedisIdempotency::over(store));
    Router::new().route("/pay", post(pay)).with_state(effects.clone()).layer(layer)
}

async fn pay(service: &Router) -> StatusCode {
    let request = Request::post("/pay").header("idempotency-key", "k-17").body(Body::empty()).unwrap();
    service.clone().oneshot(request).await.unwrap().status()
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
