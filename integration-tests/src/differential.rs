//! Random histories, played on the bare machines of core and on any number of beds, which must give the same answers.
//!
//! The machine is the judge: it is a pure function of its history, and every store claims to be that machine, kept
//! somewhere and shared. A [`Contestant`] plays one step and answers; [`compare`] plays a whole history on all of them
//! and says where the first one differed. A new store joins by its bed: one more line in `tests/differential.rs`.

pub mod breaker;
pub mod rate_limit;

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;

/// A reply on its way.
pub type Playing<'a, R> = Pin<Box<dyn Future<Output = R> + Send + 'a>>;

/// Somebody who can play a history of `S`, step by step, and answers each with an `R`.
pub trait Contestant<S, R>: Send {
    /// Who is meant when something is wrong.
    fn name(&self) -> &'static str;

    /// Plays one step.
    fn play<'a>(&'a mut self, step: &'a S) -> Playing<'a, R>;
}

/// Replies that can be held against the judge's.
pub trait Reply: Debug {
    /// Whether this is the judge's reply, as far as the contestant could know it.
    fn agrees_with(&self, judge: &Self) -> bool;
}

/// Plays a history on all contestants; the error tells who first disagreed with the judge, where and how.
pub async fn compare<S: Debug, R: Reply>(
    judge: &mut dyn Contestant<S, R>,
    contestants: &mut [Box<dyn Contestant<S, R>>],
    steps: &[S],
) -> Result<(), String> {
    for (number, step) in steps.iter().enumerate() {
        let expected = judge.play(step).await;
        for contestant in contestants.iter_mut() {
            let told = contestant.play(step).await;
            if !told.agrees_with(&expected) {
                let (who, judge) = (contestant.name(), judge.name());
                return Err(format!("step {number}, {step:?}\n  {who}: {told:?}\n  {judge}: {expected:?}"));
            }
        }
    }
    Ok(())
}
