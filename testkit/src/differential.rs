//! Differential tests: random steps are applied to a state machine of core and to any number of beds, and all replies
//! must be equal.
//!
//! The machine is the reference: it is a pure function of its steps, and every store claims to behave like that machine.
//! A [`Subject`] applies one step and replies; [`compare`] applies a sequence to all of them and reports the first
//! difference. A store takes part through its bed: [`rate_limit::BedSubject`], [`breaker::BedSubject`],
//! [`tally::BedSubject`].
//!
//! # Examples
//! ```
//! use std::time::Duration;
//!
//! use phalanx::RateLimitSpec;
//! use phalanx_testkit::bed::{LuaBed, MemoryBed};
//! use phalanx_testkit::differential::rate_limit::{BedSubject, Machine, Step};
//! use phalanx_testkit::differential::{Subject, compare};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let spec = RateLimitSpec::per_second(10).burst(2);
//! let mut machine = Machine::new(&spec);
//! let mut stores: Vec<Box<dyn Subject<_, _>>> = vec![
//!     Box::new(BedSubject::<MemoryBed>::new(&spec, 2).await), // two replicas
//!     Box::new(BedSubject::<LuaBed>::new(&spec, 2).await),
//! ];
//! let acquire = |by| Step::Acquire { by, cost: 2, max_wait: Duration::ZERO };
//! let steps = [acquire(0), acquire(1), Step::Wait(Duration::from_millis(200)), acquire(1)]; // in a test: proptest
//! assert_eq!(compare(&mut machine, &mut stores, &steps).await, Ok(()));
//! # }
//! ```

pub mod breaker;
pub mod rate_limit;
pub mod tally;

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;

/// A future reply of a [`Subject`].
pub type ReplyFuture<'a, R> = Pin<Box<dyn Future<Output = R> + Send + 'a>>;

/// An implementation under comparison: applies steps `S` and replies to each with an `R`.
pub trait Subject<S, R>: Send {
    /// Returns the name used in failure messages.
    fn name(&self) -> &'static str;

    /// Applies one step.
    fn apply<'a>(&'a mut self, step: &'a S) -> ReplyFuture<'a, R>;
}

/// A reply that can be compared with the reference's.
pub trait Reply: Debug {
    /// Returns whether this reply is the reference's, as far as the subject can know it.
    fn agrees_with(&self, reference: &Self) -> bool;
}

/// Applies all steps to the reference and to all subjects. The error describes the first difference.
pub async fn compare<S: Debug, R: Reply>(
    reference: &mut dyn Subject<S, R>,
    subjects: &mut [Box<dyn Subject<S, R>>],
    steps: &[S],
) -> Result<(), String> {
    for (number, step) in steps.iter().enumerate() {
        let expected = reference.apply(step).await;
        for subject in subjects.iter_mut() {
            let reply = subject.apply(step).await;
            if !reply.agrees_with(&expected) {
                let (subject, reference) = (subject.name(), reference.name());
                return Err(format!("step {number}, {step:?}\n  {subject}: {reply:?}\n  {reference}: {expected:?}"));
            }
        }
    }
    Ok(())
}
