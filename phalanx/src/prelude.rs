//! The names that most services use: `use phalanx::prelude::*;`.

pub use crate::{
    Backoff, BreakerSpec, BulkheadSpec, Class, Classify, Context, Criticality, Error, Fallback, HedgeSpec, Kind,
    Policy, RateLimitSpec, Rejection, RejectionCode, ResilienceModule, Resilient, RetrySpec, ThrottleSpec, scope,
};

#[cfg(feature = "macros")]
pub use crate::resilient;
