//! Administrative operations on the fleet's breaker: override, reset, inspect. Each is a call of its own; if Redis is
//! unreachable, it applies to the twin.

use std::sync::Arc;

use phalanx_core::breaker::{BreakerView, Override, Phase, Transition};
use phalanx_core::clock::Time;
use phalanx_lua as lua;

use super::codec::{BreakerReply, override_number};
use super::{Provenance, Shared, SharedBreaker};
use crate::invocation::{Invocation, integers};

impl SharedBreaker {
    /// Sets the override of the fleet's breaker, or releases it.
    pub async fn force(&self, overridden: Option<Override>) {
        let call = self.0.operation(&lua::BREAKER_FORCE, |call| {
            call.arg(override_number(overridden));
        });
        if self.0.operate(call, Provenance::Reply).await.is_none() {
            self.0.force_degraded(overridden);
        }
    }

    /// Closes the breaker and clears its counts. Returns the transition, if the phase changed.
    pub async fn reset(&self, now: Time) -> Option<Transition> {
        let call = self.0.operation(&lua::BREAKER_RESET, |_| {});
        self.0.state.lock().held_open = None;
        let Some(reply) = self.0.operate(call, Provenance::CallerReply).await else {
            return self.0.reset_degraded(now);
        };
        reply.transitions.last().copied()
    }

    /// Returns the phase, the override and the counts of the window.
    pub async fn inspect(&self, now: Time) -> BreakerView {
        let call = self.0.operation(&lua::BREAKER_INSPECT, |_| {});
        let reply = self.0.operate(call, Provenance::Reply).await;
        reply.as_ref().and_then(breaker_view).unwrap_or_else(|| self.0.inspect_degraded(now))
    }
}

impl Shared {
    /// Builds a call with the common arguments and `args`.
    fn operation(&self, script: &'static lua::Script, args: impl FnOnce(&mut Invocation)) -> Invocation {
        let mut call = self.store.invocation(script, &[&self.redis_key]);
        let state = self.state.lock();
        self.push_common_args(&mut call, &state);
        drop(state);
        args(&mut call);
        call
    }

    async fn operate(self: &Arc<Self>, call: Invocation, provenance: Provenance) -> Option<BreakerReply> {
        self.store.ensure_background();
        let reply = self.store.dispatcher(self.redis_key.slot).call(call).await.ok()?;
        let reply = BreakerReply::decode(&integers(&reply))?;
        self.apply(reply.snapshot, &reply.transitions, provenance);
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
