//! An observer that logs events with the time of each.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use phalanx::describe::Phase;
use phalanx::{Event, EventKind, Observer};
use serde::{Deserialize, Serialize};

use super::moment::Moment;

/// An event and its time.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LoggedEvent {
    /// When it was emitted.
    pub at: Moment,
    /// What happened.
    pub kind: LoggedKind,
}

/// The kind of a logged event: the subset of [`EventKind`] that tests use, serializable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LoggedKind {
    /// The store became degraded.
    Degraded {
        /// The reason of the outage.
        reason: String,
    },
    /// The store recovered.
    Recovered {
        /// Duration of the outage.
        outage: Duration,
        /// Decisions made without Redis.
        degraded_decisions: u64,
    },
    /// Redis lost its state.
    StateLost,
    /// A corrupt key was replaced.
    StateRepaired,
    /// Another replica has a different configuration.
    ConfigMismatch,
    /// The number of live replicas changed.
    Replicas {
        /// Number of live replicas.
        live: u32,
    },
    /// A circuit opened.
    Opened {
        /// The route of the breaker.
        route: String,
    },
    /// A circuit became half-open.
    HalfOpened {
        /// The route of the breaker.
        route: String,
    },
    /// A circuit closed.
    Closed {
        /// The route of the breaker.
        route: String,
    },
}

impl LoggedKind {
    /// Returns the reason if this is the beginning of an outage.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Degraded { reason } => Some(reason),
            _ => None,
        }
    }
}

/// The log. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct EventLog(Arc<Mutex<Vec<LoggedEvent>>>);

impl EventLog {
    pub(super) fn events(&self) -> Vec<LoggedEvent> {
        self.0.lock().clone()
    }

    pub(super) fn clear(&self) {
        self.0.lock().clear();
    }
}

impl Observer for EventLog {
    fn on_event(&self, event: &Event<'_>) {
        let route = || event.key.and_then(|key| key.route()).unwrap_or_default().to_owned();
        let kind = match event.kind {
            EventKind::StoreDegraded { reason } => LoggedKind::Degraded { reason: reason.to_owned() },
            EventKind::StoreRecovered { outage, degraded_decisions } => {
                LoggedKind::Recovered { outage, degraded_decisions }
            }
            EventKind::StateLost => LoggedKind::StateLost,
            EventKind::StateRepaired => LoggedKind::StateRepaired,
            EventKind::ConfigMismatch => LoggedKind::ConfigMismatch,
            EventKind::Replicas { live } => LoggedKind::Replicas { live },
            EventKind::Transition(change) => match change.to {
                Phase::Open => LoggedKind::Opened { route: route() },
                Phase::HalfOpen => LoggedKind::HalfOpened { route: route() },
                Phase::Closed => LoggedKind::Closed { route: route() },
            },
            _ => return,
        };
        self.0.lock().push(LoggedEvent { at: Moment::now(), kind });
    }
}
