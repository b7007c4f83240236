//! The layer on axum routers and on single routes, whose services axum clones.

#![allow(clippy::unwrap_used)] // a failed test panics, also in helpers

mod support;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use phalanx::*;
use phalanx_tower::ResilienceLayer;
use support::*;
use tower::ServiceExt;

async fn get_status(app: &Router, path: &str) -> StatusCode {
    let request = Request::builder().uri(path).body(Body::empty()).unwrap();
    app.clone().oneshot(request).await.unwrap().status()
}

fn limited() -> ResilienceModule {
    module(Policy::named("p").rate_limit(RateLimitSpec::new(2, 3_600 * SECOND)))
}

#[tokio::test]
async fn on_a_router_all_routes_and_clones_share_one_state() {
    let module = limited();
    let layer = ResilienceLayer::new(&module, "p").unwrap().answer_rejections();
    let routes = Router::new().route("/a", get(async || "a")).route("/b", get(async || "b"));
    let app = routes.layer(layer);
    assert_eq!(get_status(&app, "/a").await, 200);
    assert_eq!(get_status(&app.clone(), "/b").await, 200);
    let request = Request::builder().uri("/a").body(Body::empty()).unwrap();
    let rejected = app.oneshot(request).await.unwrap();
    assert_eq!(rejected.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(rejected.headers()["retry-after"], "1800");
    assert!(rejected.into_body().collect().await.unwrap().to_bytes().is_empty());
}

#[tokio::test]
async fn on_a_route_other_routes_and_404s_do_not_use_its_limit() {
    let module = limited();
    let layer = ResilienceLayer::new(&module, "p").unwrap().route("a").unwrap().answer_rejections();
    let app = Router::new().route("/a", get(async || "a")).route_layer(layer).route("/b", get(async || "b"));
    for _ in 0..3 {
        assert_eq!(get_status(&app, "/nowhere").await, 404);
    }
    let mut answers = Vec::new();
    for path in ["/a", "/a", "/a", "/b"] {
        answers.push(get_status(&app, path).await.as_u16());
    }
    assert_eq!(answers, [200, 200, 429, 200]);
}

#[tokio::test]
async fn the_route_can_be_computed_from_the_path() {
    let module = limited();
    let layer = ResilienceLayer::new(&module, "p").unwrap().answer_rejections();
    let layer = layer.route_by(|request: &Request<Body>| request.uri().path().into());
    let app = Router::new().fallback(async || "x").layer(layer);
    let mut answers = Vec::new();
    for path in ["/a", "/a", "/a", "/b"] {
        answers.push(get_status(&app, path).await.as_u16());
    }
    assert_eq!(answers, [200, 200, 429, 200]);
}

#[tokio::test]
async fn all_connections_share_one_breaker() {
    let module = module(Policy::named("p").breaker(open_on_first_failure()));
    let layer = ResilienceLayer::new(&module, "p").unwrap().answer_rejections();
    let broken = Router::new().route("/", get(async || StatusCode::INTERNAL_SERVER_ERROR)).layer(layer);
    let url = serve(broken).await;
    let mut answers = Vec::new();
    for _ in 0..3 {
        // Each client opens its own connection, for which axum clones the service.
        answers.push(reqwest::Client::new().get(&url).send().await.unwrap().status().as_u16());
    }
    assert_eq!(answers, [500, 503, 503]);
}

#[tokio::test]
async fn a_rejection_can_be_mapped_to_a_custom_response() {
    let module = limited();
    let layer = ResilienceLayer::new(&module, "p").unwrap();
    let layer = layer.map_rejection(|rejection| {
        let body = Body::from(rejection.code().name());
        http::Response::builder().status(rejection.status()).body(body).unwrap_or_default()
    });
    let app = Router::new().route("/", get(async || "fine")).layer(layer);
    let mut bodies = Vec::new();
    for _ in 0..3 {
        let response = app.clone().oneshot(Request::new(Body::empty())).await.unwrap();
        bodies.push(response.into_body().collect().await.unwrap().to_bytes());
    }
    assert_eq!(bodies, ["fine", "fine", "rate_limited"]);
}
