//! Requests through the edge, on moved time: what is read, what is bound, what is answered.

#![allow(clippy::unwrap_used)] // a panic is how a test says no, in its helpers too

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

async fn ask(app: &Router, path: &str, headers: Headers<'_>) -> Response<Body> {
    let request = headers.iter().fold(Request::get(path), |request, (name, value)| request.header(*name, *value));
    app.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
}

async fn text(response: Response<Body>) -> String {
    String::from_utf8(to_bytes(response.into_body(), 10_000).await.unwrap().to_vec()).unwrap()
}

async fn json(response: Response<Body>) -> serde_json::Value {
    serde_json::from_str(&text(response).await).unwrap()
}

/// Answers with what is bound.
async fn seen() -> String {
    let context = Context::current();
    format!("{:?} {:?}", context.remaining().unwrap(), context.criticality())
}

fn seeing(edge: &EdgeLayer) -> Router {
    Router::new().route("/", get(seen)).layer(edge.clone())
}

#[tokio::test(start_paused = true)]
async fn a_handler_has_its_clients_deadline_and_criticality() {
    let app = seeing(&EdgeLayer::new());
    let asked = [("x-request-timeout", "1500"), ("x-criticality", "degraded")];
    assert_eq!(text(ask(&app, "/", &asked).await).await, "1.5s Degraded");
    assert_eq!(text(ask(&app, "/", &[("grpc-timeout", "200m")]).await).await, "200ms Normal");
    assert_eq!(text(ask(&app, "/", &[]).await).await, "30s Normal", "the longest is for who does not ask");
}

