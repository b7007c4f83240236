//! Requests through the edge, on virtual time: headers, context and responses.

#![allow(clippy::unwrap_used)] // a failed test panics, also in helpers

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use axum::body::{Body, to_bytes};
use axum::extract::State;
use axum::http::{Request, Response, StatusCode};
use axum::routing::get;
use axum::{Extension, Router};
use phalanx::{BulkheadSpec, Context, Criticality, Policy, RateLimitSpec, RejectionCode, ResilienceModule, StaleCache};
use phalanx_tower::edge::{Degradable, EdgeLayer, HandlerError, RejectionResponse};
use proptest::prelude::*;
use tower::{Layer, ServiceExt, service_fn};

type Headers<'a> = &'a [(&'a str, &'a str)];

async fn send(app: &Router, path: &str, headers: Headers<'_>) -> Response<Body> {
    let request = headers.iter().fold(Request::get(path), |request, (name, value)| request.header(*name, *value));
    app.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
}

async fn text(response: Response<Body>) -> String {
    String::from_utf8(to_bytes(response.into_body(), 10_000).await.unwrap().to_vec()).unwrap()
}

async fn json(response: Response<Body>) -> serde_json::Value {
    serde_json::from_str(&text(response).await).unwrap()
}

/// Answers with the context of the request.
async fn show_context() -> String {
    let context = Context::current();
    format!("{:?} {:?}", context.remaining().unwrap(), context.criticality())
}

fn context_service(edge: &EdgeLayer) -> Router {
    Router::new().route("/", get(show_context)).layer(edge.clone())
}

#[tokio::test(start_paused = true)]
async fn a_handler_gets_its_clients_deadline_and_criticality() {
    let app = context_service(&EdgeLayer::new());
    let asked = [("x-request-timeout", "1500"), ("x-criticality", "degraded")];
    assert_eq!(text(send(&app, "/", &asked).await).await, "1.5s Degraded");
    assert_eq!(text(send(&app, "/", &[("grpc-timeout", "200m")]).await).await, "200ms Normal");
    assert_eq!(text(send(&app, "/", &[]).await).await, "30s Normal", "max_deadline without a header");
}

