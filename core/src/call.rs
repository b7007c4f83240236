//! One call with terms of its own: what it costs, how its result is read, what answers in its place.

use std::future::{Future, poll_fn};
use std::mem::take;
use std::panic::resume_unwind;
use std::pin::pin;
use std::time::Duration;

use crate::classify::{Class, Classify, by_error};
use crate::context::{Context, Criticality, scope};
use crate::decision::{Decision, Verdict};
use crate::error::Error;
use crate::event::EventKind;
use crate::fallback::{Fallback, NoFallback, Served, Value, With, WithAsync, default_kinds};
use crate::kind::{Kind, Kinds};
use crate::pipeline::{Pipeline, Ride, Terms, carried, walk};
use crate::rejection::Rejection;
use crate::retry::nested;
use crate::store::Store;

/// Reads what a result means.
pub trait Classifier<T, E> {
    /// The class of this result.
    fn class(&self, result: &Result<T, E>) -> Class;
}

impl<T, E, C: Classifier<T, E>> Classifier<T, E> for &C {
    #[inline]
    fn class(&self, result: &Result<T, E>) -> Class {
        (**self).class(result)
    }
}

/// An `Ok` is a success, an `Err` is what it says it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct ByError;

impl<T, E: Classify> Classifier<T, E> for ByError {
    #[inline]
    fn class(&self, result: &Result<T, E>) -> Class {
        by_error(result)
    }
}

/// Both sides say what they are: for answers such as HTTP responses.
#[derive(Clone, Copy, Debug, Default)]
pub struct ByAnswer;

impl<T: Classify, E: Classify> Classifier<T, E> for ByAnswer {
    #[inline]
    fn class(&self, result: &Result<T, E>) -> Class {
        match result {
            Ok(answer) => answer.classify(),
            Err(error) => error.classify(),
        }
    }
}

/// A closure over the whole result.
#[derive(Clone, Copy, Debug)]
pub struct By<F>(F);

impl<T, E, F: Fn(&Result<T, E>) -> Class> Classifier<T, E> for By<F> {
    #[inline]
    fn class(&self, result: &Result<T, E>) -> Class {
        (self.0)(result)
    }
}

/// One call, being prepared.
#[must_use = "a call does nothing until it is run"]
pub struct Call<'a, S: Store, C = ByError, B = NoFallback> {
    target: Target<'a, S>,
    terms: Terms,
    classifier: C,
    fallback: B,
    fallback_on: Kinds,
}

enum Target<'a, S: Store> {
    Kept(&'a Pipeline<S>),
    Found(Pipeline<S>),
    Missing(Rejection),
}

impl<'a, S: Store> Call<'a, S> {
    pub(crate) fn on(pipeline: &'a Pipeline<S>) -> Self {
        Self::at(Target::Kept(pipeline))
    }

    pub(crate) fn found(found: Result<Pipeline<S>, Rejection>) -> Self {
        Self::at(match found {
            Ok(pipeline) => Target::Found(pipeline),
            Err(rejection) => Target::Missing(rejection),
        })
    }

    fn at(target: Target<'a, S>) -> Self {
        Self { target, terms: Terms::PLAIN, classifier: ByError, fallback: NoFallback, fallback_on: default_kinds() }
    }
}

impl<'a, S: Store, C, B> Call<'a, S, C, B> {
    /// How many permits of the rate limit it takes. Default 1.
    pub fn cost(mut self, permits: u32) -> Self {
        self.terms.cost = permits;
        self
    }

    /// It must be over in `budget`, whatever the policy and the task allow.
    pub fn within(mut self, budget: Duration) -> Self {
        self.terms.context = self.terms.context.with_timeout(budget);
        self
    }

    /// The operation can be started once only: it is neither retried nor hedged, whatever the policy says.
    pub fn once(mut self) -> Self {
        self.terms.once = true;
        self
    }

    /// How much the caller would miss the answer.
    pub fn criticality(mut self, criticality: Criticality) -> Self {
        self.terms.context = self.terms.context.with_criticality(criticality);
        self
    }

