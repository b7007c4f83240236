//! What is said to a circuit and what it says.

use std::time::Duration;

use crate::clock::Time;
use crate::estimate::ring::Counts;
use crate::kind::Outcome;
use crate::rejection::RejectionCode;

/// Where the circuit stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Calls pass and are counted.
    Closed,
    /// Calls are rejected.
    Open,
    /// A few calls try it out.
    HalfOpen,
}

impl Phase {
    /// The name in logs, metrics and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
        }
    }
}

/// A manual state that an operator sets above the breaker's phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Override {
    /// Rejects everything.
    Open,
    /// Admits everything; goes on counting, trips never.
    Closed,
    /// Admits everything, counts nothing.
    Disabled,
    /// Admits everything, changes phase and reports as if it did not.
    MetricsOnly,
}

impl Override {
    /// Returns the name used in files, logs and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Closed => "closed",
            Self::Disabled => "disabled",
            Self::MetricsOnly => "metrics_only",
        }
    }
}

/// What an admitted call holds: it names the epoch its outcome counts in and, in half-open, its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The epoch of the admission.
    pub epoch: u64,
    /// The lease of a probe.
    pub lease: Option<u64>,
}

/// The answer to a call that wants to pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It may.
    Admitted(Ticket),
    /// It may not.
    Rejected {
        /// `circuit_open`, `probe_quota` or `forced_open`.
        code: RejectionCode,
        /// When the break is over; never, if that cannot be known.
        until: Time,
    },
}

/// What became of an admitted call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// What it says about the dependency.
    pub outcome: Outcome,
    /// How long it took.
    pub latency: Duration,
}

/// A change of phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// The phase that ended.
    pub from: Phase,
    /// The phase that began.
    pub to: Phase,
    /// Its epoch.
    pub epoch: u64,
    /// For an opening: how long the break lasts.
    pub break_for: Option<Duration>,
    /// What the window had seen when the phase ended; nothing in half-open, where only probes pass.
    pub seen: Seen,
}

/// What can be seen of a circuit from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerView {
    /// Where it stands.
    pub phase: Phase,
    /// The operator's word, if any.
    pub overridden: Option<Override>,
    /// The present epoch.
    pub epoch: u64,
    /// Calls in the window.
    pub calls: u64,
    /// Failures among them.
    pub failures: u64,
    /// Slow ones among them.
    pub slow: u64,
    /// Failures in a row.
    pub streak: u32,
    /// Trial calls under way.
    pub probes: u32,
    /// While open: the time until probes are let through.
    pub break_left: Option<Duration>,
    /// Whether it closed so recently that only a growing share of the calls passes.
    pub ramping: bool,
}

/// What a window saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Calls that say something about the dependency.
    pub calls: u64,
    /// Failures among them.
    pub failures: u64,
    /// Slow ones among them.
    pub slow: u64,
}

impl Counts for Seen {
    fn plus(self, other: Self) -> Self {
        Self { calls: self.calls + other.calls, failures: self.failures + other.failures, slow: self.slow + other.slow }
    }
}
