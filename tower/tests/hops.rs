//! Two hops before a dependency that hangs, over loopback: both hops finish within the client's deadline, and each hop
//! gets less time than the one before.
//!
//! The limit: a 504 within 50 ms of a 2 s deadline, and no attempt longer than the time its hop had left.

#![allow(clippy::unwrap_used)] // a failed test panics, also in helpers

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use phalanx::{Context, Policy, ResilienceModule};
use phalanx_tower::edge::{EdgeLayer, HandlerError, forward};
use tokio::net::TcpListener;
use tokio::time::Instant;

const DEADLINE: Duration = Duration::from_secs(2);
/// The overhead of timers and two connections.
const SLACK: Duration = Duration::from_millis(50);

/// What one hop received, and how long its attempt took.
#[derive(Clone, Debug)]
struct HopRecord {
    hop: &'static str,
    /// The timeout header it received, in milliseconds.
    received: u64,
    /// The time left when its attempt began.
    left: Duration,
    attempt: Duration,
}

#[derive(Clone)]
struct Hop {
    name: &'static str,
    next: String,
    module: ResilienceModule,
    client: reqwest::Client,
    log: Arc<Mutex<Vec<HopRecord>>>,
}

/// Recorded when dropped, also if the previous hop disconnects and cancels it.
struct Attempt {
    hop: Hop,
    received: u64,
    left: Duration,
    start: Instant,
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let Self { hop, received, left, start } = self;
        let record = HopRecord { hop: hop.name, received: *received, left: *left, attempt: start.elapsed() };
        hop.log.lock().unwrap().push(record);
    }
}

async fn relay(State(hop): State<Hop>, headers: HeaderMap) -> Result<Response, HandlerError<StatusCode>> {
    let received = headers["x-request-timeout"].to_str().unwrap().parse().unwrap();
    let left = Context::current().remaining().unwrap();
    let attempt = Attempt { hop: hop.clone(), received, left, start: Instant::now() };
    let answer = hop
        .module
        .run("next", (), || {
            let mut request = hop.client.get(&hop.next).build().unwrap();
            forward(request.headers_mut());
            hop.client.execute(request)
        })
        .await;
    drop(attempt);
    let answer = answer.map_err(|error| HandlerError::map(error, |_| StatusCode::BAD_GATEWAY))?;
    Ok((StatusCode::from_u16(answer.status().as_u16()).unwrap(), answer.text().await.unwrap_or_default())
        .into_response())
}

async fn serve(app: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    format!("http://{address}/")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hops_before_one_that_hangs_finish_within_the_clients_deadline() {
    let log = Arc::new(Mutex::new(Vec::new()));
    // The third hop ignores its deadline.
    let mut next = serve(Router::new().route("/", get(std::future::pending::<()>))).await;
    for name in ["second", "first"] {
        // A hop's own timeout is far longer than the client's.
        let policy = Policy::named("next").timeout(Duration::from_secs(10));
        let module = ResilienceModule::in_memory().policy(policy).build().unwrap();
        let edge = EdgeLayer::new().module(&module);
        let hop = Hop { name, next, module, client: reqwest::Client::new(), log: log.clone() };
        next = serve(Router::new().route("/", get(relay)).with_state(hop).layer(edge)).await;
    }

    let start = Instant::now();
    let request = reqwest::Client::new().get(&next).header("x-request-timeout", DEADLINE.as_millis().to_string());
    let response = request.send().await.unwrap();
    let took = start.elapsed();
    println!("504 after {took:?} of {DEADLINE:?}");
    assert_eq!(response.status().as_u16(), 504);
    let problem: serde_json::Value = serde_json::from_str(&response.text().await.unwrap()).unwrap();
    assert_eq!(problem["message_id"], "DEPENDENCY.timeout", "{problem}");
    assert!(took < DEADLINE + SLACK, "{took:?}");

    // The first hop may answer the client before the second has recorded its attempt.
    let both = tokio::time::timeout(DEADLINE, async {
        while log.lock().unwrap().len() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    both.await.unwrap();
    let mut records = log.lock().unwrap().clone();
    records.sort_by_key(|record| record.hop);
    println!("{records:#?}");
    assert_eq!(records[0].received, 2_000);
    assert!(records[1].received <= records[0].left.as_millis() as u64, "no more than was left is forwarded");
    for hop in &records {
        assert!(hop.left <= Duration::from_millis(hop.received));
        assert!(hop.attempt <= hop.left + SLACK, "an attempt ends with its deadline: {hop:?}");
    }
}