#[tokio::test(start_paused = true)]
async fn a_moment_is_compared_with_the_time_of_day() {
    let noon = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let edge = EdgeLayer::new().wall_clock(move || noon);
    let app = seeing(&edge);
    assert_eq!(text(ask(&app, "/", &[("x-request-deadline", "2001-09-09T01:46:43Z")]).await).await, "3s Normal");
    let past = ask(&app, "/", &[("x-request-deadline", "2001-09-09T01:46:39Z")]).await;
    assert_eq!(past.status(), StatusCode::GATEWAY_TIMEOUT);
    let wrong = ask(&app, "/", &[("x-request-deadline", "1999-09-09T01:46:39Z")]).await;
    assert_eq!(text(wrong).await, "30s Normal");
    assert_eq!((edge.counts().expired, edge.counts().skewed), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn what_is_asked_for_is_held_between_the_servers_bounds() {
    let edge = EdgeLayer::new().min_deadline(Duration::from_millis(10)).max_deadline(Duration::from_secs(5));
    let app = seeing(&edge);
    for (asked, bound) in [("1", "10ms"), ("10", "10ms"), ("4999", "4.999s"), ("9999999999", "5s"), ("nonsense", "5s")]
    {
        assert_eq!(text(ask(&app, "/", &[("x-request-timeout", asked)]).await).await, format!("{bound} Normal"));
    }
    assert_eq!((edge.counts().clamped, edge.counts().garbled), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn who_has_no_time_left_is_answered_without_troubling_the_handler() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counting = calls.clone();
    let handler = move || async move { counting.fetch_add(1, Ordering::Relaxed).to_string() };
    let edge = EdgeLayer::new();
    let app = Router::new().route("/", get(handler)).layer(edge.clone());
    let response = ask(&app, "/", &[("x-request-timeout", "0")]).await;
    assert_eq!(response.status(), StatusCode::GATEWAY_TIMEOUT);
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    let problem = json(response).await;
    assert_eq!((&problem["code"], &problem["message_id"]), (&"deadline_exceeded".into(), &"DEPENDENCY.timeout".into()));
    let grpc = ask(&app, "/", &[("grpc-timeout", "0m"), ("content-type", "application/grpc+proto")]).await;
    assert_eq!((grpc.status(), &grpc.headers()["grpc-status"]), (StatusCode::OK, &"4".parse().unwrap()));
    assert_eq!((calls.load(Ordering::Relaxed), edge.counts().expired), (0, 2));
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_hangs_is_cut_off_soon_after_the_deadline() {
    let edge = EdgeLayer::new();
    let hangs = Router::new().route("/", get(std::future::pending::<String>)).layer(edge.clone());
    let start = tokio::time::Instant::now();
    let asked = [("x-request-timeout", "200"), ("x-deadline-remaining", "?")];
    let response = ask(&hangs, "/", &asked).await;
    assert_eq!(response.status(), StatusCode::GATEWAY_TIMEOUT);
    assert_eq!(response.headers()["x-deadline-remaining"], "0");
    assert_eq!(start.elapsed(), Duration::from_millis(225));
    assert_eq!(edge.counts().cut_off, 1);
}

#[tokio::test(start_paused = true)]
async fn what_was_left_is_told_when_asked_for() {
    let slow = || async { tokio::time::sleep(Duration::from_millis(300)).await };
    let app = |edge: EdgeLayer| Router::new().route("/", get(slow)).layer(edge);
    let asked = [("x-request-timeout", "1000")];
    let quiet = ask(&app(EdgeLayer::new()), "/", &asked).await;
    assert!(!quiet.headers().contains_key("x-deadline-remaining"));
    let always = ask(&app(EdgeLayer::new().tell_remaining(true)), "/", &asked).await;
    assert_eq!(always.headers()["x-deadline-remaining"], "700");
}

#[tokio::test]
async fn only_a_trusted_peer_is_more_critical_than_the_rest() {
    #[derive(Clone)]
    struct Peer(&'static str);
    let edge = EdgeLayer::new().trust(|parts| parts.extensions.get::<Peer>().is_some_and(|peer| peer.0 == "checkout"));
    let handler = |headers: axum::http::HeaderMap| async move {
        format!("{:?} {}", Context::current().criticality(), headers.contains_key("x-criticality"))
    };
    let app = |peer| Router::new().route("/", get(handler)).layer(edge.clone()).layer(Extension(Peer(peer)));
    let claim = [("x-criticality", "critical")];
    assert_eq!(text(ask(&app("checkout"), "/", &claim).await).await, "Critical true");
    assert_eq!(text(ask(&app("stranger"), "/", &claim).await).await, "Normal false", "and it is not passed on");
    assert_eq!(edge.counts().upgrades_rejected, 1);
}

#[tokio::test]
async fn a_handler_cannot_raise_what_its_request_is() {
    let raising = || async {
        let raised = Context::EMPTY.with_criticality(Criticality::Critical);
        phalanx::scope(raised, async { format!("{:?}", Context::current().criticality()) }).await
    };
    let app = Router::new().route("/", get(raising)).layer(EdgeLayer::new());
    assert_eq!(text(ask(&app, "/", &[]).await).await, "Normal");
}

type Guarded<T> = Result<T, HandlerError<(StatusCode, String)>>;

fn bad_gateway(error: std::io::Error) -> (StatusCode, String) {
    (StatusCode::BAD_GATEWAY, error.to_string())
}

#[tokio::test]
async fn a_question_mark_is_enough_and_the_service_chooses_the_status() {
    let module = ResilienceModule::in_memory()
        .policy(Policy::named("full").bulkhead(BulkheadSpec::fixed(1)))
        .status(RejectionCode::BulkheadFull, 429)
        .build()
        .unwrap();
    async fn handler(State(module): State<ResilienceModule>) -> Guarded<()> {
        let broken = || async { Err(std::io::Error::other("broken")) };
        module.run("full", (), broken).await.map_err(|error| HandlerError::map(error, bad_gateway))
    }
    let app = Router::new().route("/", get(handler)).with_state(module.clone());
    assert_eq!(ask(&app, "/", &[]).await.status(), StatusCode::BAD_GATEWAY, "the operation's own error comes through");

    async fn rejecting() -> Guarded<()> {
        Err(phalanx::Error::Rejected(phalanx::Rejection::new(RejectionCode::BulkheadFull)))?;
        Ok(())
    }
    let bare = Router::new().route("/", get(rejecting));
    assert_eq!(ask(&bare, "/", &[]).await.status(), StatusCode::SERVICE_UNAVAILABLE);
    let edged = bare.layer(EdgeLayer::new().module(&module));
    let response = ask(&edged, "/", &[]).await;
    assert_eq!(
        (response.status(), &response.headers()["retry-after"]),
        (StatusCode::TOO_MANY_REQUESTS, &"1".parse().unwrap())
    );
    assert_eq!(json(response).await["status"], 429, "the body says the same");
}

#[tokio::test(start_paused = true)]
async fn a_rate_limit_tells_what_is_left_and_then_when_to_come_back() {
    const LIMIT: RateLimitSpec = RateLimitSpec::per_minute(2);
    let module = ResilienceModule::in_memory().policy(Policy::named("api").rate_limit(LIMIT)).build().unwrap();
    async fn handler(State(module): State<ResilienceModule>) -> Result<Degradable<&'static str>, RejectionResponse> {
        let operation = || async { Ok::<_, Infallible>("here") };
        let (result, record) = module.call("api", ()).run_recorded(operation).await;
        match result {
            Ok(value) => Ok(Degradable::recorded(value, &record).limited("api", &LIMIT, &record)),
            Err(error) => Err(RejectionResponse::new(*error.rejection().unwrap()).recorded(&record).limit(&LIMIT)),
        }
    }
    let app = Router::new().route("/", get(handler)).with_state(module).layer(EdgeLayer::new());
    for left in ["1", "0"] {
        let headers = ask(&app, "/", &[]).await.headers().clone();
        assert_eq!(headers["ratelimit"], format!("\"api\";r={left}"));
        assert_eq!(headers["ratelimit-policy"], "\"api\";q=2;w=60");
    }
    let rejected = ask(&app, "/", &[]).await;
    assert_eq!(
        (rejected.status(), &rejected.headers()["retry-after"]),
        (StatusCode::TOO_MANY_REQUESTS, &"30".parse().unwrap())
    );
    assert_eq!(rejected.headers()["ratelimit"], "\"api\";r=0;t=30");
}

#[tokio::test(start_paused = true)]
async fn an_answer_from_a_fallback_is_marked_with_its_age() {
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
    let response = ask(&app, "/", &[]).await;
    assert_eq!(
        (response.status(), &response.headers()["x-degraded"]),
        (StatusCode::OK, &"fallback; age=12".parse().unwrap())
    );
    assert_eq!(text(response).await, "7.99");
}

#[tokio::test(start_paused = true)]
async fn any_service_over_http_types_can_stand_behind_it() {
    let inner = service_fn(|_: Request<()>| async {
        let left = Context::current().remaining().unwrap().as_millis().to_string();
        Ok::<_, Infallible>(Response::new(axum::body::Bytes::from(left)))
    });
    let request = Request::get("/").header("x-request-timeout", "42").body(()).unwrap();
    let response = EdgeLayer::new().layer(inner).oneshot(request).await.unwrap();
    assert_eq!(response.body(), "42");
}

proptest! {
    /// FAULTS H3.
    #[test]
    fn no_header_panics_or_lengthens_what_the_server_allows(
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
