//! A small axum service with an edge, policies, a fallback and idempotent writes. It makes requests to itself, prints what
//! went over the wire in both directions, and ends.
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

/// What the handlers share.
#[derive(Clone)]
struct Shop {
    module: ResilienceModule,
    /// The last price that was seen, for when there is no new one.
    last: Arc<StaleCache<&'static str, String>>,
    prices_are_down: Arc<AtomicBool>,
    orders: Arc<AtomicU32>,
}

const SEARCHES: RateLimitSpec = RateLimitSpec::per_minute(2);

/// A dependency that breaks when it is told to.
async fn fetch_price(shop: &Shop) -> io::Result<String> {
    match shop.prices_are_down.load(Ordering::Relaxed) {
        true => Err(io::ErrorKind::ConnectionRefused.into()),
        false => Ok("7.99 €".to_owned()),
    }
}

/// And one that does not answer at all.
async fn fetch_report() -> io::Result<String> {
    std::future::pending().await
}

// What becomes of a dependency's own errors is the service's business.
fn bad_gateway(error: io::Error) -> (StatusCode, String) {
    (StatusCode::BAD_GATEWAY, error.to_string())
}

/// The last good answer stands in for one that cannot be had, and says so.
async fn price(State(shop): State<Shop>) -> Result<Degradable<String>, HandlerError<(StatusCode, String)>> {
    let call = shop.module.call("prices", "eu").fallback(shop.last.at("eu"));
    let served = call.run_served(|| fetch_price(&shop)).await.map_err(|error| HandlerError::map(error, bad_gateway))?;
    Ok(served.into())
}

/// Rejections are answers too: status, `Retry-After` and a problem document come by themselves.
async fn report(State(shop): State<Shop>) -> Result<String, HandlerError<(StatusCode, String)>> {
    let report = shop.module.run("reports", (), fetch_report).await;
    report.map_err(|error| HandlerError::map(error, bad_gateway))
}

/// The record of a call has what the `RateLimit` headers say.
async fn search(State(shop): State<Shop>) -> Result<Degradable<&'static str>, RejectionResponse> {
    let operation = || async { Ok::<_, std::convert::Infallible>("three results") };
    let (result, record) = shop.module.call("search", ()).run_recorded(operation).await;
    match result {
        Ok(found) => Ok(Degradable::recorded(found, &record).limited("search", &SEARCHES, &record)),
        Err(phalanx::Error::Rejected(rejection)) => {
            Err(RejectionResponse::new(rejection).recorded(&record).limit(&SEARCHES))
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
        .status(RejectionCode::BulkheadFull, 429) // this service's custom
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

/// Sends requests and writes down what goes over the wire.
struct Wire<'a, W> {
    url: String,
    client: reqwest::Client,
    out: &'a mut W,
}

type Headers<'a> = &'a [(&'a str, &'a str)];

impl<W: Write> Wire<'_, W> {
    fn say(&mut self, what: &str) -> io::Result<()> {
        writeln!(self.out, "\n# {what}\n")
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

/// Plays it all.
pub(crate) async fn play(out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    let shop = shop()?;
    let (app, edge) = app(&shop);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    let server = tokio::spawn(async move { axum::serve(listener, app).await });
    let mut wire = Wire { url, client: reqwest::Client::new(), out };

    wire.say("A client says how long it waits; how much of that was left comes back where it is asked for.")?;
    wire.get("/price", &[("X-Request-Timeout", "800"), ("X-Deadline-Remaining", "?")]).await?;

    wire.say("The dependency is down: the last good answer stands in, and says so.")?;
    shop.prices_are_down.store(true, Ordering::Relaxed);
    wire.get("/price", &[]).await?;

    wire.say("A dependency that hangs costs the client what it was ready to wait, and no more.")?;
    wire.get("/report", &[("X-Request-Timeout", "150")]).await?;

    wire.say("Nobody waits any more: rejected before the handler is troubled.")?;
    wire.get("/report", &[("X-Request-Timeout", "0")]).await?;

    wire.say("One report at a time: who comes second is told when to come back. 429 is this service's choice.")?;
    let first = wire.client.get(format!("{}/report", wire.url)).header("X-Request-Timeout", "1500").send();
    let first = tokio::spawn(first);
    while shop.module.pipeline("reports", ()).ok().and_then(|reports| reports.available_slots()) != Some(0) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    wire.get("/report", &[]).await?;
    first.abort(); // hangs up, and with that gives the slot back

    wire.say("Two searches a minute; the third knows when the next one is free.")?;
    for _ in 0..3 {
        wire.get("/search", &[]).await?;
    }

    wire.say("An order sent twice is one order, answered twice. Another order under the same key is a mistake.")?;
    let key = [("Idempotency-Key", "6f1c")];
    wire.post("/orders", &key, r#"{"book":"Iliad"}"#).await?;
    wire.post("/orders", &key, r#"{"book":"Iliad"}"#).await?;
    wire.post("/orders", &key, r#"{"book":"Odyssey"}"#).await?;

    wire.say("Nonsense is ignored and counted; a stranger does not make himself important.")?;
    wire.get("/price", &[("X-Request-Timeout", "soon"), ("X-Criticality", "critical")]).await?;
    writeln!(wire.out, "{:#?}", edge.counts())?;
    server.abort();
    Ok(())
}

#[tokio::main]
#[allow(dead_code)] // its test calls `play`
async fn main() -> Result<(), Box<dyn Error>> {
    play(&mut io::stdout()).await
}
