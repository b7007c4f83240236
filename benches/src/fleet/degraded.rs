//! Counts what is decided without Redis.

use std::sync::atomic::{AtomicU64, Ordering};

use phalanx::{Event, EventKind, Source};

use super::policies::NAME;

/// Decisions of [`NAME`] without Redis, and outages.
#[derive(Default)]
pub(crate) struct Degraded {
    decisions: AtomicU64,
    outages: AtomicU64,
}

impl Degraded {
    pub(crate) fn note(&self, event: &Event<'_>) {
        match (event.kind, event.key) {
            (EventKind::Finished { decision, .. }, Some(key))
                if key.policy() == NAME && decision.source == Source::Degraded =>
            {
                self.decisions.fetch_add(1, Ordering::Relaxed);
            }
            (EventKind::StoreDegraded { .. }, _) => {
                self.outages.fetch_add(1, Ordering::Relaxed);
            }
            _ => {}
        }
    }

    /// Returns the decisions and the outages so far.
    pub(crate) fn read(&self) -> (u64, u64) {
        (self.decisions.load(Ordering::Relaxed), self.outages.load(Ordering::Relaxed))
    }
}
