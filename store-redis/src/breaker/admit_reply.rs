//! Reply decoding for `breaker_admit.lua`: turns one reply into the admission of each caller in the batch.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use phalanx_core::breaker::{Admission, Override, Phase, Ticket};
use phalanx_core::clock::Time;
use phalanx_core::rejection::{RejectionCode, Source};
use phalanx_core::store::AdmitReply;

use super::codec::{BreakerReply, exact};
use super::quota::{LocalRamp, quota_known_until, share_admits};
use super::{AdmitBatch, AdmitOutcome, Provenance, Request, Shared};
use crate::batch::Coalesce;
use crate::dispatcher::ScriptResult;

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
