//! What a replica owes Redis about a circuit, and how it is told: trial calls first, then outcomes in the order they
//! came, then whoever asks.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use phalanx_core::breaker::{Admission, Forced, Sample, Ticket};
use phalanx_core::clock::Time;
use phalanx_core::event::What;
use phalanx_core::kind::Outcome;
use phalanx_core::rejection::{Code, Source};
use phalanx_core::store::Answer;
use phalanx_lua as lua;
use phalanx_store_memory::Successes;

use super::view::{Report, forced_number, phase_number};
use super::{Given, Inner, Shared, Together, Wish, Word};
use crate::batch::Desk;
use crate::invocation::{Invocation, integers};
use crate::lane::{Manifest, Passenger, Replied};

/// Runs told in one script; more wait for the next flight.
const RUNS: usize = 128;
/// Runs kept at most: beyond that outcomes are no longer told one by one but thrown together.
const MOST_RUNS: usize = 1_024;

/// What Redis has not been told yet.
#[derive(Debug, Default)]
pub(super) struct Owed {
    pub(super) runs: Runs,
    pub(super) settled: Vec<Settled>,
    /// An operator's word that could not be told.
    pub(super) word: Option<Option<Forced>>,
    /// How the circuit stands is to be asked, even if there is nothing to tell.
    pub(super) poll: bool,
}

impl Owed {
    pub(super) const fn is_nothing(&self) -> bool {
        self.runs.0.is_empty() && self.settled.is_empty() && self.word.is_none() && !self.poll
    }
}

/// Outcomes in a row that count alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    epoch: u64,
    kind: Told,
    count: u64,
    /// The slice of the window they fell into, on this replica's clock.
    slice: u64,
}

/// What the scripts call an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Told {
    Success = 0,
    SlowSuccess = 1,
    Failure = 2,
    SlowFailure = 3,
    QuantileWithin = 4,
    QuantileOver = 5,
    Nothing = 6,
}

impl Told {
    const fn of(outcome: Outcome, slow: bool) -> Self {
        match (outcome, slow) {
            (Outcome::Success, false) => Self::Success,
            (Outcome::Success, true) => Self::SlowSuccess,
            (Outcome::Failure, false) => Self::Failure,
            (Outcome::Failure, true) => Self::SlowFailure,
            (Outcome::Neutral | Outcome::Cancelled, _) => Self::Nothing,
        }
    }

    const fn is_bad_news(self) -> bool {
        matches!(self, Self::SlowSuccess | Self::Failure | Self::SlowFailure)
    }

    const fn is_slow(self) -> bool {
        matches!(self, Self::SlowSuccess | Self::SlowFailure)
    }

    const fn outcome(self) -> Option<Outcome> {
        match self {
            Self::Success | Self::SlowSuccess => Some(Outcome::Success),
            Self::Failure | Self::SlowFailure => Some(Outcome::Failure),
            Self::QuantileWithin | Self::QuantileOver | Self::Nothing => None,
        }
    }
}

impl Run {
    pub(super) const fn outcome(epoch: u64, outcome: Outcome, slow: bool, slice: u64) -> Option<Self> {
        match Told::of(outcome, slow) {
            Told::Nothing => None,
            kind => Some(Self { epoch, kind, count: 1, slice }),
        }
    }

    pub(super) const fn quantile(over: bool) -> Self {
        let kind = if over { Told::QuantileOver } else { Told::QuantileWithin };
        Self { epoch: 0, kind, count: 0, slice: 0 }
    }

    /// The outcomes one by one, as samples of an epoch, at most so many.
    pub(super) fn samples(&self, slow: Duration, most: u64) -> impl Iterator<Item = (u64, Sample)> {
        let latency = if self.kind.is_slow() { slow } else { Duration::ZERO };
        let (epoch, count) = (self.epoch, self.count.min(most));
        self.kind
            .outcome()
            .into_iter()
            .flat_map(move |outcome| (0..count).map(move |_| (epoch, Sample { outcome, latency })))
    }

    /// Microseconds since it happened, as far as that matters: none within the present slice, and in an older one since
    /// that slice ended.
    const fn age(&self, now: Time, slice_micros: u64) -> u64 {
        let end = self.slice.saturating_add(1).saturating_mul(slice_micros);
        (now.as_micros() + 1).saturating_sub(end)
    }
}

/// Runs in the order they happened.
#[derive(Debug, Default)]
pub(super) struct Runs(Vec<Run>);

impl Runs {
    /// Adds a run. Whether it is bad news, which cannot wait.
    pub(super) fn push(&mut self, run: Run) -> bool {
        let full = self.0.len() >= MOST_RUNS;
        let alike = |last: &Run| last.epoch == run.epoch && last.kind == run.kind && (last.slice == run.slice || full);
        let place = if full { self.0.iter_mut().rev().find(|last| alike(last)) } else { self.0.last_mut() };
        match place.filter(|last| alike(last)) {
            Some(last) => last.count = last.count.saturating_add(run.count),
            None if full => {}
            None => self.0.push(run),
        }
        run.kind.is_bad_news()
    }

    fn take(&mut self) -> Vec<Run> {
        let rest = self.0.split_off(self.0.len().min(RUNS));
        std::mem::replace(&mut self.0, rest)
    }
}

/// What became of a trial call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Settled {
    epoch: u64,
    lease: u64,
    kind: Told,
}

impl Settled {
    pub(super) const fn new(epoch: u64, lease: u64, outcome: Outcome, slow: bool) -> Self {
        Self { epoch, lease, kind: Told::of(outcome, slow) }
    }

