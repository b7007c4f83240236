//! What operators ask of a circuit: each a call of its own, on the whole fleet's circuit. If Redis does not hear it, the
//! twin does.

use std::sync::Arc;

use phalanx_core::breaker::{BreakerView, Override, Phase, Transition};
use phalanx_core::clock::Time;
use phalanx_lua as lua;

use super::view::{Report, forced_number};
use super::{Circuit, Shared, Word};
use crate::invocation::{Invocation, integers};

impl Circuit {
    /// Puts an operator's word above the phase of the whole fleet's circuit, or takes it away.
    pub async fn force(&self, overridden: Option<Override>) {
        let call = self.0.operation(&lua::BREAKER_FORCE, |call| {
            call.arg(forced_number(overridden));
        });
        if self.0.operate(call, Word::Reply).await.is_none() {
            self.0.force_alone(overridden);
        }
    }

    /// Back to a closed circuit that has seen nothing.
    pub async fn reset(&self, now: Time) -> Option<Transition> {
        let call = self.0.operation(&lua::BREAKER_RESET, |_| {});
        self.0.inner.lock().held_open = None;
        let Some(report) = self.0.operate(call, Word::Told).await else { return self.0.reset_alone(now) };
        report.transitions.last().copied()
    }

    /// What can be seen from outside.
    pub async fn inspect(&self, now: Time) -> BreakerView {
        let call = self.0.operation(&lua::BREAKER_INSPECT, |_| {});
        let report = self.0.operate(call, Word::Reply).await;
        report.as_ref().and_then(looked_at).unwrap_or_else(|| self.0.inspect_alone(now))
    }
}

impl Shared {
    /// An operator's call, asked alone.
    fn operation(&self, script: &'static lua::Script, args: impl FnOnce(&mut Invocation)) -> Invocation {
        let mut call = self.fleet.call(script, &[&self.place]);
        let inner = self.inner.lock();
        self.put_common(&mut call, &inner);
        drop(inner);
        args(&mut call);
        call
    }

    async fn operate(self: &Arc<Self>, call: Invocation, word: Word) -> Option<Report> {
        self.fleet.keep();
        let reply = self.fleet.lane(self.place.slot).ask(call).await.ok()?;
        let report = Report::read(&integers(&reply))?;
        self.learn(report.view, &report.transitions, word);
        Some(report)
    }
}

fn looked_at(report: &Report) -> Option<BreakerView> {
    let [calls, failures, slow, streak, probes, ..] = report.tail[..] else { return None };
    let count = |n: i64| u64::try_from(n).ok();
    let view = report.view;
    Some(BreakerView {
        phase: view.phase,
        overridden: view.overridden,
        epoch: view.epoch,
        calls: count(calls)?,
        failures: count(failures)?,
        slow: count(slow)?,
        streak: u32::try_from(streak).ok()?,
        probes: u32::try_from(probes).ok()?,
        break_left: (view.phase == Phase::Open).then_some(view.left),
        ramping: view.ramping,
    })
}
