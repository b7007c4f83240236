//! Differential test of one tally.

use std::any::type_name;
use std::sync::Arc;
use std::time::Duration;

use phalanx_core::clock::Time;
use phalanx_core::key::StateKey;
use phalanx_core::store::{Addition, Allowance, Counts, Store, TallyStore, TallyUse, Withdrawal};
use phalanx_core::tally::Tally;

use super::{ReplyFuture, Subject};
use crate::bed::{Bed, ORIGIN};

/// An operation on a tally. `by` selects the replica.
#[derive(Clone, Debug)]
pub enum Step {
    /// Counts calls and marks.
    Add {
        /// Which replica.
        by: usize,
        /// How many calls.
        calls: u32,
        /// How many marks.
        marks: u32,
        /// How long ago they were counted.
        age: Duration,
    },
    /// Takes a mark.
    Withdraw {
        /// Which replica.
        by: usize,
        /// How many marks the calls allow.
        allowance: Allowance,
    },
    /// Puts back one of the marks that this replica took.
    PutBack {
        /// Which replica.
        by: usize,
        /// Which of its marks.
        which: usize,
    },
    /// Reads the sums.
    Sum {
        /// Which replica.
        by: usize,
    },
    /// Advances the clock.
    Wait(Duration),
}

/// The reply to a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// To [`Step::Withdraw`]: whether the mark is granted.
    Granted(bool),
    /// To [`Step::Sum`].
    Sum(Counts),
    /// To all other steps.
    Done,
}

impl super::Reply for Reply {
    fn agrees_with(&self, reference: &Self) -> bool {
        self == reference
    }
}

/// The state machine of core, as the reference.
#[derive(Debug)]
pub struct Machine {
    tally: Tally,
    now: Time,
    /// The slices of the marks that each replica took.
    taken: Vec<Vec<u64>>,
}

impl Machine {
    /// Creates an empty tally at the initial time of the beds, for this number of replicas.
    pub fn new(window: Duration, replicas: usize) -> Self {
        Self { tally: Tally::new(window), now: ORIGIN, taken: vec![Vec::new(); replicas] }
    }

    fn answer(&mut self, step: &Step) -> Reply {
        let Self { tally, now, taken } = self;
        let replicas = taken.len();
        match step {
            Step::Add { calls, marks, age, .. } => tally.add(*now, addition(*now, *calls, *marks, *age)),
            Step::Withdraw { by, allowance } => {
                let (granted, slice) = tally.withdraw(*now, 1, *allowance);
                if granted > 0 {
                    taken[by % replicas].push(slice);
                }
                return Reply::Granted(granted > 0);
            }
            Step::PutBack { by, which } => {
                let taken = &mut taken[by % replicas];
                if !taken.is_empty() {
                    let slice = taken.swap_remove(which % taken.len());
                    tally.put_back(*now, slice, 1);
                }
            }
            Step::Sum { .. } => return Reply::Sum(tally.sum(*now)),
            Step::Wait(by) => *now = now.after(*by),
        }
        Reply::Done
    }
}

impl Subject<Step, Reply> for Machine {
    fn name(&self) -> &'static str {
        "the machine"
    }

    fn apply<'a>(&'a mut self, step: &'a Step) -> ReplyFuture<'a, Reply> {
        Box::pin(async move { self.answer(step) })
    }
}

/// The store of a bed, used through several replicas that each resolved the tally once.
pub struct BedSubject<B: Bed> {
    bed: B,
    replicas: Vec<Replica<B>>,
}

struct Replica<B: Bed> {
    store: B::Store,
    tally: Arc<<B::Store as TallyStore>::Tally>,
    taken: Vec<Withdrawal>,
}

impl<B: Bed> BedSubject<B> {
    /// Creates a bed with this number of replicas.
    pub async fn new(window: Duration, replicas: usize) -> Self {
        let bed = B::new().await;
        let key = StateKey::new("policy", "route");
        let resolve =
            |store: B::Store| Replica { tally: store.tally(&key, TallyUse::Retries, window), store, taken: Vec::new() };
        let replicas = (0..replicas).map(|_| resolve(bed.store())).collect();
        Self { bed, replicas }
    }

    async fn answer(&mut self, step: &Step) -> Reply {
        let replicas = self.replicas.len();
        match step {
            Step::Add { by, calls, marks, age } => {
                let Replica { store, tally, .. } = &self.replicas[by % replicas];
                let now = store.clock().now();
                store.add(tally, now, addition(now, *calls, *marks, *age));
            }
            Step::Withdraw { by, allowance } => {
                let Replica { store, tally, taken } = &mut self.replicas[by % replicas];
                // What the store decides, not what this replica remembers of it.
                let withdrawal = store.withdraw(tally, store.clock().now(), *allowance).await;
                if withdrawal.granted {
                    taken.push(withdrawal);
                }
                return Reply::Granted(withdrawal.granted);
            }
            Step::PutBack { by, which } => {
                let Replica { store, tally, taken } = &mut self.replicas[by % replicas];
                if !taken.is_empty() {
                    let withdrawal = taken.swap_remove(which % taken.len());
                    store.put_back(tally, withdrawal);
                }
            }
            Step::Sum { by } => {
                for Replica { store, tally, .. } in &self.replicas {
                    store.watch(tally, store.clock().now());
                }
                self.bed.sync_all().await;
                let Replica { store, tally, .. } = &self.replicas[by % replicas];
                return Reply::Sum(store.sum(tally, store.clock().now()));
            }
            Step::Wait(by) => self.bed.advance(*by).await,
        }
        self.bed.sync_all().await;
        Reply::Done
    }
}

impl<B: Bed> Subject<Step, Reply> for BedSubject<B> {
    fn name(&self) -> &'static str {
        type_name::<B>()
    }

    fn apply<'a>(&'a mut self, step: &'a Step) -> ReplyFuture<'a, Reply> {
        Box::pin(async move { self.answer(step).await })
    }
}

fn addition(now: Time, calls: u32, marks: u32, age: Duration) -> Addition {
    let at = Time::from_micros(now.as_micros().saturating_sub(age.as_micros() as u64));
    Addition { at, calls: calls.into(), marks: marks.into() }
}
