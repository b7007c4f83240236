//! The walk of one call through its pipeline: gate, admit, attempt, settle, answer.
//!
//! One straight line of code: every stage is an `if`, nothing is boxed, nothing is composed per call. The clock is read
//! once before and once after the operation, and only if a stage wants to know.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::time::Duration;

use tokio::time::Instant;

use super::held::{GuardsIn, Pass, Permit, Running};
use super::stages::{Circuit, PlacedGuards, Stages};
use crate::breaker::{Admission, Count};
use crate::classify::Class;
use crate::clock::{Clock, Time};
use crate::context::{self, Context};
use crate::decision::{Decision, Verdict};
use crate::error::Error;
use crate::event::What;
use crate::guard::{CallInfo, Guards};
use crate::kind::{Kind, Outcome};
use crate::policy::{OnDegraded, Stage};
use crate::rejection::{Code, Rejection, Source};
use crate::retry::{RetrySpec, nested};
use crate::store::{Ask, Level, Store};
use crate::throttle::Throttle;
use crate::timeout::{Elapsed, timeout};

/// Without a deadline, a `Retry-After` longer than this is not waited for: the caller gets the error now.
const LONGEST_UNBOUNDED_WAIT: Duration = Duration::from_secs(60);

/// What one call asks for besides its operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) cost: u32,
    /// Demands of this call, on top of what the task is bound to.
    pub(crate) context: Context,
    /// Whether somebody will read the record.
    pub(crate) recorded: bool,
}

impl Default for Terms {
    fn default() -> Self {
        Self { cost: 1, context: Context::EMPTY, recorded: false }
    }
}

/// What is noted on the way, for the record.
#[derive(Default)]
pub(crate) struct Trail {
    pub(crate) attempts: u32,
    stage: Option<Stage>,
    source: Source,
    left: Option<Level>,
    outcome: Option<Outcome>,
    pub(crate) kind: Option<Kind>,
    /// Whether anybody wants to know the time.
    timed: bool,
    started: Time,
    ended: Time,
}

impl Trail {
    /// The time, if anybody wants to know it.
    #[inline]
    fn read(&self, clock: &Clock) -> Time {
        if self.timed { clock.now() } else { Time::ZERO }
    }

    /// The caller went away, or the operation panicked, before there was an answer.
    pub(crate) fn abandon(&mut self, outcome: Outcome, clock: &Clock) {
        self.outcome = Some(outcome);
        self.ended = clock.now();
    }

    fn stop<T>(&mut self, stage: Stage, rejection: Rejection) -> Result<T, Rejection> {
        self.stage = Some(stage);
        self.source = rejection.source;
        Err(rejection)
    }

    fn saw(&mut self, source: Source) {
        if self.source != Source::Degraded {
            self.source = source;
        }
    }

    pub(crate) fn decision(&self, version: u64, rejection: Option<&Rejection>) -> Decision {
        Decision {
            verdict: [Verdict::Refused, Verdict::Admitted][usize::from(self.attempts > 0)],
            stage: self.stage,
            reason: rejection.map(|rejection| rejection.code),
            source: self.source,
            remaining: self.left.map(Level::permits),
            retry_after: rejection.and_then(|rejection| rejection.retry_after),
            policy_version: version,
            attempts: self.attempts,
            elapsed: self.ended.since(self.started),
            degraded: None,
        }
    }
}

/// One attempt's end.
struct Ended<T, E> {
    result: Result<T, Error<E>>,
    class: Class,
    /// A policy inside had just used up its own attempts.
    exhausted_inside: bool,
}

/// How long an attempt may run, and whose fault it is if that is not enough.
#[derive(Clone, Copy)]
struct Limit {
    limit: Option<Duration>,
    by_deadline: bool,
}

