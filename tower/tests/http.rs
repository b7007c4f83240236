//! The layer on HTTP services: classification by status, repetition of bodies, rejections as responses.

#![allow(clippy::unwrap_used)] // a failed test panics, also in helpers

mod support;

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};

use axum::body::Body;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::{Frame, SizeHint};
use phalanx::*;
use phalanx_tower::ResilienceLayer;
use support::*;
use tokio::time::Instant;
use tower::{Layer, Service, ServiceExt, service_fn};

/// A body of several frames, with or without a declared size, that may break off or hang.
struct Frames {
    declared: Option<u64>,
    frames: Vec<Result<&'static str, &'static str>>,
    hangs: bool,
}

impl Frames {
    fn declaring(size: impl Into<Option<u64>>, mut frames: Vec<Result<&'static str, &'static str>>) -> Self {
        frames.reverse();
        Self { declared: size.into(), frames, hangs: false }
    }
}

impl http_body::Body for Frames {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut TaskContext<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match self.frames.pop() {
            None if self.hangs => Poll::Pending,
            next => Poll::Ready(next.map(|frame| frame.map(|data| Frame::data(Bytes::from(data))))),
        }
    }

    fn size_hint(&self) -> SizeHint {
        self.declared.map(SizeHint::with_exact).unwrap_or_default()
    }
}

impl From<Bytes> for Frames {
    fn from(bytes: Bytes) -> Self {
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        Self::declaring(text.len() as u64, vec![Ok(text.leak())])
    }
}

/// Sends a body under a policy with retries to an upstream that fails twice. Returns the result and the received bodies.
async fn sent<B>(body: B, limit: u64) -> (Result<StatusCode, RejectionCode>, Vec<Bytes>)
where
    B: http_body::Body<Data: Send, Error: std::fmt::Debug + Send> + From<Bytes> + Send + 'static,
{
    let (upstream, module) = (Upstream::with_statuses([503, 503]), module(Policy::named("p").retry(retry())));
    let answering = upstream.clone();
    let service = service_fn(move |request: Request<B>| answering.clone().answer(request));
    let layered = ResilienceLayer::new(&module, "p").unwrap().body_limit(limit).layer(service);
    let answer = layered.oneshot(Request::new(body)).await;
    let answer = answer.map(|response| response.status()).map_err(|error| error.rejection().unwrap().code());
    (answer, upstream.bodies())
}

#[tokio::test(start_paused = true)]
async fn a_body_of_known_size_within_the_limit_is_sent_again() {
    let (answer, bodies) = sent(Frames::declaring(8, vec![Ok("pay "), Ok("1000")]), 8).await;
    assert_eq!((answer, bodies), (Ok(StatusCode::OK), vec![Bytes::from("pay 1000"); 3]));
    let (answer, bodies) = sent(Body::from("whole"), 64 * 1024).await;
    assert_eq!((answer, bodies), (Ok(StatusCode::OK), vec![Bytes::from("whole"); 3]));
    let (answer, bodies) = sent(Body::empty(), 0).await;
    assert_eq!((answer, bodies), (Ok(StatusCode::OK), vec![Bytes::new(); 3]), "an empty body is within every limit");
}

