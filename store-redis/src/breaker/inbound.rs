//! Inbound state of a breaker: applies snapshots from replies and pushes, and updates the fast path. And reply decoding for
//! `breaker_admit.lua`: turns one reply into the admission of each caller in the batch.
//!
//! What a reply has told is used for a moment, because asking Redis again would tell nothing new. A half-open breaker that
//! has leased all its probes rejects until a lease can have ended; a breaker that ramps up admits its share by the step that
//! Redis has replied. Another epoch ends both, a reply that shows a free probe the former, and any reply the latter.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use phalanx_core::breaker::{Admission, FastAnswer, Override, Phase, Seen, Ticket, Transition};
use phalanx_core::clock::Time;
use phalanx_core::event::EventKind;
use phalanx_core::rate_limit::MAX_BACKSTEP;
use phalanx_core::rejection::{RejectionCode, Source};
use phalanx_core::rng::Rng;
use phalanx_core::store::AdmitReply;

use super::codec::{BreakerReply, Snapshot, exact};
use super::overrides::{KnownOverride, OverrideEntry, PUT_BACK_WITHIN};
use super::{AdmitBatch, AdmitOutcome, LastKnown, Request, Shared, State};
use crate::batch::Coalesce;
use crate::dispatcher::ScriptResult;

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
            let another_epoch = before.is_none_or(|before| before.epoch != snapshot.epoch);
            state.ask_again(another_epoch);
            if another_epoch {
                // The fleet has decided for all.
                state.own_window.clear();
                self.close_alone(&mut state, now);
            }
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
            (None, Phase::Closed) if state.own_circuit.is_some() => FastAnswer::Ask,
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

/// A push may be older than a reply, and a reply older than a push. A newer epoch is never stale, whatever the server's clock
/// says: it may have stepped back while nothing was asked. After it stepped back far, a reply still counts as current.
fn is_stale(snapshot: &Snapshot, last_known: &Snapshot, provenance: Provenance) -> bool {
    if snapshot.epoch > last_known.epoch {
        return false;
    }
    let behind = last_known.at.saturating_sub(snapshot.at);
    let stepped_back = behind > MAX_BACKSTEP.as_micros() as u64 && provenance != Provenance::Push;
    // Two scripts of one microsecond are ordered by what they have seen.
    let earlier_epoch = snapshot.epoch < last_known.epoch && snapshot.at == last_known.at;
    behind > 0 && !stepped_back || earlier_epoch || provenance == Provenance::Push && snapshot.epoch < last_known.epoch
}

impl Shared {
    /// Completes the batch with one outcome for each caller. Returns whether there was no reply.
    pub(super) fn complete_batch(
        self: &Arc<Self>,
        batch: &AdmitBatch,
        requests: &[Request],
        steps: u64,
        reply: &ScriptResult,
    ) -> bool {
        let reply = reply.as_ref().ok().and_then(BreakerReply::of);
        let outcomes = match &reply {
            None => vec![None; requests.len()], // each caller falls back to `admit_degraded`
            Some(reply) => self.outcomes(reply, requests, steps),
        };
        if let Some(reply) = &reply {
            // The first caller emits the transitions.
            self.apply(reply.snapshot, &reply.entry, &reply.transitions, Provenance::CallerReply);
            self.remember_mode(reply, requests);
            self.emit_anomalies(reply);
        }
        for orphan in batch.complete(outcomes) {
            self.reclaim(orphan);
        }
        reply.is_none()
    }

    /// Decides each caller's outcome. The first caller also gets the transition, to emit it.
    fn outcomes(&self, reply: &BreakerReply, requests: &[Request], steps: u64) -> Vec<Option<AdmitOutcome>> {
        let now = self.store.clock.now();
        let mut change = reply.transitions.last().copied();
        let mut asked = 0;
        let overtaken = self.open_since(reply.snapshot.epoch, now);
        let outcome = |request: &Request| {
            if *request == Request::Cancelled {
                return None;
            }
            asked += 1;
            let decided = self.outcome_for(reply, asked, steps, now)?;
            let admitted = matches!(decided.admission, Admission::Admitted(_)) && decided.source == Source::Fleet;
            let decided = match overtaken.filter(|_| admitted) {
                Some(until) => {
                    let rejected = Admission::Rejected { code: RejectionCode::CircuitOpen, until };
                    AdmitReply { admission: rejected, ..decided }
                }
                None => decided,
            };
            Some((decided, change.take()))
        };
        requests.iter().map(outcome).collect()
    }

