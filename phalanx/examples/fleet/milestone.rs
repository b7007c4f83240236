//! The milestones of a run, as sentences.

use std::fmt;
use std::time::Duration;

use phalanx::describe::{Phase, Transition};

use crate::faults::Fault;
use crate::scenario::UpstreamState;
use crate::style::Style;

/// An event that is printed as a line of its own.
#[derive(Clone, Debug)]
pub(crate) struct Milestone {
    pub(crate) at: Duration,
    pub(crate) kind: MilestoneKind,
}

/// What happened.
#[derive(Clone, Debug)]
pub(crate) enum MilestoneKind {
    /// The upstream entered this state.
    Upstream(UpstreamState),
    /// A replica changed the phase of the breaker.
    Breaker {
        /// The index of the replica.
        replica: usize,
        change: Transition,
        /// The fraction of the attempts in the window that had failed.
        failed: f64,
        /// Whether the replica was degraded: the change is its own, not the fleet's.
        degraded: bool,
    },
    /// A fault was injected.
    Fault(Fault),
    /// A replica lost Redis and is degraded.
    Degraded { replica: usize, reason: String },
    /// A replica has Redis again.
    Recovered { replica: usize, outage: Duration, degraded_decisions: u64 },
    /// A replica found that Redis came back empty.
    StateLost { replica: usize },
}

impl Milestone {
    /// The phase that the breaker entered, if it is about the breaker.
    pub(crate) const fn phase(&self) -> Option<Phase> {
        match self.kind {
            MilestoneKind::Breaker { change, .. } => Some(change.to),
            _ => None,
        }
    }

    pub(crate) const fn style(&self) -> Style {
        match self.kind {
            MilestoneKind::Upstream(_) => Style::Dim,
            MilestoneKind::Breaker { change, .. } => Style::of_phase(change.to),
            MilestoneKind::Fault(_) => Style::Bold,
            MilestoneKind::Degraded { .. } | MilestoneKind::StateLost { .. } => Style::Yellow,
            MilestoneKind::Recovered { .. } => Style::Green,
        }
    }
}

impl fmt::Display for Milestone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:5.1}s  {}", self.at.as_secs_f64(), self.kind)
    }
}

impl fmt::Display for MilestoneKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Upstream(UpstreamState::Healthy) => f.write_str("the upstream is healthy"),
            Self::Upstream(UpstreamState::Slow) => f.write_str("the upstream turns slow"),
            Self::Upstream(UpstreamState::Failing) => f.write_str("the upstream fails"),
            Self::Upstream(UpstreamState::Recovered) => f.write_str("the upstream is healthy again"),
            Self::Breaker { replica, change, failed, degraded } => {
                write!(f, "replica {} ", replica + 1)?;
                write_change(f, change, *failed, if *degraded { "for itself only" } else { "for all" })
            }
            Self::Fault(fault) => write!(f, "{fault}"),
            Self::Degraded { replica, reason } => write!(f, "replica {} is degraded: {reason}", replica + 1),
            Self::Recovered { replica, outage, degraded_decisions } => {
                let (replica, outage) = (replica + 1, outage.as_secs_f64());
                write!(f, "replica {replica} recovered after {outage:.1} s and {degraded_decisions} degraded decisions")
            }
            Self::StateLost { replica } => write!(f, "replica {} found that Redis has lost its state", replica + 1),
        }
    }
}

fn write_change(f: &mut fmt::Formatter<'_>, change: &Transition, failed: f64, scope: &str) -> fmt::Result {
    let pause = change.break_for.unwrap_or_default().as_secs_f64();
    match (change.from, change.to) {
        (Phase::HalfOpen, Phase::Open) => {
            write!(f, "saw a probe fail: the breaker stays open for another {pause:.1} s")
        }
        // A transition does not name its condition. With few failures only slow calls are left.
        (_, Phase::Open) if failed < 0.4 => write!(f, "opened the breaker {scope}: too many slow answers"),
        (_, Phase::Open) => write!(f, "opened the breaker {scope}: {:.0} % failed", failed * 100.0),
        (_, Phase::HalfOpen) => f.write_str("sends a probe, the others wait"),
        (_, Phase::Closed) => write!(f, "closed the breaker {scope}: the probes succeeded"),
    }
}
