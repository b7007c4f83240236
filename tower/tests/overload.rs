//! Four times what a service can do, over loopback: it rejects at once and says when to come back, its queue keeps to its
//! bound, and it holds no more requests than slots and queue places.

#![allow(clippy::unwrap_used)] // a panic is how a test says no, in its helpers too

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
/// Each comes back as soon as it is answered: four times as many as the service can hold.
const CLIENTS: usize = 4 * (SLOTS + QUEUE) as usize;
const REQUESTS: usize = 20;

/// How many there are, and how many there were at most.
#[derive(Default)]
struct Gauge {
    now: AtomicUsize,
    most: AtomicUsize,
}

struct Inside(Arc<Gauge>);

impl Gauge {
    fn enter(self: &Arc<Self>) -> Inside {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        Inside(self.clone())
    }
}

impl Drop for Inside {
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
async fn at_four_times_its_load_a_service_rejects_with_a_time_and_holds_no_more_than_it_has_places() {
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

    let most = |gauge: &Gauge| gauge.most.load(Ordering::SeqCst);
    let deepest = service.deepest.load(Ordering::SeqCst);
    println!("{done} done, {rejected} rejected; at most {} working, {deepest} queued", most(&service.working));
    assert_eq!(done + rejected, CLIENTS * REQUESTS);
    assert!(done > 0 && rejected > 0);
    assert!(most(&service.working) <= SLOTS as usize);
    assert!(deepest <= QUEUE as usize);
    // A rejected request is there for the moment of its rejection only: one a worker thread.
    assert!(most(&service.held) <= (SLOTS + QUEUE) as usize + 2, "{}", most(&service.held));
    assert_eq!(service.held.now.load(Ordering::SeqCst) + service.working.now.load(Ordering::SeqCst), 0);
    let view = service.pipeline.bulkhead().unwrap();
    assert_eq!((view.in_use, view.waiting), (0, 0));
}