#[tokio::test(start_paused = true)]
async fn a_deadline_is_compared_with_the_wall_clock() {
    let noon = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let edge = EdgeLayer::new().wall_clock(move || noon);
    let app = context_service(&edge);
    assert_eq!(text(send(&app, "/", &[("x-request-deadline", "2001-09-09T01:46:43Z")]).await).await, "3s Normal");
    let past = send(&app, "/", &[("x-request-deadline", "2001-09-09T01:46:39Z")]).await;
    assert_eq!(past.status(), StatusCode::GATEWAY_TIMEOUT);
    let wrong = send(&app, "/", &[("x-request-deadline", "1999-09-09T01:46:39Z")]).await;
    assert_eq!(text(wrong).await, "30s Normal");
    assert_eq!((edge.counts().expired, edge.counts().skewed), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_requested_timeout_is_clamped_to_the_servers_bounds() {
    let edge = EdgeLayer::new().min_deadline(Duration::from_millis(10)).max_deadline(Duration::from_secs(5));
    let app = context_service(&edge);
    for (asked, bound) in [("1", "10ms"), ("10", "10ms"), ("4999", "4.999s"), ("9999999999", "5s"), ("nonsense", "5s")]
    {
        assert_eq!(text(send(&app, "/", &[("x-request-timeout", asked)]).await).await, format!("{bound} Normal"));
    }
    assert_eq!((edge.counts().clamped, edge.counts().malformed), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn an_expired_request_is_answered_504_without_calling_the_handler() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counting = calls.clone();
    let handler = move || async move { counting.fetch_add(1, Ordering::Relaxed).to_string() };
    let edge = EdgeLayer::new();
    let app = Router::new().route("/", get(handler)).layer(edge.clone());
    let response = send(&app, "/", &[("x-request-timeout", "0")]).await;
    assert_eq!(response.status(), StatusCode::GATEWAY_TIMEOUT);
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    let problem = json(response).await;
    assert_eq!((&problem["code"], &problem["message_id"]), (&"deadline_exceeded".into(), &"DEPENDENCY.timeout".into()));
    let grpc = send(&app, "/", &[("grpc-timeout", "0m"), ("content-type", "application/grpc+proto")]).await;
    assert_eq!((grpc.status(), &grpc.headers()["grpc-status"]), (StatusCode::OK, &"4".parse().unwrap()));
    assert_eq!((calls.load(Ordering::Relaxed), edge.counts().expired), (0, 2));
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_hangs_is_cancelled_after_deadline_and_grace() {
    let edge = EdgeLayer::new();
    let hangs = Router::new().route("/", get(std::future::pending::<String>)).layer(edge.clone());
    let start = tokio::time::Instant::now();
    let asked = [("x-request-timeout", "200"), ("x-deadline-remaining", "?")];
    let response = send(&hangs, "/", &asked).await;
    assert_eq!(response.status(), StatusCode::GATEWAY_TIMEOUT);
    assert_eq!(response.headers()["x-deadline-remaining"], "0");
    assert_eq!(start.elapsed(), Duration::from_millis(225));
    assert_eq!(edge.counts().timed_out, 1);
}

#[tokio::test(start_paused = true)]
async fn the_remaining_time_is_reported_if_configured() {
    let slow = || async { tokio::time::sleep(Duration::from_millis(300)).await };
    let app = |edge: EdgeLayer| Router::new().route("/", get(slow)).layer(edge);
    let asked = [("x-request-timeout", "1000")];
    let default = send(&app(EdgeLayer::new()), "/", &asked).await;
    assert!(!default.headers().contains_key("x-deadline-remaining"));
    let always = send(&app(EdgeLayer::new().report_remaining(true)), "/", &asked).await;
    assert_eq!(always.headers()["x-deadline-remaining"], "700");
}

#[tokio::test]
async fn only_a_trusted_peer_raises_the_criticality() {
    #[derive(Clone)]
    struct Peer(&'static str);
    let edge = EdgeLayer::new().trust(|parts| parts.extensions.get::<Peer>().is_some_and(|peer| peer.0 == "checkout"));
    let handler = |headers: axum::http::HeaderMap| async move {
        format!("{:?} {}", Context::current().criticality(), headers.contains_key("x-criticality"))
    };
    let app = |peer| Router::new().route("/", get(handler)).layer(edge.clone()).layer(Extension(Peer(peer)));
    let claim = [("x-criticality", "critical")];
    assert_eq!(text(send(&app("checkout"), "/", &claim).await).await, "Critical true");
    assert_eq!(text(send(&app("unknown"), "/", &claim).await).await, "Normal false", "the header is removed");
    assert_eq!(edge.counts().upgrades_rejected, 1);
}

#[tokio::test]
async fn a_handler_cannot_raise_the_criticality_of_its_request() {
    let raising = || async {
        let raised = Context::EMPTY.with_criticality(Criticality::Critical);
        phalanx::scope(raised, async { format!("{:?}", Context::current().criticality()) }).await
    };
    let app = Router::new().route("/", get(raising)).layer(EdgeLayer::new());
    assert_eq!(text(send(&app, "/", &[]).await).await, "Normal");
}

type HandlerResult<T> = Result<T, HandlerError<(StatusCode, String)>>;

fn bad_gateway(error: std::io::Error) -> (StatusCode, String) {
    (StatusCode::BAD_GATEWAY, error.to_string())
}

#[tokio::test]
async fn the_question_mark_operator_returns_rejections_with_the_modules_status() {
    let module = ResilienceModule::in_memory()
        .policy(Policy::named("full").bulkhead(BulkheadSpec::fixed(1)))
        .status(RejectionCode::BulkheadFull, 429)
        .build()
        .unwrap();
    async fn handler(State(module): State<ResilienceModule>) -> HandlerResult<()> {
        let broken = || async { Err(std::io::Error::other("broken")) };
        module.run("full", (), broken).await.map_err(|error| HandlerError::map(error, bad_gateway))
    }
    let app = Router::new().route("/", get(handler)).with_state(module.clone());
    assert_eq!(send(&app, "/", &[]).await.status(), StatusCode::BAD_GATEWAY, "the operation's own error");

    async fn rejected() -> HandlerResult<()> {
        Err(phalanx::Error::Rejected(phalanx::Rejection::new(RejectionCode::BulkheadFull)))?;
        Ok(())
    }
    let bare = Router::new().route("/", get(rejected));
    assert_eq!(send(&bare, "/", &[]).await.status(), StatusCode::SERVICE_UNAVAILABLE);
    let edged = bare.layer(EdgeLayer::new().module(&module));
    let response = send(&edged, "/", &[]).await;
    assert_eq!(
        (response.status(), &response.headers()["retry-after"]),
        (StatusCode::TOO_MANY_REQUESTS, &"1".parse().unwrap())
    );
    assert_eq!(json(response).await["status"], 429, "also in the body");
}

#[tokio::test(start_paused = true)]
async fn a_rate_limit_sends_remaining_permits_and_then_a_retry_after() {
    const LIMIT: RateLimitSpec = RateLimitSpec::per_minute(2);
    let module = ResilienceModule::in_memory().policy(Policy::named("api").rate_limit(LIMIT)).build().unwrap();
    async fn handler(State(module): State<ResilienceModule>) -> Result<Degradable<&'static str>, RejectionResponse> {
        let operation = || async { Ok::<_, Infallible>("here") };
        let (result, record) = module.call("api", ()).run_recorded(operation).await;
        match result {
            Ok(value) => Ok(Degradable::from_decision(value, &record).with_rate_limit("api", &LIMIT, &record)),
            Err(error) => {
                Err(RejectionResponse::new(*error.rejection().unwrap()).with_decision(&record).with_rate_limit(&LIMIT))
            }
        }
    }
    let app = Router::new().route("/", get(handler)).with_state(module).layer(EdgeLayer::new());
    for left in ["1", "0"] {
        let headers = send(&app, "/", &[]).await.headers().clone();
        assert_eq!(headers["ratelimit"], format!("\"api\";r={left}"));
        assert_eq!(headers["ratelimit-policy"], "\"api\";q=2;w=60");
    }
    let rejected = send(&app, "/", &[]).await;
    assert_eq!(
        (rejected.status(), &rejected.headers()["retry-after"]),
        (StatusCode::TOO_MANY_REQUESTS, &"30".parse().unwrap())
    );
    assert_eq!(rejected.headers()["ratelimit"], "\"api\";r=0;t=30");
}

#[tokio::test(start_paused = true)]
async fn an_answer_from_a_fallback_is_marked_with_the_age_of_its_data() {
    let module = ResilienceModule::in_memory()
        .policy(Policy::named("prices").timeout(Duration::from_millis(100)))
        .build()
        .unwrap();
    let last = Arc::new(StaleCache::<&str, String>::new(8, Duration::from_secs(60)));
    last.put("eu", "7.99".to_owned());
    tokio::time::advance(Duration::from_secs(12)).await;
    let handler = move || async move {
        let hangs = || std::future::pending::<Result<String, Infallible>>();
        let served = module.call("prices", "eu").fallback(last.at("eu")).run_served(hangs).await;
        served.map(Degradable::from).map_err(|error| RejectionResponse::new(*error.rejection().unwrap()))
    };
    let app = Router::new().route("/", get(handler)).layer(EdgeLayer::new());
    let response = send(&app, "/", &[]).await;
    assert_eq!(
        (response.status(), &response.headers()["x-degraded"]),
        (StatusCode::OK, &"fallback; age=12".parse().unwrap())
    );
    assert_eq!(text(response).await, "7.99");
}

#[tokio::test(start_paused = true)]
async fn the_edge_works_with_any_service_over_http_types() {
    let inner = service_fn(|_: Request<()>| async {
        let left = Context::current().remaining().unwrap().as_millis().to_string();
        Ok::<_, Infallible>(Response::new(axum::body::Bytes::from(left)))
    });
    let request = Request::get("/").header("x-request-timeout", "42").body(()).unwrap();
    let response = EdgeLayer::new().layer(inner).oneshot(request).await.unwrap();
    assert_eq!(response.body(), "42");
}

proptest! {
    #[test]
    fn no_header_panics_or_exceeds_the_servers_bounds(
        name in prop_oneof![Just("x-request-timeout"), Just("grpc-timeout"), Just("x-request-deadline"), Just("x-criticality")],
        value in prop_oneof![proptest::collection::vec(any::<u8>(), 0..60), "[0-9]{0,11}[HMSmun]?".prop_map(String::into_bytes)],
    ) {
        let Ok(value) = axum::http::HeaderValue::from_bytes(&value) else { return Ok(()) };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let max = Duration::from_secs(5);
            let inner = service_fn(|_: Request<()>| async {
                let context = Context::current();
                let fine = context.remaining().unwrap() <= Duration::from_secs(5) && context.criticality() <= Criticality::Normal;
                Ok::<_, Infallible>(Response::new(axum::body::Bytes::from_static(if fine { b"fine" } else { b"not" })))
            });
            let request = Request::get("/").header(name, value).body(()).unwrap();
            let response = EdgeLayer::new().max_deadline(max).layer(inner).oneshot(request).await.unwrap();
            prop_assert!(response.body() == "fine" || response.status() == StatusCode::GATEWAY_TIMEOUT);
            Ok(())
        })?;
    }
}
