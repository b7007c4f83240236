//! Test E of the resiliency playbook against the real `Idempotency-Key` layer: the fault plan loses answers of writes, the
//! policy repeats them, and the layer of `phalanx-tower` decides whether they happen again.

#![allow(clippy::unwrap_used)] // a failed expectation panics, in helpers too

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Request, StatusCode};
use axum::routing::post;
use parking_lot::Mutex;
use phalanx::Kind;
use phalanx::config::Config;
use phalanx_testkit::plan::{Evidence, Plan, Player, Writes};
use phalanx_tower::idempotency::{IdempotencyLayer, MemoryIdempotency};
use tower::ServiceExt;

/// Effects by idempotency key.
type Ledger = Arc<Mutex<HashMap<String, u32>>>;

/// A service that places orders, with or without the layer.
struct Orders {
    service: Router,
    ledger: Ledger,
}

impl Orders {
    fn new(layered: bool) -> Self {
        let ledger = Ledger::default();
        let mut service = Router::new().route("/orders", post(place)).with_state(ledger.clone());
        if layered {
            service = service.layer(IdempotencyLayer::new(MemoryIdempotency::new()).required(true));
        }
        Self { service, ledger }
    }
}

async fn place(State(ledger): State<Ledger>, headers: HeaderMap) -> StatusCode {
    let key = headers["idempotency-key"].to_str().unwrap().to_owned();
    *ledger.lock().entry(key).or_default() += 1;
    StatusCode::CREATED
}

impl Writes for Orders {
    fn write(&self, key: u64) -> Pin<Box<dyn Future<Output = Result<(), Kind>> + Send>> {
        let service = self.service.clone();
        Box::pin(async move {
            let request = Request::post("/orders").header("idempotency-key", format!("order-{key}"));
            let response = service.oneshot(request.body(Body::from("one book")).unwrap()).await.unwrap();
            if response.status().is_success() { Ok(()) } else { Err(Kind::Infrastructure) }
        })
    }

    fn effects(&self, key: u64) -> u32 {
        self.ledger.lock().get(&format!("order-{key}")).copied().unwrap_or_default()
    }
}

fn play(layered: bool) -> Evidence {
    let policies = "[policies.orders]\ntimeout = '300ms'\nretry = { max_attempts = 2, retry_on = ['infrastructure'] }";
    let policies = Config::from_toml(policies).unwrap();
    let plan = "case,dep,inject,window_s,expected\nDUPLICATE,orders,lost answer@10%,30,\"exactly once, retry<=1\"\n";
    let plan = Plan::from_csv("duplicate.csv", plan, &policies).unwrap();
    Player::new(policies).writes(move || Orders::new(layered)).play(&plan).unwrap()
}

#[test]
fn test_e_the_idempotency_layer_makes_repeated_writes_happen_exactly_once() {
    let evidence = play(true);
    assert!(evidence.passed(), "{}", evidence.to_text());
    let orders = &evidence.steps[0].policies[0];
    assert!(orders.attempts > orders.offered + orders.offered / 20, "a tenth of the answers is lost: {orders:?}");
}

#[test]
fn without_the_layer_the_same_plan_finds_writes_that_happened_twice() {
    let evidence = play(false);
    let verdict = evidence.steps[0].verdict("exactly_once").unwrap();
    assert!(!verdict.passed, "{verdict:?}");
    assert!(evidence.steps[0].verdict("retry<=1").unwrap().passed);
}
