//! Trace context through a service: from request headers, through the edge and a policy, to the headers of each attempt.

#![cfg(feature = "trace-context")]
#![allow(clippy::unwrap_used)] // a failed test panics, also in helpers

mod support;

use std::sync::{Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, StatusCode};
use axum::routing::get;
use opentelemetry::trace::TracerProvider;
use opentelemetry::{SpanId, TraceId, global};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use phalanx::{Policy, ResilienceModule};
use phalanx_tower::edge::EdgeLayer;
use phalanx_tower::reqwest::ResilientClient;
use support::*;
use tower::ServiceExt;
use tracing::subscriber::{DefaultGuard, set_default};
use tracing::{Instrument, info_span};
use tracing_subscriber::Registry;
use tracing_subscriber::layer::SubscriberExt;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

/// Serializes the tests, because `tracing` caches the interest of subscribers for the whole process.
fn lock_tracing() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    global::set_text_map_propagator(TraceContextPropagator::new());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Exporting {
    _default: DefaultGuard,
    _provider: SdkTracerProvider,
    _lock: MutexGuard<'static, ()>,
}

/// Exports every finished span until the guard is dropped.
fn export() -> (InMemorySpanExporter, Exporting) {
    let lock = lock_tracing();
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
    let default = set_default(Registry::default().with(layer));
    (exporter, Exporting { _default: default, _provider: provider, _lock: lock })
}

fn named(exporter: &InMemorySpanExporter, name: &str) -> Vec<SpanData> {
    let mut spans = exporter.get_finished_spans().unwrap();
    spans.retain(|span| span.name == name);
    spans.sort_by_key(|span| span.start_time);
    spans
}

/// A service that calls the upstream under a policy.
async fn service(upstream: &Upstream) -> Router {
    let policy = Policy::named("p").retry(retry());
    let module = ResilienceModule::in_memory().seed(7).policy(policy).traced().build().unwrap();
    let client = ResilientClient::new(reqwest::Client::new(), &module, "p", "upstream").unwrap();
    let url = upstream.serve().await;
    let handler = async |State((client, url)): State<(ResilientClient, String)>| {
        client.send(client.client().get(url)).await.unwrap().status()
    };
    Router::new().route("/", get(handler)).with_state((client, url)).layer(EdgeLayer::new())
}

async fn send(app: Router, traceparent: &str) -> StatusCode {
    let request = Request::get("/").header("traceparent", traceparent).body(Body::empty()).unwrap();
    app.oneshot(request).await.unwrap().status()
}

/// Returns trace and span id of the requests that the upstream received.
fn received(upstream: &Upstream) -> Vec<(TraceId, SpanId)> {
    let read = |header: Option<String>| {
        let header = header.unwrap();
        let parts: Vec<_> = header.split('-').collect();
        (TraceId::from_hex(parts[1]).unwrap(), SpanId::from_hex(parts[2]).unwrap())
    };
    upstream.header("traceparent").into_iter().map(read).collect()
}

#[tokio::test]
async fn the_trace_of_the_request_continues_in_the_call_and_in_each_attempt() {
    let (exporter, _exporting) = export();
    let upstream = Upstream::with_statuses([503]);
    assert_eq!(send(service(&upstream).await, &format!("00-{TRACE}-{PARENT}-01")).await, 200);

    let call = &named(&exporter, "phalanx.call")[0];
    assert_eq!(call.parent_span_id, SpanId::from_hex(PARENT).unwrap());
    assert!(call.parent_span_is_remote);
    let attempts = named(&exporter, "phalanx.attempt");
    assert!(attempts.iter().all(|attempt| attempt.parent_span_id == call.span_context.span_id()));
    let trace = TraceId::from_hex(TRACE).unwrap();
    let expected: Vec<_> = attempts.iter().map(|attempt| (trace, attempt.span_context.span_id())).collect();
    assert_eq!(received(&upstream), expected);
    assert!(expected.len() == 2 && expected[0] != expected[1]);
}

#[tokio::test]
async fn a_current_span_takes_precedence_over_the_headers() {
    let (exporter, _exporting) = export();
    let upstream = Upstream::with_statuses([]);
    let around = info_span!("around");
    send(service(&upstream).await, &format!("00-{TRACE}-{PARENT}-01")).instrument(around).await;
    let (around, call) = (&named(&exporter, "around")[0], &named(&exporter, "phalanx.call")[0]);
    assert_eq!(call.parent_span_id, around.span_context.span_id());
    assert_ne!(around.span_context.trace_id(), TraceId::from_hex(TRACE).unwrap());
}

#[tokio::test]
async fn a_malformed_traceparent_starts_a_new_trace() {
    let (exporter, _exporting) = export();
    let upstream = Upstream::with_statuses([]);
    let app = service(&upstream).await;
    for malformed in ["", "00", "00-00000000000000000000000000000000-b7ad6b7169203331-01", "ff-x-y-z"] {
        assert_eq!(send(app.clone(), malformed).await, 200);
    }
    let calls = named(&exporter, "phalanx.call");
    assert_eq!(calls.len(), 4);
    assert!(calls.iter().all(|call| call.parent_span_id == SpanId::INVALID && call.span_context.is_valid()));
}

#[tokio::test]
#[allow(clippy::await_holding_lock)] // the runtime is single-threaded
async fn without_a_subscriber_no_header_is_sent() {
    let _lock = lock_tracing();
    let upstream = Upstream::with_statuses([]);
    let app = service(&upstream).await;
    let request = Request::get("/").body(Body::empty()).unwrap();
    assert_eq!(app.oneshot(request).await.unwrap().status(), 200);
    assert_eq!(upstream.header("traceparent"), [None]);
}
