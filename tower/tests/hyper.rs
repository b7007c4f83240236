//! The layer on a hyper client and on a hyper server, over loopback.

#![allow(clippy::unwrap_used)] // a failed test panics, also in helpers

mod support;

use std::convert::Infallible;

use axum::body::Body;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use phalanx::*;
use phalanx_tower::ResilienceLayer;
use support::*;
use tokio::net::TcpListener;
use tower::{Layer, Service, ServiceExt, service_fn};

fn request(url: &str) -> Request<Full<Bytes>> {
    Request::post(url).body(Full::from("pay 1000")).unwrap()
}

#[tokio::test]
async fn a_client_retries_a_503_and_its_breaker_opens_for_an_unreachable_server() {
    let upstream = Upstream::with_statuses([503, 503]);
    let url = upstream.serve().await;
    let module = module(Policy::named("p").retry(retry()).breaker(open_on_first_failure()));
    let client = Client::builder(TokioExecutor::new()).build_http();
    let layer = ResilienceLayer::new(&module, "p").unwrap().errors_as(Kind::Infrastructure);
    let mut alive = layer.clone().route("alive").unwrap().layer(client.clone());
    assert_eq!(alive.call(request(&url)).await.unwrap().status(), 200);
    assert_eq!(upstream.bodies(), ["pay 1000"; 3]);

    let mut dead = layer.route("dead").unwrap().layer(client);
    let unreachable = "http://127.0.0.1:1";
    assert!(dead.call(request(unreachable)).await.unwrap_err().inner().unwrap().is_connect());
    let rejected = dead.clone().call(request(unreachable)).await.unwrap_err();
    assert_eq!(
        rejected.rejection().unwrap().code(),
        RejectionCode::CircuitOpen,
        "clones of the client share the breaker"
    );
    assert_eq!(alive.call(request(&url)).await.unwrap().status(), 200);
}

#[tokio::test]
async fn clones_of_a_service_for_each_connection_share_one_state() {
    let module = module(Policy::named("p").rate_limit(RateLimitSpec::new(2, 3_600 * SECOND)));
    let hello = service_fn(async |_: Request<Incoming>| Ok::<_, Infallible>(Response::new(Body::from("hello"))));
    // `Incoming` does not implement `From<Bytes>`, and the policy has no retry.
    let layered = ResilienceLayer::new(&module, "p").unwrap().send_once().answer_rejections().layer(hello);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let service = TowerToHyperService::new(layered.clone());
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    let mut answers = Vec::new();
    for _ in 0..3 {
        let client = Client::builder(TokioExecutor::new()).build_http();
        answers.push(client.oneshot(request(&url)).await.unwrap().status().as_u16());
    }
    assert_eq!(answers, [200, 200, 429]);
}
