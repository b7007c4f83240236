//! One call with options: its cost, its deadline, how its result is classified, and its fallback.

mod true_cost;

use std::future::{Future, poll_fn};
use std::mem::take;
use std::panic::resume_unwind;
use std::pin::pin;
use std::time::Duration;

pub use self::true_cost::{Estimate, TrueCost, TrueCostBy};
use crate::classify::{By, ByAnswer, ByError, Class, Classifier};
use crate::context::{Context, Criticality, Tags, scope};
use crate::decision::{Decision, Verdict};
use crate::error::Error;
use crate::event::EventKind;
use crate::fallback::{Fallback, NoFallback, Served, Value, With, WithAsync, default_kinds};
use crate::kind::{Kind, Kinds};
use crate::pipeline::{CallOptions, CallState, Pipeline, in_current_span, walk};
use crate::rejection::Rejection;
use crate::retry::nested;
use crate::store::Store;

/// A builder for one call.
#[must_use = "a call does nothing until it is run"]
pub struct Call<'a, S: Store, C = ByError, B = NoFallback, P = Estimate> {
    target: Target<'a, S>,
    options: CallOptions<'a>,
    classifier: C,
    fallback: B,
    fallback_on: Kinds,
    true_cost: P,
}

enum Target<'a, S: Store> {
    Borrowed(&'a Pipeline<S>),
    Resolved(Pipeline<S>),
    /// There is no such pipeline, which the call reports when it is run.
    Missing(Rejection),
}

impl<S: Store> Pipeline<S> {
    /// Returns a builder for a call with options: cost, classifier, fallback, deadline.
    pub fn call(&self) -> Call<'_, S> {
        Call::at(Target::Borrowed(self))
    }
}

impl<'a, S: Store> Call<'a, S> {
    pub(crate) fn resolved(resolved: Result<Pipeline<S>, Rejection>) -> Self {
        Self::at(match resolved {
            Ok(pipeline) => Target::Resolved(pipeline),
            Err(rejection) => Target::Missing(rejection),
        })
    }

    fn at(target: Target<'a, S>) -> Self {
        Self {
            target,
            options: CallOptions::DEFAULT,
            classifier: ByError,
            fallback: NoFallback,
            fallback_on: default_kinds(),
            true_cost: Estimate,
        }
    }
}

impl<'a, S: Store, C, B, P> Call<'a, S, C, B, P> {
    /// Sets how many permits of the rate limit the call takes. Default 1; 0 takes nothing.
    pub fn cost(mut self, permits: u32) -> Self {
        self.options.cost = permits;
        self
    }

    /// Settles the true cost by the result: what the call took beyond it is refunded, less what time has refilled since, and
    /// what it did not take is charged, as a debt if the permits are not there. `None` lets the estimate stand, and so does a
    /// call that is dropped, or panics. The closure gets the result of a call that ran, before the fallback; not of one that
    /// was rejected before, as that has cost nothing.
    ///
    /// # Examples
    /// ```
    /// use phalanx::{Error, Kind, Policy, RateLimitSpec, ResilienceModule};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let model = Policy::named("model").rate_limit(RateLimitSpec::per_minute(10_000)); // tokens
    /// let module = ResilienceModule::in_memory().policy(model).build()?;
    /// let tokens = |answer: &Result<u32, Error<Kind>>| answer.as_ref().ok().copied();
    /// let ask = module.call("model", "acme").cost(4_000).settle_cost(tokens);
    /// assert_eq!(ask.run(|| async { Ok::<_, Kind>(1_500) }).await, Ok(1_500));
    /// assert_eq!(module.pipeline("model", "acme")?.cached_permits(), Some(8_500));
    /// # Ok(())
    /// # }
    /// ```
    pub fn settle_cost<T, E, F>(self, actual: F) -> Call<'a, S, C, B, TrueCostBy<F>>
    where
        F: Fn(&Result<T, Error<E>>) -> Option<u32>,
    {
        Call {
            target: self.target,
            options: self.options,
            classifier: self.classifier,
            fallback: self.fallback,
            fallback_on: self.fallback_on,
            true_cost: TrueCostBy(actual),
        }
    }

