//! One trace through a service: from the request's headers, through the edge and a policy, to the headers of every attempt.

#![cfg(feature = "trace-context")]
#![allow(clippy::unwrap_used)] // a panic is how a test says no, in its helpers too

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

/// One test at a time: what a subscriber wants is remembered for the whole process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    global::set_text_map_propagator(TraceContextPropagator::new());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Exporting {
    _default: DefaultGuard,
    _provider: SdkTracerProvider,
    _alone: MutexGuard<'static, ()>,
}

/// Everything that ends is exported, until this is dropped.
fn export() -> (InMemorySpanExporter, Exporting) {
    let alone = alone();
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
    let default = set_default(Registry::default().with(layer));
    (exporter, Exporting { _default: default, _provider: provider, _alone: alone })
}

fn named(exporter: &InMemorySpanExporter, name: &str) -> Vec<SpanData> {
    let mut spans = exporter.get_finished_spans().unwrap();
    spans.retain(|span| span.name == name);
    spans.sort_by_key(|span| span.start_time);
    spans
}

/// A service that asks the upstream under a policy.
async fn service(upstream: &Upstream) -> Router {
    let policy = Policy::named("p").retry(retry());
    let module = ResilienceModule::in_memory().seed(7).policy(policy).traced().build().unwrap();
    let client = ResilientClient::new(reqwest::Client::new(), &module, "p", "upstream").unwrap();
    let url = upstream.serve().await;
    let ask = async |State((client, url)): State<(ResilientClient, String)>| {
        client.send(client.client().get(url)).await.unwrap().status()
    };
    Router::new().route("/", get(ask)).with_state((client, url)).layer(EdgeLayer::new())
}

async fn ask(app: Router, traceparent: &str) -> StatusCode {
    let request = Request::get("/").header("traceparent", traceparent).body(Body::empty()).unwrap();
    app.oneshot(request).await.unwrap().status()
}

/// Trace and span on the requests that the upstream got.
fn sent(upstream: &Upstream) -> Vec<(TraceId, SpanId)> {
    let read = |header: Option<String>| {
        let header = header.unwrap();
        let parts: Vec<_> = header.split('-').collect();
        (TraceId::from_hex(parts[1]).unwrap(), SpanId::from_hex(parts[2]).unwrap())
    };
    upstream.header("traceparent").into_iter().map(read).collect()
}

#[tokio::test]
async fn a_trace_goes_from_the_inbound_request_through_the_call_to_each_attempt() {
    let (exporter, _exporting) = export();
    let upstream = Upstream::playing([503]);
    assert_eq!(ask(service(&upstream).await, &format!("00-{TRACE}-{PARENT}-01")).await, 200);

    let call = &named(&exporter, "phalanx.call")[0];
    assert_eq!(call.parent_span_id, SpanId::from_hex(PARENT).unwrap());
    assert!(call.parent_span_is_remote);
    let attempts = named(&exporter, "phalanx.attempt");
    assert!(attempts.iter().all(|attempt| attempt.parent_span_id == call.span_context.span_id()));
    let trace = TraceId::from_hex(TRACE).unwrap();
    let expected: Vec<_> = attempts.iter().map(|attempt| (trace, attempt.span_context.span_id())).collect();
    assert_eq!(sent(&upstream), expected);
    assert!(expected.len() == 2 && expected[0] != expected[1]);
}

#[tokio::test]
async fn a_span_around_the_edge_has_decided_already() {
    let (exporter, _exporting) = export();
    let upstream = Upstream::playing([]);
    let around = info_span!("around");
    ask(service(&upstream).await, &format!("00-{TRACE}-{PARENT}-01")).instrument(around).await;
    let (around, call) = (&named(&exporter, "around")[0], &named(&exporter, "phalanx.call")[0]);
    assert_eq!(call.parent_span_id, around.span_context.span_id());
    assert_ne!(around.span_context.trace_id(), TraceId::from_hex(TRACE).unwrap());
}

#[tokio::test]
async fn nonsense_begins_a_trace_of_its_own() {
    let (exporter, _exporting) = export();
    let upstream = Upstream::playing([]);
    let app = service(&upstream).await;
    for nonsense in ["", "00", "00-00000000000000000000000000000000-b7ad6b7169203331-01", "ff-x-y-z"] {
        assert_eq!(ask(app.clone(), nonsense).await, 200);
    }
    let calls = named(&exporter, "phalanx.call");
    assert_eq!(calls.len(), 4);
    assert!(calls.iter().all(|call| call.parent_span_id == SpanId::INVALID && call.span_context.is_valid()));
}

#[tokio::test]
#[allow(clippy::await_holding_lock)] // nobody else is on this thread
async fn without_anybody_who_traces_no_header_is_sent() {
    let _alone = alone();
    let upstream = Upstream::playing([]);
    let app = service(&upstream).await;
    let request = Request::get("/").body(Body::empty()).unwrap();
    assert_eq!(app.oneshot(request).await.unwrap().status(), 200);
    assert_eq!(upstream.header("traceparent"), [None]);
}