impl<S: Store> Stages<S> {
    /// Runs one call. `Trail` has the story.
    pub(crate) async fn walk<T, E, F, Fut, C>(
        &self,
        terms: &Terms,
        trail: &mut Trail,
        classify: &C,
        operation: &F,
    ) -> Result<T, Error<E>>
    where
        F: Fn() -> Fut,
        Fut: Future<Output = Result<T, E>>,
        C: Fn(&Result<T, E>) -> Class,
    {
        trail.timed = self.timed || terms.recorded;
        let started = trail.read(&self.clock);
        (trail.started, trail.ended) = (started, started);
        let running = Running::default();

        // 1 gate: a call that is late already must not take anything from anybody.
        let context = Context::current().tightened_by(terms.context);
        let context = match self.deadline.total {
            Some(total) => context.with_timeout(total),
            None => context,
        };
        let deadline = context.deadline();
        if self.time_left(deadline).is_some_and(|left| left.is_zero()) {
            trail.stop(Stage::Deadline, self.refusal(Code::DeadlineExceeded))?;
        }

        // 2 admit: cheap and certain refusals first, then what has to be held. Whatever a later stage refuses, the
        //   earlier ones get back, because what they gave is dropped on the way out.
        let info = CallInfo { key: &self.key, criticality: context.criticality(), attempt: 0 };
        let outermost = self.ask_guards(|at| &at.before_rate_limit, info, &running)?;
        let (mut permit, waited) = self.take_permit(terms.cost, started, deadline, trail).await?;
        let now = if waited { trail.read(&self.clock) } else { started };
        let outer = self.ask_guards(|at| &at.before_circuit, info, &running)?;
        let per_call = self.counts(Count::Calls);
        let pass = if per_call { Some(self.pass_circuit(now, deadline, &running, trail).await?) } else { None };
        let inner = self.ask_guards(|at| &at.before_retry, info, &running)?;

        // 3 attempt, as often as the policy says.
        let bound = (self.deadline.total.is_some() || terms.context != Context::EMPTY).then_some(context);
        let attempts = Attempts { stages: self, classify, operation, running: &running, deadline, bound, info };
        let (ended, latency) = attempts.run(now, &mut permit, trail).await;

        // 4 settle, innermost first.
        let outcome = trail.outcome.unwrap_or(Outcome::Cancelled);
        inner.settle(outcome);
        if let Some(pass) = pass {
            pass.settle(trail.ended, outcome, ended.class.kind, latency);
        }
        outer.settle(outcome);
        outermost.settle(outcome);
        ended.result
    }

    /// What is left of the caller's time, minus the margin kept for the way home.
    fn time_left(&self, deadline: Option<Instant>) -> Option<Duration> {
        let left = deadline?.saturating_duration_since(Instant::now());
        Some(left.saturating_sub(self.deadline.safety_margin))
    }

    fn ask_guards<'a>(
        &'a self,
        place: impl FnOnce(&'a PlacedGuards) -> &'a Guards,
        info: CallInfo<'a>,
        running: &'a Running,
    ) -> Result<GuardsIn<'a>, Rejection> {
        GuardsIn::admit(self.guards.as_deref().map(place), info, running).map_err(|mut rejection| {
            rejection.policy = Some(self.name);
            rejection
        })
    }

    /// Takes the call's permits, waiting for them if the policy allows. Says whether it waited.
    async fn take_permit(
        &self,
        cost: u32,
        now: Time,
        deadline: Option<Instant>,
        trail: &mut Trail,
    ) -> Result<(Permit<'_, S>, bool), Rejection> {
        use crate::rate_limit::Take;
        let Some(limit) = &self.rate_limit else {
            return Ok((Permit::new(self, 0), false));
        };
        let patience = self.time_left(deadline).unwrap_or(Duration::MAX);
        let ask = Ask { cost, max_wait: limit.max_wait.min(patience) };
        let grant = self.store.acquire(&limit.bucket, now, ask).await;
        trail.left = Some(grant.left);
        trail.saw(grant.source);
        let taken = if matches!(grant.take, Take::Granted { .. }) { cost } else { 0 };
        let permit = Permit::new(self, taken);
        if let Some(closed) = self.refuse_degraded(grant.source) {
            return trail.stop(Stage::RateLimit, closed);
        }
        match grant.take {
            Take::Granted { wait } if wait.is_zero() => Ok((permit, false)),
            Take::Granted { wait } => {
                tokio::time::sleep(wait).await;
                Ok((permit, true))
            }
            Take::Refused { .. } if self.passes_degraded(grant.source) => Ok((permit, false)),
            Take::Refused { retry_after } => {
                let mut refusal = self.refusal(Code::RateLimited).source(grant.source);
                refusal.retry_after = retry_after;
                trail.stop(Stage::RateLimit, refusal)
            }
        }
    }

    /// Asks breaker or throttle.
    async fn pass_circuit<'a>(
        &'a self,
        now: Time,
        deadline: Option<Instant>,
        running: &'a Running,
        trail: &mut Trail,
    ) -> Result<Pass<'a, S>, Rejection> {
        let pass = |ticket| Pass::new(self, ticket, running, now, deadline);
        let breaker = match &self.circuit {
            Circuit::None => return Ok(pass(None)),
            Circuit::Breaker { breaker, .. } => breaker,
            Circuit::Throttle(spec) => {
                let mut throttle = self.kept.throttle.lock();
                let throttle = throttle.get_or_insert_with(|| Throttle::new(spec));
                if throttle.admit(now, spec, self.kept.rng.unit()) {
                    return Ok(pass(None));
                }
                return trail.stop(Stage::Circuit, self.refusal(Code::AdaptiveThrottle));
            }
        };
        let answer = self.store.admit(breaker, now).await;
        if let Some(change) = answer.transition {
            self.observers.tell(&self.key, What::Transition(change));
        }
        trail.saw(answer.source);
        if let Some(closed) = self.refuse_degraded(answer.source) {
            if let Admission::Admitted(ticket) = answer.admission {
                drop(pass(Some(ticket))); // not used: recorded as cancelled, so that a lease goes back
            }
            return trail.stop(Stage::Circuit, closed);
        }
        match answer.admission {
            Admission::Admitted(ticket) => Ok(pass(Some(ticket))),
            Admission::Refused { .. } if self.passes_degraded(answer.source) => Ok(pass(None)),
            Admission::Refused { code, retry_after } => {
                let mut refusal = self.refusal(code).source(answer.source);
                refusal.retry_after = retry_after;
                trail.stop(Stage::Circuit, refusal)
            }
        }
    }

    fn refuse_degraded(&self, source: Source) -> Option<Rejection> {
        let closed = source == Source::Degraded && self.on_degraded == OnDegraded::Closed;
        closed.then(|| self.refusal(Code::StoreUnavailable).source(source))
    }

    fn passes_degraded(&self, source: Source) -> bool {
        source == Source::Degraded && self.on_degraded == OnDegraded::Open
    }

    /// Whether the circuit's outcomes are of this kind. A throttle counts calls.
    fn counts(&self, what: Count) -> bool {
        match &self.circuit {
            Circuit::None => false,
            Circuit::Breaker { count, .. } => *count == what,
            Circuit::Throttle(_) => what == Count::Calls,
        }
    }
}

