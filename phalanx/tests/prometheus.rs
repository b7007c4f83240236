//! The page that Prometheus scrapes: its names are the documented ones.

#![cfg(feature = "prometheus")]
#![allow(clippy::unwrap_used)] // helpers of tests may panic

mod support;

use std::collections::BTreeSet;

use phalanx::policy::{BudgetSpec, Jitter, LeverSpec, LimitSpec};
use phalanx::telemetry::Metrics;
use phalanx::telemetry::metrics::names::{self, ALL, Instrument};
use phalanx::telemetry::prometheus::{Page, reader};
use phalanx::*;
use support::*;

async fn ok() -> Result<u32, Failure> {
    Ok(1)
}

async fn broken() -> Result<u32, Failure> {
    Err(BROKEN)
}

/// A policy with every stage that has an instrument.
fn policy() -> Policy {
    let little = BudgetSpec::ratio(0.0).min_per_second(1);
    let backoff = Backoff::constant(MS).jitter(Jitter::None);
    Policy::named("p")
        .rate_limit(RateLimitSpec::per_second(1_000))
        .limit("small", LimitSpec::per_second(500))
        .bulkhead(BulkheadSpec::fixed(3))
        .breaker(BreakerSpec::consecutive_failures(20))
        .retry(RetrySpec::attempts(2).backoff(backoff).budget(little))
        .hedge(HedgeSpec::after(10 * MS).budget(little))
        .timeout(50 * MS)
        .idempotent()
}

/// Runs calls until every instrument has a value.
async fn exercise_every_instrument(module: &ResilienceModule) {
    let pipeline = module.pipeline("p", "r").unwrap();
    let runs = std::sync::atomic::AtomicU32::new(0);
    let second_wins = || {
        let second = runs.fetch_add(1, std::sync::atomic::Ordering::Relaxed) > 0;
        async move { if second { ok().await } else { hang().await } }
    };
    pipeline.call().within(SECOND).run(second_wins).await.unwrap();
    pipeline.call().cost(501).run(ok).await.unwrap_err();
    pipeline.call().fallback_value(1).run(broken).await.unwrap();
    for _ in 0..20 {
        pipeline.run(hang).await.unwrap_err();
    }
    while code(pipeline.run(broken).await.map_err(rejected)) != RejectionCode::CircuitOpen {}
    module.pull("p", LeverSpec::default().without_retries()).unwrap();
}

/// Turns an error of the operation into a rejection.
fn rejected(error: Error<Failure>) -> Error<Failure> {
    if error.rejection().is_some() { error } else { Rejection::new(RejectionCode::GuardRejected).into() }
}

/// The names on a page, with their types.
fn families(text: &str) -> BTreeSet<(String, String)> {
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    types.map(|line| line.split_once(' ').map(|(name, kind)| (name.to_owned(), kind.to_owned())).unwrap()).collect()
}

#[tokio::test(start_paused = true)]
async fn every_instrument_is_exported_with_its_documented_name() {
    let page = Page::new().unwrap();
    let module = builder(policy()).metered_by(Metrics::of(page.meter())).build().unwrap();
    exercise_every_instrument(&module).await;
    let (content_type, text) = page.render();
    assert_eq!(content_type, "text/plain; version=0.0.4");
    let mut exported = families(&text);
    assert!(exported.remove(&("target_info".to_owned(), "gauge".to_owned())));
    // Exported only with Redis or with a watched file.
    let elsewhere = [
        names::STORE_MODE,
        names::STORE_DEGRADED,
        names::STORE_DEGRADED_DECISIONS,
        names::STORE_OUTAGES,
        names::STORE_SLOWDOWNS,
        names::STORE_PUSH_LOST,
        names::BREAKER_ODD_REPLICA,
        names::BULKHEAD_FLEET_LAPSED,
        names::RATE_LIMIT_LEASED,
        names::RATE_LIMIT_LEASE_PERMITS,
        names::STORE_DURATION,
        names::STORE_ERRORS,
        names::REPLICAS,
        names::CONFIG_RELOADS,
    ];
    let table: BTreeSet<_> = ALL
        .iter()
        .filter(|named| !elsewhere.contains(named))
        .map(|named| {
            let kind = match named.instrument {
                Instrument::Counter => "counter",
                Instrument::Histogram => "histogram",
                Instrument::Gauge => "gauge",
            };
            (named.prometheus.to_owned(), kind.to_owned())
        })
        .collect();
    assert_eq!(exported, table);
}

#[tokio::test(start_paused = true)]
async fn a_name_with_quotes_and_line_breaks_cannot_break_the_page() {
    let page = Page::new().unwrap();
    let module = builder(Policy::named("p")).metered_by(Metrics::of(page.meter())).build().unwrap();
    module.run("p", "a\"} 1\nphalanx_executions_total{", ok).await.unwrap();
    let (_, text) = page.render();
    let lines: Vec<_> = text.lines().filter(|line| line.starts_with("phalanx_executions_total")).collect();
    assert_eq!(lines.len(), 1, "{text}");
    assert!(
        lines[0].ends_with(" 1") && lines[0].contains(r#"phalanx_route="a\"} 1\\nphalanx_executions_total{""#),
        "{text}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_page_installs_a_provider_or_uses_an_existing_registry() {
    let page = Page::install().unwrap();
    let module = builder(Policy::named("p")).metered().build().unwrap();
    module.run("p", (), ok).await.unwrap();
    let line = r#"phalanx_executions_total{phalanx_outcome="success",phalanx_policy="p",phalanx_route="",phalanx_source="local",otel_scope_name="phalanx"} 1"#;
    assert!(page.render().1.contains(line), "{}", page.render().1);

    let registry = prometheus::Registry::new();
    let own = prometheus::IntCounter::new("orders_total", "their own").unwrap();
    registry.register(Box::new(own.clone())).unwrap();
    own.inc();
    let provider =
        opentelemetry_sdk::metrics::SdkMeterProvider::builder().with_reader(reader(&registry).unwrap()).build();
    let meter = opentelemetry::metrics::MeterProvider::meter(&provider, "phalanx");
    let module = builder(Policy::named("p")).metered_by(Metrics::of(meter)).build().unwrap();
    module.run("p", (), ok).await.unwrap();
    let (_, text) = Page::of(registry).render();
    assert!(text.contains(line) && text.contains("orders_total 1"), "{text}");
}

#[cfg(feature = "axum")]
#[tokio::test]
async fn axum_serves_the_page() {
    use axum::Router;
    use phalanx::telemetry::prometheus::route;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let page = Page::new().unwrap();
    let module = builder(Policy::named("p")).metered_by(Metrics::of(page.meter())).build().unwrap();
    module.run("p", "r", ok).await.unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move { axum::serve(listener, Router::new().merge(route(&page))).await });
    let mut client = tokio::net::TcpStream::connect(address).await.unwrap();
    client.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    server.abort();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    assert!(answer.contains("content-type: text/plain; version=0.0.4"), "{answer}");
    assert!(answer.contains("phalanx_execution_duration_seconds_count{"), "{answer}");
}
