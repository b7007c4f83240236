//! What can happen to a call in a bulkhead and to an attempt that is hedged.

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

/// The copy is sent after this long.
pub const DELAY: Duration = Duration::from_millis(4);

/// How the call comes to its slot, or not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Hull {
    None,
    Free,
    /// One slot is left: a copy finds none.
    Last,
    /// All slots are taken; after the second poll they are given back.
    Served,
    /// Shed by waiting time.
    Shed,
    TimesOut,
    /// By a critical call that comes after the first poll.
    Displaced,
}

impl Hull {
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

    /// Others that are inside when the call comes.
    pub fn holders(self) -> usize {
        match self {
            Self::None | Self::Free => 0,
            Self::Last => SLOTS as usize - 1,
            _ => SLOTS as usize,
        }
    }
}

/// What the attempt and its copy do: after how many milliseconds, and how it ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Race {
    NoHedge,
    /// Too quick to be copied.
    NotFired,
    CopyWins,
    CopyLoses,
    CopyFails,
    AttemptFails,
    BothFail,
    /// Both are ready at the same poll.
    Tie,
    /// The attempt fails and the copy answers at the same poll.
    BadTie,
    BothHang,
}

const NEVER: u64 = 1_000_000;

impl Race {
    pub const ALL: [Self; 10] = [
        Self::NoHedge,
        Self::NotFired,
        Self::CopyWins,
        Self::CopyLoses,
        Self::CopyFails,
        Self::AttemptFails,
        Self::BothFail,
        Self::Tie,
        Self::BadTie,
        Self::BothHang,
    ];

    pub fn script(self) -> [(u64, Result<u32, Failure>); 2] {
        match self {
            Self::NoHedge => [(9, Ok(1)), (9, Err(BROKEN))],
            Self::NotFired => [(3, Ok(1)), (3, Err(BROKEN))],
            Self::CopyWins => [(40, Ok(1)), (3, Ok(2))],
            Self::CopyLoses => [(9, Ok(1)), (40, Ok(2))],
            Self::CopyFails => [(11, Ok(1)), (1, Err(BROKEN))],
            Self::AttemptFails => [(5, Err(BROKEN)), (7, Ok(2))],
            Self::BothFail => [(5, Err(BROKEN)), (7, Err(BROKEN))],
            Self::Tie => [(8, Ok(1)), (4, Ok(2))],
            Self::BadTie => [(8, Err(BROKEN)), (4, Ok(2))],
            Self::BothHang => [(NEVER, Ok(1)), (NEVER, Ok(2))],
        }
    }
}

/// The operation: every other run plays the copy's part. It knows what became of each run.
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
    pub fn run(&self, race: Race) -> impl Future<Output = Result<u32, Failure>> {
        let (takes, answer) = race.script()[self.begun.get() % 2];
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

/// The end of a call: what it says about the dependency, and the record.
pub type Ended = (Option<Outcome>, Decision);

/// What observers heard of calls under the second version of the policy: the holders run under the first.
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
