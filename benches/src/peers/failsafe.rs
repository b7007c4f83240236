//! `failsafe`: its breaker around a synchronous function, which avoids the cost of a future.

use failsafe::{CircuitBreaker, Config, backoff, failure_policy};

use crate::operation::OperationError;
use crate::settings::LONG_BREAK;

/// Closed, with the default policy: success rate over a time window, or failures in a row.
pub(crate) fn closed() -> impl FnMut() -> bool {
    let breaker = Config::new().build();
    move || breaker.call(|| Ok::<u32, OperationError>(1)).is_ok()
}

/// Open for longer than any run, after one failure.
pub(crate) fn open() -> impl FnMut() -> bool {
    let policy = failure_policy::consecutive_failures(1, backoff::constant(LONG_BREAK));
    let breaker = Config::new().failure_policy(policy).build();
    let _failed = breaker.call(|| Err::<u32, _>(OperationError));
    move || breaker.call(|| Ok::<u32, OperationError>(1)).is_ok()
}