    pub(super) const fn unused(epoch: u64, lease: u64) -> Self {
        Self { epoch, lease, kind: Told::Nothing }
    }
}

impl Shared {
    /// Adds successes that were summed at the front.
    pub(super) fn note_successes(&self, inner: &mut Inner, successes: Successes) {
        let Some(known) = &inner.known else { return };
        let epoch = known.view.epoch;
        if successes.belong_to(epoch) {
            let (count, slice) = (successes.count, successes.slice);
            inner.owed.runs.push(Run { epoch, kind: Told::Success, count, slice });
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
        let mut inner = self.inner.lock();
        self.gather(&mut inner, self.fleet.clock.now());
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
                forced_number(known.view.forced),
            ),
        };
        call.arg(&inner.spec_text).arg(claim).arg(&self.fleet.channel).arg(&self.place.id).arg(self.fleet.rng.unit());
    }

    fn board_settled(self: &Arc<Self>, manifest: &mut Manifest, inner: &mut Inner) {
        let settled = std::mem::take(&mut inner.owed.settled);
        let mut call = self.fleet.call(&lua::BREAKER_SETTLE, &[&self.place]);
        self.put_common(&mut call, inner);
        call.arg(settled.len());
        for one in settled {
            call.arg(one.epoch).arg(one.lease).arg(one.kind as u8);
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
            call.arg(run.epoch).arg(run.kind as u8).arg(run.count).arg(run.age(now, slice_micros));
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

    fn board_word(self: &Arc<Self>, manifest: &mut Manifest, inner: &mut Inner, forced: Option<Forced>) {
        let mut call = self.fleet.call(&lua::BREAKER_FORCE, &[&self.place]);
        self.put_common(&mut call, inner);
        call.arg(forced_number(forced));
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
            return; // nobody is left to be answered, and a trial call must not be leased for nobody
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

    fn note_oddities(&self, report: &Report) {
        if report.repaired {
            self.fleet.observers.tell(&self.key, What::StateRepaired);
        }
        if report.mixed {
            self.fleet.tell_mismatch(&self.key);
        }
    }

    fn answer(self: &Arc<Self>, batch: &Together, wishes: &[Wish], steps: u64, reply: Replied) {
        let report = reply.ok().and_then(|value| Report::read(&integers(&value)));
        let answers = match &report {
            None => vec![None; wishes.len()], // the twin decides
            Some(report) => self.answers(report, wishes, steps),
        };
        if let Some(report) = &report {
            // The change is the first caller's to tell.
            self.learn(report.view, &[], Word::Told);
            self.note_oddities(report);
        }
        for orphan in batch.answer(answers) {
            self.give_back(orphan);
        }
    }

    /// What the script's word means for each caller.
    fn answers(&self, report: &Report, wishes: &[Wish], steps: u64) -> Vec<Option<Given>> {
        let now = self.fleet.clock.now();
        let mut change = report.transitions.last().copied();
        let mut asked = 0;
        let answer = |wish: &Wish| {
            if *wish == Wish::Gone {
                return None;
            }
            asked += 1;
            Some((self.one_answer(report, asked, steps, now)?, change.take()))
        };
        wishes.iter().map(answer).collect()
    }

    /// The answer to the `n`-th caller, from 1.
    fn one_answer(&self, report: &Report, n: u64, steps: u64, now: Time) -> Option<Answer> {
        let [mode, a, b, ..] = report.tail[..] else { return None };
        let (a, b) = (u64::try_from(a).ok()?, u64::try_from(b).ok()?);
        let view = &report.view;
        let passes = |lease| Admission::Admitted(Ticket { epoch: view.epoch, lease });
        let refused = |code, until| Admission::Refused { code, until };
        let quota = refused(Code::ProbeQuota, Time::NEVER);
        let passed = |calls: u64| calls * (a + 1) / (steps + 1);
        let admission = match (mode, a) {
            (0, _) => passes(None),
            (1, 1) => refused(Code::CircuitOpen, now.after(view.left)),
            (1, 3) => refused(Code::ForcedOpen, Time::NEVER),
            (2, _) if n <= b => passes(Some(a + n - 1)),
            (3, _) if passed(b + n) > passed(b + n - 1) => passes(None),
            _ => quota,
        };
        let (admission, source) = match (view.forced, admission) {
            (None, decided) => (decided, Source::Fleet),
            // Reports and decides nothing.
            (Some(Forced::MetricsOnly), Admission::Refused { .. }) => (passes(None), Source::Shadow),
            (Some(Forced::MetricsOnly), decided) => (decided, Source::Shadow),
            (Some(_), decided) => (decided, Source::Forced),
        };
        Some(Answer { admission, source })
    }

    /// One call is over; whoever waited meanwhile goes next.
    fn landed(self: &Arc<Self>) {
        let more = {
            let mut inner = self.inner.lock();
            inner.flying = inner.flying.saturating_sub(1);
            let urgent = !inner.batches.is_empty() || !inner.owed.settled.is_empty();
            inner.flying == 0 && (urgent || inner.owed.runs.0.iter().any(|run| run.kind.is_bad_news()))
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
        let batches = std::mem::take(&mut inner.batches);
        if let Some(word) = inner.owed.word.take() {
            self.board_word(manifest, inner, word);
        }
        if !inner.owed.settled.is_empty() {
            self.board_settled(manifest, inner);
        }
        if !inner.owed.runs.0.is_empty() || inner.owed.poll {
            inner.owed.poll = false;
            self.board_runs(manifest, inner);
        }
        for batch in batches {
            self.board_callers(manifest, inner, batch);
        }
    }
}
