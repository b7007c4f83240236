//! Histories of one circuit.

use std::any::type_name;
use std::sync::Arc;
use std::time::Duration;

use phalanx_core::breaker::{Breaker, BreakerSpec, BreakerView, Override, Sample, Ticket, Transition};
use phalanx_core::clock::Time;
use phalanx_core::key::StateKey;
use phalanx_core::store::{BreakerStore, Store};

use super::{Contestant, Playing};
use crate::answer::{Rejection, answered, passed};
use crate::bed::{Bed, ORIGIN};

/// What can happen to a circuit. `by` chooses the replica it happens at.
#[derive(Clone, Debug)]
pub enum Step {
    /// A call wants to pass; if it may, its ticket is kept.
    Admit {
        /// Which replica.
        by: usize,
    },
    /// One of the calls that are out ends, at any replica; none if none is out.
    Record {
        /// Which replica.
        by: usize,
        /// Which call, counted around those that are out.
        which: usize,
        /// What became of it.
        sample: Sample,
    },
    /// The latency's quantile is told.
    Quantile {
        /// Which replica.
        by: usize,
        /// The quantile.
        value: Option<Duration>,
    },
    /// An operator's word.
    Force {
        /// Which replica.
        by: usize,
        /// The word, or none any more.
        overridden: Option<Override>,
    },
    /// An operator's reset.
    Reset {
        /// Which replica.
        by: usize,
    },
    /// Somebody looks.
    Inspect {
        /// Which replica.
        by: usize,
    },
    /// The whole fleet hears of another spec.
    Retune(BreakerSpec),
    /// Time passes.
    Wait(Duration),
}

/// The answer to a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// To a call that wants to pass.
    Admission(Result<Ticket, Rejection>, Option<Transition>),
    /// To an outcome, a quantile or a reset.
    Change(Option<Transition>),
    /// To an outcome or a quantile, where the store cannot know yet: later steps will show it.
    NotKnownYet,
    /// To a look.
    View(BreakerView),
    /// To anything else.
    Done,
}

impl super::Reply for Reply {
    fn agrees_with(&self, judge: &Self) -> bool {
        match self {
            Self::NotKnownYet => matches!(judge, Self::Change(_)),
            known => known == judge,
        }
    }
}

/// Tickets of the calls that are out. Every contestant keeps its own: they are the same as long as all agree.
#[derive(Debug, Default)]
struct Out(Vec<Ticket>);

impl Out {
    fn keep(&mut self, passed: Result<Ticket, Rejection>) {
        self.0.extend(passed);
    }

    fn end(&mut self, which: usize) -> Option<Ticket> {
        let place = which.checked_rem(self.0.len())?;
        Some(self.0.swap_remove(place))
    }
}

/// The bare machine. Specs with jitter are beyond it: it has no luck.
#[derive(Debug)]
pub struct Machine {
    breaker: Breaker,
    spec: BreakerSpec,
    now: Time,
    out: Out,
}

impl Machine {
    /// A closed circuit at the beds' first moment.
    pub fn new(spec: &BreakerSpec) -> Self {
        Self { breaker: Breaker::new(ORIGIN, spec), spec: spec.clone(), now: ORIGIN, out: Out::default() }
    }

    fn answer(&mut self, step: &Step) -> Reply {
        const NO_LUCK: f64 = 0.0;
        let Self { breaker, spec, now, out } = self;
        match step {
            Step::Admit { .. } => {
                let (admission, transition) = breaker.admit(*now, spec);
                let passed = passed(admission, *now);
                out.keep(passed);
                Reply::Admission(passed, transition)
            }
            Step::Record { which, sample, .. } => match out.end(*which) {
                Some(ticket) => Reply::Change(breaker.record(*now, spec, ticket, *sample, NO_LUCK)),
                None => Reply::Done,
            },
            Step::Quantile { value, .. } => Reply::Change(breaker.observe_quantile(*now, spec, *value, NO_LUCK)),
            Step::Force { overridden, .. } => {
                breaker.force(*overridden);
                Reply::Done
            }
            Step::Reset { .. } => Reply::Change(breaker.reset(*now, spec)),
            Step::Inspect { .. } => Reply::View(breaker.inspect(*now)),
            Step::Retune(new) => {
                breaker.retune(spec, new);
                spec.clone_from(new);
                Reply::Done
            }
            Step::Wait(by) => {
                *now = now.after(*by);
                Reply::Done
            }
        }
    }
}

