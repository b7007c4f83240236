//! Requests with an `Idempotency-Key`, over the store in memory, on virtual time.

#![allow(clippy::unwrap_used)] // a failed test panics, also in helpers

mod effects;

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use axum::routing::post;
use effects::{Ledger, request, send, service, text};
use phalanx_tower::idempotency::{
    Claim, ClaimReply, IdempotencyLayer, IdempotencyStore, MemoryIdempotency, OnUnavailable, StoredAnswer, Unavailable,
};
use tokio::time::{sleep, timeout};
use tower::ServiceExt;

fn memory() -> IdempotencyLayer<MemoryIdempotency> {
    IdempotencyLayer::new(MemoryIdempotency::new())
}

fn code(body: &str) -> String {
    let problem: serde_json::Value = serde_json::from_str(body).unwrap();
    problem["code"].as_str().unwrap().to_owned()
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_gets_the_stored_answer_marked_as_replayed() {
    let (ledger, layer) = (Ledger::default(), memory());
    let app = service(&ledger, &layer);
    assert_eq!(send(&app, request(Some("k"), "5 €", &[])).await, (201, false, "1: 5 €".to_owned()));
    let again = app.clone().oneshot(request(Some("k"), "5 €", &[])).await.unwrap();
    assert_eq!(again.headers()["x-effect"], "1", "headers are replayed too");
    assert_eq!(send(&app, request(Some("k"), "5 €", &[])).await, (201, true, "1: 5 €".to_owned()));
    assert_eq!((ledger.effects(), layer.counts().run, layer.counts().replayed), (1, 1, 2));
    assert_eq!(send(&app, request(Some("other"), "5 €", &[])).await.0, 201);
    assert_eq!(ledger.effects(), 2);
}

/// Test E of the resiliency playbook.
#[tokio::test(start_paused = true)]
async fn a_client_timeout_and_its_retry_have_one_effect() {
    let (ledger, layer) = (Ledger::default(), memory());
    let app = service(&ledger, &layer);
    let slow = [("x-takes", "1000"), ("x-request-timeout", "200")];
    let (status, _, body) = send(&app, request(Some("k"), "5", &slow)).await;
    assert_eq!((status, code(&body)), (504, "deadline_exceeded".to_owned()));
    assert_eq!(ledger.effects(), 0, "the handler is still running");
    assert_eq!(send(&app, request(Some("k"), "5", &[])).await, (201, true, "1: 5".to_owned()));
    assert_eq!(ledger.effects(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_disconnects_does_not_cancel_the_handler() {
    let (ledger, layer) = (Ledger::default(), memory());
    let app = service(&ledger, &layer);
    let disconnected =
        timeout(Duration::from_millis(10), send(&app, request(Some("k"), "5", &[("x-takes", "1000")]))).await;
    assert!(disconnected.is_err());
    sleep(Duration::from_secs(2)).await;
    assert_eq!(ledger.effects(), 1);
    assert_eq!(send(&app, request(Some("k"), "5", &[])).await, (201, true, "1: 5".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn another_body_method_or_path_under_the_same_key_is_a_conflict() {
    let (ledger, layer) = (Ledger::default(), memory());
    let app = service(&ledger, &layer);
    send(&app, request(Some("k"), "5", &[])).await;
    let (status, _, body) = send(&app, request(Some("k"), "6", &[])).await;
    assert_eq!((status, code(&body)), (409, "idempotency_mismatch".to_owned()));
    for other in [Request::put("/pay"), Request::post("/pay?twice")] {
        let other = other.header("idempotency-key", "k").body(Body::from("5")).unwrap();
        assert_eq!(send(&app, other).await.0, 409);
    }
    let (running, other) = tokio::join!(send(&app, request(Some("r"), "5", &[("x-takes", "50")])), async {
        sleep(Duration::from_millis(10)).await;
        send(&app, request(Some("r"), "6", &[])).await
    });
    assert_eq!((running.0, other.0), (201, 409), "also while the first request is running");
    assert_eq!((ledger.effects(), layer.counts().mismatched), (2, 4));
}

#[tokio::test(start_paused = true)]
async fn concurrent_duplicates_wait_for_the_answer_up_to_a_limit() {
    let (ledger, layer) = (Ledger::default(), memory().wait(Duration::from_millis(400)));
    let app = service(&ledger, &layer);
    let duplicates = |takes: &'static str| {
        let app = app.clone();
        async move {
            let one = || send(&app, request(Some(takes), "5", &[("x-takes", takes)]));
            let all = futures_util::future::join_all((0..5).map(|_| one())).await;
            all.into_iter().map(|(status, ..)| status).collect::<Vec<_>>()
        }
    };
    assert_eq!(duplicates("300").await, [201; 5]);
    assert_eq!(duplicates("900").await, [201, 409, 409, 409, 409]);
    assert_eq!((ledger.effects(), layer.counts().in_progress), (2, 4));
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_that_may_not_wait_is_rejected_at_once() {
    for layer in [memory().wait(Duration::ZERO), memory().max_waiting(0)] {
        let app = service(&Ledger::default(), &layer);
        let (first, (status, _, body)) =
            tokio::join!(send(&app, request(Some("k"), "5", &[("x-takes", "100")])), async {
                sleep(Duration::from_millis(1)).await;
                let start = tokio::time::Instant::now();
                let response = app.clone().oneshot(request(Some("k"), "5", &[])).await.unwrap();
                assert_eq!(response.headers()["retry-after"], "1");
                assert!(start.elapsed() < Duration::from_millis(5));
                (response.status().as_u16(), false, text(response).await)
            });
        assert_eq!((first.0, status, code(&body)), (201, 409, "idempotency_in_progress".to_owned()));
    }
}

#[tokio::test(start_paused = true)]
async fn server_errors_and_temporary_statuses_release_the_key_and_client_errors_are_stored() {
    let (ledger, layer) = (Ledger::default(), memory());
    let app = service(&ledger, &layer);
    for (status, runs_again) in
        [("500", true), ("503", true), ("429", true), ("401", true), ("422", false), ("404", false)]
    {
        let before = ledger.effects();
        for _ in 0..2 {
            assert_eq!(send(&app, request(Some(status), "5", &[("x-status", status)])).await.0.to_string(), status);
        }
        assert_eq!(ledger.effects() - before == 2, runs_again, "{status}");
    }
    assert_eq!(layer.counts().released, 8);
}

#[tokio::test(start_paused = true)]
async fn a_panic_reaches_the_client_and_releases_the_key() {
    let (ledger, layer) = (Ledger::default(), memory());
    let app = service(&ledger, &layer);
    let panicking = tokio::spawn({
        let app = app.clone();
        async move { send(&app, request(Some("k"), "5", &[("x-panics", "1")])).await }
    });
    assert!(panicking.await.unwrap_err().is_panic());
    assert_eq!(send(&app, request(Some("k"), "5", &[])).await.0, 201);
}

#[tokio::test(start_paused = true)]
async fn an_answer_too_large_to_store_is_sent_once_and_the_handler_does_not_run_again() {
    let (ledger, layer) = (Ledger::default(), memory().max_answer_body(100));
    let app = service(&ledger, &layer);
    let large = || request(Some("k"), "5", &[("x-size", "200")]);
    let first = app.clone().oneshot(large()).await.unwrap();
    assert_eq!(first.headers()["idempotency-stored"], "false");
    assert_eq!(text(first).await.len(), 204);
    let (status, _, body) = send(&app, large()).await;
    assert_eq!((status, code(&body)), (409, "idempotency_answer_not_stored".to_owned()));
    assert_eq!((ledger.effects(), layer.counts().not_stored), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn an_answer_expires_after_its_ttl() {
    let (ledger, layer) = (Ledger::default(), memory());
    let app = service(&ledger, &layer);
    send(&app, request(Some("k"), "5", &[])).await;
    sleep(Duration::from_secs(86_399)).await;
    assert!(send(&app, request(Some("k"), "5", &[])).await.1);
    sleep(Duration::from_secs(2)).await;
    assert_eq!(send(&app, request(Some("k"), "5", &[])).await, (201, false, "2: 5".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_renewed_while_the_handler_runs_and_an_endless_handler_is_cancelled() {
    let (ledger, layer) = (Ledger::default(), memory().lease(Duration::from_secs(3)).wait(Duration::ZERO));
    let app = service(&ledger, &layer);
    let long = [("x-takes", "50000"), ("x-request-timeout", "10")];
    assert_eq!(send(&app, request(Some("k"), "5", &long)).await.0, 504);
    sleep(Duration::from_secs(20)).await;
    assert_eq!(send(&app, request(Some("k"), "5", &[])).await.0, 409, "long after its first lease");
    sleep(Duration::from_secs(31)).await;
    assert_eq!(send(&app, request(Some("k"), "5", &[])).await, (201, true, "1: 5".to_owned()));

    let endless = [("x-takes", "1000000"), ("x-request-timeout", "10")];
    assert_eq!(send(&app, request(Some("e"), "5", &endless)).await.0, 504);
    sleep(Duration::from_millis(59_900)).await;
    assert_eq!(send(&app, request(Some("e"), "5", &[])).await.0, 409);
    sleep(Duration::from_millis(3_200)).await;
    assert_eq!(send(&app, request(Some("e"), "5", &[])).await.0, 201, "after 60 s and a lease");
    assert_eq!(layer.counts().unfinished, 1);
}

#[tokio::test(start_paused = true)]
async fn running_handlers_are_limited_even_if_their_clients_have_disconnected() {
    let (ledger, layer) = (Ledger::default(), memory().max_running(1));
    let app = service(&ledger, &layer);
    let slow = [("x-takes", "1000"), ("x-request-timeout", "10")];
    assert_eq!(send(&app, request(Some("a"), "5", &slow)).await.0, 504);
    let (status, _, body) = send(&app, request(Some("b"), "5", &[])).await;
    assert_eq!((status, code(&body)), (503, "bulkhead_full".to_owned()));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(send(&app, request(Some("b"), "5", &[])).await.0, 201, "its key was released");
    assert_eq!(ledger.effects(), 2);
}

#[tokio::test(start_paused = true)]
async fn equal_keys_of_different_callers_are_different() {
    let (ledger, layer) = (Ledger::default(), memory());
    let app = service(&ledger, &layer);
    let as_user = |user: &str| request(Some("k"), "5", &[("authorization", user)]);
    send(&app, as_user("alice")).await;
    assert_eq!(send(&app, as_user("bob")).await, (201, false, "2: 5".to_owned()));
    assert!(send(&app, as_user("alice")).await.1);

    let by_tenant = memory().scope(|parts| parts.headers.get("x-tenant").map_or(Vec::new(), |v| v.as_bytes().to_vec()));
    let app = service(&ledger, &by_tenant);
    let of = |tenant: &str, token: &str| request(Some("k"), "5", &[("x-tenant", tenant), ("authorization", token)]);
    send(&app, of("acme", "token 1")).await;
    assert!(send(&app, of("acme", "token 2")).await.1, "the same tenant with a new token");
    assert!(!send(&app, of("other", "token 2")).await.1);
}

#[tokio::test(start_paused = true)]
async fn keys_and_bodies_have_limits_and_safe_requests_pass() {
    let (ledger, layer) = (Ledger::default(), memory().required(true).max_request_body(10));
    let app = service(&ledger, &layer);
    let rejected = async |request| {
        let (status, _, body) = send(&app, request).await;
        (status, code(&body))
    };
    assert_eq!(rejected(request(None, "5", &[])).await, (400, "idempotency_key_missing".to_owned()));
    let (long, twice) = ("k".repeat(256), [("idempotency-key", "b")]);
    for bad in [request(Some(&long), "5", &[]), request(Some(""), "5", &[]), request(Some("a"), "5", &twice)] {
        assert_eq!(rejected(bad).await, (400, "idempotency_key_invalid".to_owned()));
    }
    let binary = Request::post("/pay").header("idempotency-key", &b"\xff"[..]).body(Body::empty()).unwrap();
    assert_eq!(rejected(binary).await.0, 400);
    assert_eq!(rejected(request(Some("k"), "12345678901", &[])).await, (413, "idempotency_body_too_large".to_owned()));
    assert_eq!(send(&app, Request::get("/pay").body(Body::empty()).unwrap()).await.0, 405, "the router's own answer");
    assert_eq!(ledger.effects(), 0);
    assert_eq!(
        send(&service(&ledger, &memory()), request(None, "5", &[])).await.0,
        201,
        "passes if no key is required"
    );
}

/// A store that fails every claim after executing it.
struct UnavailableStore(MemoryIdempotency);

fn unavailable<T>() -> Result<T, Unavailable> {
    Err(Unavailable { reason: "test".to_owned() })
}

impl IdempotencyStore for UnavailableStore {
    async fn claim(&self, claim: &Claim, lease: Duration) -> Result<ClaimReply, Unavailable> {
        self.0.claim(claim, lease).await?;
        unavailable()
    }
    async fn renew(&self, _: &Claim, _: Duration) -> Result<bool, Unavailable> {
        unavailable()
    }
    async fn complete(&self, _: &Claim, _: &StoredAnswer, _: Duration) -> Result<bool, Unavailable> {
        unavailable()
    }
    async fn release(&self, claim: &Claim) -> Result<bool, Unavailable> {
        self.0.release(claim).await
    }
}

#[tokio::test(start_paused = true)]
async fn without_its_store_the_layer_rejects_unless_configured_to_pass() {
    let ledger = Ledger::default();
    let rejecting = IdempotencyLayer::new(UnavailableStore(MemoryIdempotency::new()));
    let app = service(&ledger, &rejecting);
    let response = app.clone().oneshot(request(Some("k"), "5", &[])).await.unwrap();
    assert_eq!((response.status().as_u16(), response.headers()["retry-after"].clone()), (503, "1".parse().unwrap()));
    assert_eq!(code(&text(response).await), "store_unavailable");
    assert_eq!((ledger.effects(), rejecting.counts().unavailable), (0, 1));
    let passing = IdempotencyLayer::new(UnavailableStore(MemoryIdempotency::new())).on_unavailable(OnUnavailable::Pass);
    assert_eq!(send(&service(&ledger, &passing), request(Some("k"), "5", &[])).await.0, 201);
}

/// A store that fails the first completions.
struct FlakyStore(MemoryIdempotency, std::sync::atomic::AtomicU32);

impl IdempotencyStore for FlakyStore {
    async fn claim(&self, claim: &Claim, lease: Duration) -> Result<ClaimReply, Unavailable> {
        self.0.claim(claim, lease).await
    }
    async fn renew(&self, claim: &Claim, lease: Duration) -> Result<bool, Unavailable> {
        self.0.renew(claim, lease).await
    }
    async fn complete(&self, claim: &Claim, answer: &StoredAnswer, ttl: Duration) -> Result<bool, Unavailable> {
        let fails = self.1.fetch_sub(1, std::sync::atomic::Ordering::SeqCst) > 1;
        if fails { unavailable() } else { self.0.complete(claim, answer, ttl).await }
    }
    async fn release(&self, claim: &Claim) -> Result<bool, Unavailable> {
        self.0.release(claim).await
    }
}

#[tokio::test(start_paused = true)]
async fn storing_an_answer_is_retried_after_a_failure() {
    let ledger = Ledger::default();
    let layer = IdempotencyLayer::new(FlakyStore(MemoryIdempotency::new(), 3.into()));
    let app = service(&ledger, &layer);
    let first = app.clone().oneshot(request(Some("k"), "5", &[])).await.unwrap();
    assert_eq!((first.status().as_u16(), &first.headers()["idempotency-stored"]), (201, &"false".parse().unwrap()));
    assert_eq!(
        send(&app, request(Some("k"), "5", &[])).await,
        (201, true, "1: 5".to_owned()),
        "the duplicate waited for it"
    );
    assert_eq!(ledger.effects(), 1);
}

#[tokio::test(start_paused = true)]
async fn cookies_belong_to_the_scope_and_are_not_replayed() {
    let sets_cookies = |layer: IdempotencyLayer<MemoryIdempotency>| {
        Router::new()
            .route("/pay", post(async || ([("set-cookie", "session=1"), ("x-kept", "1")], "paid")))
            .layer(layer)
    };
    let cookies = async |app: &Router, headers: &[(&str, &str)]| {
        let response = app.clone().oneshot(request(Some("k"), "5", headers)).await.unwrap();
        assert_eq!(response.headers()["x-kept"], "1");
        (response.headers().contains_key("idempotency-replayed"), response.headers().contains_key("set-cookie"))
    };
    let app = sets_cookies(memory());
    let alice = [("cookie", "user=alice")];
    assert_eq!(cookies(&app, &alice).await, (false, true), "the first answer is sent as it is");
    assert_eq!(cookies(&app, &alice).await, (true, false));
    assert_eq!(cookies(&app, &[("cookie", "user=bob")]).await, (false, true), "another user");
    assert_eq!(cookies(&app, &[("authorization", "user=alice")]).await, (false, true), "another header");
    assert_eq!(cookies(&app, &[("cookie", "a=1; b=2")]).await, (false, true));
    assert_eq!(cookies(&app, &[("cookie", "a=1"), ("cookie", "b=2")]).await, (true, false), "split, as in HTTP/2");

    let app = sets_cookies(memory().store_cookies(true));
    assert_eq!(cookies(&app, &alice).await, (false, true));
    assert_eq!(cookies(&app, &alice).await, (true, true));
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_offered_for_two_minutes_and_answered_by_this_replica_meanwhile() {
    let ledger = Ledger::default();
    // With the pauses doubling from 100 ms to 1 s, the 120th attempt is after 116 s.
    let layer = IdempotencyLayer::new(FlakyStore(MemoryIdempotency::new(), 120.into())).lease(Duration::from_secs(1));
    let app = service(&ledger, &layer);
    let begun = tokio::time::Instant::now();
    assert_eq!(send(&app, request(Some("k"), "5", &[])).await.0, 201);
    while begun.elapsed() < Duration::from_secs(150) {
        assert_eq!(send(&app, request(Some("k"), "5", &[])).await, (201, true, "1: 5".to_owned()));
        assert_eq!(send(&app, request(Some("k"), "6", &[])).await.0, 409, "another request");
        sleep(Duration::from_secs(1)).await;
    }
    assert_eq!((ledger.effects(), layer.counts().run, layer.counts().not_stored), (1, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_never_stores_an_answer_is_given_up_after_two_minutes() {
    let ledger = Ledger::default();
    let layer =
        IdempotencyLayer::new(FlakyStore(MemoryIdempotency::new(), u32::MAX.into())).lease(Duration::from_secs(1));
    let app = service(&ledger, &layer);
    assert_eq!(send(&app, request(Some("k"), "5", &[])).await.0, 201);
    sleep(Duration::from_secs(119)).await;
    assert_eq!(layer.counts().not_stored, 0);
    sleep(Duration::from_secs(4)).await;
    assert_eq!(layer.counts().not_stored, 1);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(send(&app, request(Some("k"), "5", &[])).await.0, 201, "its claim has expired");
    assert_eq!(ledger.effects(), 2);
}

/// A store that remembers the last claim that it granted.
#[derive(Default)]
struct RecordingStore(MemoryIdempotency, std::sync::Mutex<Option<Claim>>);

impl IdempotencyStore for &'static RecordingStore {
    async fn claim(&self, claim: &Claim, lease: Duration) -> Result<ClaimReply, Unavailable> {
        let reply = self.0.claim(claim, lease).await;
        if matches!(reply, Ok(ClaimReply::Claimed)) {
            *self.1.lock().unwrap() = Some(claim.clone());
        }
        reply
    }
    async fn renew(&self, claim: &Claim, lease: Duration) -> Result<bool, Unavailable> {
        self.0.renew(claim, lease).await
    }
    async fn complete(&self, claim: &Claim, answer: &StoredAnswer, ttl: Duration) -> Result<bool, Unavailable> {
        self.0.complete(claim, answer, ttl).await
    }
    async fn release(&self, claim: &Claim) -> Result<bool, Unavailable> {
        self.0.release(claim).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_whose_key_another_request_holds_is_cancelled_and_one_whose_key_is_free_is_not() {
    for taken in [true, false] {
        let (ledger, store) = (Ledger::default(), &*Box::leak(Box::<RecordingStore>::default()));
        let layer = IdempotencyLayer::new(store).wait(Duration::ZERO);
        let app = service(&ledger, &layer);
        let slow = [("x-takes", "24000"), ("x-request-timeout", "60000")]; // the effect is after 12 s
        let running = tokio::spawn(async move { send(&app, request(Some("k"), "5", &slow)).await });
        sleep(Duration::from_secs(1)).await;
        let claim = store.1.lock().unwrap().take().unwrap();
        assert_eq!(store.0.release(&claim).await, Ok(true), "the store loses the claim");
        if taken {
            let other = Claim { owner: "other".to_owned(), ..claim };
            assert!(matches!(store.0.claim(&other, Duration::from_secs(60)).await, Ok(ClaimReply::Claimed)));
        }
        let (status, _, body) = running.await.unwrap();
        if taken {
            assert_eq!((status, code(&body)), (409, "idempotency_in_progress".to_owned()));
        } else {
            assert_eq!((status, body), (201, "1: 5".to_owned()));
        }
        let counted = (ledger.effects(), layer.counts().lost_claim);
        assert_eq!(counted, if taken { (0, 1) } else { (1, 0) });
    }
}
