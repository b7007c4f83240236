//! Administrative operations on the fleet's breaker: override, reset, inspect. Each is a call of its own; if Redis is
//! unreachable, it applies to the twin.

use std::sync::Arc;

use phalanx_core::breaker::{BreakerView, Override, OverrideRequest, Phase, Transition};
use phalanx_core::clock::Time;
use phalanx_lua as lua;

use super::codec::BreakerReply;
use super::entry::{NO_ENTRY, OverrideEntry};
use super::{Provenance, Shared, SharedBreaker};
use crate::invocation::Invocation;

impl SharedBreaker {
    /// Sets the override of the fleet's breaker, or releases it.
    pub async fn force(&self, overridden: Option<Override>) {
        self.force_with(&OverrideRequest::new(overridden)).await;
    }

    /// Sets the override of the fleet's breaker, or releases it, with an author, a reason and an end. If Redis does not
    /// answer, this replica sends it until Redis holds it, or a newer one.
    pub async fn force_with(&self, request: &OverrideRequest) {
        let shared = &self.0;
        let now = shared.store.clock.now();
        let server_time = shared.store.server_time(now);
        let known = shared.state.lock().claimed_override(now).map_or(0, |known| known.sequence);
        let sequence = (known + 1).max(server_time.unwrap_or(0));
        let entry = OverrideEntry::of(request, shared.store.owner, sequence, now);
        let call = shared.operation(&lua::BREAKER_FORCE, true, |call| {
            call.arg(entry.text(now)).arg(1);
        });
        if shared.operate(call, Provenance::Reply).await.is_none() {
            shared.force_degraded(entry, server_time.is_none());
        }
    }

    /// Closes the breaker and clears its counts. Returns the transition, if the phase changed.
    pub async fn reset(&self, now: Time) -> Option<Transition> {
        let call = self.0.operation(&lua::BREAKER_RESET, true, |_| {});
        self.0.state.lock().held_open = None;
        let Some(reply) = self.0.operate(call, Provenance::CallerReply).await else {
            return self.0.reset_degraded(now);
        };
        reply.transitions.last().copied()
    }

    /// Returns the phase, the override and the counts of the window.
    pub async fn inspect(&self, now: Time) -> BreakerView {
        // Without a claim of the override: the script writes nothing, so its reply must not confirm one.
        let call = self.0.operation(&lua::BREAKER_INSPECT, false, |_| {});
        let reply = self.0.operate(call, Provenance::Reply).await;
        reply.as_ref().and_then(breaker_view).unwrap_or_else(|| self.0.inspect_degraded(now))
    }
}

impl Shared {
    /// Builds a call with the common arguments and `args`.
    fn operation(
        &self,
        script: &'static lua::Script,
        claims_override: bool,
        args: impl FnOnce(&mut Invocation),
    ) -> Invocation {
        let mut call = self.store.invocation(script, &[&self.redis_key]);
        let state = self.state.lock();
        if claims_override {
            self.push_common_args(&mut call, &state);
        } else {
            self.push_args_with_claim(&mut call, &state, NO_ENTRY);
        }
        drop(state);
        args(&mut call);
        call
    }

    async fn operate(self: &Arc<Self>, call: Invocation, provenance: Provenance) -> Option<BreakerReply> {
        self.store.ensure_background();
        let reply = self.store.dispatcher(self.redis_key.slot).call(call).await.ok()?;
        let reply = BreakerReply::of(&reply)?;
        self.apply(reply.snapshot, &reply.entry, &reply.transitions, provenance);
        if let Some(published) = reply.published {
            self.store.push_health.published(&self.store.observers, published);
        }
        Some(reply)
    }
}

fn breaker_view(reply: &BreakerReply) -> Option<BreakerView> {
    let [calls, failures, slow, streak, probes, ..] = reply.tail[..] else { return None };
    let count = |n: i64| u64::try_from(n).ok();
    let snapshot = reply.snapshot;
    Some(BreakerView {
        phase: snapshot.phase,
        overridden: snapshot.overridden,
        epoch: snapshot.epoch,
        calls: count(calls)?,
        failures: count(failures)?,
        slow: count(slow)?,
        streak: u32::try_from(streak).ok()?,
        probes: u32::try_from(probes).ok()?,
        break_left: (snapshot.phase == Phase::Open).then_some(snapshot.left),
        ramping: snapshot.ramping,
    })
}