    /// Sets a tag, by whose value limits can count: such as the tenant of the call. It comes before one of the task
    /// ([`Tags::scope`]). A call has at most [`MAX_CALL_TAGS`](crate::context::MAX_CALL_TAGS); with more it is rejected
    /// with `invalid_tag` by a policy that counts by tags.
    pub fn tag(mut self, name: &'a str, value: &'a str) -> Self {
        self.options.tags.set(name, value);
        self
    }

    /// Sets a deadline `budget` from now. An earlier one, of the policy or of the task, still holds.
    pub fn within(mut self, budget: Duration) -> Self {
        self.options.context = self.options.context.with_timeout(budget);
        self
    }

    /// Starts the operation at most once: no retry and no hedge, whatever the policy configures.
    pub fn once(mut self) -> Self {
        self.options.once = true;
        self
    }

    /// Sets the criticality: calls of a lower one are shed first. A lower one of the task still holds.
    pub fn criticality(mut self, criticality: Criticality) -> Self {
        self.options.context = self.options.context.with_criticality(criticality);
        self
    }

    /// Classifies results with a closure: for errors of other crates, and for an `Ok` that is a failure.
    pub fn classify<T, E, F>(self, classifier: F) -> Call<'a, S, By<F>, B, P>
    where
        F: Fn(&Result<T, E>) -> Class,
    {
        self.with_classifier(By(classifier))
    }

