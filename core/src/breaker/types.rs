//! The breaker's public types: phases, overrides, tickets, outcomes and views.

use std::time::Duration;

use crate::clock::Time;
use crate::estimate::ring::Counts;
use crate::kind::Outcome;
use crate::rejection::RejectionCode;

/// The phase of a breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Calls are admitted, and their outcomes are counted.
    Closed,
    /// Calls are rejected.
    Open,
    /// A limited number of probes is admitted.
    HalfOpen,
}

impl Phase {
    /// Returns the name used in logs, metrics and tables.
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
    /// Admits everything and counts outcomes, but never trips.
    Closed,
    /// Admits everything and counts nothing.
    Disabled,
    /// Admits everything, but counts, changes phase and emits events as usual.
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

/// An override as its author asks for it.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use phalanx_core::breaker::{Override, OverrideRequest};
///
/// let request = OverrideRequest::new(Some(Override::Open)).by("ops@example.com").because("vendor maintenance");
/// let request = request.lasting(Duration::from_secs(3_600));
/// assert_eq!((request.value, request.lasts), (Some(Override::Open), Some(Duration::from_secs(3_600))));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OverrideRequest {
    /// The override; none releases the one that is set.
    pub value: Option<Override>,
    /// Who asks for it, at most 64 bytes. Default empty: this replica.
    pub author: String,
    /// Why, at most 200 bytes. Default empty.
    pub reason: String,
    /// How long it lasts. Default none: until it is released.
    pub lasts: Option<Duration>,
}

impl OverrideRequest {
    /// Sets or releases an override without an end.
    pub fn new(value: Option<Override>) -> Self {
        Self { value, ..Self::default() }
    }

    /// Sets the author.
    #[must_use]
    pub fn by(mut self, author: impl Into<String>) -> Self {
        self.author = author.into();
        self
    }

    /// Sets the reason.
    #[must_use]
    pub fn because(mut self, reason: impl Into<String>) -> Self {
        self.reason = reason.into();
        self
    }

    /// Sets how long it lasts.
    #[must_use]
    pub const fn lasting(mut self, lasts: Duration) -> Self {
        self.lasts = Some(lasts);
        self
    }
}

/// The last state of a breaker that a replica received, from which it can be restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastState {
    /// The epoch.
    pub epoch: u64,
    /// The phase.
    pub phase: Phase,
    /// The rest of the break, while open.
    pub left: Duration,
    /// How long the phase has lasted at least.
    pub age: Duration,
    /// The number of times that the next break is lengthened.
    pub escalation: u32,
    /// The override, if one is set.
    pub overridden: Option<Override>,
}

/// What an admitted call holds: the epoch in which its outcome counts and, for a probe, its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The epoch of the admission.
    pub epoch: u64,
    /// The lease of a probe.
    pub lease: Option<u64>,
}

/// The decision about a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The call is admitted.
    Admitted(Ticket),
    /// The call is rejected.
    Rejected {
        /// `circuit_open`, `probe_quota` or `forced_open`.
        code: RejectionCode,
        /// When the break is over; [`Time::NEVER`] if that is unknown.
        until: Time,
    },
}

/// The outcome of an admitted call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The outcome, as far as it is evidence about the dependency.
    pub outcome: Outcome,
    /// The duration of the call.
    pub latency: Duration,
}

/// A change of phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// The phase that ended.
    pub from: Phase,
    /// The phase that began.
    pub to: Phase,
    /// The epoch of the new phase.
    pub epoch: u64,
    /// If the breaker opened: the length of the break.
    pub break_for: Option<Duration>,
    /// The counts of the window when the phase ended; zero after half-open, in which only probes are admitted.
    pub seen: Seen,
}

/// The state of a breaker at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerView {
    /// The phase.
    pub phase: Phase,
    /// The override, if one is set.
    pub overridden: Option<Override>,
    /// The current epoch.
    pub epoch: u64,
    /// Calls in the window.
    pub calls: u64,
    /// Failures among them.
    pub failures: u64,
    /// Slow calls among them.
    pub slow: u64,
    /// Failures in a row.
    pub streak: u32,
    /// Probes in flight.
    pub probes: u32,
    /// While open: the time until probes are let through.
    pub break_left: Option<Duration>,
    /// Whether a ramp is in progress: only a growing share of the calls is admitted.
    pub ramping: bool,
}

/// The counts of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Successes and failures.
    pub calls: u64,
    /// Failures among them.
    pub failures: u64,
    /// Slow calls among them.
    pub slow: u64,
}

impl Counts for Seen {
    fn plus(self, other: Self) -> Self {
        Self { calls: self.calls + other.calls, failures: self.failures + other.failures, slow: self.slow + other.slow }
    }
}
