//! What came of it: written by the replicas, read by whoever shows it.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use phalanx::{BreakerSpec, Code, Decision, Kind, Outcome, Phase, Policy, Transition};

use crate::moment::{Moment, Turn};
use crate::policy::DEMAND;
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
    pub(crate) timeline: Timeline,
    /// When each replica was first told that the circuit is open.
    pub(crate) told: Vec<Option<Duration>>,
    /// Refused by the circuit while the upstream was dead.
    pub(crate) spared: u64,
    /// Sent to the dead upstream by an open or half-open circuit.
    pub(crate) vain_probes: u64,
    /// Attempts that reached the dead upstream.
    pub(crate) into_the_dark: u64,
    /// Attempts inside the breaker's window: when, and whether it failed.
    window: VecDeque<(Duration, bool)>,
    phase: Phase,
    act: Option<Act>,
}

impl Ledger {
    pub(crate) fn new(story: Story, policy: Policy, replicas: usize) -> Self {
        let pages = Pages {
            tallies: vec![Tally::default(); replicas],
            moments: Vec::new(),
            timeline: Timeline::new(story, DEMAND * replicas as f64),
            told: vec![None; replicas],
            spared: 0,
            vain_probes: 0,
            into_the_dark: 0,
            window: VecDeque::new(),
            phase: Phase::Closed,
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

    /// An attempt starts at the upstream. The first of a call that the circuit let through on trial is a probe.
    pub(crate) fn reached(&self, replica: usize, first: bool) {
        let (now, mut pages) = (self.story.now(), self.read());
        let dead = self.story.act_at(now) == Act::Failing;
        let probe = first && pages.phase == Phase::HalfOpen;
        pages.tallies[replica].probes += u64::from(probe);
        pages.vain_probes += u64::from(probe && dead);
        pages.into_the_dark += u64::from(dead);
        pages.timeline.reached(now);
    }

    /// An attempt failed and another follows.
    pub(crate) fn retried(&self, replica: usize) {
        let (now, mut pages) = (self.story.now(), self.read());
        pages.tallies[replica].retries += 1;
        pages.attempted(now, true);
    }

    /// An attempt failed and no other follows, because too many did already.
    pub(crate) fn withheld(&self, replica: usize) {
        self.read().tallies[replica].withheld += 1;
    }

    /// A call is over.
    pub(crate) fn finished(&self, replica: usize, outcome: Option<Outcome>, kind: Option<Kind>, decision: &Decision) {
        let (now, mut pages) = (self.story.now(), self.read());
        pages.tallies[replica].add(now, outcome, kind, decision);
        match (decision.reason, outcome) {
            (Some(Code::CircuitOpen | Code::ProbeQuota), _) => {
                pages.spared += u64::from(self.story.act_at(now) == Act::Failing);
                pages.told[replica].get_or_insert(now);
                pages.timeline.refused(now);
            }
            (_, None) => pages.timeline.refused(now),
            (_, Some(outcome)) => pages.attempted(now, outcome == Outcome::Failure),
        }
        pages.forget_before(now.saturating_sub(self.window));
    }

    /// A replica changed the circuit's phase.
    pub(crate) fn changed(&self, replica: usize, change: Transition) {
        let (now, mut pages) = (self.story.now(), self.read());
        pages.forget_before(now.saturating_sub(self.window));
        let failed = pages.window.iter().filter(|(_, failed)| *failed).count();
        // The attempt that tipped the scales is told of later than what it caused.
        let failing = (failed + 1) as f64 / (pages.window.len() + 1) as f64;
        pages.window.clear();
        pages.phase = change.to;
        pages.moments.push(Moment { at: now, what: Turn::Circuit { replica, change, failing } });
    }
}

impl Pages {
    /// Notes the acts that began since the book was last opened.
    fn turn_to(&mut self, story: &Story) {
        let act = story.act();
        if self.act != Some(act) {
            self.act = Some(act);
            self.moments.push(Moment { at: story.start_of(act), what: Turn::Upstream(act) });
        }
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