    /// Classifies answers as well as errors by their own `Classify`: for `http::Response`, `reqwest::Response` and your
    /// own types.
    pub fn classify_answers(self) -> Call<'a, S, ByAnswer, B, P> {
        self.with_classifier(ByAnswer)
    }

    fn with_classifier<N>(self, classifier: N) -> Call<'a, S, N, B, P> {
        Call {
            target: self.target,
            options: self.options,
            classifier,
            fallback: self.fallback,
            fallback_on: self.fallback_on,
            true_cost: self.true_cost,
        }
    }

    /// Falls back to this value when the call fails.
    pub fn fallback_value<T: Clone>(self, value: T) -> Call<'a, S, C, Value<T>, P> {
        self.fallback(Value(value))
    }

    /// Falls back to a function of the error.
    pub fn fallback_with<T, E, F: Fn(&Error<E>) -> T>(self, answer: F) -> Call<'a, S, C, With<F>, P> {
        self.fallback(With(answer))
    }

    /// Falls back to an async function of the error.
    pub fn fallback_async<T, E, F, Fut>(self, answer: F) -> Call<'a, S, C, WithAsync<F>, P>
    where
        F: Fn(&Error<E>) -> Fut,
        Fut: Future<Output = T>,
    {
        self.fallback(WithAsync(answer))
    }

    /// Falls back to any [`Fallback`], such as `StaleCache::at`.
    pub fn fallback<N>(self, fallback: N) -> Call<'a, S, C, N, P> {
        Call {
            target: self.target,
            options: self.options,
            classifier: self.classifier,
            fallback,
            fallback_on: self.fallback_on,
            true_cost: self.true_cost,
        }
    }

    /// Sets the kinds of failure the fallback answers. Default: everything that is not an answer of the dependency
    /// (`concurrency`, `infrastructure`, `throttled`, `timeout`, `internal`).
    pub fn fallback_on(mut self, kinds: impl Into<Kinds>) -> Self {
        self.fallback_on = kinds.into();
        self
    }

    /// Runs the operation.
    ///
    /// # Errors
    /// Returns the policy's rejection or the operation's own error, unless the fallback answers.
    pub async fn run<T, E, F, Fut>(self, operation: F) -> Result<T, Error<E>>
    where
        C: Classifier<T, E>,
        B: Fallback<T, E>,
        P: TrueCost<T, E>,
        F: Fn() -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let served = self.serve(operation, None).await;
        served.map(|served| served.value)
    }

    /// Runs the operation and returns whether the answer came from the fallback.
    ///
    /// # Errors
    /// As [`Call::run`].
    pub async fn run_served<T, E, F, Fut>(self, operation: F) -> Result<Served<T>, Error<E>>
    where
        C: Classifier<T, E>,
        B: Fallback<T, E>,
        P: TrueCost<T, E>,
        F: Fn() -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        self.serve(operation, None).await
    }

    /// Runs the operation and returns the decision record beside the answer: attempts, elapsed time, stage, source.
    pub async fn run_recorded<T, E, F, Fut>(mut self, operation: F) -> (Result<T, Error<E>>, Decision)
    where
        C: Classifier<T, E>,
        B: Fallback<T, E>,
        P: TrueCost<T, E>,
        F: Fn() -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        self.options.recorded = true;
        let mut decision = Decision::default();
        let served = self.serve(operation, Some(&mut decision)).await;
        (served.map(|served| served.value), decision)
    }

    /// Runs each attempt as a spawned task: when the attempt times out or the caller drops the future, the work continues
    /// in the background. The task inherits the caller's context and span; its panic resumes in the caller.
    ///
    /// # Errors
    /// As [`Call::run`].
    pub async fn run_detached<T, E, F, Fut>(self, operation: F) -> Result<T, Error<E>>
    where
        C: Classifier<T, E>,
        B: Fallback<T, E>,
        P: TrueCost<T, E>,
        F: Fn() -> Fut,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
        T: Send + 'static,
        E: Send + 'static,
    {
        self.run(async || {
            let work = Tags::current().scope(scope(Context::current(), operation()));
            let task = tokio::spawn(in_current_span(work));
            match task.await {
                Ok(result) => result,
                Err(failed) => match failed.try_into_panic() {
                    Ok(panic) => resume_unwind(panic),
                    // Only a runtime that is shutting down cancels the task, and it will not poll this future again.
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
        P: TrueCost<T, E>,
        F: Fn() -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let pipeline = match &self.target {
            Target::Borrowed(pipeline) => pipeline,
            Target::Resolved(pipeline) => pipeline,
            Target::Missing(rejection) => {
                if let Some(record) = record {
                    *record = missing(rejection);
                }
                return self.or_fallback(Err((*rejection).into()), Some(rejection.kind())).await;
            }
        };
        let stages = pipeline.current();
        let end = |call: &mut CallState<'_, S>, result: Result<T, Error<E>>| {
            if P::PRESENT && call.has_paid() {
                let actual = self.true_cost.actual(&result);
                call.settle_cost(actual);
            }
            let kind = call.failure_kind(&result);
            let decision = call.decision(result.as_ref().err().and_then(Error::rejection));
            call.report(kind, &decision);
            (result, kind, call.gave_up(), decision, take(&mut call.trace))
        };
        let walked = walk(stages, &self.options, &self.classifier, operation, end).await;
        let (result, kind, gave_up, mut decision, mut trace) = walked;

        // 5 answer: the fallback answers last, whichever stage rejected. It is part of the call, and so inside its span.
        let served = {
            let mut answering = pin!(self.or_fallback(result, kind));
            poll_fn(|cx| {
                let _in_call = trace.enter_call();
                answering.as_mut().poll(cx)
            })
            .await
        };
        if let Ok(Served { degraded: Some(degraded), .. }) = served {
            decision.degraded = Some(degraded);
            trace.mark_degraded();
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

    /// Returns the result, or the fallback's answer in its place.
    async fn or_fallback<T, E>(&self, result: Result<T, Error<E>>, kind: Option<Kind>) -> Result<Served<T>, Error<E>>
    where
        B: Fallback<T, E>,
    {
        let falls_back = B::PRESENT && kind.is_some_and(|kind| self.fallback_on.contains(kind));
        if !falls_back {
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

/// The decision record of a call without a pipeline.
fn missing(rejection: &Rejection) -> Decision {
    Decision { verdict: Verdict::Rejected, reason: Some(rejection.code()), ..Decision::default() }
}
