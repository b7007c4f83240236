//! The decision record: what was decided about a call, by whom and on what. Headers, spans, log lines and tests all
//! read this one record.

use std::time::Duration;

use crate::fallback::Degraded;
use crate::policy::Stage;
use crate::rejection::{RejectionCode, Source};

/// Whether the operation was let through.
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
    /// Whether the operation was let through.
    pub verdict: Verdict,
    /// The stage that rejected or cut off, if one did.
    pub stage: Option<Stage>,
    /// Its reason.
    pub reason: Option<RejectionCode>,
    /// Whose state it was decided on: the rejecting stage's, else the furthest from the fleet's truth that was asked.
    pub source: Source,
    /// Whole permits left in the rate limit's bucket, if there is one.
    pub remaining: Option<u64>,
    /// When it makes sense to come back.
    pub retry_after: Option<Duration>,
    /// The version of the policy, from 1.
    pub policy_version: u64,
    /// How often the operation was tried, the first time included; copies of an attempt do not count.
    pub attempts: u32,
    /// How many copies of attempts hedging sent.
    pub hedges: u32,
    /// Whether the answer is a copy's.
    pub hedge_won: bool,
    /// Whether it tried out a half-open circuit.
    pub probe: bool,
    /// From the call to its answer.
    pub elapsed: Duration,
    /// How much of the caller's time was left at the end, zero if it was over; none without a deadline.
    pub deadline_remaining: Option<Duration>,
    /// Set when a fallback answered.
    pub degraded: Option<Degraded>,
}
