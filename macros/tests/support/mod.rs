//! Test support: an upstream that fails a given number of times, and an adapter that calls it.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used)] // each test file uses its part; a test may unwrap

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use phalanx::policy::Jitter;
use phalanx::{
    Backoff, BreakerSpec, Class, Classify, Kind, Policy, RateLimitSpec, Rejection, RejectionCode, ResilienceModule,
    Resilient, RetrySpec,
};

/// An error that a rejection converts into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    Rejected(Rejection),
    Own(Kind),
}

pub const BROKEN: Failure = Failure::Own(Kind::Infrastructure);

impl Failure {
    pub fn code(self) -> Option<RejectionCode> {
        match self {
            Self::Rejected(rejection) => Some(rejection.code()),
            Self::Own(_) => None,
        }
    }
}

impl From<Rejection> for Failure {
    fn from(rejection: Rejection) -> Self {
        Self::Rejected(rejection)
    }
}

impl Classify for Failure {
    fn classify(&self) -> Class {
        match self {
            Self::Rejected(rejection) => rejection.classify(),
            Self::Own(kind) => kind.classify(),
        }
    }
}

/// Fails a given number of times, then answers with the number of requests. Records the requests.
#[derive(Clone, Debug, Default)]
pub struct Upstream(Arc<(AtomicUsize, Mutex<Vec<String>>)>);

impl Upstream {
    pub fn failing(times: usize) -> Self {
        let upstream = Self::default();
        upstream.0.0.store(times, Ordering::Relaxed);
        upstream
    }

    pub async fn ask(&self, what: impl Into<String>) -> Result<usize, Kind> {
        tokio::task::yield_now().await;
        let mut asked = self.0.1.lock().unwrap();
        asked.push(what.into());
        match self.0.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)) {
            Ok(_) => Err(Kind::Infrastructure),
            Err(_) => Ok(asked.len()),
        }
    }

    pub fn asked(&self) -> Vec<String> {
        self.0.1.lock().unwrap().clone()
    }
}

/// A type with policies on its methods.
#[derive(Clone, Debug)]
pub struct Adapter {
    pub upstream: Upstream,
    pub module: ResilienceModule,
    pub region: String,
}

impl Adapter {
    pub fn failing(times: usize) -> Self {
        Self { upstream: Upstream::failing(times), module: module(), region: "eu".to_owned() }
    }

    /// Returns the routes that a policy was used on, sorted.
    pub fn routes(&self, policy: &str) -> Vec<Option<String>> {
        let pipelines = self.module.pipelines();
        let keys = pipelines.iter().map(|pipeline| pipeline.key()).filter(|key| key.policy() == policy);
        let mut routes: Vec<_> = keys.map(|key| key.route().map(str::to_owned)).collect();
        routes.sort();
        routes
    }
}

impl Resilient for Adapter {
    fn resilience(&self) -> &ResilienceModule {
        &self.module
    }
}

impl From<Kind> for Failure {
    fn from(kind: Kind) -> Self {
        Self::Own(kind)
    }
}

/// Policies: `retry` makes three attempts 100 ms apart, `once` has one permit per hour, `circuit` opens after one failure,
/// `slow` has a timeout of one second, `plain` has no stages.
pub fn module() -> ResilienceModule {
    let pause = Backoff::constant(Duration::from_millis(100)).jitter(Jitter::None);
    ResilienceModule::in_memory()
        .seed(7)
        .policy(Policy::named("retry").retry(RetrySpec::attempts(3).on([Kind::Infrastructure]).backoff(pause)))
        .policy(Policy::named("once").rate_limit(RateLimitSpec::new(1, Duration::from_secs(3600))))
        .policy(Policy::named("circuit").breaker(BreakerSpec::consecutive_failures(1)))
        .policy(Policy::named("slow").timeout(Duration::from_secs(1)))
        .policy(Policy::named("plain"))
        .build()
        .unwrap()
}
