//! `#[resilient]` on functions and methods: retries, the conversion of rejections, and routes.

mod support;

use std::borrow::Cow;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use phalanx::{Class, Error, Kind, RejectionCode, ResilienceModule, Route, resilient};
use support::*;
use tokio::time::Instant;

#[resilient(policy = "retry", module = module)]
async fn ask(module: &ResilienceModule, upstream: &Upstream, order: u32) -> Result<usize, Error<Kind>> {
    upstream.ask(format!("order {order}")).await
}

#[tokio::test(start_paused = true)]
async fn a_retry_runs_the_whole_body_again() {
    let upstream = Upstream::failing(2);
    let start = Instant::now();
    assert_eq!(ask(&module(), &upstream, 7).await, Ok(3));
    assert_eq!(upstream.asked(), ["order 7"; 3]);
    assert_eq!(start.elapsed(), Duration::from_millis(200));
}

#[tokio::test(start_paused = true)]
async fn after_the_last_attempt_the_error_is_the_bodys_own() {
    assert_eq!(ask(&module(), &Upstream::failing(9), 7).await, Err(Error::Inner(Kind::Infrastructure)));
}

impl Adapter {
    /// A rejection converts into the error; `?` converts as in any other function.
    #[resilient(policy = "circuit")]
    async fn own_error(&self) -> Result<usize, Failure> {
        let answer = self.upstream.ask("own").await?;
        if answer == 99 {
            return Err(BROKEN);
        }
        Ok(answer)
    }

    /// The error is wrapped; the body is written as without a policy.
    #[resilient(policy = "circuit")]
    async fn wrapped(&self) -> Result<usize, phalanx::Error<Kind>> {
        let answer = self.upstream.ask("wrapped").await?;
        Ok(answer)
    }

    #[resilient(policy = "once", route = tenant)]
    async fn by_reference(&self, tenant: &str) -> Result<usize, Failure> {
        Ok(self.upstream.ask(tenant).await?)
    }

    #[resilient(policy = "once", route = tenant)]
    async fn by_value(&self, tenant: String) -> Result<usize, Failure> {
        Ok(self.upstream.ask(tenant.as_str()).await?)
    }

    #[resilient(policy = "once", route = tenant)]
    async fn by_option(&self, tenant: Option<&str>) -> Result<usize, Failure> {
        Ok(self.upstream.ask(tenant.unwrap_or_default()).await?)
    }

    #[resilient(policy = "once", route = tenant)]
    async fn by_type(&self, tenant: Tenant) -> Result<usize, Failure> {
        Ok(self.upstream.ask(tenant.0.as_str()).await?)
    }

    #[resilient(policy = "once", route = &self.region)]
    async fn by_expression(&self) -> Result<usize, Failure> {
        Ok(self.upstream.ask(&self.region).await?)
    }

    #[resilient(policy = "once", route = "fixed")]
    async fn by_literal(&self) -> Result<usize, Failure> {
        Ok(self.upstream.ask("fixed").await?)
    }

    #[resilient(policy = "once")]
    async fn without_route(&self) -> Result<usize, Failure> {
        Ok(self.upstream.ask("none").await?)
    }

    #[resilient(policy = "retry", clone(order, notes))]
    async fn consumes(&self, order: String, mut notes: Vec<u32>) -> Result<usize, Failure> {
        notes.push(1);
        assert_eq!(notes, [0, 1]);
        let sent = order; // consumed
        Ok(self.upstream.ask(sent).await?)
    }

    #[resilient(policy = "retry")]
    async fn borrows_its_arguments(&self, order: String, more: Cow<'_, str>) -> Result<usize, Failure> {
        Ok(self.upstream.ask(format!("{order}{more}")).await?)
    }

    #[resilient(policy = "slow")]
    async fn hangs(&self) -> Result<usize, Failure> {
        std::future::pending().await
    }

    #[resilient(policy = "missing")]
    async fn misspelt(&self) -> Result<usize, Failure> {
        Ok(1)
    }

    #[resilient(policy = "retry", classify = lost_is_infrastructure)]
    async fn foreign(&self) -> Result<usize, Error<String>> {
        self.upstream.ask("foreign").await.map_err(|_| "lost".to_owned())
    }

    #[resilient(policy = "retry")]
    async fn shared(self: Arc<Self>) -> Result<usize, Failure> {
        Ok(self.upstream.ask("shared").await?)
    }

    /// Doc comments, generics, lifetimes and attributes are kept.
    #[must_use = "really"]
    #[resilient(policy = "retry", route = name)]
    pub(crate) async fn generic<'a, T>(&'a self, name: &'a str, what: &T) -> Result<(&'a str, usize), Failure>
    where
        T: Display + ?Sized,
    {
        let answer = self.upstream.ask(what.to_string()).await?;
        Ok((name, answer))
    }

    #[resilient(policy = "plain")]
    async fn opaque(&self) -> Result<impl Iterator<Item = u32> + use<>, Failure> {
        Ok([1, 2].into_iter())
    }

    #[resilient(policy = "retry")]
    async fn recursive(&self, depth: u32) -> Result<usize, Failure> {
        if depth > 0 {
            return Box::pin(self.recursive(depth - 1)).await;
        }
        Ok(self.upstream.ask("deep").await?)
    }
}

