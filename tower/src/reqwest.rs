//! A `reqwest::Client` under a policy.

use std::sync::{Mutex, PoisonError};

use phalanx::internal::core::classify::ByAnswer;
use phalanx::{Error, Pipeline, Rejection, ResilienceModule, Route};
use reqwest::{Client, Request, RequestBuilder, Response};

use crate::edge::forward;

/// A client whose requests go through one policy on one route. Cheap to clone; clones share all state.
///
/// # Behaviour
/// - Answers are read by their status: a 503 is a failure, `Retry-After` is honoured within the caller's time.
/// - A request is sent again only if it can be cloned (`reqwest::Request::try_clone`): bodies in memory can, streams are
///   sent once, neither retried nor hedged. A policy without retry and hedge clones nothing.
/// - Where the task or the policy has a deadline, each attempt says in `X-Request-Timeout` how many milliseconds are left,
///   unless the request says less already; and in `X-Criticality` how much it would be missed ([`forward`]).
///
/// ```
/// use phalanx::{Policy, ResilienceModule};
/// use phalanx_tower::reqwest::ResilientClient;
///
/// # async fn price() -> Result<(), Box<dyn std::error::Error>> {
/// let module = ResilienceModule::in_memory().policy(Policy::named("vendor")).build()?;
/// let vendor = ResilientClient::new(reqwest::Client::new(), &module, "vendor", "eu")?;
/// let answer = vendor.send(vendor.client().get("http://vendor.example/price")).await?;
/// # let _ = answer;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ResilientClient {
    client: Client,
    pipeline: Pipeline,
}

impl ResilientClient {
    /// This client under this policy.
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

    /// The client inside, for building requests.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Sends what was built.
    ///
    /// # Errors
    /// The policy's rejection, or the client's own error. An answer with an error status is an answer.
    pub async fn send(&self, request: RequestBuilder) -> Result<Response, Error<reqwest::Error>> {
        self.execute(request.build().map_err(Error::Inner)?).await
    }

    /// Sends a request.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub async fn execute(&self, request: Request) -> Result<Response, Error<reqwest::Error>> {
        let copy = if self.pipeline.repeats() { request.try_clone() } else { None };
        let repeatable = copy.is_some();
        // The next to be sent, and what to copy it from. For `Sync`: nobody ever waits for it.
        let held = Mutex::new((Some(request), copy));
        let operation = async || match next(&held) {
            Some(mut request) => {
                forward(request.headers_mut());
                self.client.execute(request).await
            }
            None => std::future::pending().await, // the pipeline was told that there is no second one
        };
        self.pipeline.run_classified(ByAnswer, repeatable, operation).await
    }
}

/// The request of the next attempt.
fn next(held: &Mutex<(Option<Request>, Option<Request>)>) -> Option<Request> {
    let mut held = held.lock().unwrap_or_else(PoisonError::into_inner);
    let (first, copy) = &mut *held;
    first.take().or_else(|| copy.as_ref()?.try_clone())
}