    /// Reads results with a closure: for errors that are not yours, and for an `Ok` that is a failure.
    pub fn classify<T, E, F>(self, classifier: F) -> Call<'a, S, By<F>, B>
    where
        F: Fn(&Result<T, E>) -> Class,
    {
        self.read_by(By(classifier))
    }

    /// Reads answers as well as errors by what they say of themselves: for `http::Response`, `reqwest::Response` and
    /// your own types that implement `Classify`.
    pub fn classify_answers(self) -> Call<'a, S, ByAnswer, B> {
        self.read_by(ByAnswer)
    }

    fn read_by<N>(self, classifier: N) -> Call<'a, S, N, B> {
        Call {
            target: self.target,
            terms: self.terms,
            classifier,
            fallback: self.fallback,
            fallback_on: self.fallback_on,
        }
    }

    /// Answers with this value when there is no answer.
    pub fn fallback_value<T: Clone>(self, value: T) -> Call<'a, S, C, Value<T>> {
        self.fallback(Value(value))
    }

    /// Answers with a function of the error.
    pub fn fallback_with<T, E, F: Fn(&Error<E>) -> T>(self, answer: F) -> Call<'a, S, C, With<F>> {
        self.fallback(With(answer))
    }

    /// Answers with an async function of the error.
    pub fn fallback_async<T, E, F, Fut>(self, answer: F) -> Call<'a, S, C, WithAsync<F>>
    where
        F: Fn(&Error<E>) -> Fut,
        Fut: Future<Output = T>,
    {
        self.fallback(WithAsync(answer))
    }

    /// Answers with a fallback of any kind, such as `StaleCache::at`.
    pub fn fallback<N>(self, fallback: N) -> Call<'a, S, C, N> {
        Call {
            target: self.target,
            terms: self.terms,
            classifier: self.classifier,
            fallback,
            fallback_on: self.fallback_on,
        }
    }

    /// The kinds the fallback steps in for. Default: everything that is not an answer of the dependency
    /// (`concurrency`, `infrastructure`, `throttled`, `timeout`, `internal`).
    pub fn fallback_on(mut self, kinds: impl Into<Kinds>) -> Self {
        self.fallback_on = kinds.into();
        self
    }

    /// Runs the operation.
    ///
    /// # Errors
    /// The policy's rejection or the operation's own error, unless the fallback answered.
    pub async fn run<T, E, F, Fut>(self, operation: F) -> Result<T, Error<E>>
    where
        C: Classifier<T, E>,
        B: Fallback<T, E>,
        F: Fn() -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let served = self.serve(operation, None).await;
        served.map(|served| served.value)
    }

    /// Runs the operation; the answer says whether it is the real one.
    ///
    /// # Errors
    /// As [`Call::run`].
    pub async fn run_served<T, E, F, Fut>(self, operation: F) -> Result<Served<T>, Error<E>>
    where
        C: Classifier<T, E>,
        B: Fallback<T, E>,
        F: Fn() -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        self.serve(operation, None).await
    }

    /// Runs the operation and tells beside the answer what was decided: attempts, elapsed time, stage, source.
    pub async fn run_recorded<T, E, F, Fut>(mut self, operation: F) -> (Result<T, Error<E>>, Decision)
    where
        C: Classifier<T, E>,
        B: Fallback<T, E>,
        F: Fn() -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        self.terms.recorded = true;
        let mut decision = Decision::default();
        let served = self.serve(operation, Some(&mut decision)).await;
        (served.map(|served| served.value), decision)
    }

    /// Runs each attempt as a task of its own: when the caller is answered (timeout) or goes away, the work goes on
    /// in the background. The task's context and its span go with it; a panic in it is the caller's panic.
    ///
    /// # Errors
    /// As [`Call::run`].
    pub async fn run_detached<T, E, F, Fut>(self, operation: F) -> Result<T, Error<E>>
    where
        C: Classifier<T, E>,
        B: Fallback<T, E>,
        F: Fn() -> Fut,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
        T: Send + 'static,
        E: Send + 'static,
    {
        self.run(async || {
            let task = tokio::spawn(carried(scope(Context::current(), operation())));
            match task.await {
                Ok(result) => result,
                Err(failed) => match failed.try_into_panic() {
                    Ok(panic) => resume_unwind(panic),
                    // Only a runtime that is shutting down cancels the task, and it will not poll us again.
                    Err(_) => std::future::pending().await,
                },
            }
        })
        .await
    }

    async fn serve<T, E, F, Fut>(&self, operation: F, record: Option<&mut Decision>) -> Result<Served<T>, Error<E>>
    where
        C: Classifier<T, E>,
        B: Fallback<T, E>,
        F: Fn() -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let pipeline = match &self.target {
            Target::Kept(pipeline) => pipeline,
            Target::Found(pipeline) => pipeline,
            Target::Missing(rejection) => {
                if let Some(record) = record {
                    *record = missing(rejection);
                }
                return self.replace(Err((*rejection).into()), Some(rejection.kind())).await;
            }
        };
        let stages = pipeline.current();
        let end = |ride: &mut Ride<'_, S>, result: Result<T, Error<E>>| {
            let kind = failure(ride, &result);
            let gave_up = ride.gave_up;
            let decision = ride.decision(result.as_ref().err().and_then(Error::rejection));
            ride.finish(kind, &decision);
            (result, kind, gave_up, decision, take(&mut ride.trace))
        };
        let walked = walk(stages, &self.terms, &self.classifier, operation, end).await;
        let (result, kind, gave_up, mut decision, mut trace) = walked;

        // 5 answer: the fallback's word is the last, whoever rejected. It is part of the call, and so inside its span.
        let served = {
            let mut replacing = pin!(self.replace(result, kind));
            poll_fn(|cx| {
                let _in_call = trace.enter_call();
                replacing.as_mut().poll(cx)
            })
            .await
        };
        if let Ok(Served { degraded: Some(degraded), .. }) = served {
            decision.degraded = Some(degraded);
            trace.degrade();
            let _in_call = trace.enter_call();
            pipeline.emit(EventKind::FallbackServed { kind: kind.unwrap_or(Kind::Internal) });
        }
        if let Some(record) = record {
            *record = decision;
        }
        let answered = matches!(served, Ok(Served { degraded: Some(_), .. }));
        nested::note(kind.filter(|_| gave_up && !answered));
        served
    }

    /// The answer, or the fallback's in its place.
    async fn replace<T, E>(&self, result: Result<T, Error<E>>, kind: Option<Kind>) -> Result<Served<T>, Error<E>>
    where
        B: Fallback<T, E>,
    {
        let steps_in = B::PRESENT && kind.is_some_and(|kind| self.fallback_on.contains(kind));
        if !steps_in {
            return result.map(|value| {
                if kind.is_none() {
                    self.fallback.remember(&value);
                }
                Served::fresh(value)
            });
        }
        match self.fallback.answer(result.as_ref().err()).await {
            Some(served) => Ok(served),
            None => result.map(Served::fresh),
        }
    }
}

