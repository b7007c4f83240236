//! A service under four times its capacity, over loopback: it rejects at once with a `Retry-After`, its queue stays within
//! its limit, and it holds no more requests than slots and queue together.

#![allow(clippy::unwrap_used)] // a failed test panics, also in helpers

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::routing::get;
use phalanx::{BulkheadSpec, Pipeline, Policy, ResilienceModule};
use phalanx_tower::edge::{EdgeLayer, RejectionResponse};
use tokio::net::TcpListener;

const SLOTS: u32 = 4;
const QUEUE: u32 = 8;
const WORK: Duration = Duration::from_millis(10);
/// Each client sends its next request as soon as it is answered: four times as many as the service can hold.
const CLIENTS: usize = 4 * (SLOTS + QUEUE) as usize;
const REQUESTS: usize = 20;

/// The current number, and the maximum.
#[derive(Default)]
struct Gauge {
    now: AtomicUsize,
    max: AtomicUsize,
}

struct GaugeGuard(Arc<Gauge>);

impl Gauge {
    fn enter(self: &Arc<Self>) -> GaugeGuard {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.max.fetch_max(now, Ordering::SeqCst);
        GaugeGuard(self.clone())
    }
}

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::SeqCst);
    }
}

#[derive(Clone)]
struct Service {
    pipeline: Pipeline,
    working: Arc<Gauge>,
    held: Arc<Gauge>,
    deepest: Arc<AtomicUsize>,
}

async fn handler(State(service): State<Service>) -> Result<&'static str, RejectionResponse> {
    let held = service.held.enter();
    let answer = service.pipeline.run(async || {
        let view = service.pipeline.bulkhead().unwrap();
        service.deepest.fetch_max(view.waiting as usize, Ordering::SeqCst);
        let _working = service.working.enter();
        tokio::time::sleep(WORK).await;
        Ok::<_, Infallible>("done")
    });
    let answer = answer.await;
    drop(held);
    answer.map_err(|error| RejectionResponse::new(*error.rejection().unwrap()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_four_times_its_capacity_a_service_rejects_with_a_retry_after_and_stays_within_its_limits() {
    let policy = Policy::named("work").bulkhead(BulkheadSpec::fixed(SLOTS).queue(QUEUE));
    let module = ResilienceModule::in_memory().policy(policy).build().unwrap();
    let pipeline = module.pipeline("work", ()).unwrap();
    let service = Service { pipeline, working: Arc::default(), held: Arc::default(), deepest: Arc::default() };
    let app =
        Router::new().route("/", get(handler)).with_state(service.clone()).layer(EdgeLayer::new().module(&module));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });

    let client = reqwest::Client::new();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let (client, url) = (client.clone(), url.clone());
            tokio::spawn(async move {
                let (mut done, mut rejected) = (0, 0);
                for _ in 0..REQUESTS {
                    let response = client.get(&url).send().await.unwrap();
                    match response.status().as_u16() {
                        200 => done += 1,
                        503 => {
                            assert_eq!(response.headers()["retry-after"], "1");
                            let problem: serde_json::Value =
                                serde_json::from_str(&response.text().await.unwrap()).unwrap();
                            assert_eq!(problem["code"], "bulkhead_full");
                            rejected += 1;
                        }
                        other => panic!("{other}"),
                    }
                }
                (done, rejected)
            })
        })
        .collect();
    let (mut done, mut rejected) = (0, 0);
    for client in clients {
        let (d, r) = client.await.unwrap();
        (done, rejected) = (done + d, rejected + r);
    }

    let max = |gauge: &Gauge| gauge.max.load(Ordering::SeqCst);
    let deepest = service.deepest.load(Ordering::SeqCst);
    println!("{done} done, {rejected} rejected; at most {} working, {deepest} queued", max(&service.working));
    assert_eq!(done + rejected, CLIENTS * REQUESTS);
    assert!(done > 0 && rejected > 0);
    assert!(max(&service.working) <= SLOTS as usize);
    assert!(deepest <= QUEUE as usize);
    // In addition, each of the two worker threads may hold a request that it is rejecting.
    assert!(max(&service.held) <= (SLOTS + QUEUE) as usize + 2, "{}", max(&service.held));
    assert_eq!(service.held.now.load(Ordering::SeqCst) + service.working.now.load(Ordering::SeqCst), 0);
    let view = service.pipeline.bulkhead().unwrap();
    assert_eq!((view.in_use, view.waiting), (0, 0));
}
