//! Answers as a caller understands them: waited for if need be, and with moments turned into how long from now.
//!
//! A moment means something on its own clock only, and two replicas, or a replica and a bare machine, may each have
//! their own; how long from now is the same for all of them, to the microsecond.

use std::time::Duration;

use phalanx_core::breaker::{Admission, Ticket, Transition};
use phalanx_core::clock::Time;
use phalanx_core::rate_limit::Take;
use phalanx_core::rejection::RejectionCode;
use phalanx_core::store::{AcquireRequest, AdmitReply, BreakerStore, Grant, RateLimitStore};

/// What became of a call that wanted permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Took {
    /// It has them, to be used after a wait.
    After(Duration),
    /// It has not, and may come back in so long; none if that would not help.
    Nothing(Option<Duration>),
}

impl Took {
    /// What an answer given at `now` means.
    pub const fn of(take: Take, now: Time) -> Self {
        match take {
            Take::Granted { wait } => Self::After(wait),
            Take::Rejected { until } => Self::Nothing(until.until_from(now)),
        }
    }
}

/// Why a circuit let a call not pass, and in how long the break is over, if that is known.
pub type Rejection = (RejectionCode, Option<Duration>);

/// What a circuit's answer given at `now` means.
pub const fn passed(admission: Admission, now: Time) -> Result<Ticket, Rejection> {
    match admission {
        Admission::Admitted(ticket) => Ok(ticket),
        Admission::Rejected { code, until } => Err((code, until.until_from(now))),
    }
}

/// The grant, whenever it comes.
pub async fn acquired<S: RateLimitStore>(store: &S, bucket: &S::Bucket, now: Time, ask: AcquireRequest) -> Grant {
    match store.acquire_now(bucket, now, ask) {
        Some(grant) => grant,
        None => store.acquire(bucket, now, ask).await,
    }
}

/// The circuit's answer, whenever it comes, and the change of phase that asking brought about.
pub async fn answered<S: BreakerStore>(store: &S, circuit: &S::Breaker, now: Time) -> (AdmitReply, Option<Transition>) {
    match store.admit_now(circuit, now) {
        Some(answer) => (answer, None),
        None => store.admit(circuit, now).await,
    }
}
