//! A circuit alone: what decides while Redis is away.
//!
//! The twin goes on from the phase last heard of; its window starts empty. Its tickets carry a mark, so that they count
//! for nothing in the fleet's epochs. What it learned is not told to the fleet afterwards; only if it is open when
//! Redis is back does this replica go on rejecting, until its own break is over.

use std::sync::Arc;

use phalanx_core::breaker::{Admission, Breaker, BreakerView, Override, Phase, Sample, Ticket, Transition};
use phalanx_core::clock::Time;
use phalanx_core::rejection::{RejectionCode, Source};
use phalanx_core::store::AdmitReply;
use phalanx_store_memory::BreakerCell;

use super::owed::Run;
use super::{Held, Inner, Shared};

/// The mark of a twin's ticket: an epoch that no circuit reaches.
const TWIN: u64 = 1 << 61;

/// Outcomes that one lost run tells a twin at most.
const MOST_SAMPLES: u64 = 1_000;

pub(super) const fn is_twins(ticket: Ticket) -> bool {
    ticket.epoch & TWIN != 0
}

const fn marked(admission: Admission) -> Admission {
    match admission {
        Admission::Admitted(ticket) => Admission::Admitted(Ticket { epoch: ticket.epoch | TWIN, ..ticket }),
        rejected @ Admission::Rejected { .. } => rejected,
    }
}

impl Shared {
    /// The twin of the present outage, made from what was last heard.
    pub(super) fn twin(&self, inner: &mut Inner, now: Time) -> Arc<BreakerCell> {
        let outage = self.fleet.lane(self.place.slot).latch.falls();
        if let Some((made_in, twin)) = &inner.twin
            && *made_in == outage
        {
            return twin.clone();
        }
        let machine = restored(inner, now);
        let twin = Arc::new(BreakerCell::over(self.fleet.clock.clone(), &inner.spec, self.fleet.rng.fork(), machine));
        inner.twin = Some((outage, twin.clone()));
        twin
    }

    /// Decides without Redis: by the twin while it is away, and by what was last heard if only one answer is late.
    pub(super) fn admit_alone(&self, now: Time) -> (AdmitReply, Option<Transition>) {
        self.fleet.lane(self.place.slot).latch.degraded_decisions();
        if !self.is_away() {
            return (self.admit_as_last_heard(now), None);
        }
        let twin = self.twin(&mut self.inner.lock(), now);
        let (answer, change) = twin.admit_now(now).map_or_else(|| twin.admit(now), |answer| (answer, None));
        let source = if answer.source == Source::Local { Source::Degraded } else { answer.source };
        (AdmitReply { admission: marked(answer.admission), source }, change)
    }

    /// A closed circuit admits; whatever would take a lease, and nobody can give one, rejects: probes are the whole
    /// fleet's.
    fn admit_as_last_heard(&self, now: Time) -> AdmitReply {
        let known = self.inner.lock().known;
        let epoch = known.map_or(0, |known| known.view.epoch);
        let admission = match known {
            Some(known) if known.view.phase == Phase::Open && now < known.until => {
                Admission::Rejected { code: RejectionCode::CircuitOpen, until: known.until }
            }
            Some(known) if known.view.phase != Phase::Closed => {
                Admission::Rejected { code: RejectionCode::ProbeQuota, until: Time::NEVER }
            }
            _ => Admission::Admitted(Ticket { epoch, lease: None }),
        };
        AdmitReply { admission, source: Source::Degraded }
    }

    pub(super) fn record_by_twin(
        &self,
        mut inner: Held<'_>,
        now: Time,
        ticket: Ticket,
        sample: Sample,
    ) -> Option<Transition> {
        let twin = if self.is_away() { self.twin(&mut inner, now) } else { inner.twin.as_ref()?.1.clone() };
        drop(inner);
        // A probe leased by Redis is none of the twin's.
        let own = Ticket { epoch: ticket.epoch & !TWIN, ..ticket };
        let leased_elsewhere = !is_twins(ticket) && ticket.lease.is_some();
        if leased_elsewhere { None } else { twin.record(now, own, sample) }
    }

    /// Outcomes that could not be told: if Redis is away, the twin hears of them.
    pub(super) fn count_alone(&self, runs: &[Run]) {
        if !self.is_away() {
            return;
        }
        let now = self.fleet.clock.now();
        let (twin, slow) = {
            let mut inner = self.inner.lock();
            (self.twin(&mut inner, now), inner.spec.slow_call_threshold.unwrap_or_default())
        };
        for (epoch, sample) in runs.iter().flat_map(|run| run.samples(slow, MOST_SAMPLES)) {
            if let Some(change) = twin.record(now, Ticket { epoch, lease: None }, sample) {
                self.emit(change);
            }
        }
    }

    /// An operator's word that Redis cannot hear: it counts here at once, and is told when Redis is back.
    pub(super) fn force_alone(self: &Arc<Self>, overridden: Option<Override>) {
        let now = self.fleet.clock.now();
        let mut inner = self.inner.lock();
        inner.owed.word = Some(overridden);
        if self.is_away() {
            self.twin(&mut inner, now).force(overridden);
        } else if let Some(known) = &mut inner.known {
            known.view.overridden = overridden;
            self.show(&mut inner, now);
        }
    }

    pub(super) fn reset_alone(&self, now: Time) -> Option<Transition> {
        let mut inner = self.inner.lock();
        if self.is_away() { self.twin(&mut inner, now).reset(now) } else { None }
    }

    pub(super) fn inspect_alone(&self, now: Time) -> BreakerView {
        let mut inner = self.inner.lock();
        let machine =
            if self.is_away() { return self.twin(&mut inner, now).inspect(now) } else { restored(&inner, now) };
        BreakerCell::over(self.fleet.clock.clone(), &inner.spec, self.fleet.rng.fork(), machine).inspect(now)
    }

    /// Redis went away: nobody is answered from what was last heard any more.
    pub(crate) fn go_alone(&self) {
        let now = self.fleet.clock.now();
        let mut inner = self.inner.lock();
        self.gather(&mut inner, now);
        self.show(&mut inner, now);
    }

    /// Nobody listens for changes any more: whoever calls next has to ask.
    pub(crate) fn trust_nothing(&self) {
        let inner = self.inner.lock();
        self.front.publish(inner.known.map_or(0, |known| known.view.epoch), phalanx_core::breaker::FastAnswer::Ask);
    }

    /// The outage is over. If the twin is open, this replica goes on rejecting until that break is over.
    pub(super) fn retire_twin(&self, inner: &mut Inner, now: Time) {
        if self.is_away() {
            return;
        }
        if let Some((_, twin)) = inner.twin.take() {
            let left = twin.inspect(now).break_left.unwrap_or_default();
            inner.held_open = (!left.is_zero()).then(|| now.after(left));
        }
    }

    /// Redis is back and decides again. An open twin keeps this replica from calling until its break is over.
    pub(crate) fn come_back(self: &Arc<Self>) {
        let now = self.fleet.clock.now();
        let mut inner = self.inner.lock();
        self.retire_twin(&mut inner, now);
        self.show(&mut inner, now);
        drop(inner);
        self.tick(true);
    }
}

/// A machine that goes on from what was last heard.
fn restored(inner: &Inner, now: Time) -> Breaker {
    match &inner.known {
        None => Breaker::new(now, &inner.spec),
        Some(known) => {
            let (view, left) = (&known.view, known.until.since(now));
            Breaker::restore(now, &inner.spec, view.epoch, view.phase, left, view.escalation, view.overridden)
        }
    }
}
