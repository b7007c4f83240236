//! What came of it: written by the replicas, read by whoever shows it.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use phalanx::describe::{Outcome, Phase, Transition};
use phalanx::{BreakerSpec, Policy, RejectionCode};

use crate::evidence::Evidence;
use crate::moment::{Moment, Turn};
use crate::policy::DEMAND;
use crate::report::{Call, Report, Standing};
use crate::story::{Act, Story};
use crate::tally::Tally;
use crate::timeline::Timeline;

/// The book of the whole fleet.
pub(crate) struct Ledger {
    story: Story,
    policy: Policy,
    /// How much of the past the breaker surely sees: its newest slice, a tenth of the window, is still filling.
    window: Duration,
    pages: Mutex<Pages>,
}

/// What is in the book.
pub(crate) struct Pages {
    pub(crate) tallies: Vec<Tally>,
    pub(crate) moments: Vec<Moment>,
    /// Where the circuit stood from when on.
    pub(crate) turns: Vec<(Duration, Phase)>,
    pub(crate) timeline: Timeline,
    pub(crate) evidence: Evidence,
    /// How each replica last said that things stand.
    pub(crate) standings: Vec<Option<Standing>>,
    /// When each replica was first told that the circuit is open.
    pub(crate) told: Vec<Option<Duration>>,
    /// Rejected by the circuit while the upstream was dead.
    pub(crate) spared: u64,
    /// Sent to the dead upstream by an open or half-open circuit.
    pub(crate) vain_probes: u64,
    /// Attempts that reached the dead upstream.
    pub(crate) into_the_dark: u64,
    /// Attempts inside the breaker's window: when, and whether it failed.
    window: VecDeque<(Duration, bool)>,
    act: Option<Act>,
}

impl Ledger {
    pub(crate) fn new(story: Story, policy: Policy, replicas: usize) -> Self {
        let pages = Pages {
            tallies: vec![Tally::default(); replicas],
            moments: Vec::new(),
            turns: Vec::new(),
            timeline: Timeline::new(story, DEMAND * replicas as f64),
            evidence: Evidence::new(replicas),
            standings: vec![None; replicas],
            told: vec![None; replicas],
            spared: 0,
            vain_probes: 0,
            into_the_dark: 0,
            window: VecDeque::new(),
            act: None,
        };
        let window = policy.breaker.as_ref().map_or(Duration::ZERO, |breaker| breaker.sampling_window * 9 / 10);
        Self { story, policy, window, pages: Mutex::new(pages) }
    }

    pub(crate) const fn story(&self) -> Story {
        self.story
    }

    pub(crate) const fn policy(&self) -> &Policy {
        &self.policy
    }

    pub(crate) fn breaker(&self) -> BreakerSpec {
        self.policy.breaker.clone().unwrap_or_default()
    }