impl Contestant<Step, Reply> for Machine {
    fn name(&self) -> &'static str {
        "the machine"
    }

    fn play<'a>(&'a mut self, step: &'a Step) -> Playing<'a, Reply> {
        Box::pin(async move { self.answer(step) })
    }
}

/// A bed's store, through several replicas that resolved their circuits once.
pub struct OnBed<B: Bed> {
    bed: B,
    key: StateKey,
    replicas: Vec<Replica<B>>,
    out: Out,
}

struct Replica<B: Bed> {
    store: B::Store,
    circuit: Arc<<B::Store as BreakerStore>::Breaker>,
}

impl<B: Bed> OnBed<B> {
    /// A new bed with so many replicas.
    pub async fn new(spec: &BreakerSpec, replicas: usize) -> Self {
        let bed = B::new().await;
        let key = StateKey::new("played", "here");
        let resolve = |store: B::Store| Replica { circuit: store.breaker(&key, spec), store };
        let replicas = (0..replicas).map(|_| resolve(bed.store())).collect();
        bed.settle().await;
        Self { bed, key, replicas, out: Out::default() }
    }

    async fn answer(&mut self, step: &Step) -> Reply {
        let reply = self.ask(step).await;
        self.bed.settle().await;
        reply
    }

    async fn ask(&mut self, step: &Step) -> Reply {
        let Self { bed, key, replicas, out } = self;
        let replica = |by: &usize| {
            let Replica { store, circuit } = &replicas[by % replicas.len()];
            (store, circuit, store.clock().now())
        };
        match step {
            Step::Admit { by } => {
                let (store, circuit, now) = replica(by);
                let (answer, transition) = answered(store, circuit, now).await;
                let passed = passed(answer.admission, now);
                out.keep(passed);
                Reply::Admission(passed, transition)
            }
            Step::Record { by, which, sample } => match out.end(*which) {
                Some(ticket) => {
                    let (store, circuit, now) = replica(by);
                    told::<B>(store.record(circuit, now, ticket, *sample))
                }
                None => Reply::Done,
            },
            Step::Quantile { by, value } => {
                let (store, circuit, now) = replica(by);
                told::<B>(store.observe_quantile(circuit, now, *value))
            }
            Step::Force { by, overridden } => {
                let (store, circuit, _) = replica(by);
                store.force(circuit, *overridden).await;
                Reply::Done
            }
            Step::Reset { by } => {
                let (store, circuit, now) = replica(by);
                Reply::Change(store.reset(circuit, now).await)
            }
            Step::Inspect { by } => {
                let (store, circuit, now) = replica(by);
                Reply::View(store.inspect(circuit, now).await)
            }
            Step::Retune(spec) => {
                for replica in replicas.iter() {
                    replica.store.breaker(key, spec);
                }
                Reply::Done
            }
            Step::Wait(by) => {
                bed.advance(*by).await;
                Reply::Done
            }
        }
    }
}

/// A change that is told must be right wherever it is told; only silence may be excused.
const fn told<B: Bed>(change: Option<Transition>) -> Reply {
    match change {
        None if !B::TELLS_AT_ONCE => Reply::NotKnownYet,
        change => Reply::Change(change),
    }
}

impl<B: Bed> Contestant<Step, Reply> for OnBed<B> {
    fn name(&self) -> &'static str {
        type_name::<B>()
    }

    fn play<'a>(&'a mut self, step: &'a Step) -> Playing<'a, Reply> {
        Box::pin(async move { self.answer(step).await })
    }
}
