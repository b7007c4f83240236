//! Shared by the idempotency tests: a service that counts its effects, and requests to it.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used)] // each test file uses a part of it; tests may unwrap

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Request, Response, StatusCode};
use axum::response::IntoResponse;
use axum::routing::post;
use phalanx_tower::edge::EdgeLayer;
use phalanx_tower::idempotency::{IdempotencyLayer, IdempotencyStore};
use tower::ServiceExt;

/// Counts the effects of the handler.
#[derive(Clone, Default)]
pub struct Ledger(Arc<AtomicUsize>);

impl Ledger {
    pub fn effects(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// Takes `x-takes` milliseconds, has its effect after half of it, and answers with the number of the effect.
async fn pay(State(ledger): State<Ledger>, headers: HeaderMap, body: String) -> impl IntoResponse {
    let number = |name: &str| headers.get(name).map(|value| value.to_str().unwrap().parse::<u64>().unwrap());
    let half = Duration::from_millis(number("x-takes").unwrap_or(0)) / 2;
    tokio::time::sleep(half).await;
    let effect = ledger.0.fetch_add(1, Ordering::SeqCst) + 1;
    tokio::time::sleep(half).await;
    if headers.contains_key("x-panics") {
        std::panic::resume_unwind(Box::new("requested")); // skips the panic hook
    }
    let status = StatusCode::from_u16(number("x-status").unwrap_or(201) as u16).unwrap();
    let padding = "x".repeat(number("x-size").unwrap_or(0) as usize);
    (status, [("x-effect", effect.to_string())], format!("{effect}: {body}{padding}"))
}

/// The service with the idempotency layer and an edge applied.
pub fn service<T: IdempotencyStore>(ledger: &Ledger, layer: &IdempotencyLayer<T>) -> Router {
    Router::new().route("/pay", post(pay)).with_state(ledger.clone()).layer(layer.clone()).layer(EdgeLayer::new())
}

/// Returns a request to pay.
pub fn request(key: Option<&str>, body: &str, headers: &[(&str, &str)]) -> Request<Body> {
    let mut request = Request::post("/pay");
    if let Some(key) = key {
        request = request.header("idempotency-key", key);
    }
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    request.body(Body::from(body.to_owned())).unwrap()
}

/// Returns the status, whether the answer was replayed, and the body.
pub async fn send(app: &Router, request: Request<Body>) -> (u16, bool, String) {
    let response = app.clone().oneshot(request).await.unwrap();
    let replayed = response.headers().get("idempotency-replayed").is_some_and(|value| value == "true");
    (response.status().as_u16(), replayed, text(response).await)
}

pub async fn text(response: Response<Body>) -> String {
    String::from_utf8(to_bytes(response.into_body(), 1 << 20).await.unwrap().to_vec()).unwrap()
}
