//! Differential test of one breaker.

use std::any::type_name;
use std::sync::Arc;
use std::time::Duration;

use phalanx_core::breaker::{Breaker, BreakerSpec, BreakerView, Override, Sample, Ticket, Transition};
use phalanx_core::clock::Time;
use phalanx_core::key::StateKey;
use phalanx_core::store::{BreakerStore, Store};

use super::{ReplyFuture, Subject};
use crate::bed::{Bed, ORIGIN};
use crate::replies::{Rejection, admit_call, admit_result};

/// An operation on a breaker. `by` selects the replica.
#[derive(Clone, Debug)]
pub enum Step {
    /// Asks for admission and keeps the ticket of an admitted call.
    Admit {
        /// Which replica.
        by: usize,
    },
    /// Ends one of the open calls, at any replica; does nothing if there is none.
    Record {
        /// Which replica.
        by: usize,
        /// Which call, modulo the number of open calls.
        which: usize,
        /// Its outcome and latency.
        sample: Sample,
    },
    /// Passes a latency quantile to the breaker.
    Quantile {
        /// Which replica.
        by: usize,
        /// The quantile.
        value: Option<Duration>,
    },
    /// Sets or releases an override.
    Force {
        /// Which replica.
        by: usize,
        /// The override, or none to release it.
        overridden: Option<Override>,
    },
    /// Resets the breaker.
    Reset {
        /// Which replica.
        by: usize,
    },
    /// Inspects the breaker.
    Inspect {
        /// Which replica.
        by: usize,
    },
    /// Changes the spec on all replicas.
    Retune(Box<BreakerSpec>),
    /// Advances the clock.
    Wait(Duration),
}

/// The reply to a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// To [`Step::Admit`].
    Admission(Result<Ticket, Rejection>, Option<Transition>),
    /// The transition caused by an outcome, a quantile or a reset.
    Change(Option<Transition>),
    /// To an outcome or a quantile whose transition the store does not know yet; later steps check it.
    NotKnownYet,
    /// To [`Step::Inspect`].
    View(BreakerView),
    /// To all other steps.
    Done,
}

impl super::Reply for Reply {
    fn agrees_with(&self, reference: &Self) -> bool {
        match self {
            Self::NotKnownYet => matches!(reference, Self::Change(_)),
            known => known == reference,
        }
    }
}

/// Tickets of calls that have not ended. Every subject keeps its own; they are equal as long as all replies are.
#[derive(Debug, Default)]
struct OpenCalls(Vec<Ticket>);

impl OpenCalls {
    fn keep(&mut self, passed: Result<Ticket, Rejection>) {
        self.0.extend(passed);
    }

    fn end(&mut self, which: usize) -> Option<Ticket> {
        let index = which.checked_rem(self.0.len())?;
        Some(self.0.swap_remove(index))
    }
}

/// The state machine of core, as the reference. It uses no jitter.
#[derive(Debug)]
pub struct Machine {
    breaker: Breaker,
    spec: BreakerSpec,
    now: Time,
    open_calls: OpenCalls,
}

impl Machine {
    /// Creates a closed breaker at the initial time of the beds.
    pub fn new(spec: &BreakerSpec) -> Self {
        Self { breaker: Breaker::new(ORIGIN, spec), spec: spec.clone(), now: ORIGIN, open_calls: OpenCalls::default() }
    }

    fn answer(&mut self, step: &Step) -> Reply {
        const NO_JITTER: f64 = 0.0;
        let Self { breaker, spec, now, open_calls } = self;
        match step {
            Step::Admit { .. } => {
                let (admission, transition) = breaker.admit(*now, spec);
                let passed = admit_result(admission, *now);
                open_calls.keep(passed);
                Reply::Admission(passed, transition)
            }
            Step::Record { which, sample, .. } => match open_calls.end(*which) {
                Some(ticket) => Reply::Change(breaker.record(*now, spec, ticket, *sample, NO_JITTER)),
                None => Reply::Done,
            },
            Step::Quantile { value, .. } => Reply::Change(breaker.observe_quantile(*now, spec, *value, NO_JITTER)),
            Step::Force { overridden, .. } => {
                breaker.force(*overridden);
                Reply::Done
            }
            Step::Reset { .. } => Reply::Change(breaker.reset(*now, spec)),
            Step::Inspect { .. } => Reply::View(breaker.inspect(*now)),
            Step::Retune(new) => {
                breaker.retune(new);
                spec.clone_from(&**new);
                Reply::Done
            }
            Step::Wait(by) => {
                *now = now.after(*by);
                Reply::Done
            }
        }
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

/// The store of a bed, used through several replicas that each resolved the breaker once.
pub struct BedSubject<B: Bed> {
    bed: B,
    key: StateKey,
    replicas: Vec<Replica<B>>,
    open_calls: OpenCalls,
}

struct Replica<B: Bed> {
    store: B::Store,
    circuit: Arc<<B::Store as BreakerStore>::Breaker>,
}

impl<B: Bed> BedSubject<B> {
    /// Creates a bed with this number of replicas.
    pub async fn new(spec: &BreakerSpec, replicas: usize) -> Self {
        let bed = B::new().await;
        let key = StateKey::new("policy", "route");
        let resolve = |store: B::Store| Replica { circuit: store.breaker(&key, spec), store };
        let replicas = (0..replicas).map(|_| resolve(bed.store())).collect();
        bed.sync_all().await;
        Self { bed, key, replicas, open_calls: OpenCalls::default() }
    }

    async fn answer(&mut self, step: &Step) -> Reply {
        let reply = self.ask(step).await;
        self.bed.sync_all().await;
        reply
    }

    async fn ask(&mut self, step: &Step) -> Reply {
        let Self { bed, key, replicas, open_calls } = self;
        let replica = |by: &usize| {
            let Replica { store, circuit } = &replicas[by % replicas.len()];
            (store, circuit, store.clock().now())
        };
        match step {
            Step::Admit { by } => {
                let (store, circuit, now) = replica(by);
                let (answer, transition) = admit_call(store, circuit, now).await;
                let passed = admit_result(answer.admission, now);
                open_calls.keep(passed);
                Reply::Admission(passed, transition)
            }
            Step::Record { by, which, sample } => match open_calls.end(*which) {
                Some(ticket) => {
                    let (store, circuit, now) = replica(by);
                    recorded::<B>(store.record(circuit, now, ticket, *sample))
                }
                None => Reply::Done,
            },
            Step::Quantile { by, value } => {
                let (store, circuit, now) = replica(by);
                recorded::<B>(store.observe_quantile(circuit, now, *value))
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

/// A returned transition is always compared; a missing one only if the bed returns transitions immediately.
const fn recorded<B: Bed>(change: Option<Transition>) -> Reply {
    match change {
        None if !B::IMMEDIATE_TRANSITIONS => Reply::NotKnownYet,
        change => Reply::Change(change),
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
