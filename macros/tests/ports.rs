//! `#[resilient]` on a whole impl block: which methods it takes in, what they can say themselves, and what it rejects.

mod support;

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;
use phalanx::{Kind, RejectionCode, Resilient, resilient};
use support::*;

/// A port with whatever a port can have.
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
async fn every_async_method_has_the_policy_and_may_say_more() {
    let adapter = Adapter::failing(0);
    assert_eq!(adapter.read("a").await, Ok(1));
    assert_eq!(adapter.read("b").await.unwrap_err().code(), Some(RejectionCode::RateLimited));
    assert_eq!(adapter.write("c".to_owned()).await, Ok(2));
    assert_eq!(adapter.routes("once"), [Some("eu".to_owned()), Some("writes".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn streams_and_methods_that_are_not_async_are_left_alone() {
    let adapter = Adapter::failing(0);
    for _ in 0..3 {
        let _stream = adapter.watch().await;
        assert_eq!(adapter.name(), "port");
    }
    assert!(adapter.module.pipelines().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_ports_future_can_be_spawned_where_the_trait_says_so() {
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
async fn only_the_named_methods_have_the_policy_and_one_of_their_own_wins() {
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

    /// Returns no `Result`: there is nothing a policy could say.
    async fn c(&self) -> usize {
        self.0.upstream.ask("c").await.unwrap_or_default()
    }

    /// No method: it has no `self`.
    async fn new(times: usize) -> Self {
        Self(Adapter::failing(times))
    }
}

#[tokio::test(start_paused = true)]
async fn an_excepted_method_and_one_without_self_are_left_alone() {
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
async fn a_whole_port_is_not_retried_by_the_way() {
    let adapter = Blanket(Adapter::failing(2));
    let Err(Failure::Rejected(rejection)) = adapter.charge().await else { panic!("not rejected") };
    assert_eq!(
        (rejection.code(), rejection.kind(), rejection.policy()),
        (RejectionCode::BlanketRetry, Kind::Configuration, Some("retry"))
    );
    assert!(adapter.0.upstream.asked().is_empty());
    // At wiring, the same question can be asked at once.
    assert_eq!(adapter.0.module.port_pipeline("retry", ()).unwrap_err(), rejection);
    assert!(adapter.0.module.port_pipeline("circuit", ()).is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_whole_port_is_retried_when_its_binding_says_so_and_a_method_when_it_is_named() {
    assert_eq!(Allowed(Adapter::failing(2)).charge().await, Ok(3));
    assert_eq!(Blanket(Adapter::failing(2)).read().await, Ok(3));
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_is_changed_to_retry_later_is_rejected_from_then_on() {
    let adapter = Excepted(Adapter::failing(0));
    assert_eq!(adapter.a().await, Ok(1));
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
async fn it_stands_above_async_trait() {
    let port: Box<dyn Boxed + Send> = Box::new(Adapter::failing(2));
    assert_eq!(port.fetch("a").await, Ok(3));
}
