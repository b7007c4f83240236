//! What observers are told, written down with the moment.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use phalanx::describe::Phase;
use phalanx::{Event, EventKind, Observer};
use serde::{Deserialize, Serialize};

use super::moment::Moment;

/// Something that was told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Told {
    /// When.
    pub at: Moment,
    /// What.
    pub kind: Heard,
}

/// What a test wants to know of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Heard {
    /// Redis went away.
    Degraded {
        /// Why.
        reason: String,
    },
    /// Redis is back.
    Recovered {
        /// How long it was away.
        outage: Duration,
        /// Calls decided in its place.
        degraded_decisions: u64,
    },
    /// Redis lost what it held.
    StateLost,
    /// A key made no sense and was replaced.
    StateRepaired,
    /// Another replica has other numbers.
    ConfigMismatch,
    /// Replicas that are alive.
    Replicas {
        /// How many.
        live: u32,
    },
    /// A circuit opened.
    Opened {
        /// Whose circuit.
        route: String,
    },
    /// A circuit is being tried out.
    HalfOpened {
        /// Whose circuit.
        route: String,
    },
    /// A circuit closed.
    Closed {
        /// Whose circuit.
        route: String,
    },
}

impl Heard {
    /// Why Redis went away, if that was told.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Degraded { reason } => Some(reason),
            _ => None,
        }
    }
}

/// Listens. Clones hear together.
#[derive(Clone, Debug, Default)]
pub(super) struct Ear(Arc<Mutex<Vec<Told>>>);

impl Ear {
    pub(super) fn told(&self) -> Vec<Told> {
        self.0.lock().clone()
    }

    pub(super) fn forget(&self) {
        self.0.lock().clear();
    }
}

impl Observer for Ear {
    fn on_event(&self, event: &Event<'_>) {
        let route = || event.key.and_then(|key| key.route()).unwrap_or_default().to_owned();
        let what = match event.kind {
            EventKind::StoreDegraded { reason } => Heard::Degraded { reason: reason.to_owned() },
            EventKind::StoreRecovered { outage, degraded_decisions } => Heard::Recovered { outage, degraded_decisions },
            EventKind::StateLost => Heard::StateLost,
            EventKind::StateRepaired => Heard::StateRepaired,
            EventKind::ConfigMismatch => Heard::ConfigMismatch,
            EventKind::Replicas { live } => Heard::Replicas { live },
            EventKind::Transition(change) => match change.to {
                Phase::Open => Heard::Opened { route: route() },
                Phase::HalfOpen => Heard::HalfOpened { route: route() },
                Phase::Closed => Heard::Closed { route: route() },
            },
            _ => return,
        };
        self.0.lock().push(Told { at: Moment::now(), kind: what });
    }
}
