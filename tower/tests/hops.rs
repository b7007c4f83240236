//! Two hops and a dependency that hangs, over loopback: everybody is done when the client is, nobody waits longer than
//! he was given, and each is given less than the one before.
//!
//! The bar is 504 within 50 ms of a 2 s deadline, and an attempt that ends with what its hop had left.

#![allow(clippy::unwrap_used)] // a panic is how a test says no, in its helpers too

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
/// What a timer and two connections may add.
const SLACK: Duration = Duration::from_millis(50);

/// What a hop was given and what it took.
#[derive(Clone, Debug)]
struct Seen {
    hop: &'static str,
    /// The header it came with, in milliseconds.
    given: u64,
    /// What was left when its attempt began.
    left: Duration,
    attempt: Duration,
}

#[derive(Clone)]
struct Hop {
    name: &'static str,
    next: String,
    module: ResilienceModule,
    client: reqwest::Client,
    log: Arc<Mutex<Vec<Seen>>>,
}

/// Written down when it ends: also when the hop before hangs up, and with that ends it.
struct Attempt {
    hop: Hop,
    given: u64,
    left: Duration,
    start: Instant,
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let Self { hop, given, left, start } = self;
        hop.log.lock().unwrap().push(Seen { hop: hop.name, given: *given, left: *left, attempt: start.elapsed() });
    }
}

async fn relay(State(hop): State<Hop>, headers: HeaderMap) -> Result<Response, HandlerError<StatusCode>> {
    let given = headers["x-request-timeout"].to_str().unwrap().parse().unwrap();
    let left = Context::current().remaining().unwrap();
    let attempt = Attempt { hop: hop.clone(), given, left, start: Instant::now() };
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
async fn two_hops_before_one_that_hangs_are_done_when_the_client_is() {
    let log = Arc::new(Mutex::new(Vec::new()));
    // The third does not even look at its deadline.
    let mut next = serve(Router::new().route("/", get(std::future::pending::<()>))).await;
    for name in ["second", "first"] {
        // A hop's own limit is far longer than the client's patience.
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

    // The client may be answered by the first hop before the second has written down what it saw.
    let both = tokio::time::timeout(DEADLINE, async {
        while log.lock().unwrap().len() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    both.await.unwrap();
    let mut seen = log.lock().unwrap().clone();
    seen.sort_by_key(|seen| seen.hop);
    println!("{seen:#?}");
    assert_eq!(seen[0].given, 2_000);
    assert!(seen[1].given <= seen[0].left.as_millis() as u64, "given on is no more than was left");
    for hop in &seen {
        assert!(hop.left <= Duration::from_millis(hop.given));
        assert!(hop.attempt <= hop.left + SLACK, "an attempt is over when its time is: {hop:?}");
    }
}
