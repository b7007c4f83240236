//! Single stages without a module: for a loop, a worker, a place where a whole policy would be too much.
//!
//! The same algorithms and the same exactness as inside a policy, one object each, shared by reference between threads.
//! (The machines beneath them, which are given the time, are in [`base`](crate::base).)

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
    fn nonsense_is_rejected_here_too() {
        assert!(RateLimiter::new(&RateLimitSpec::per_second(0)).is_err());
        assert!(CircuitBreaker::new(&BreakerSpec::failure_ratio(f64::NAN)).is_err());
        assert!(CircuitBreaker::new(&BreakerSpec::latency(0.95, SECOND, SECOND)).is_err());
        assert!(Bulkhead::new(&BulkheadSpec::fixed(0)).is_err());
        assert!(AdaptiveThrottle::new(&ThrottleSpec::default().k(0.5)).is_err());
    }
}
