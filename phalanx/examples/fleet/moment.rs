//! The turning points of the story, as sentences.

use std::fmt;
use std::time::Duration;

use phalanx::{Phase, Transition};

use crate::paint::Ink;
use crate::story::Act;

/// Something worth a line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) at: Duration,
    pub(crate) what: Turn,
}

/// What turned.
#[derive(Clone, Copy, Debug)]
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
    },
}

impl Moment {
    /// The phase that began, if it is a turn of the circuit.
    pub(crate) const fn phase(&self) -> Option<Phase> {
        match self.what {
            Turn::Circuit { change, .. } => Some(change.to),
            Turn::Upstream(_) => None,
        }
    }

    pub(crate) const fn ink(&self) -> Ink {
        match self.what {
            Turn::Upstream(_) => Ink::Dim,
            Turn::Circuit { change, .. } => Ink::of_phase(change.to),
        }
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:5.1}s  ", self.at.as_secs_f64())?;
        match self.what {
            Turn::Upstream(Act::Healthy) => f.write_str("the upstream is healthy"),
            Turn::Upstream(Act::Slow) => f.write_str("the upstream turns slow"),
            Turn::Upstream(Act::Failing) => f.write_str("the upstream dies"),
            Turn::Upstream(Act::Recovered) => f.write_str("the upstream is healthy again"),
            Turn::Circuit { replica, change, failing } => {
                write!(f, "replica {} ", replica + 1)?;
                circuit(f, &change, failing)
            }
        }
    }
}

fn circuit(f: &mut fmt::Formatter<'_>, change: &Transition, failing: f64) -> fmt::Result {
    let pause = change.break_for.unwrap_or_default().as_secs_f64();
    match (change.from, change.to) {
        (Phase::HalfOpen, Phase::Open) => write!(f, "probed in vain: open for another {pause:.1} s"),
        // A transition does not say which condition it was. Few failures leave only one.
        (_, Phase::Open) if failing < 0.4 => write!(f, "opened the circuit for all: too many slow answers"),
        (_, Phase::Open) => write!(f, "opened the circuit for all: {:.0} % failing", failing * 100.0),
        (_, Phase::HalfOpen) => f.write_str("probes, the others wait"),
        (_, Phase::Closed) => f.write_str("closed the circuit for all: the probes succeeded"),
    }
}