/// The retry loop of one call.
struct Attempts<'a, S: Store, C, F> {
    stages: &'a Stages<S>,
    classify: &'a C,
    operation: &'a F,
    running: &'a Running,
    deadline: Option<Instant>,
    /// The context to bind for the operation, if it is tighter than the task's.
    bound: Option<Context>,
    info: CallInfo<'a>,
}

impl<S, C, F, Fut, T, E> Attempts<'_, S, C, F>
where
    S: Store,
    F: Fn() -> Fut,
    Fut: Future<Output = Result<T, E>>,
    C: Fn(&Result<T, E>) -> Class,
{
    /// Runs attempts until one is final. Returns it with its latency.
    async fn run(&self, now: Time, permit: &mut Permit<'_, S>, trail: &mut Trail) -> (Ended<T, E>, Duration) {
        let stages = self.stages;
        let mut started = now;
        let mut delay = Duration::ZERO;
        let mut last: Option<(Ended<T, E>, Duration)> = None;
        loop {
            let ended = match self.once(started, permit, trail).await {
                Ok(ended) => ended,
                // Refused before it started: the error of the attempt before, if there was one, says more.
                Err(rejection) => {
                    return last.unwrap_or_else(|| (refused(rejection), Duration::ZERO));
                }
            };
            let latency = trail.ended.since(started);
            let Some(next) = self.next_delay(&ended, delay, trail) else {
                return (ended, latency);
            };
            delay = next;
            last = Some((ended, latency));
            tokio::time::sleep(delay).await;
            started = trail.read(&stages.clock);
        }
    }

    /// One attempt, with what is admitted and settled for each.
    async fn once(
        &self,
        started: Time,
        permit: &mut Permit<'_, S>,
        trail: &mut Trail,
    ) -> Result<Ended<T, E>, Rejection> {
        let stages = self.stages;
        let limit = self.limit();
        if limit.limit.is_some_and(|limit| limit.is_zero()) {
            return trail.stop(Stage::Deadline, stages.refusal(Code::DeadlineExceeded));
        }
        let pass = if stages.counts(Count::Attempts) {
            let pass = stages.pass_circuit(started, self.deadline, self.running, trail);
            Some(pass.await?)
        } else {
            None
        };
        let info = CallInfo { attempt: trail.attempts + 1, ..self.info };
        let guards = stages.ask_guards(|at| &at.attempts, info, self.running)?;
        permit.spend();
        trail.attempts += 1;
        if let Some(RetrySpec { budget: Some(_), .. }) = stages.retry
            && trail.attempts == 1
        {
            stages.kept.budget.call(started);
        }

        let answer = self.operate(limit.limit).await;
        let exhausted_inside = nested::marked();
        trail.ended = trail.read(&stages.clock);
        let latency = trail.ended.since(started);

        let (result, class) = match answer {
            Ok(result) => {
                let class = (self.classify)(&result);
                (result.map_err(Error::Inner), class)
            }
            Err(Elapsed) => {
                let cut = self.cut_off(limit, trail);
                (Err(cut.into()), Class::from(cut.kind()))
            }
        };
        let outcome = class.kind.map_or(Outcome::Success, Kind::outcome);
        let too_short_to_blame = limit.by_deadline && answer_is_cut(&result) && latency < stages.deadline.failure_floor;
        let outcome = if too_short_to_blame { Outcome::Neutral } else { outcome };
        trail.outcome = Some(outcome);
        trail.kind = class.kind;
        guards.settle(outcome);
        if let Some(pass) = pass {
            pass.settle(trail.ended, outcome, class.kind, latency);
        }
        // An attempt cut short by the caller's deadline would count as fast: it is no sample.
        if !(limit.by_deadline && answer_is_cut(&result)) {
            stages.watch_latency(trail.ended, latency);
        }
        Ok(Ended { result, class, exhausted_inside })
    }

    /// Polls the operation under its limit, bound to the call's context.
    async fn operate(&self, limit: Option<Duration>) -> Result<Result<T, E>, Elapsed> {
        let mut operation = pin!(self.running.during(self.operation));
        let watched = poll_fn(|cx| {
            nested::wipe();
            self.running.during(|| operation.as_mut().poll(cx))
        });
        match self.bound {
            None => timeout(limit, watched).await,
            Some(context) => timeout(limit, context::scope(context, watched)).await,
        }
    }

    fn limit(&self) -> Limit {
        let left = self.stages.time_left(self.deadline);
        match (self.stages.timeout, left) {
            (Some(cap), Some(left)) if left < cap => Limit { limit: Some(left), by_deadline: true },
            (None, Some(left)) => Limit { limit: Some(left), by_deadline: true },
            (cap, _) => Limit { limit: cap, by_deadline: false },
        }
    }

    fn cut_off(&self, limit: Limit, trail: &mut Trail) -> Rejection {
        let stages = self.stages;
        if limit.by_deadline {
            trail.stage = Some(Stage::Deadline);
            return stages.refusal(Code::DeadlineExceeded);
        }
        trail.stage = Some(Stage::Timeout);
        let (attempt, limit) = (trail.attempts, limit.limit.unwrap_or_default());
        stages.observers.tell(&stages.key, What::AttemptTimeout { attempt, limit });
        stages.refusal(Code::AttemptTimeout)
    }

    /// The wait before the next attempt; none if this one is final.
    fn next_delay(&self, ended: &Ended<T, E>, before: Duration, trail: &mut Trail) -> Option<Duration> {
        let stages = self.stages;
        let spec = stages.retry.as_ref()?;
        let kind = ended.class.kind.filter(|kind| spec.retry_on.contains(*kind))?;
        let given_up_inside = ended.exhausted_inside && !spec.retry_exhausted;
        if trail.attempts >= spec.max_attempts || given_up_inside {
            return None;
        }
        let delay = spec.backoff.delay(trail.attempts, before, &stages.kept.rng);
        let delay = delay.max(ended.class.retry_after.unwrap_or_default());
        // A wait that would outlive the caller is pointless: the real error now is worth more.
        let longest = stages.time_left(self.deadline).unwrap_or(LONGEST_UNBOUNDED_WAIT.max(spec.backoff.max));
        if delay >= longest {
            return None;
        }
        if let Some(budget) = &spec.budget
            && !stages.kept.budget.withdraw(trail.ended, budget)
        {
            stages.observers.tell(&stages.key, What::RetryBudgetExhausted);
            return None;
        }
        trail.stage = None;
        let attempt = trail.attempts;
        stages.observers.tell(&stages.key, What::Retry { attempt, delay, kind });
        Some(delay)
    }
}

impl<S: Store> Stages<S> {
    /// Feeds the digest and, now and then, tells the breaker what it says.
    fn watch_latency(&self, now: Time, latency: Duration) {
        let Circuit::Breaker { breaker, latency: Some(watch), .. } = &self.circuit else {
            return;
        };
        self.store.observe(&watch.digest, now, latency);
        if !self.kept.claims_look(now, watch.look_every) {
            return;
        }
        let value = self.store.quantile(&watch.digest, now, watch.trip.quantile);
        if let Some(change) = self.store.observe_quantile(breaker, now, value) {
            self.observers.tell(&self.key, What::Transition(change));
        }
    }

    /// Tells observers that the call is over.
    pub(crate) fn finished(&self, trail: &Trail, decision: &Decision) {
        let what = What::Finished { outcome: trail.outcome, kind: trail.kind, decision };
        self.observers.tell(&self.key, what);
    }
}

fn refused<T, E>(rejection: Rejection) -> Ended<T, E> {
    Ended { class: Class::from(rejection.kind()), result: Err(rejection.into()), exhausted_inside: false }
}

const fn answer_is_cut<T, E>(result: &Result<T, Error<E>>) -> bool {
    matches!(result, Err(Error::Rejected(_)))
}
