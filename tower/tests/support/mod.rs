//! Shared by the tests: modules, policies, a scripted upstream, servers on loopback.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used)] // each test file uses a part of it; tests may unwrap

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt;
use phalanx::policy::Jitter;
use phalanx::*;
use tokio::net::TcpListener;

pub const MS: Duration = Duration::from_millis(1);
pub const SECOND: Duration = Duration::from_secs(1);

pub fn module(policy: Policy) -> ResilienceModule {
    ResilienceModule::in_memory().seed(7).policy(policy).build().unwrap()
}

/// Up to three attempts, one millisecond apart.
pub fn retry() -> RetrySpec {
    RetrySpec::attempts(3).backoff(Backoff::constant(MS).jitter(Jitter::None))
}

/// A breaker that one failure opens.
pub fn open_on_first_failure() -> BreakerSpec {
    BreakerSpec::consecutive_failures(1).break_for(60 * SECOND)
}

/// An HTTP upstream that answers with the scripted statuses in turn, then with 200, and records the requests it received.
#[derive(Clone, Default)]
pub struct Upstream(Arc<Mutex<Script>>);

#[derive(Default)]
struct Script {
    answers: VecDeque<(u16, Option<u32>)>,
    received: Vec<(http::request::Parts, Bytes)>,
}

impl Upstream {
    pub fn with_statuses(statuses: impl IntoIterator<Item = u16>) -> Self {
        Self::with_answers(statuses.into_iter().map(|status| (status, None)))
    }

    /// Scripts statuses with a `Retry-After` in seconds.
    pub fn with_answers(answers: impl IntoIterator<Item = (u16, Option<u32>)>) -> Self {
        let upstream = Self::default();
        upstream.0.lock().unwrap().answers.extend(answers);
        upstream
    }

    pub fn calls(&self) -> usize {
        self.0.lock().unwrap().received.len()
    }

    pub fn bodies(&self) -> Vec<Bytes> {
        self.0.lock().unwrap().received.iter().map(|(_, body)| body.clone()).collect()
    }

    /// Returns a header of each request, in order of arrival.
    pub fn header(&self, name: &str) -> Vec<Option<String>> {
        let text = |parts: &http::request::Parts| Some(parts.headers.get(name)?.to_str().unwrap().to_owned());
        self.0.lock().unwrap().received.iter().map(|(parts, _)| text(parts)).collect()
    }

    pub async fn answer<B>(self, request: Request<B>) -> Result<Response<Body>, Infallible>
    where
        B: http_body::Body<Error: std::fmt::Debug>,
    {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let mut script = self.0.lock().unwrap();
        script.received.push((parts, body));
        let (status, after) = script.answers.pop_front().unwrap_or((200, None));
        let mut response = Response::builder().status(status);
        if let Some(after) = after {
            response = response.header("retry-after", after);
        }
        Ok(response.body(Body::from("answer")).unwrap())
    }

    /// Serves this upstream with axum on loopback and returns its URL.
    pub async fn serve(&self) -> String {
        let upstream = self.clone();
        let answer = move |request: Request<Body>| upstream.clone().answer(request);
        serve(axum::Router::new().fallback(async move |request| answer(request).await.unwrap())).await
    }
}

/// Serves a router on loopback and returns its URL.
pub async fn serve(app: axum::Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    url
}
