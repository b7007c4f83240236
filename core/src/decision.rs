//! The decision record: what was decided about a call, by which stage and on which state. Headers, spans, log lines and
//! tests all read this one record.

use std::time::Duration;

use crate::fallback::Degraded;
use crate::policy::Stage;
use crate::rejection::{RejectionCode, Source};

/// Whether the operation was admitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Verdict {
    /// It ran at least once.
    #[default]
    Admitted,
    /// It never ran.
    Rejected,
}

/// What was decided about a call.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Decision {
    /// Whether the operation was admitted.
    pub verdict: Verdict,
    /// The stage that rejected the call or cut off its last attempt, if one did.
    pub stage: Option<Stage>,
    /// The code of that rejection.
    pub reason: Option<RejectionCode>,
    /// The limit that rejected the call, or that has the fewest permits left, if the policy has several.
    pub limit: Option<&'static str>,
    /// Where the state it was decided on came from: that of the rejecting stage; else that of the last stage asked, or
    /// `Degraded` if any stage decided without the shared store.
    pub source: Source,
    /// Whole permits left in the rate limit's bucket, if there is one. Of several limits: of `limit`.
    pub remaining: Option<u64>,
    /// How long the caller should wait before it tries again.
    pub retry_after: Option<Duration>,
    /// The version of the policy, from 1.
    pub policy_version: u64,
    /// How many attempts were made, the first included; hedges do not count.
    pub attempts: u32,
    /// How many hedges were started.
    pub hedges: u32,
    /// Whether the answer came from a hedge.
    pub hedge_won: bool,
    /// Whether the call was a probe of a half-open breaker.
    pub probe: bool,
    /// From the call to its answer.
    pub elapsed: Duration,
    /// The time left until the deadline at the end of the call, zero if it had passed; none without a deadline.
    pub deadline_remaining: Option<Duration>,
    /// Set when a fallback answered.
    pub degraded: Option<Degraded>,
}