#[derive(Clone)]
struct Tenant(String);

impl<'a> From<&'a Tenant> for Route<'a> {
    fn from(tenant: &'a Tenant) -> Self {
        tenant.0.as_str().into()
    }
}

fn lost_is_infrastructure(result: &Result<usize, String>) -> Class {
    match result {
        Ok(_) => Class::SUCCESS,
        Err(_) => Kind::Infrastructure.into(),
    }
}

#[tokio::test(start_paused = true)]
async fn a_rejection_converts_into_the_functions_own_error() {
    let adapter = Adapter::failing(1);
    assert_eq!(adapter.own_error().await, Err(BROKEN));
    assert_eq!(adapter.own_error().await.unwrap_err().code(), Some(RejectionCode::CircuitOpen));
    assert_eq!(adapter.upstream.asked().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_rejection_is_separate_from_the_bodys_error_with_a_wrapped_error_type() {
    let adapter = Adapter::failing(1);
    assert_eq!(adapter.wrapped().await, Err(Error::Inner(Kind::Infrastructure)));
    let rejection = adapter.wrapped().await.unwrap_err();
    assert_eq!(rejection.rejection().map(|it| it.code()), Some(RejectionCode::CircuitOpen));
}

#[tokio::test(start_paused = true)]
async fn a_timeout_and_an_unknown_policy_are_rejections() {
    let adapter = Adapter::failing(0);
    let start = Instant::now();
    assert_eq!(adapter.hangs().await.unwrap_err().code(), Some(RejectionCode::AttemptTimeout));
    assert_eq!(start.elapsed(), Duration::from_secs(1));
    assert_eq!(adapter.misspelt().await.unwrap_err().code(), Some(RejectionCode::UnknownPolicy));
}

#[tokio::test(start_paused = true)]
async fn routes_from_arguments_have_separate_state() {
    let adapter = Adapter::failing(0);
    assert!(adapter.by_reference("a").await.is_ok());
    assert!(adapter.by_value("b".to_owned()).await.is_ok());
    assert!(adapter.by_type(Tenant("c".to_owned())).await.is_ok());
    assert!(adapter.by_option(Some("d")).await.is_ok());
    assert!(adapter.by_expression().await.is_ok());
    assert!(adapter.by_literal().await.is_ok());
    assert!(adapter.without_route().await.is_ok());
    for again in
        [adapter.by_reference("b").await, adapter.by_value("a".to_owned()).await, adapter.by_option(None).await]
    {
        assert_eq!(again.unwrap_err().code(), Some(RejectionCode::RateLimited));
    }
    let routes = [None, Some("a"), Some("b"), Some("c"), Some("d"), Some("eu"), Some("fixed")];
    assert_eq!(adapter.routes("once"), routes.map(|route| route.map(str::to_owned)));
}

#[tokio::test(start_paused = true)]
async fn each_attempt_gets_a_clone_of_consumed_arguments() {
    let adapter = Adapter::failing(2);
    assert_eq!(adapter.consumes("order".to_owned(), vec![0]).await, Ok(3));
    assert_eq!(adapter.upstream.asked(), ["order"; 3]);
}

#[tokio::test(start_paused = true)]
async fn arguments_that_are_only_read_need_no_clone() {
    let adapter = Adapter::failing(1);
    assert_eq!(adapter.borrows_its_arguments("a".to_owned(), Cow::Borrowed("b")).await, Ok(2));
    assert_eq!(adapter.upstream.asked(), ["ab"; 2]);
    let (name, answer) = adapter.generic("x", "y").await.unwrap();
    assert_eq!((name, answer), ("x", 3));
    assert_eq!(adapter.opaque().await.unwrap().sum::<u32>(), 3);
    assert_eq!(adapter.recursive(2).await, Ok(4));
}

#[tokio::test(start_paused = true)]
async fn a_foreign_error_is_classified_by_a_function() {
    let adapter = Adapter::failing(2);
    assert_eq!(adapter.foreign().await, Ok(3));
}

#[tokio::test(start_paused = true)]
async fn a_guarded_method_can_be_spawned() {
    let adapter = Arc::new(Adapter::failing(1));
    let (other, shared) = (adapter.clone(), adapter.clone());
    let first = tokio::spawn(async move { other.consumes("order".to_owned(), vec![0]).await });
    assert_eq!(first.await.unwrap(), Ok(2));
    assert_eq!(tokio::spawn(shared.shared()).await.unwrap(), Ok(3));
}
