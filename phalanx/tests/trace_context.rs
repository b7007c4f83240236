//! The trace context of a call in OpenTelemetry: the parents of spans, and the headers of outbound requests.

#![cfg(feature = "trace-context")]
#![allow(clippy::unwrap_used)] // helpers of tests may panic

mod support;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::HeaderMap;
use opentelemetry::trace::{Status, TraceContextExt, TracerProvider};
use opentelemetry::{Context, SpanId, TraceId, global};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use phalanx::telemetry::{adopt, extract, inject};
use phalanx::{Backoff, EventKind, HedgeSpec, Policy, ResilienceModule, RetrySpec};
use support::*;
use tracing::subscriber::{DefaultGuard, set_default};
use tracing::{Instrument, info_span};
use tracing_subscriber::Registry;
use tracing_subscriber::layer::SubscriberExt;

/// The exported spans.
struct Exported(InMemorySpanExporter);

/// Exports spans until it is dropped; one test at a time, because `tracing` caches the interests of subscribers per process.
struct ExportGuard {
    _default: DefaultGuard,
    _provider: SdkTracerProvider,
    _one_at_a_time: MutexGuard<'static, ()>,
}

fn export() -> (Exported, ExportGuard) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let one_at_a_time = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    global::set_text_map_propagator(TraceContextPropagator::new());
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
    let default = set_default(Registry::default().with(layer));
    (Exported(exporter), ExportGuard { _default: default, _provider: provider, _one_at_a_time: one_at_a_time })
}

impl Exported {
    fn named(&self, name: &str) -> Vec<SpanData> {
        let mut spans = self.0.get_finished_spans().unwrap();
        spans.retain(|span| span.name == name);
        spans.sort_by_key(|span| span.start_time);
        spans
    }
}

fn inbound() -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".parse().unwrap());
    headers.append("tracestate", "vendor=1".parse().unwrap());
    headers.append("tracestate", "other=2".parse().unwrap());
    headers
}

/// The trace and span ids of an outbound request.
fn on_the_wire(headers: &HeaderMap) -> (TraceId, SpanId) {
    let written = headers["traceparent"].to_str().unwrap();
    let parts: Vec<_> = written.split('-').collect();
    (TraceId::from_hex(parts[1]).unwrap(), SpanId::from_hex(parts[2]).unwrap())
}