    /// The end of a break that began after `epoch`: a push has overtaken the reply, whose leases have ended with their
    /// epoch.
    fn open_since(&self, epoch: u64, now: Time) -> Option<Time> {
        let last_known = self.state.lock().last_known?;
        let newer = last_known.snapshot.epoch > epoch && last_known.snapshot.phase == Phase::Open;
        (newer && now < last_known.until).then_some(last_known.until)
    }

    /// Remembers what the reply decides for the calls of the next moment. Its tail is `mode, a, b, c`.
    fn remember_mode(&self, reply: &BreakerReply, requests: &[Request]) {
        let [mode, a, b, ends_in, ..] = reply.tail[..] else { return };
        let (Some(a), Some(b)) = (exact(a), exact(b)) else { return };
        let callers = requests.iter().filter(|request| **request == Request::Admit).count() as u64;
        let (now, epoch) = (self.store.clock.now(), reply.snapshot.epoch);
        let mut state = self.state.lock();
        if state.last_known.is_none_or(|last_known| last_known.snapshot.epoch != epoch) {
            return; // a push was faster
        }
        match mode {
            2 => {
                state.received_leases = (a + b).saturating_sub(1);
                if let Some(ends_in) = exact(ends_in).filter(|_| b < callers) {
                    let replicas = self.store.replicas.load(Ordering::Relaxed).max(1);
                    let half_open = self.store.half_open_breakers.load(Ordering::Relaxed);
                    let ends_in = Duration::from_micros(ends_in);
                    state.no_probe_until = quota_known_until(now, &self.store.rng, ends_in, replicas, half_open);
                }
            }
            3 => state.ramp = Some(LocalRamp::after_reply(epoch, a, b.saturating_add(callers), now)),
            _ => {}
        }
    }

    /// Decides for the `n`-th caller, counted from 1. The tail of the reply is `mode, a, b` (see `breaker_admit.lua`).
    fn outcome_for(&self, reply: &BreakerReply, n: u64, steps: u64, now: Time) -> Option<AdmitReply> {
        let [mode, a, b, ..] = reply.tail[..] else { return None };
        let (a, b) = (exact(a)?, exact(b)?);
        let snapshot = &reply.snapshot;
        let passes = |lease| Admission::Admitted(Ticket { epoch: snapshot.epoch, lease });
        let rejected = |code, until| Admission::Rejected { code, until };
        let quota = rejected(RejectionCode::ProbeQuota, Time::NEVER);
        let admission = match (mode, a) {
            (0, _) => passes(None),
            (1, 1) => rejected(RejectionCode::CircuitOpen, now.after(snapshot.left)),
            (1, 3) => rejected(RejectionCode::ForcedOpen, Time::NEVER),
            (2, _) if n <= b => passes(Some(a + n - 1)),
            (3, _) if share_admits(a, steps, b + n) => passes(None),
            _ => quota,
        };
        let (admission, source) = match (snapshot.overridden, admission) {
            (None, decided) => (decided, Source::Fleet),
            // This override reports the decision but never enforces it.
            (Some(Override::MetricsOnly), Admission::Rejected { .. }) => (passes(None), Source::Shadow),
            (Some(Override::MetricsOnly), decided) => (decided, Source::Shadow),
            (Some(_), decided) => (decided, Source::Forced),
        };
        Some(AdmitReply { admission, source })
    }
}

