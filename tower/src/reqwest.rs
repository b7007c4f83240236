//! [`ResilientClient`]: a `reqwest::Client` under a policy.

use std::sync::{Mutex, PoisonError};

use phalanx::internal::core::classify::ByAnswer;
use phalanx::{Error, Pipeline, Rejection, ResilienceModule, Route};
use reqwest::{Client, Request, RequestBuilder, Response};

use crate::edge::forward;

/// A client whose requests go through one policy on one route. Cheap to clone; clones share all state.
///
/// # Behaviour
/// - Responses are classified by their status: a 503 is a failure, and `Retry-After` is honoured within the deadline.
/// - A request is sent again only if it can be cloned (`reqwest::Request::try_clone`): bodies in memory can, streams are
///   sent once, neither retried nor hedged. A policy without retry and hedge clones nothing.
/// - Each attempt carries the remaining deadline in `X-Request-Timeout` and the criticality in `X-Criticality`, as
///   [`forward`] describes.
///
/// # Examples
///
/// ```
/// use phalanx::{Error, Policy, RateLimitSpec, RejectionCode, ResilienceModule};
/// use phalanx_tower::reqwest::ResilientClient;
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let policy = Policy::named("vendor").rate_limit(RateLimitSpec::new(1, Duration::from_secs(3_600)));
/// let module = ResilienceModule::in_memory().policy(policy).build()?;
/// let vendor = ResilientClient::new(reqwest::Client::new(), &module, "vendor", "eu")?;
///
/// let request = || vendor.client().get("http://127.0.0.1:1/price"); // nothing listens there
/// assert!(matches!(vendor.send(request()).await, Err(Error::Inner(error)) if error.is_connect()));
/// let rejected = vendor.send(request()).await.unwrap_err();
/// assert_eq!(rejected.rejection().unwrap().code(), RejectionCode::RateLimited);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ResilientClient {
    client: Client,
    pipeline: Pipeline,
}

impl ResilientClient {
    /// Creates a client that sends its requests under this policy, on this route.
    ///
    /// # Errors
    /// `unknown_policy` or `route_too_long`.
    pub fn new<'a>(
        client: Client,
        module: &ResilienceModule,
        policy: &str,
        route: impl Into<Route<'a>>,
    ) -> Result<Self, Rejection> {
        Ok(Self { client, pipeline: module.pipeline(policy, route)? })
    }

    /// Returns the inner client, for building requests.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Builds and sends a request.
    ///
    /// # Errors
    /// Returns the policy's rejection, or the client's own error. A response with an error status is returned as `Ok`.
    pub async fn send(&self, request: RequestBuilder) -> Result<Response, Error<reqwest::Error>> {
        self.execute(request.build().map_err(Error::Inner)?).await
    }

    /// Sends a request.
    ///
    /// # Errors
    /// See [`send`](Self::send).
    pub async fn execute(&self, request: Request) -> Result<Response, Error<reqwest::Error>> {
        let template = if self.pipeline.repeats() { request.try_clone() } else { None };
        let repeatable = template.is_some();
        // The pipeline requires operations to be `Sync`. The mutex is never contended.
        let source = Mutex::new(AttemptSource { first: Some(request), template });
        let operation = async || match next_request(&source) {
            Some(mut request) => {
                forward(request.headers_mut());
                self.client.execute(request).await
            }
            None => std::future::pending().await, // unreachable: one attempt if the request is not repeatable
        };
        self.pipeline.run_classified(ByAnswer, repeatable, operation).await
    }
}

/// Where the requests of the attempts come from.
struct AttemptSource {
    first: Option<Request>,
    /// What later requests are cloned from; none if the request cannot be cloned.
    template: Option<Request>,
}

/// Returns the request of the next attempt.
fn next_request(source: &Mutex<AttemptSource>) -> Option<Request> {
    let mut source = source.lock().unwrap_or_else(PoisonError::into_inner);
    source.first.take().or_else(|| source.template.as_ref()?.try_clone())
}