fn traced(policy: Policy) -> ResilienceModule {
    builder(policy).traced().build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn each_attempt_is_a_separate_parent_in_the_trace_of_the_caller() {
    let (exported, _guard) = export();
    let module = traced(Policy::named("p").retry(RetrySpec::attempts(2).backoff(Backoff::exponential(MS))));
    let upstream = Upstream::scripted([Err(BROKEN), Ok(7)]);
    let sent = Mutex::new(Vec::new());
    let request = info_span!("request");
    assert!(adopt(&request, &inbound()));
    let send = || async {
        let mut headers = HeaderMap::new();
        inject(&mut headers);
        sent.lock().unwrap().push(headers);
        upstream.call().await
    };
    module.run("p", "eu", send).instrument(request).await.unwrap();

    let trace = TraceId::from_hex("0af7651916cd43dd8448eb211c80319c").unwrap();
    let (request, call) = (&exported.named("request")[0], &exported.named("phalanx.call")[0]);
    assert_eq!(request.parent_span_id, SpanId::from_hex("b7ad6b7169203331").unwrap());
    assert_eq!(call.parent_span_id, request.span_context.span_id());
    let attempts = exported.named("phalanx.attempt");
    assert!(attempts.iter().all(|attempt| attempt.parent_span_id == call.span_context.span_id()));
    let expected: Vec<_> = attempts.iter().map(|attempt| (trace, attempt.span_context.span_id())).collect();
    let sent = sent.into_inner().unwrap();
    assert_eq!(sent.iter().map(on_the_wire).collect::<Vec<_>>(), expected);
    assert!(expected.len() == 2 && expected[0] != expected[1]);
    assert!(sent.iter().all(|headers| headers["tracestate"] == "vendor=1,other=2"), "the whole list is forwarded");
    assert_eq!((&attempts[0].status, &attempts[1].status), (&Status::error(""), &Status::Unset));
    assert_eq!(call.status, Status::Unset);
}

#[tokio::test(start_paused = true)]
async fn each_hedge_is_a_separate_parent_too() {
    let (exported, _guard) = export();
    let module = traced(Policy::named("p").hedge(HedgeSpec::after(10 * MS)).idempotent());
    let sent = Mutex::new(Vec::new());
    let send = || async {
        tokio::time::sleep(MS).await;
        let mut headers = HeaderMap::new();
        inject(&mut headers);
        sent.lock().unwrap().push(on_the_wire(&headers).1);
        let slow = sent.lock().unwrap().len() == 1;
        after(if slow { SECOND } else { MS }, Ok(1)).await
    };
    module.run("p", (), send).await.unwrap();
    let spans: Vec<_> = exported.named("phalanx.attempt").iter().map(|span| span.span_context.span_id()).collect();
    assert_eq!((*sent.lock().unwrap()).clone(), spans);
    assert_eq!(spans.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn observers_of_the_end_run_inside_the_trace_of_the_call() {
    let (exported, _guard) = export();
    let emitted = Arc::new(Mutex::new(Vec::new()));
    let sink = emitted.clone();
    let module = builder(Policy::named("p")).traced().on_event(move |event| {
        if let EventKind::Finished { .. } = event.kind {
            // Exemplars of histograms use this span.
            sink.lock().unwrap().push(Context::current().span().span_context().span_id());
        }
    });
    let upstream = Upstream::scripted([Ok(7), Err(BROKEN)]);
    let module = module.build().unwrap();
    module.run("p", (), || upstream.call()).await.unwrap();
    module.run("p", (), || upstream.call()).await.unwrap_err();
    let calls: Vec<_> = exported.named("phalanx.call").iter().map(|span| span.span_context.span_id()).collect();
    assert_eq!(*emitted.lock().unwrap(), calls);
    assert_eq!(calls.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_failed_is_an_error_unless_a_fallback_answered() {
    let (exported, _guard) = export();
    let module = traced(Policy::named("p").retry(RetrySpec::attempts(2)));
    let broken = async || Err::<u32, _>(BROKEN);
    module.run("p", "failed", broken).await.unwrap_err();
    assert_eq!(module.call("p", "degraded").fallback_value(5).run(broken).await, Ok(5));
    let status: Vec<_> = exported.named("phalanx.call").into_iter().map(|span| span.status).collect();
    assert!(matches!(status[..], [Status::Error { .. }, Status::Ok]), "{status:?}");
}

#[test]
fn without_a_span_nothing_is_injected_and_without_a_valid_header_nothing_is_adopted() {
    let (_exported, _guard) = export();
    let mut headers = HeaderMap::new();
    headers.insert("traceparent", "mine".parse().unwrap());
    inject(&mut headers);
    assert_eq!(headers["traceparent"], "mine");
    for nonsense in ["", "mine", "00-0-0-00", "00-00000000000000000000000000000000-b7ad6b7169203331-01"] {
        headers.insert("traceparent", nonsense.parse().unwrap());
        assert!(!extract(&headers).span().span_context().is_valid(), "{nonsense:?}");
        assert!(!adopt(&info_span!("request"), &headers));
    }
    let mut two = inbound();
    two.append("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203332-01".parse().unwrap());
    assert!(!extract(&two).span().span_context().is_valid(), "two parents are invalid");
    assert!(extract(&inbound()).span().span_context().is_remote());
    let late = info_span!("request");
    late.in_scope(|| ());
    assert!(!adopt(&late, &inbound()), "it has already started in another trace");
}