/// How long a rejection for want of a probe is repeated at least; jittered, so that replicas ask apart.
const QUOTA_KNOWN_FOR: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(100));
/// How much longer, for each replica and each half-open breaker of it: this bounds what all of them ask together.
const QUOTA_PACE: Duration = Duration::from_micros(400);
/// How long a step of a ramp is used.
const RAMP_KNOWN_FOR: Duration = Duration::from_millis(50);

/// Returns until when a half-open breaker without a free probe rejects; `ends_in`: when the first lease ends.
pub(super) fn quota_known_until(now: Time, rng: &Rng, ends_in: Duration, replicas: u32, half_open: u32) -> Time {
    let (least, most) = QUOTA_KNOWN_FOR;
    let paced = QUOTA_PACE.saturating_mul(replicas).saturating_mul(half_open);
    now.after(rng.between(least, most).max(paced).min(ends_in))
}

/// A ramp, as far as this replica decides it.
#[derive(Clone, Copy, Debug)]
pub(super) struct LocalRamp {
    pub(super) epoch: u64,
    step: u64,
    /// Calls that asked in this step, of the fleet and then of this replica.
    asked: u64,
    /// Those of them that this replica has decided and not reported.
    decided: u64,
    until: Time,
}

impl LocalRamp {
    /// Continues after the reply of Redis.
    pub(super) fn after_reply(epoch: u64, step: u64, asked: u64, now: Time) -> Self {
        Self { epoch, step, asked, decided: 0, until: now.after(RAMP_KNOWN_FOR) }
    }

    /// The first step, which has the smallest share: for a replica that has not had a reply in this epoch.
    pub(super) const fn first_step(epoch: u64) -> Self {
        Self { epoch, step: 0, asked: 0, decided: 0, until: Time::ZERO }
    }

    pub(super) fn is_known(&self, now: Time) -> bool {
        now < self.until
    }

    /// The next call asks Redis.
    pub(super) const fn expire(&mut self) {
        self.until = Time::ZERO;
    }

    /// Decides the next call of a ramp with this many steps.
    pub(super) fn admits(&mut self, steps: u64) -> bool {
        self.asked += 1;
        self.decided += 1;
        share_admits(self.step, steps, self.asked)
    }

    /// Takes the number of calls that were decided here, and their step.
    pub(super) const fn report(&mut self) -> (u64, u64) {
        let decided = self.decided;
        self.decided = 0;
        (decided, self.step)
    }
}

/// Returns whether a step of a ramp admits its `n`-th call: of the first n calls exactly ⌊n × share⌋ are admitted.
pub(super) fn share_admits(step: u64, steps: u64, n: u64) -> bool {
    let passed = |calls: u64| u128::from(calls) * u128::from(step + 1) / u128::from(steps + 1);
    passed(n) > passed(n.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const NOW: Time = Time::from_micros(1_000_000);

    #[test]
    fn a_rejection_is_repeated_for_a_moment_that_grows_with_the_fleet_and_ends_with_a_lease() {
        let rng = Rng::seeded(1);
        let known_for =
            |ends_in, replicas, half_open| quota_known_until(NOW, &rng, ends_in, replicas, half_open).since(NOW);
        assert!((50 * MS..=100 * MS).contains(&known_for(3_600_000 * MS, 1, 1)));
        assert_eq!(known_for(3_600_000 * MS, 100, 50), 2_000 * MS);
        assert_eq!(known_for(7 * MS, 100, 50), 7 * MS);
        assert_eq!(known_for(3_600_000 * MS, u32::MAX, u32::MAX), 3_600_000 * MS);
    }

    #[test]
    fn a_ramp_continues_where_the_fleet_is_and_reports_what_it_decided() {
        let mut ramp = LocalRamp::after_reply(4, 1, 3, NOW);
        let admitted = (0..5).filter(|_| ramp.admits(4)).count();
        assert_eq!(admitted, 2, "the 4th to the 8th call of a step that admits two of five");
        assert_eq!((ramp.report(), ramp.report()), ((5, 1), (0, 1)));
        assert!(ramp.is_known(NOW) && !ramp.is_known(NOW.after(50 * MS)));
    }
}
