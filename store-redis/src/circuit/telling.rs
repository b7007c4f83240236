//! What a replica owes Redis about a circuit, and how it is told: probes first, then outcomes in the order they
//! came, then whoever asks.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use phalanx_core::breaker::Override;
use phalanx_core::breaker::Successes;
use phalanx_core::clock::Time;
use phalanx_core::event::EventKind;
use phalanx_lua as lua;

use super::owed::Run;
use super::view::{Report, forced_number, phase_number};
use super::{Inner, Shared, Together, Wish, Word};
use crate::invocation::{Invocation, integers};
use crate::lane::{Manifest, Passenger, Replied};

impl Shared {
    /// Adds successes that were summed at the front.
    pub(super) fn note_successes(&self, inner: &mut Inner, successes: Successes) {
        let Some(known) = &inner.known else { return };
        let epoch = known.view.epoch;
        if successes.belong_to(epoch) {
            let (count, slice) = (successes.count, successes.slice);
            inner.owed.runs.push(Run::successes(epoch, count, slice));
        }
    }

    /// Takes everything from the front, so that it comes before what happens next.
    pub(super) fn gather(&self, inner: &mut Inner, now: Time) {
        for successes in self.front.drain(now) {
            self.note_successes(inner, successes);
        }
    }

    /// Asks for a seat on the next flight, unless it has one.
    pub(super) fn call_out(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::AcqRel) {
            self.fleet.lane(self.place.slot).call_out(self.clone());
        }
    }

    /// The regular round: tells what is owed, and asks how it stands if anybody used it since the last time.
    pub(crate) fn tick(self: &Arc<Self>, whoever: bool) {
        let used = self.used.swap(false, Ordering::Relaxed);
        let now = self.fleet.clock.now();
        let mut inner = self.inner.lock();
        self.retire_twin(&mut inner, now);
        self.gather(&mut inner, now);
        inner.owed.poll |= used || whoever;
        let nothing = inner.owed.is_nothing();
        drop(inner);
        if !nothing && !self.is_away() {
            self.call_out();
        }
    }

    /// Whether there is anything Redis has not been told.
    pub(crate) fn owes(&self) -> bool {
        let mut inner = self.inner.lock();
        self.gather(&mut inner, self.fleet.clock.now());
        !inner.owed.is_nothing()
    }

    /// The arguments that all scripts of a circuit begin with.
    pub(super) fn put_common(&self, call: &mut Invocation, inner: &Inner) {
        let now = self.fleet.clock.now();
        let claim = match &inner.known {
            None => "0 1 0 0 0".to_owned(),
            Some(known) => format!(
                "{} {} {} {} {}",
                known.view.epoch,
                phase_number(known.view.phase),
                known.until.since(now).as_micros(),
                known.view.escalation,
                forced_number(known.view.overridden),
            ),
        };
        call.arg(&inner.spec_text).arg(claim).arg(&self.fleet.channel).arg(&self.signed).arg(self.fleet.rng.unit());
    }

    fn board_settled(self: &Arc<Self>, manifest: &mut Manifest, inner: &mut Inner) {
        let settled = std::mem::take(&mut inner.owed.settled);
        let mut call = self.fleet.call(&lua::BREAKER_SETTLE, &[&self.place]);
        self.put_common(&mut call, inner);
        call.arg(settled.len());
        for one in settled {
            call.arg(one.epoch).arg(one.lease).arg(one.kind());
        }
        self.board_call(manifest, inner, call);
    }

    fn board_runs(self: &Arc<Self>, manifest: &mut Manifest, inner: &mut Inner) {
        let (now, slice_micros) = (self.fleet.clock.now(), self.front.slice_micros());
        let runs = inner.owed.runs.take();
        let mut call = self.fleet.call(&lua::BREAKER_SYNC, &[&self.place]);
        self.put_common(&mut call, inner);
        call.arg(runs.len());
        for run in &runs {
            call.arg(run.epoch).arg(run.kind()).arg(run.count).arg(run.age(now, slice_micros));
        }
        inner.flying += 1;
        let shared = self.clone();
        manifest.add(call, move |reply| {
            if shared.hear(reply).is_none() {
                shared.count_alone(&runs);
            }
            shared.landed();
        });
    }

    fn board_word(self: &Arc<Self>, manifest: &mut Manifest, inner: &mut Inner, overridden: Option<Override>) {
        let mut call = self.fleet.call(&lua::BREAKER_FORCE, &[&self.place]);
        self.put_common(&mut call, inner);
        call.arg(forced_number(overridden));
        self.board_call(manifest, inner, call);
    }

    fn board_call(self: &Arc<Self>, manifest: &mut Manifest, inner: &mut Inner, call: Invocation) {
        inner.flying += 1;
        let shared = self.clone();
        manifest.add(call, move |reply| {
            shared.hear(reply);
            shared.landed();
        });
    }

    fn board_callers(self: &Arc<Self>, manifest: &mut Manifest, inner: &mut Inner, batch: Arc<Together>) {
        let wishes = batch.board();
        let callers = wishes.iter().filter(|wish| **wish == Wish::Pass).count();
        if callers == 0 {
            return; // nobody is left to be answered, and a probe must not be leased for nobody
        }
        inner.flying += 1;
        let mut call = self.fleet.call(&lua::BREAKER_ADMIT, &[&self.place]);
        self.put_common(&mut call, inner);
        call.arg(callers).arg(self.fleet.owner);
        let steps = inner.spec.ramp.map_or(0, |ramp| u64::from(ramp.steps));
        manifest.waiting_since(batch.opened);
        let shared = self.clone();
        manifest.add(call, move |reply| {
            shared.answer(&batch, &wishes, steps, reply);
            shared.landed();
        });
    }

    /// Reads a reply that answers nobody.
    fn hear(&self, reply: Replied) -> Option<Report> {
        let report = Report::read(&integers(&reply.ok()?))?;
        self.learn(report.view, &report.transitions, Word::Reply);
        self.note_oddities(&report);
        Some(report)
    }

    pub(super) fn note_oddities(&self, report: &Report) {
        if report.repaired {
            self.fleet.observers.emit(&self.key, EventKind::StateRepaired);
        }
        if report.mixed {
            self.fleet.tell_mismatch(&self.key);
        }
    }

    /// One call is over; whoever waited meanwhile goes next.
    fn landed(self: &Arc<Self>) {
        let more = {
            let mut inner = self.inner.lock();
            inner.flying = inner.flying.saturating_sub(1);
            let urgent = !inner.batches.is_empty() || !inner.owed.settled.is_empty();
            inner.flying == 0 && (urgent || inner.owed.runs.any_bad_news())
        };
        if more {
            self.call_out();
        }
    }
}

impl Passenger for Shared {
    fn board(self: Arc<Self>, manifest: &mut Manifest) {
        self.queued.store(false, Ordering::Release);
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        if inner.flying > 0 {
            return; // the one that lands calls out again
        }
        self.gather(inner, self.fleet.clock.now());
        let batches = inner.batches.take();
        if let Some(word) = inner.owed.word.take() {
            self.board_word(manifest, inner, word);
        }
        if !inner.owed.settled.is_empty() {
            self.board_settled(manifest, inner);
        }
        if !inner.owed.runs.is_empty() || inner.owed.poll {
            inner.owed.poll = false;
            self.board_runs(manifest, inner);
        }
        for batch in batches {
            self.board_callers(manifest, inner, batch);
        }
    }
}
