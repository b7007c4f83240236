//! `#[resilient]` on an impl block: which methods it applies to, which options they can override, and what it rejects.

mod support;

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;
use phalanx::{Kind, RejectionCode, Resilient, resilient};
use support::*;

/// A port with every kind of method.
trait Port {
    async fn read(&self, key: &str) -> Result<usize, Failure>;
    fn write(&self, key: String) -> impl Future<Output = Result<usize, Failure>> + Send;
    async fn watch(&self) -> impl Stream<Item = u32>;
    fn name(&self) -> &'static str;
}

struct Nothing;

impl Stream for Nothing {
    type Item = u32;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<u32>> {
        Poll::Ready(None)
    }
}

#[resilient(policy = "once", route = &self.region)]
impl Port for Adapter {
    async fn read(&self, key: &str) -> Result<usize, Failure> {
        Ok(self.upstream.ask(key).await?)
    }

    #[resilient(clone(key), route = "writes")]
    async fn write(&self, key: String) -> Result<usize, Failure> {
        Ok(self.upstream.ask(key).await?)
    }

    async fn watch(&self) -> impl Stream<Item = u32> {
        Nothing
    }

    fn name(&self) -> &'static str {
        "port"
    }
}

#[tokio::test(start_paused = true)]
async fn every_async_method_has_the_policy_and_may_override_options() {
    let adapter = Adapter::failing(0);
    assert_eq!(adapter.read("a").await, Ok(1));
    assert_eq!(adapter.read("b").await.unwrap_err().code(), Some(RejectionCode::RateLimited));
    assert_eq!(adapter.write("c".to_owned()).await, Ok(2));
    assert_eq!(adapter.routes("once"), [Some("eu".to_owned()), Some("writes".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn streams_and_methods_that_are_not_async_stay_as_they_are() {
    let adapter = Adapter::failing(0);
    for _ in 0..3 {
        let _stream = adapter.watch().await;
        assert_eq!(adapter.name(), "port");
    }
    assert!(adapter.module.pipelines().is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_future_of_a_method_can_be_spawned_if_the_trait_requires_send() {
    let adapter = Adapter::failing(0);
    assert_eq!(tokio::spawn(async move { adapter.write("a".to_owned()).await }).await.unwrap(), Ok(1));
}

struct Named(Adapter);
struct Excepted(Adapter);
struct Blanket(Adapter);
struct Allowed(Adapter);

macro_rules! resilient_by_its_adapter {
    ($($name:ident)*) => {$(
        impl Resilient for $name {
            fn resilience(&self) -> &phalanx::ResilienceModule {
                &self.0.module
            }
        }
    )*};
}
resilient_by_its_adapter!(Named Excepted Blanket Allowed);

#[resilient(policy = "retry", methods(a, b))]
impl Named {
    async fn a(&self) -> Result<usize, Failure> {
        Ok(self.0.upstream.ask("a").await?)
    }

    #[resilient(policy = "plain")]
    async fn b(&self) -> Result<usize, Failure> {
        Ok(self.0.upstream.ask("b").await?)
    }

    async fn c(&self) -> Result<usize, Failure> {
        Ok(self.0.upstream.ask("c").await?)
    }

    #[resilient(policy = "circuit")]
    async fn d(&self) -> Result<usize, Failure> {
        Ok(self.0.upstream.ask("d").await?)
    }
}

#[tokio::test(start_paused = true)]
async fn only_the_named_methods_have_the_policy_and_a_policy_on_the_method_wins() {
    let adapter = Named(Adapter::failing(9));
    let asked = |count: usize| assert_eq!(adapter.0.upstream.asked().len(), count);
    assert_eq!(adapter.a().await, Err(BROKEN));
    asked(3);
    assert_eq!(adapter.b().await, Err(BROKEN));
    asked(4);
    assert_eq!(adapter.c().await, Err(BROKEN));
    asked(5);
    assert_eq!(adapter.d().await, Err(BROKEN));
    assert_eq!(adapter.d().await.unwrap_err().code(), Some(RejectionCode::CircuitOpen));
    asked(6);
}

#[resilient(policy = "circuit", except(c))]
impl Excepted {
    async fn a(&self) -> Result<usize, Failure> {
        Ok(self.0.upstream.ask("a").await?)
    }

    /// Returns no `Result`, so a policy could not reject it.
    async fn c(&self) -> usize {
        self.0.upstream.ask("c").await.unwrap_or_default()
    }

    /// Not a method: it has no `self`.
    async fn new(times: usize) -> Self {
        Self(Adapter::failing(times))
    }
}

#[tokio::test(start_paused = true)]
async fn excepted_methods_and_functions_without_self_stay_as_they_are() {
    let adapter = Excepted::new(1).await;
    assert_eq!(adapter.a().await, Err(BROKEN));
    assert_eq!(adapter.a().await.unwrap_err().code(), Some(RejectionCode::CircuitOpen));
    assert_eq!(adapter.c().await, 2);
}

#[resilient(policy = "retry")]
impl Blanket {
    async fn charge(&self) -> Result<usize, Failure> {
        Ok(self.0.upstream.ask("charge").await?)
    }

    #[resilient(policy = "retry")]
    async fn read(&self) -> Result<usize, Failure> {
        Ok(self.0.upstream.ask("read").await?)
    }
}

#[resilient(policy = "retry", allow_blanket_retry)]
impl Allowed {
    async fn charge(&self) -> Result<usize, Failure> {
        Ok(self.0.upstream.ask("charge").await?)
    }
}

#[tokio::test(start_paused = true)]
async fn a_retrying_policy_is_rejected_on_a_whole_block() {
    let adapter = Blanket(Adapter::failing(2));
    let Err(Failure::Rejected(rejection)) = adapter.charge().await else { panic!("not rejected") };
    assert_eq!(
        (rejection.code(), rejection.kind(), rejection.policy()),
        (RejectionCode::BlanketRetry, Kind::Configuration, Some("retry"))
    );
    assert!(adapter.0.upstream.asked().is_empty());
    // The same check can be made at startup.
    assert_eq!(adapter.0.module.port_pipeline("retry", ()).unwrap_err(), rejection);
    assert!(adapter.0.module.port_pipeline("circuit", ()).is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_block_with_allow_blanket_retry_and_a_method_with_its_own_policy_are_retried() {
    assert_eq!(Allowed(Adapter::failing(2)).charge().await, Ok(3));
    assert_eq!(Blanket(Adapter::failing(2)).read().await, Ok(3));
}

#[tokio::test(start_paused = true)]
async fn a_change_that_would_retry_a_whole_block_in_use_is_rejected_and_changes_nothing() {
    let adapter = Excepted(Adapter::failing(0));
    assert_eq!(adapter.a().await, Ok(1));
    let retry = phalanx::RetrySpec::attempts(2).on([Kind::Infrastructure]);
    let error = adapter.0.module.retune(phalanx::Policy::named("circuit").retry(retry)).unwrap_err();
    assert_eq!(error.mistakes[0].path, "policies.circuit.retry.retry_on");
    assert_eq!(adapter.a().await, Ok(2));
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_retries_before_the_first_call_of_a_block_rejects_it() {
    let adapter = Excepted(Adapter::failing(0));
    let retry = phalanx::RetrySpec::attempts(2).on([Kind::Infrastructure]);
    adapter.0.module.retune(phalanx::Policy::named("circuit").retry(retry)).unwrap();
    assert_eq!(adapter.a().await.unwrap_err().code(), Some(RejectionCode::BlanketRetry));
}

#[async_trait::async_trait]
trait Boxed {
    async fn fetch(&self, key: &str) -> Result<usize, Failure>;
}

#[resilient(policy = "retry", allow_blanket_retry)]
#[async_trait::async_trait]
impl Boxed for Adapter {
    async fn fetch(&self, key: &str) -> Result<usize, Failure> {
        Ok(self.upstream.ask(key).await?)
    }
}

#[tokio::test(start_paused = true)]
async fn it_works_above_async_trait() {
    let port: Box<dyn Boxed + Send> = Box::new(Adapter::failing(2));
    assert_eq!(port.fetch("a").await, Ok(3));
}
