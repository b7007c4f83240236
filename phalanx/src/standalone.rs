//! Stand-alone primitives: single stages without a module, for a loop or a worker where a whole policy would be too much.
//!
//! They use the same algorithms as the stages of a policy and are as exact, keep their state in this process, and are
//! shared between threads by reference or by cheap clones. The functions [`rate_limited`], [`bulkheaded`],
//! [`time_limited`] and [`with_fallback`] wrap a closure in one stage. A [`Reservation`] is for permits of a policy's rate limit,
//! the fleet's too, that are taken for work without a call.

mod adaptive_throttle;
mod bulkhead;
mod circuit_breaker;
mod rate_limiter;
mod wrap;

use phalanx_core::policy::Policy;
use phalanx_core::policy::validate::ConfigError;

pub use self::adaptive_throttle::{AdaptiveThrottle, ThrottlePermit};
pub use self::bulkhead::{Bulkhead, BulkheadPermit};
pub use self::circuit_breaker::{BreakerPermit, CircuitBreaker};
pub use self::rate_limiter::RateLimiter;
pub use self::wrap::{bulkheaded, rate_limited, time_limited, with_fallback};
pub use crate::module::Reservation;

fn check(policy: Policy) -> Result<(), ConfigError> {
    let mistakes = policy.mistakes();
    if mistakes.is_empty() { Ok(()) } else { Err(ConfigError { mistakes }) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use phalanx_core::breaker::BreakerSpec;
    use phalanx_core::bulkhead::BulkheadSpec;
    use phalanx_core::rate_limit::RateLimitSpec;
    use phalanx_core::throttle::ThrottleSpec;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn invalid_specs_are_rejected() {
        assert!(RateLimiter::new(&RateLimitSpec::per_second(0)).is_err());
        assert!(CircuitBreaker::new(&BreakerSpec::failure_ratio(f64::NAN)).is_err());
        assert!(CircuitBreaker::new(&BreakerSpec::latency(0.95, SECOND, SECOND)).is_err());
        assert!(Bulkhead::new(&BulkheadSpec::fixed(0)).is_err());
        assert!(AdaptiveThrottle::new(&ThrottleSpec::default().k(0.5)).is_err());
    }
}
