//! A shop that requests prices from a vendor, with one policy on its own routes and one on its HTTP client.
//!
//! ```text
//!   caller ──► axum router ──► handler ──► hyper client ──► the vendor, on loopback
//!              layer "shop"                layer "vendor"
//!              8 at a time                 retry, breaker, timeout
//! ```
//!
//! `cargo run --example tower_stack`

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use axum::routing::get;
use http::{Request, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use phalanx::{Backoff, BreakerSpec, BulkheadSpec, Error, Kind, Policy, ResilienceModule, RetrySpec};
use phalanx_tower::{BoxError, ResilienceLayer, reject};
use tower::{Layer, ServiceExt};

const MS: Duration = Duration::from_millis(1);
const BREAK: Duration = Duration::from_millis(500);

fn policies() -> [Policy; 2] {
    [
        Policy::named("shop").bulkhead(BulkheadSpec::fixed(8)),
        Policy::named("vendor")
            .breaker(BreakerSpec::consecutive_failures(3).break_for(BREAK))
            .retry(RetrySpec::attempts(3).on([Kind::Infrastructure]).backoff(Backoff::constant(5 * MS)))
            .timeout(500 * MS),
    ]
}

/// Builds the shop. The two layers contain everything about resilience.
fn shop(module: &ResilienceModule, vendor_url: String) -> Result<Router, BoxError> {
    let client = Client::builder(TokioExecutor::new()).build_http();
    let vendor = ResilienceLayer::new(module, "vendor")?.route("eu")?.errors_as(Kind::Infrastructure).layer(client);

    let statuses = module.clone();
    let price = move || async move {
        let request = Request::get(vendor_url).body(Body::empty()).unwrap_or_default();
        let response = match vendor.oneshot(request).await {
            Ok(response) => response.map(Body::new),
            Err(Error::Rejected(rejection)) => reject::response(&statuses, &rejection),
            Err(Error::Inner(_)) => status(StatusCode::BAD_GATEWAY),
        };
        Ok::<_, Infallible>(response)
    };

    let shop = ResilienceLayer::new(module, "shop")?.answer_rejections();
    Ok(Router::new().route("/price", get(price)).layer(shop))
}

/// The vendor: fails `failures` requests, and counts all requests.
#[derive(Clone, Default)]
struct Vendor {
    failures: Arc<AtomicUsize>,
    requests: Arc<AtomicUsize>,
}

impl Vendor {
    async fn serve(&self) -> Result<String, BoxError> {
        let vendor = self.clone();
        let answer = move || async move {
            vendor.requests.fetch_add(1, Relaxed);
            tokio::time::sleep(5 * MS).await;
            let failing = vendor.failures.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok();
            if failing { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK }
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}/", listener.local_addr()?);
        let routes = Router::new().route("/", get(answer));
        tokio::spawn(async move { axum::serve(listener, routes).await });
        Ok(url)
    }
}

fn status(status: StatusCode) -> Response {
    let mut response = Response::default();
    *response.status_mut() = status;
    response
}

/// Sends `times` concurrent requests to the shop and returns a summary of the responses.
async fn send(shop: &Router, vendor: &Vendor, times: usize) -> String {
    let before = vendor.requests.load(Relaxed);
    let calls: Vec<_> = (0..times)
        .map(|_| {
            let request = Request::get("/price").body(Body::empty()).unwrap_or_default();
            tokio::spawn(shop.clone().oneshot(request))
        })
        .collect();
    let (mut good, mut rejected, mut bad, mut after) = (0, 0, 0, None);
    for call in calls {
        let answer = match call.await {
            Ok(Ok(answer)) => answer,
            Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
        };
        match answer.headers().get("retry-after") {
            _ if answer.status().is_success() => good += 1,
            Some(seconds) => (rejected, after) = (rejected + 1, seconds.to_str().ok().map(str::to_owned)),
            None => bad += 1,
        }
    }
    let after = after.map(|seconds| format!(" (Retry-After: {seconds})")).unwrap_or_default();
    let requests = vendor.requests.load(Relaxed) - before;
    format!("{good:>2} good, {bad:>2} bad, {rejected:>2} rejected{after}; the vendor saw {requests}")
}

/// Runs all scenarios and reports one line for each.
pub async fn run(mut report: impl FnMut(String)) -> Result<(), BoxError> {
    let vendor = Vendor::default();
    let module = ResilienceModule::in_memory().policies(policies()).build()?;
    let shop = shop(&module, vendor.serve().await?)?;

    report(format!("healthy, 1 call:         {}", send(&shop, &vendor, 1).await));
    vendor.failures.store(2, Relaxed);
    report(format!("two failures, 1 call:    {}", send(&shop, &vendor, 1).await));
    report(format!("20 concurrent calls:     {}", send(&shop, &vendor, 20).await));
    vendor.failures.store(usize::MAX, Relaxed);
    for _ in 0..3 {
        send(&shop, &vendor, 1).await; // three consecutive failures open the breaker
    }
    report(format!("vendor down, 5 calls:    {}", send(&shop, &vendor, 5).await));
    vendor.failures.store(0, Relaxed);
    tokio::time::sleep(BREAK + 20 * MS).await;
    report(format!("vendor recovered, 1 call:{}", send(&shop, &vendor, 1).await));
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    run(|line| println!("{line}")).await
}
