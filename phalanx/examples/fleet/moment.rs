//! The turning points of the story, as sentences.

use std::fmt;
use std::time::Duration;

use phalanx::describe::{Phase, Transition};

use crate::faults::Fault;
use crate::paint::Ink;
use crate::story::Act;

/// Something worth a line.
#[derive(Clone, Debug)]
pub(crate) struct Moment {
    pub(crate) at: Duration,
    pub(crate) kind: Turn,
}

/// What turned.
#[derive(Clone, Debug)]
pub(crate) enum Turn {
    /// The upstream.
    Upstream(Act),
    /// The circuit, by the hand of one replica.
    Circuit {
        /// From 0.
        replica: usize,
        change: Transition,
        /// The share of attempts in the window that had failed.
        failing: f64,
        /// Whether it is this replica's alone, because Redis is away.
        alone: bool,
    },
    /// Something was done to the fleet.
    Fault(Fault),
    /// A replica lost the store: it decides alone.
    Alone { replica: usize, reason: String },
    /// A replica has the store back.
    Back { replica: usize, outage: Duration, decided: u64 },
    /// A replica noticed that the store came back empty.
    Lost { replica: usize },
}

impl Moment {
    /// The phase that began, if it is a turn of the circuit.
    pub(crate) const fn phase(&self) -> Option<Phase> {
        match self.kind {
            Turn::Circuit { change, .. } => Some(change.to),
            _ => None,
        }
    }

    pub(crate) const fn ink(&self) -> Ink {
        match self.kind {
            Turn::Upstream(_) => Ink::Dim,
            Turn::Circuit { change, .. } => Ink::of_phase(change.to),
            Turn::Fault(_) => Ink::Bold,
            Turn::Alone { .. } | Turn::Lost { .. } => Ink::Yellow,
            Turn::Back { .. } => Ink::Green,
        }
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:5.1}s  {}", self.at.as_secs_f64(), self.kind)
    }
}

impl fmt::Display for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Upstream(Act::Healthy) => f.write_str("the upstream is healthy"),
            Self::Upstream(Act::Slow) => f.write_str("the upstream turns slow"),
            Self::Upstream(Act::Failing) => f.write_str("the upstream dies"),
            Self::Upstream(Act::Recovered) => f.write_str("the upstream is healthy again"),
            Self::Circuit { replica, change, failing, alone } => {
                write!(f, "replica {} ", replica + 1)?;
                circuit(f, change, *failing, if *alone { "for itself" } else { "for all" })
            }
            Self::Fault(fault) => write!(f, "{fault}"),
            Self::Alone { replica, reason } => write!(f, "replica {} decides alone: {reason}", replica + 1),
            Self::Back { replica, outage, decided } => {
                let (replica, outage) = (replica + 1, outage.as_secs_f64());
                write!(f, "replica {replica} has Redis back after {outage:.1} s: {decided} decisions were its own")
            }
            Self::Lost { replica } => write!(f, "replica {} sees that Redis has lost its state", replica + 1),
        }
    }
}

fn circuit(f: &mut fmt::Formatter<'_>, change: &Transition, failing: f64, whom: &str) -> fmt::Result {
    let pause = change.break_for.unwrap_or_default().as_secs_f64();
    match (change.from, change.to) {
        (Phase::HalfOpen, Phase::Open) => write!(f, "probed in vain: open for another {pause:.1} s"),
        // A transition does not say which condition it was. Few failures leave only one.
        (_, Phase::Open) if failing < 0.4 => write!(f, "opened the circuit {whom}: too many slow answers"),
        (_, Phase::Open) => write!(f, "opened the circuit {whom}: {:.0} % failing", failing * 100.0),
        (_, Phase::HalfOpen) => f.write_str("probes, the others wait"),
        (_, Phase::Closed) => write!(f, "closed the circuit {whom}: the probes succeeded"),
    }
}
