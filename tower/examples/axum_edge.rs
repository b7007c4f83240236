//! A small axum service with an edge layer, policies, a fallback and idempotent writes. It sends requests to itself and
//! prints the requests and responses.
//!
//! ```sh
//! cargo run --example axum_edge
//! ```

use std::error::Error;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use phalanx::{BulkheadSpec, Policy, RateLimitSpec, RejectionCode, ResilienceModule, StaleCache};
use phalanx_tower::edge::{Degradable, EdgeLayer, HandlerError, RejectionResponse};
use phalanx_tower::idempotency::{IdempotencyLayer, MemoryIdempotency};
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// The state that the handlers share.
#[derive(Clone)]
struct Shop {
    module: ResilienceModule,
    /// The last known price, for the fallback.
    last: Arc<StaleCache<&'static str, String>>,
    prices_are_down: Arc<AtomicBool>,
    orders: Arc<AtomicU32>,
}

const SEARCHES: RateLimitSpec = RateLimitSpec::per_minute(2);

/// A dependency that fails while `prices_are_down` is set.
async fn fetch_price(shop: &Shop) -> io::Result<String> {
    match shop.prices_are_down.load(Ordering::Relaxed) {
        true => Err(io::ErrorKind::ConnectionRefused.into()),
        false => Ok("7.99 €".to_owned()),
    }
}

/// A dependency that never answers.
async fn fetch_report() -> io::Result<String> {
    std::future::pending().await
}

// The service decides how to answer a dependency's own errors.
fn bad_gateway(error: io::Error) -> (StatusCode, String) {
    (StatusCode::BAD_GATEWAY, error.to_string())
}

/// Falls back to the last known price and marks the answer as degraded.
async fn price(State(shop): State<Shop>) -> Result<Degradable<String>, HandlerError<(StatusCode, String)>> {
    let call = shop.module.call("prices", "eu").fallback(shop.last.at("eu"));
    let served = call.run_served(|| fetch_price(&shop)).await.map_err(|error| HandlerError::map(error, bad_gateway))?;
    Ok(served.into())
}

/// A rejection becomes a response with status, `Retry-After` and a problem document.
async fn report(State(shop): State<Shop>) -> Result<String, HandlerError<(StatusCode, String)>> {
    let report = shop.module.run("reports", (), fetch_report).await;
    report.map_err(|error| HandlerError::map(error, bad_gateway))
}

/// The decision record of a call provides the `RateLimit` headers.
async fn search(State(shop): State<Shop>) -> Result<Degradable<&'static str>, RejectionResponse> {
    let operation = || async { Ok::<_, std::convert::Infallible>("three results") };
    let (result, record) = shop.module.call("search", ()).run_recorded(operation).await;
    match result {
        Ok(found) => Ok(Degradable::from_decision(found, &record).with_rate_limit("search", &SEARCHES, &record)),
        Err(phalanx::Error::Rejected(rejection)) => {
            Err(RejectionResponse::new(rejection).with_decision(&record).with_rate_limit(&SEARCHES))
        }
        Err(phalanx::Error::Inner(never)) => match never {},
    }
}

/// An effect that must not happen twice.
async fn order(State(shop): State<Shop>, Json(order): Json<Value>) -> (StatusCode, Json<Value>) {
    let number = shop.orders.fetch_add(1, Ordering::Relaxed) + 1;
    (StatusCode::CREATED, Json(json!({ "number": number, "order": order })))
}

fn shop() -> Result<Shop, Box<dyn Error>> {
    let module = ResilienceModule::in_memory()
        .policy(Policy::named("prices").timeout(Duration::from_millis(300)))
        .policy(Policy::named("reports").bulkhead(BulkheadSpec::fixed(1)))
        .policy(Policy::named("search").rate_limit(SEARCHES))
        .status(RejectionCode::BulkheadFull, 429) // this service's choice
        .build()?;
    let last = Arc::new(StaleCache::new(16, Duration::from_secs(3_600)));
    Ok(Shop { module, last, prices_are_down: Arc::default(), orders: Arc::default() })
}

fn app(shop: &Shop) -> (Router, EdgeLayer) {
    let edge = EdgeLayer::new()
        .max_deadline(Duration::from_secs(5)) // whatever a client asks for, and if it does not ask
        .module(&shop.module); // its statuses
    let idempotency = IdempotencyLayer::new(MemoryIdempotency::new()).required(true);
    let app = Router::new()
        .route("/orders", post(order))
        .layer(idempotency)
        .route("/price", get(price))
        .route("/report", get(report))
        .route("/search", get(search))
        .with_state(shop.clone())
        .layer(edge.clone()); // outermost
    (app, edge)
}