/// The end of a call without terms of its own: observers are told, and that is all.
#[inline(always)] // or the answer, just written in pieces, is moved as a whole, which stalls the processor
pub(crate) fn end_plain<S: Store, T, E>(ride: &mut Ride<'_, S>, result: Result<T, Error<E>>) -> Result<T, Error<E>> {
    let kind = failure(ride, &result);
    if ride.is_untold() {
        tell_end(ride, kind, result.as_ref().err().and_then(Error::rejection));
    }
    nested::note(kind.filter(|_| ride.gave_up));
    result
}

#[inline(never)]
fn tell_end<S: Store>(ride: &mut Ride<'_, S>, kind: Option<Kind>, rejection: Option<&Rejection>) {
    let decision = ride.decision(rejection);
    ride.finish(kind, &decision);
}

/// The kind of failure a call ended in.
#[inline(always)]
fn failure<S: Store, T, E>(ride: &Ride<'_, S>, result: &Result<T, Error<E>>) -> Option<Kind> {
    let rejection = result.as_ref().err().and_then(Error::rejection);
    rejection.map(Rejection::kind).or(ride.kind)
}

fn missing(rejection: &Rejection) -> Decision {
    Decision { verdict: Verdict::Rejected, reason: Some(rejection.code()), ..Decision::default() }
}
