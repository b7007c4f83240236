//! A reqwest client under a policy, with a server on loopback.

#![allow(clippy::unwrap_used)] // a failed test panics, also in helpers
#![cfg(feature = "reqwest")]

mod support;

use phalanx::*;
use phalanx_tower::reqwest::ResilientClient;
use support::*;

fn client(module: &ResilienceModule) -> ResilientClient {
    ResilientClient::new(reqwest::Client::new(), module, "p", "upstream").unwrap()
}

#[tokio::test]
async fn a_503_is_retried_with_the_same_body_and_its_retry_after_is_honoured() {
    let upstream = Upstream::with_answers([(503, None), (503, Some(1))]);
    let url = upstream.serve().await;
    let client = client(&module(Policy::named("p").retry(retry())));
    let start = tokio::time::Instant::now();
    // In a spawned task, because the future must be `Send`.
    let sent = tokio::spawn(async move { client.send(client.client().post(url).body("pay 1000")).await });
    assert_eq!(sent.await.unwrap().unwrap().status(), 200);
    assert_eq!(upstream.bodies(), ["pay 1000"; 3]);
    assert!(start.elapsed() >= SECOND);
}

#[tokio::test]
async fn a_body_that_streams_is_sent_once() {
    let upstream = Upstream::with_statuses([503]);
    let url = upstream.serve().await;
    let client = client(&module(Policy::named("p").retry(retry())));
    let stream = reqwest::Body::wrap(http_body_util::Full::<bytes::Bytes>::from("pay 1000"));
    let answer = client.send(client.client().post(url).body(stream)).await.unwrap();
    assert_eq!((answer.status().as_u16(), upstream.calls()), (503, 1));
}

#[tokio::test]
async fn an_unreachable_server_is_an_error_and_then_a_rejection() {
    let client = client(&module(Policy::named("p").breaker(open_on_first_failure())));
    let request = || client.client().get("http://127.0.0.1:1");
    assert!(client.send(request()).await.unwrap_err().inner().unwrap().is_connect());
    let rejected = client.clone().send(request()).await.unwrap_err();
    assert_eq!(rejected.rejection().unwrap().code(), RejectionCode::CircuitOpen);
    let misspelt = ResilientClient::new(reqwest::Client::new(), &module(Policy::named("p")), "typo", ());
    assert_eq!(misspelt.unwrap_err().code(), RejectionCode::UnknownPolicy);
}

#[tokio::test]
async fn each_attempt_sends_the_remaining_time_and_never_more_than_the_request_has() {
    let upstream = Upstream::with_statuses([503]);
    let url = upstream.serve().await;
    let client = client(&module(Policy::named("p").retry(retry())));
    let get = || client.client().get(&url);
    client.send(get()).await.unwrap();
    scope(Context::EMPTY.with_timeout(2 * SECOND), client.send(get())).await.unwrap();
    let shorter = get().header("x-request-timeout", "5");
    scope(Context::EMPTY.with_timeout(2 * SECOND), client.send(shorter)).await.unwrap();
    let sent: Vec<_> = upstream.header("x-request-timeout");
    assert_eq!(sent[..2], [None, None], "no deadline, no header");
    let left: u64 = sent[2].as_ref().unwrap().parse().unwrap();
    assert!((1..=2_000).contains(&left), "{left}");
    assert_eq!(sent[3].as_deref(), Some("5"));
}

#[tokio::test]
async fn a_policys_own_deadline_is_sent_too() {
    let upstream = Upstream::default();
    let url = upstream.serve().await;
    let client = client(&module(Policy::named("p").deadline(SECOND)));
    client.send(client.client().get(url)).await.unwrap();
    let left: u64 = upstream.header("x-request-timeout")[0].as_ref().unwrap().parse().unwrap();
    assert!((1..=1_000).contains(&left), "{left}");
}
