//! Store replies with times made relative to now, so that replies on different clocks can be compared.
//!
//! An absolute time is only meaningful on its own clock, and replicas and the state machines of core may have different
//! clocks. Durations from now are equal on all of them, to the microsecond.

use std::time::Duration;

use phalanx_core::breaker::{Admission, Ticket, Transition};
use phalanx_core::clock::Time;
use phalanx_core::rate_limit::Take;
use phalanx_core::rejection::RejectionCode;
use phalanx_core::store::{AcquireRequest, AdmitReply, BreakerStore, Grant, RateLimitStore};

/// The outcome of acquiring permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcquireOutcome {
    /// The permits are granted and may be used after a wait.
    Granted {
        /// Time until the permits may be used.
        wait: Duration,
    },
    /// The permits are not granted.
    Rejected {
        /// Time until a retry can succeed; none if no retry can.
        retry_after: Option<Duration>,
    },
}

impl AcquireOutcome {
    /// Converts a reply given at `now`.
    pub const fn new(take: Take, now: Time) -> Self {
        match take {
            Take::Granted { wait } => Self::Granted { wait },
            Take::Rejected { until } => Self::Rejected { retry_after: until.until_from(now) },
        }
    }
}

/// Why a breaker rejected a call, and the time until the break is over, if known.
pub type Rejection = (RejectionCode, Option<Duration>);

/// Converts an admission given at `now`.
pub const fn admit_result(admission: Admission, now: Time) -> Result<Ticket, Rejection> {
    match admission {
        Admission::Admitted(ticket) => Ok(ticket),
        Admission::Rejected { code, until } => Err((code, until.until_from(now))),
    }
}

/// Acquires permits, in process if possible, otherwise by asking the store.
pub async fn acquire_permits<S: RateLimitStore>(
    store: &S,
    bucket: &S::Bucket,
    now: Time,
    ask: AcquireRequest,
) -> Grant {
    match store.acquire_now(bucket, now, ask) {
        Some(grant) => grant,
        None => store.acquire(bucket, now, ask).await,
    }
}

/// Asks a breaker to admit a call, in process if possible, otherwise by asking the store. Returns the reply and the
/// transition that asking caused.
pub async fn admit_call<S: BreakerStore>(
    store: &S,
    circuit: &S::Breaker,
    now: Time,
) -> (AdmitReply, Option<Transition>) {
    match store.admit_now(circuit, now) {
        Some(reply) => (reply, None),
        None => store.admit(circuit, now).await,
    }
}
