//! The names that most services use, for `use phalanx::prelude::*;`.
//!
//! # Examples
//!
//! ```
//! use std::time::Duration;
//!
//! use phalanx::prelude::*;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let policy = Policy::named("catalog").timeout(Duration::from_millis(250)).bulkhead(BulkheadSpec::fixed(32));
//! let module = ResilienceModule::in_memory().policy(policy).build()?;
//! let answer = module.run("catalog", "eu", || async { Ok::<_, Kind>("shoes") }).await;
//! assert_eq!(answer, Ok("shoes"));
//! # Ok(())
//! # }
//! ```

pub use crate::{
    Backoff, BreakerSpec, BulkheadSpec, Class, Classify, Context, Criticality, Error, Fallback, HedgeSpec, Kind,
    Policy, RateLimitSpec, Rejection, RejectionCode, ResilienceModule, Resilient, RetrySpec, ThrottleSpec, scope,
};

#[cfg(feature = "macros")]
#[cfg_attr(docsrs, doc(cfg(feature = "macros")))]
pub use crate::resilient;