    /// Opens the book. Not to be held across an await.
    pub(crate) fn read(&self) -> MutexGuard<'_, Pages> {
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        pages.turn_to(&self.story);
        pages
    }

    /// An attempt starts at the upstream, maybe the first of its call.
    pub(crate) fn reached(&self, first: bool) {
        let (now, mut pages) = (self.story.now(), self.read());
        pages.into_the_dark += u64::from(self.story.act_at(now) == Act::Failing);
        pages.timeline.reached(now);
        if first {
            pages.evidence.admitted.push(now);
        }
    }

    /// Something was done to the fleet.
    pub(crate) fn turned(&self, kind: Turn) {
        let (at, mut pages) = (self.story.now(), self.read());
        if let Turn::Fault(fault) = kind {
            pages.evidence.faults.push((at, fault));
        }
        pages.moments.push(Moment { at, kind });
    }

    /// A replica's process has ended before its time.
    pub(crate) fn gone(&self, replica: usize) {
        let (at, mut pages) = (self.story.now(), self.read());
        pages.evidence.gone[replica] = Some(at);
        pages.standings[replica] = None;
    }

    /// A replica tells something that happened at this time of the story.
    pub(crate) fn note(&self, replica: usize, at: Duration, report: Report) {
        let mut pages = self.read();
        let turn = match report {
            Report::Finished(call) => return self.finished(&mut pages, replica, at, call),
            Report::Retried => {
                pages.tallies[replica].retries += 1;
                return pages.attempted(at, true);
            }
            Report::Withheld => {
                pages.tallies[replica].withheld += 1;
                return;
            }
            Report::Probed { from, to, alone } => return self.probed(&mut pages, replica, (from, to), alone),
            Report::Rejected(took) => return pages.evidence.rejected(took),
            Report::Changed { change, alone } => return self.changed(&mut pages, replica, at, change, alone),
            Report::Stands(standing) => {
                pages.standings[replica] = Some(standing);
                return pages.agree(at);
            }
            Report::Degraded(reason) => {
                pages.evidence.left_alone(replica, at);
                Turn::Alone { replica, reason }
            }
            Report::Recovered { outage, decided } => {
                pages.evidence.back(replica, at, decided);
                Turn::Back { replica, outage, decided }
            }
            Report::Lost => {
                pages.evidence.losses[replica] += 1;
                Turn::Lost { replica }
            }
            Report::Ended => return,
        };
        pages.moments.push(Moment { at, kind: turn });
    }

    /// A call is over.
    fn finished(&self, pages: &mut Pages, replica: usize, at: Duration, call: Call) {
        pages.tallies[replica].add(at, &call);
        if call.alone {
            pages.evidence.decided_alone(replica, at);
        }
        match (call.reason, call.outcome) {
            (Some(RejectionCode::CircuitOpen | RejectionCode::ProbeQuota), _) => {
                pages.spared += u64::from(self.story.act_at(at) == Act::Failing);
                pages.told[replica].get_or_insert(at);
                if call.reason == Some(RejectionCode::CircuitOpen) && !call.alone {
                    pages.evidence.knows(replica, at);
                }
                pages.timeline.rejected(at);
            }
            (_, None) => pages.timeline.rejected(at),
            (_, Some(outcome)) => pages.attempted(at, outcome == Outcome::Failure),
        }
        pages.forget_before(at.saturating_sub(self.window));
    }

    /// The circuit let a call through on trial.
    fn probed(&self, pages: &mut Pages, replica: usize, span: (Duration, Duration), alone: bool) {
        pages.tallies[replica].probes += 1;
        pages.vain_probes += u64::from(self.story.act_at(span.0) == Act::Failing);
        if !alone {
            pages.evidence.probes.push(span);
        }
    }

    /// The circuit changed its phase. All replicas of a fleet tell of it; the first who does, did it.
    fn changed(&self, pages: &mut Pages, replica: usize, at: Duration, change: Transition, alone: bool) {
        let first = alone || pages.evidence.heard(replica, at, &change);
        if !first {
            return;
        }
        pages.forget_before(at.saturating_sub(self.window));
        let failed = pages.window.iter().filter(|(_, failed)| *failed).count();
        // The attempt that tipped the scales is told of later than what it caused.
        let failing = (failed + 1) as f64 / (pages.window.len() + 1) as f64;
        if !alone {
            pages.window.clear();
        }
        pages.turns.push((at, change.to));
        pages.moments.push(Moment { at, kind: Turn::Circuit { replica, change, failing, alone } });
    }
}

impl Pages {
    /// Notes the acts that began since the book was last opened.
    fn turn_to(&mut self, story: &Story) {
        let act = story.act();
        if self.act != Some(act) {
            self.act = Some(act);
            self.moments.push(Moment { at: story.start_of(act), kind: Turn::Upstream(act) });
        }
    }

    /// Where the circuit stands, if all processes see it the same way: what one of them decided alone may have been
    /// forgotten without a word.
    fn agree(&mut self, at: Duration) {
        let mut phases = self.standings.iter().flatten().filter(|one| one.fleet.is_some()).map(|one| one.circuit.phase);
        let Some(agreed) = phases.next().filter(|first| phases.all(|phase| phase == *first)) else { return };
        if self.phase() != agreed {
            self.turns.push((at, agreed));
        }
    }

    /// Where the circuit stands.
    pub(crate) fn phase(&self) -> Phase {
        self.turns.last().map_or(Phase::Closed, |(_, phase)| *phase)
    }

    /// Lets go of attempts that left the breaker's window.
    fn forget_before(&mut self, then: Duration) {
        while self.window.front().is_some_and(|(at, _)| *at < then) {
            self.window.pop_front();
        }
    }

    fn attempted(&mut self, now: Duration, failed: bool) {
        self.window.push_back((now, failed));
        if failed {
            self.timeline.failed(now);
        }
    }
}
