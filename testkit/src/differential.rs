//! Differential tests: random steps are applied to a state machine of core and to any number of beds, and all replies
//! must be equal.
//!
//! The machine is the reference: it is a pure function of its steps, and every store claims to behave like that machine.
//! A [`Subject`] applies one step and replies; [`compare`] applies a sequence to all of them and reports the first
//! difference. A new store takes part with one line in `tests/differential.rs`.

pub mod breaker;
pub mod rate_limit;

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
