//! Inbound state of a breaker: applies snapshots from replies and pushes, and updates the fast path.

use std::time::Duration;

use phalanx_core::breaker::FastAnswer;
use phalanx_core::breaker::{Phase, Seen, Transition};
use phalanx_core::clock::Time;
use phalanx_core::event::EventKind;
use phalanx_core::rate_limit::MAX_BACKSTEP;

use super::codec::Snapshot;
use super::entry::OverrideEntry;
use super::known_override::{KnownOverride, PUT_BACK_WITHIN};
use super::{LastKnown, Shared, State};

/// Where a snapshot comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Provenance {
    /// A reply to this replica: the state at that moment.
    Reply,
    /// The same, and the caller emits the transitions it caused.
    CallerReply,
    /// A pushed message, which may be older than a reply.
    Push,
}

impl Shared {
    /// Stores the snapshot, unless a newer one is known, and emits every transition once: this replica's own when the
    /// reply arrives, another replica's with its push, or, if the push is lost or late, with the first reply that shows
    /// it.
    pub(crate) fn apply(&self, snapshot: Snapshot, entry: &str, changes: &[Transition], provenance: Provenance) {
        let now = self.store.clock.now();
        if provenance != Provenance::Push {
            self.store.note_server_time(snapshot.at, now);
        }
        let mut state = self.state.lock();
        self.apply_override(&mut state, &snapshot, OverrideEntry::decode(entry, now), provenance, now);
        let before = state.last_known.map(|last_known| last_known.snapshot);
        if provenance == Provenance::Push && !is_credible(&snapshot, before.as_ref()) {
            return;
        }
        if !before.is_some_and(|last_known| is_stale(&snapshot, &last_known, provenance)) {
            let same = state.last_known.filter(|last_known| last_known.snapshot.epoch == snapshot.epoch);
            let since = same.map_or(now, |last_known| last_known.since);
            state.last_known = Some(LastKnown { snapshot, until: now.after(snapshot.left), since });
            let was_half_open = before.is_some_and(|before| before.phase == Phase::HalfOpen);
            self.store.count_half_open(was_half_open, snapshot.phase == Phase::HalfOpen);
            state.ask_again(before.is_none_or(|before| before.epoch != snapshot.epoch));
            // Pushes can arrive while the latch is down: the twin continues from a trip of the fleet.
            if self.is_degraded() && snapshot.phase == Phase::Open {
                state.twin = None;
            }
        }
        self.update_fast_path(&mut state, now);
        drop(state);
        let news =
            before.is_some_and(|last_known| snapshot.epoch > last_known.epoch && snapshot.phase != last_known.phase);
        let listed = changes.iter().any(|change| change.epoch == snapshot.epoch);
        match provenance {
            Provenance::Push => changes.iter().filter(|_| news).for_each(|change| self.emit(*change)),
            Provenance::Reply => changes.iter().for_each(|change| self.emit(*change)),
            Provenance::CallerReply => {}
        }
        if let (Some(last_known), true, false) = (before, news && provenance != Provenance::Push, listed) {
            // The window counts of another replica's transition are unknown here.
            let break_for = (snapshot.phase == Phase::Open).then_some(snapshot.left);
            let (from, to) = (last_known.phase, snapshot.phase);
            self.emit(Transition { from, to, epoch: snapshot.epoch, break_for, seen: Seen::default() });
        }
    }

    /// Learns of the override that Redis holds. One that it should hold is put back, unless another replica was faster.
    fn apply_override(
        &self,
        state: &mut State,
        snapshot: &Snapshot,
        shown: Option<OverrideEntry>,
        provenance: Provenance,
        now: Time,
    ) {
        let known = state.known_override.take().filter(|known| !known.is_forgotten(now));
        let highest = known
            .as_ref()
            .map_or(0, |known| known.entry.sequence)
            .max(self.store.server_time(now).unwrap_or(snapshot.at));
        let forged = |entry: &OverrideEntry| {
            provenance == Provenance::Push && entry.sequence > highest.saturating_add(MAX_SEQUENCE_AHEAD)
        };
        let shown = shown.filter(|entry| !forged(entry));
        state.known_override = match (known, shown) {
            (None, None) => None,
            (None, Some(shown)) => Some(KnownOverride::confirmed(shown, now)),
            (Some(mut known), shown) => {
                known.meet(shown, snapshot.at, now, || {
                    now.after(self.store.rng.between(Duration::ZERO, PUT_BACK_WITHIN))
                });
                Some(known)
            }
        };
        if self.is_degraded()
            && let (Some(known), Some((_, twin))) = (&state.known_override, &state.twin)
        {
            twin.force_until(known.entry.in_force(now), known.entry.until());
        }
    }

    /// Publishes the last known phase to the fast path, unless the twin decides or this replica holds the breaker open.
    pub(super) fn update_fast_path(&self, state: &mut State, now: Time) {
        state.held_open = state.held_open.filter(|until| now < *until);
        let Some(last_known) = &state.last_known else {
            return self.fast_path.publish(0, state.held_open.map_or(FastAnswer::Ask, FastAnswer::Open));
        };
        let shown = match (state.overridden(now), last_known.snapshot.phase) {
            _ if self.is_degraded() => FastAnswer::Ask,
            (None, _) if state.held_open.is_some() => FastAnswer::Open(state.held_open.unwrap_or(now)),
            (None, Phase::Closed) if !last_known.snapshot.ramping => FastAnswer::Closed,
            (None, Phase::Open) => FastAnswer::Open(last_known.until),
            _ => FastAnswer::Ask,
        };
        self.fast_path.publish(last_known.snapshot.epoch, shown);
    }

    pub(super) fn emit(&self, change: Transition) {
        self.store.observers.emit(&self.key, EventKind::Transition(change));
    }
}

/// The highest epoch that a push may name: an epoch that grows from here is still exact in a script.
const MAX_EPOCH: u64 = 1 << 52;
/// How far a pushed epoch may be ahead of the last known one.
const MAX_EPOCHS_AHEAD: u64 = 1_000;

/// How far a pushed sequence may be ahead of the server's clock and of the last known sequence: a day in microseconds.
const MAX_SEQUENCE_AHEAD: u64 = 86_400_000_000;

/// A channel has no owner, so a message may be forged: an epoch that no breaker reaches would be restored, and found
/// implausible, for ever.
fn is_credible(snapshot: &Snapshot, last_known: Option<&Snapshot>) -> bool {
    let ahead = last_known.map_or(0, |last_known| snapshot.epoch.saturating_sub(last_known.epoch));
    snapshot.epoch <= MAX_EPOCH && ahead <= MAX_EPOCHS_AHEAD
}

/// A push may be older than a reply, and a reply older than a push. After the server's clock stepped back, a reply
/// still counts as current.
fn is_stale(snapshot: &Snapshot, last_known: &Snapshot, provenance: Provenance) -> bool {
    let behind = last_known.at.saturating_sub(snapshot.at);
    let stepped_back = behind > MAX_BACKSTEP.as_micros() as u64 && provenance != Provenance::Push;
    behind > 0 && !stepped_back || provenance == Provenance::Push && snapshot.epoch < last_known.epoch
}