/// Sends requests and prints them with their responses.
struct Wire<'a, W> {
    url: String,
    client: reqwest::Client,
    out: &'a mut W,
}

type Headers<'a> = &'a [(&'a str, &'a str)];

impl<W: Write> Wire<'_, W> {
    fn heading(&mut self, text: &str) -> io::Result<()> {
        writeln!(self.out, "\n# {text}\n")
    }

    async fn get(&mut self, path: &str, headers: Headers<'_>) -> Result<u16, Box<dyn Error>> {
        let request = self.client.get(format!("{}{path}", self.url));
        self.send("GET", path, headers, request).await
    }

    async fn post(&mut self, path: &str, headers: Headers<'_>, body: &'static str) -> Result<u16, Box<dyn Error>> {
        let request = self.client.post(format!("{}{path}", self.url)).header("content-type", "application/json");
        self.send("POST", path, headers, request.body(body)).await
    }

    async fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: Headers<'_>,
        request: reqwest::RequestBuilder,
    ) -> Result<u16, Box<dyn Error>> {
        writeln!(self.out, "> {method} {path}")?;
        for (name, value) in headers {
            writeln!(self.out, "> {name}: {value}")?;
        }
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let response = request.send().await?;
        writeln!(self.out, "< {}", response.status())?;
        for (name, value) in response.headers() {
            if !["content-length", "date", "cache-control"].contains(&name.as_str()) {
                writeln!(self.out, "< {name}: {}", String::from_utf8_lossy(value.as_bytes()))?;
            }
        }
        let status = response.status().as_u16();
        writeln!(self.out, "< {}\n", response.text().await?)?;
        Ok(status)
    }
}

/// Runs all requests.
pub(crate) async fn run(out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    let shop = shop()?;
    let (app, edge) = app(&shop);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    let server = tokio::spawn(async move { axum::serve(listener, app).await });
    let mut wire = Wire { url, client: reqwest::Client::new(), out };

    wire.heading("A client sends its timeout, and asks for the time that was left.")?;
    wire.get("/price", &[("X-Request-Timeout", "800"), ("X-Deadline-Remaining", "?")]).await?;

    wire.heading("The dependency is down: the last known price is the fallback, marked as degraded.")?;
    shop.prices_are_down.store(true, Ordering::Relaxed);
    wire.get("/price", &[]).await?;

    wire.heading("A dependency that hangs: the client is answered at its own deadline.")?;
    wire.get("/report", &[("X-Request-Timeout", "150")]).await?;

    wire.heading("The deadline has passed: rejected without calling the handler.")?;
    wire.get("/report", &[("X-Request-Timeout", "0")]).await?;

    wire.heading("One report at a time: the second request gets a Retry-After. 429 is this service's choice.")?;
    let first = wire.client.get(format!("{}/report", wire.url)).header("X-Request-Timeout", "1500").send();
    let first = tokio::spawn(first);
    while shop.module.pipeline("reports", ()).ok().and_then(|reports| reports.available_slots()) != Some(0) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    wire.get("/report", &[]).await?;
    first.abort(); // disconnects, which releases the slot

    wire.heading("Two searches a minute: the third is rejected with the time of the next permit.")?;
    for _ in 0..3 {
        wire.get("/search", &[]).await?;
    }

    wire.heading("An order sent twice is one order, answered twice. Another order under the same key is a conflict.")?;
    let key = [("Idempotency-Key", "6f1c")];
    wire.post("/orders", &key, r#"{"book":"Iliad"}"#).await?;
    wire.post("/orders", &key, r#"{"book":"Iliad"}"#).await?;
    wire.post("/orders", &key, r#"{"book":"Odyssey"}"#).await?;

    wire.heading("Malformed values are ignored and counted; an untrusted client cannot raise its criticality.")?;
    wire.get("/price", &[("X-Request-Timeout", "soon"), ("X-Criticality", "critical")]).await?;
    writeln!(wire.out, "{:#?}", edge.counts())?;
    server.abort();
    Ok(())
}

#[tokio::main]
#[allow(dead_code)] // its test calls `run`
async fn main() -> Result<(), Box<dyn Error>> {
    run(&mut io::stdout()).await
}