#[tokio::test(start_paused = true)]
async fn a_larger_body_and_one_of_unknown_size_are_sent_once_and_not_buffered() {
    for (declared, limit) in [(Some(8), 7), (None, 1_000)] {
        let (answer, bodies) = sent(Frames::declaring(declared, vec![Ok("pay "), Ok("1000")]), limit).await;
        assert_eq!(
            (answer, bodies),
            (Ok(StatusCode::SERVICE_UNAVAILABLE), vec![Bytes::from("pay 1000")]),
            "{declared:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_breaks_off_or_exceeds_its_declared_size_is_not_sent() {
    let (answer, bodies) = sent(Frames::declaring(8, vec![Ok("pay "), Err("reset")]), 1_000).await;
    assert_eq!((answer, bodies), (Err(RejectionCode::BodyUnreadable), vec![]));
    let (answer, bodies) = sent(Frames::declaring(4, vec![Ok("pay"), Ok(" 1"), Ok("000")]), 6).await;
    assert_eq!((answer, bodies), (Err(RejectionCode::BodyUnreadable), vec![]));
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_arrive_is_awaited_until_the_callers_deadline() {
    let mut slow = Frames::declaring(8, vec![Ok("pay ")]);
    slow.hangs = true;
    let start = Instant::now();
    let (answer, bodies) = scope(Context::EMPTY.with_timeout(2 * SECOND), sent(slow, 1_000)).await;
    assert_eq!((answer, bodies, start.elapsed()), (Err(RejectionCode::DeadlineExceeded), vec![], 2 * SECOND));
}

#[tokio::test]
async fn without_a_retry_the_body_is_not_read_before_the_service_reads_it() {
    let module = module(Policy::named("p").timeout(SECOND));
    let service = service_fn(async |request: Request<Frames>| {
        assert_eq!(request.into_body().frames.len(), 2, "no frame was read");
        Ok::<_, Infallible>(Response::new(Body::empty()))
    });
    let layered = ResilienceLayer::new(&module, "p").unwrap().layer(service);
    layered.oneshot(Request::new(Frames::declaring(8, vec![Ok("pay "), Ok("1000")]))).await.unwrap();
}

#[tokio::test]
async fn a_body_can_be_rebuilt_by_a_function() {
    let (upstream, module) = (Upstream::with_statuses([503]), module(Policy::named("p").retry(retry())));
    let answering = upstream.clone();
    let service = service_fn(move |request: Request<Pin<Box<Body>>>| answering.clone().answer(request));
    let layer = ResilienceLayer::new(&module, "p").unwrap().rebuild_body(|bytes| Box::pin(Body::from(bytes)));
    let answer = layer.layer(service).oneshot(Request::new(Box::pin(Body::from("x")))).await.unwrap();
    assert_eq!((answer.status(), upstream.calls()), (StatusCode::OK, 2));
}

#[tokio::test(start_paused = true)]
async fn a_503_is_a_failure_and_its_retry_after_is_honoured() {
    let (upstream, module) = (Upstream::with_answers([(503, Some(7))]), module(Policy::named("p").retry(retry())));
    let answering = upstream.clone();
    let service = service_fn(move |request: Request<Body>| answering.clone().answer(request));
    let start = Instant::now();
    let mut layered = ResilienceLayer::new(&module, "p").unwrap().layer(service);
    assert_eq!(layered.call(Request::new(Body::empty())).await.unwrap().status(), 200);
    assert_eq!((upstream.calls(), start.elapsed()), (2, 7 * SECOND));

    let impatient = Context::EMPTY.with_timeout(SECOND);
    let upstream = Upstream::with_answers([(503, Some(7))]);
    let service = service_fn(move |request: Request<Body>| upstream.clone().answer(request));
    let mut layered = ResilienceLayer::new(&module, "p").unwrap().layer(service);
    let answer = scope(impatient, layered.call(Request::new(Body::empty()))).await.unwrap();
    assert_eq!(answer.status(), 503, "not beyond the caller's deadline");
}

#[tokio::test]
async fn a_404_is_not_a_failure() {
    let (upstream, module) =
        (Upstream::with_statuses([404; 9]), module(Policy::named("p").retry(retry()).breaker(open_on_first_failure())));
    let answering = upstream.clone();
    let service = service_fn(move |request: Request<Body>| answering.clone().answer(request));
    let mut layered = ResilienceLayer::new(&module, "p").unwrap().layer(service);
    for _ in 0..3 {
        assert_eq!(layered.call(Request::new(Body::empty())).await.unwrap().status(), 404);
    }
    assert_eq!(upstream.calls(), 3);
}

#[tokio::test]
async fn a_rejection_is_a_response_with_the_modules_status_and_a_retry_after_rounded_up() {
    let policy = Policy::named("p").rate_limit(RateLimitSpec::new(1, 90 * SECOND));
    let module = ResilienceModule::in_memory().policy(policy).status(RejectionCode::RateLimited, 503).build().unwrap();
    let service = service_fn(async |_: Request<Body>| Ok::<_, Infallible>(Response::new(Body::empty())));
    let mut layered = ResilienceLayer::new(&module, "p").unwrap().answer_rejections().layer(service);
    let answer: Result<_, Infallible> = layered.call(Request::new(Body::empty())).await;
    assert_eq!(answer.unwrap().status(), 200);
    let rejected = layered.call(Request::new(Body::empty())).await.unwrap();
    assert_eq!(rejected.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(rejected.headers()["retry-after"], "90");
}
