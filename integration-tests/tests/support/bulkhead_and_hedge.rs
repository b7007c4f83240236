//! Cases of a call in a bulkhead and of a hedged attempt.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use phalanx::describe::Outcome;
use phalanx::*;
use tokio::time::Instant;

use super::*;

pub const SLOTS: u32 = 2;

/// The delay of the hedge.
pub const DELAY: Duration = Duration::from_millis(4);

/// How the call gets its slot, or why it does not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SlotCase {
    None,
    Free,
    /// One slot is left: a hedge finds none.
    Last,
    /// All slots are taken and released after the second poll.
    Served,
    /// Shed from the queue because of its waiting time.
    Shed,
    TimesOut,
    /// Displaced by a critical call that arrives after the first poll.
    Displaced,
}

impl SlotCase {
    pub const ALL: [Self; 7] =
        [Self::None, Self::Free, Self::Last, Self::Served, Self::Shed, Self::TimesOut, Self::Displaced];

    pub fn spec(self) -> Option<BulkheadSpec> {
        let queue = BulkheadSpec::fixed(SLOTS).queue(1);
        match self {
            Self::None => None,
            Self::Free | Self::Last => Some(BulkheadSpec::fixed(SLOTS)),
            Self::Served => Some(queue),
            Self::Shed => Some(queue.queue_target(3 * MS).queue_interval(6 * MS)),
            Self::TimesOut => Some(queue.queue_timeout(6 * MS)),
            Self::Displaced => Some(queue.prioritized()),
        }
    }

    /// Returns the number of slots taken when the call arrives.
    pub fn holders(self) -> usize {
        match self {
            Self::None | Self::Free => 0,
            Self::Last => SLOTS as usize - 1,
            _ => SLOTS as usize,
        }
    }
}

/// Durations and results of the attempt and its hedge.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum HedgeCase {
    NoHedge,
    /// The attempt ends before the hedge delay.
    NotSent,
    HedgeWins,
    HedgeLoses,
    HedgeFails,
    AttemptFails,
    BothFail,
    /// Both are ready at the same poll.
    Tie,
    /// The attempt fails and the hedge succeeds at the same poll.
    FailedTie,
    BothHang,
}

const NEVER: u64 = 1_000_000;

impl HedgeCase {
    pub const ALL: [Self; 10] = [
        Self::NoHedge,
        Self::NotSent,
        Self::HedgeWins,
        Self::HedgeLoses,
        Self::HedgeFails,
        Self::AttemptFails,
        Self::BothFail,
        Self::Tie,
        Self::FailedTie,
        Self::BothHang,
    ];

    pub fn script(self) -> [(u64, Result<u32, Failure>); 2] {
        match self {
            Self::NoHedge => [(9, Ok(1)), (9, Err(BROKEN))],
            Self::NotSent => [(3, Ok(1)), (3, Err(BROKEN))],
            Self::HedgeWins => [(40, Ok(1)), (3, Ok(2))],
            Self::HedgeLoses => [(9, Ok(1)), (40, Ok(2))],
            Self::HedgeFails => [(11, Ok(1)), (1, Err(BROKEN))],
            Self::AttemptFails => [(5, Err(BROKEN)), (7, Ok(2))],
            Self::BothFail => [(5, Err(BROKEN)), (7, Err(BROKEN))],
            Self::Tie => [(8, Ok(1)), (4, Ok(2))],
            Self::FailedTie => [(8, Err(BROKEN)), (4, Ok(2))],
            Self::BothHang => [(NEVER, Ok(1)), (NEVER, Ok(2))],
        }
    }
}

/// The operation: every second run is the hedge. It counts how each run ended.
#[derive(Default)]
pub struct Runs {
    pub begun: Cell<usize>,
    pub good: Cell<usize>,
    pub bad: Cell<usize>,
    pub dropped: Cell<usize>,
}

struct Run<'a>(&'a Runs, bool);

impl Run<'_> {
    fn end(&mut self, well: bool) {
        self.1 = true;
        let count = if well { &self.0.good } else { &self.0.bad };
        count.update(|ended| ended + 1);
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        if !self.1 {
            self.0.dropped.update(|dropped| dropped + 1);
        }
    }
}

impl Runs {
    pub fn run(&self, hedge_case: HedgeCase) -> impl Future<Output = Result<u32, Failure>> {
        let (takes, answer) = hedge_case.script()[self.begun.get() % 2];
        self.begun.update(|begun| begun + 1);
        let (mut run, start) = (Run(self, false), Instant::now());
        poll_fn(move |_| {
            if start.elapsed() < Duration::from_millis(takes) {
                return Poll::Pending;
            }
            run.end(answer.is_ok());
            Poll::Ready(answer)
        })
    }
}

/// The end of a call: its outcome and the decision record.
pub type Ended = (Option<Outcome>, Decision);

/// Observed ends of calls under the second version of the policy; the slot holders run under the first.
#[derive(Clone, Default)]
pub struct Ends(Arc<Mutex<Vec<Ended>>>);

impl Ends {
    pub fn read(&self) -> Vec<Ended> {
        self.0.lock().unwrap().clone()
    }
}

impl Observer for Ends {
    fn on_event(&self, event: &Event<'_>) {
        if let EventKind::Finished { outcome, decision, .. } = event.kind
            && decision.policy_version > 1
        {
            self.0.lock().unwrap().push((outcome, *decision));
        }
    }
}
