//! Hedging: when hedges are sent, which answer wins, and what limits the extra load.

#![allow(clippy::unwrap_used)] // helpers of tests may panic

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use phalanx::policy::{BudgetSpec, Jitter};
use phalanx::*;
use support::*;
use tokio::time::Instant;

/// A hedge after 100 ms, practically without a budget.
fn hedge() -> HedgeSpec {
    HedgeSpec::after(100 * MS).budget(BudgetSpec::ratio(1.0).min_per_second(100))
}

fn hedged() -> Policy {
    Policy::named("p").hedge(hedge()).idempotent()
}

/// An upstream with a latency and an answer for each run. It counts the runs that started, ended and were dropped.
#[derive(Clone)]
struct ScriptedUpstream(Arc<State>);

struct State {
    script: Vec<(Duration, Result<u32, Failure>)>,
    begun: AtomicUsize,
    ended: AtomicUsize,
    dropped: AtomicUsize,
}

/// Counts a run when it ends or is dropped.
struct RunGuard<'a>(&'a State, bool);

impl Drop for RunGuard<'_> {
    fn drop(&mut self) {
        let end = if self.1 { &self.0.ended } else { &self.0.dropped };
        end.fetch_add(1, Ordering::Relaxed);
    }
}

impl ScriptedUpstream {
    fn new(script: impl Into<Vec<(Duration, Result<u32, Failure>)>>) -> Self {
        let (begun, ended, dropped) = Default::default();
        Self(Arc::new(State { script: script.into(), begun, ended, dropped }))
    }

    async fn run(&self) -> Result<u32, Failure> {
        let state = &*self.0;
        let line = state.begun.fetch_add(1, Ordering::Relaxed).min(state.script.len() - 1);
        let (takes, answer) = state.script[line];
        let mut running = RunGuard(state, false);
        tokio::time::sleep(takes).await;
        running.1 = true;
        answer
    }

    /// The runs that started, ended and were dropped.
    fn counts(&self) -> (usize, usize, usize) {
        let State { begun, ended, dropped, .. } = &*self.0;
        (begun.load(Ordering::Relaxed), ended.load(Ordering::Relaxed), dropped.load(Ordering::Relaxed))
    }
}

#[tokio::test(start_paused = true)]
async fn a_quick_attempt_is_never_hedged() {
    let (upstream, module) = (ScriptedUpstream::new([(99 * MS, Ok(1))]), module(hedged()));
    let (answer, record) = module.call("p", ()).run_recorded(|| upstream.run()).await;
    assert_eq!((answer, upstream.counts()), (Ok(1), (1, 1, 0)));
    assert_eq!((record.attempts, record.hedges, record.hedge_won), (1, 0, false));
}

#[tokio::test(start_paused = true)]
async fn the_first_answer_wins_and_the_other_attempt_is_dropped_at_once() {
    let (upstream, module) = (ScriptedUpstream::new([(SECOND, Ok(1)), (50 * MS, Ok(2))]), module(hedged()));
    let start = Instant::now();
    let (answer, record) = module.call("p", ()).run_recorded(|| upstream.run()).await;
    assert_eq!((answer, start.elapsed(), upstream.counts()), (Ok(2), 150 * MS, (2, 1, 1)));
    assert_eq!((record.attempts, record.hedges, record.hedge_won), (1, 1, true));

    let (upstream, start) = (ScriptedUpstream::new([(120 * MS, Ok(1)), (SECOND, Ok(2))]), Instant::now());
    let (answer, record) = module.call("p", ()).run_recorded(|| upstream.run()).await;
    assert_eq!((answer, start.elapsed(), upstream.counts()), (Ok(1), 120 * MS, (2, 1, 1)));
    assert_eq!((record.hedges, record.hedge_won), (1, false));
}

#[tokio::test(start_paused = true)]
async fn a_failure_before_the_delay_is_returned_at_once() {
    let (upstream, module) = (ScriptedUpstream::new([(30 * MS, Err(BROKEN)), (MS, Ok(2))]), module(hedged()));
    let start = Instant::now();
    assert_eq!(module.run("p", (), || upstream.run()).await, Err(Error::Inner(BROKEN)));
    assert_eq!((start.elapsed(), upstream.counts()), (30 * MS, (1, 1, 0)));
}

#[tokio::test(start_paused = true)]
async fn a_failure_while_a_hedge_runs_waits_for_the_hedge() {
    let (upstream, module) = (ScriptedUpstream::new([(110 * MS, Err(BROKEN)), (200 * MS, Ok(2))]), module(hedged()));
    let start = Instant::now();
    assert_eq!(module.run("p", (), || upstream.run()).await, Ok(2));
    assert_eq!((start.elapsed(), upstream.counts()), (300 * MS, (2, 2, 0)));
}

#[tokio::test(start_paused = true)]
async fn if_all_fail_the_last_failure_is_returned() {
    let last = Failure(Kind::Throttled, None);
    let (upstream, module) =
        (ScriptedUpstream::new([(110 * MS, Err(BROKEN)), (200 * MS, Err(last))]), module(hedged()));
    assert_eq!(module.run("p", (), || upstream.run()).await, Err(Error::Inner(last)));
    assert_eq!(upstream.counts(), (2, 2, 0));
}

#[tokio::test(start_paused = true)]
async fn a_domain_error_is_an_answer_and_wins() {
    let no = Failure(Kind::NotFound, None);
    let (upstream, module) = (ScriptedUpstream::new([(SECOND, Ok(1)), (MS, Err(no))]), module(hedged()));
    assert_eq!(module.run("p", (), || upstream.run()).await, Err(Error::Inner(no)));
    assert_eq!(upstream.counts(), (2, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn each_hedge_is_sent_one_delay_after_the_previous_one() {
    let script = [(9 * SECOND, Ok(1)), (9 * SECOND, Ok(2)), (9 * SECOND, Ok(3)), (50 * MS, Ok(4))];
    let upstream = ScriptedUpstream::new(script);
    let log = Log::default();
    let policy = Policy::named("p").hedge(hedge().max_attempts(4)).idempotent();
    let module = builder(policy).observer(log.clone()).build().unwrap();
    let start = Instant::now();
    assert_eq!(module.run("p", (), || upstream.run()).await, Ok(4));
    assert_eq!((start.elapsed(), upstream.counts()), (350 * MS, (4, 1, 3)));
    assert_eq!(log.count("Hedge {"), 3);
}

#[tokio::test(start_paused = true)]
async fn every_hedge_has_its_own_timeout_and_the_attempt_ends_with_the_last() {
    let log = Log::default();
    let (upstream, policy) = (ScriptedUpstream::new([(9 * SECOND, Ok(1))]), hedged().timeout(300 * MS));
    let module = builder(policy).observer(log.clone()).build().unwrap();
    let start = Instant::now();
    assert_eq!(code(module.run("p", (), || upstream.run()).await), RejectionCode::AttemptTimeout);
    assert_eq!((start.elapsed(), upstream.counts()), (400 * MS, (2, 0, 2)));
    assert_eq!(log.count("timeout"), 2);

    let upstream = ScriptedUpstream::new([(9 * SECOND, Ok(1)), (250 * MS, Ok(2))]);
    assert_eq!(module.run("p", (), || upstream.run()).await, Ok(2), "although the first had timed out by then");
}

#[tokio::test(start_paused = true)]
async fn an_attempt_past_its_timeout_is_dropped_while_its_hedge_runs_on() {
    let upstream = ScriptedUpstream::new([(9 * SECOND, Ok(1))]);
    let module = module(hedged().timeout(300 * MS));
    let watched = upstream.clone();
    let call = tokio::spawn(async move { module.run("p", (), || watched.run()).await });
    tokio::time::sleep(350 * MS).await;
    assert_eq!(upstream.counts(), (2, 0, 1));
    assert_eq!(code(call.await.unwrap()), RejectionCode::AttemptTimeout);
}

#[tokio::test(start_paused = true)]
async fn the_deadline_of_the_caller_ends_attempt_and_hedges() {
    let (upstream, module) =
        (ScriptedUpstream::new([(9 * SECOND, Ok(1))]), module(hedged().deadline(250 * MS).timeout(SECOND)));
    let start = Instant::now();
    assert_eq!(code(module.run("p", (), || upstream.run()).await), RejectionCode::DeadlineExceeded);
    assert_eq!((start.elapsed(), upstream.counts()), (250 * MS, (2, 0, 2)));
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_failed_with_its_hedge_is_retried_and_hedged_again() {
    let broken = |takes| (takes, Err(BROKEN));
    let upstream = ScriptedUpstream::new([broken(150 * MS), broken(150 * MS), broken(150 * MS), (MS, Ok(4))]);
    let retry = RetrySpec::attempts(2).backoff(Backoff::constant(10 * MS).jitter(Jitter::None));
    let module = module(hedged().retry(retry));
    let start = Instant::now();
    let (answer, record) = module.call("p", ()).run_recorded(|| upstream.run()).await;
    assert_eq!((answer, start.elapsed()), (Ok(4), (250 + 10 + 101) * MS));
    assert_eq!((record.attempts, record.hedges), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn hedge_won_is_recorded_only_for_an_answer_of_a_hedge() {
    let record = async |policy: Policy, script: Vec<_>| {
        let (upstream, module) = (ScriptedUpstream::new(script), module(policy));
        let (answer, record) = module.call("p", ()).run_recorded(|| upstream.run()).await;
        assert_eq!(record.hedges, 1);
        (answer.map_err(|error| error.rejection().map(Rejection::code)), record.hedge_won)
    };
    let never = (9 * SECOND, Ok(1));
    let timed_out = record(hedged().timeout(300 * MS), vec![never]).await;
    assert_eq!(timed_out, (Err(Some(RejectionCode::AttemptTimeout)), false), "a hedge that timed out is no answer");

    let retry = RetrySpec::attempts(2).backoff(Backoff::constant(10 * MS).jitter(Jitter::None));
    let script = vec![(110 * MS, Err(BROKEN)), (50 * MS, Err(BROKEN)), (MS, Ok(3))];
    assert_eq!(record(hedged().retry(retry), script).await, (Ok(3), false), "the answer of the second attempt");
}

#[tokio::test(start_paused = true)]
async fn hedges_never_exceed_their_budget() {
    let log = Log::default();
    let spec = HedgeSpec::after(100 * MS).budget(BudgetSpec::ratio(0.1).min_per_second(0));
    let module = builder(Policy::named("p").hedge(spec).idempotent()).observer(log.clone()).build().unwrap();
    let pipeline = module.pipeline("p", ()).unwrap();
    let calls = (0..200).map(|_| {
        let pipeline = pipeline.clone();
        tokio::spawn(async move { pipeline.run(|| after(200 * MS, Ok(1))).await })
    });
    for call in calls.collect::<Vec<_>>() {
        assert_eq!(call.await.unwrap(), Ok(1), "with or without a hedge");
    }
    assert_eq!((log.count("Hedge {"), log.count("HedgeBudgetExhausted")), (20, 180));
}

#[tokio::test(start_paused = true)]
async fn a_hedge_takes_a_slot_of_the_bulkhead_and_frees_it() {
    let (upstream, module) =
        (ScriptedUpstream::new([(SECOND, Ok(1)), (50 * MS, Ok(2))]), module(hedged().bulkhead(BulkheadSpec::fixed(2))));
    let pipeline = module.pipeline("p", ()).unwrap();
    let (running, watched) = (pipeline.clone(), upstream.clone());
    let call = tokio::spawn(async move { running.run(|| watched.run()).await });
    tokio::time::sleep(120 * MS).await;
    assert_eq!(pipeline.available_slots(), Some(0));
    assert_eq!(call.await.unwrap(), Ok(2));
    assert_eq!(pipeline.available_slots(), Some(2));
}

#[tokio::test(start_paused = true)]
async fn no_hedge_is_sent_while_all_slots_are_taken() {
    let (upstream, module) = (
        ScriptedUpstream::new([(SECOND, Ok(1)), (50 * MS, Ok(2))]),
        module(hedged().bulkhead(BulkheadSpec::fixed(1).queue(5))),
    );
    let pipeline = module.pipeline("p", ()).unwrap();
    let (running, watched) = (pipeline.clone(), upstream.clone());
    let call = tokio::spawn(async move { running.run(|| watched.run()).await });
    let slots = || pipeline.bulkhead().map(|view| (view.limit, view.in_use));
    tokio::time::sleep(200 * MS).await;
    assert_eq!(slots(), Some((1, 1)), "no slot is freed that was not taken");
    assert_eq!(call.await.unwrap(), Ok(1));
    assert_eq!((upstream.counts(), slots()), ((1, 1, 0), Some((1, 0))));
}

fn counting_attempts() -> BreakerSpec {
    BreakerSpec::failure_ratio(0.5).min_throughput(100).window(60 * SECOND).count_attempts()
}

#[tokio::test(start_paused = true)]
async fn with_attempts_counted_the_breaker_admits_and_records_each_hedge() {
    let module = module(hedged().breaker(counting_attempts()));
    let pipeline = module.pipeline("p", ()).unwrap();
    let counted = async || {
        let view = pipeline.circuit().await.unwrap();
        (view.calls - view.failures, view.failures)
    };
    let run = async |script: Vec<_>| {
        let upstream = ScriptedUpstream::new(script);
        let _ = pipeline.run(|| upstream.run()).await;
    };
    run(vec![(SECOND, Ok(1)), (50 * MS, Ok(2))]).await;
    assert_eq!(counted().await, (1, 0), "only the winner; a dropped attempt is not recorded");
    run(vec![(110 * MS, Err(BROKEN)), (50 * MS, Ok(2))]).await;
    assert_eq!(counted().await, (2, 1));
    run(vec![(110 * MS, Err(BROKEN)), (50 * MS, Err(BROKEN))]).await;
    assert_eq!(counted().await, (2, 3));
    run(vec![(110 * MS, Ok(1)), (50 * MS, Ok(2))]).await;
    assert_eq!(counted().await, (3, 3));
}

#[tokio::test(start_paused = true)]
async fn with_calls_counted_an_attempt_and_its_hedges_are_one_call() {
    let breaker = BreakerSpec::failure_ratio(0.5).min_throughput(100).window(60 * SECOND);
    let module = module(hedged().breaker(breaker));
    let pipeline = module.pipeline("p", ()).unwrap();
    for script in [[(110 * MS, Err(BROKEN)), (50 * MS, Ok(2))], [(110 * MS, Err(BROKEN)), (50 * MS, Err(BROKEN))]] {
        let upstream = ScriptedUpstream::new(script);
        let _ = pipeline.run(|| upstream.run()).await;
    }
    let view = pipeline.circuit().await.unwrap();
    assert_eq!((view.calls - view.failures, view.failures), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_probe_is_not_hedged() {
    let breaker = BreakerSpec::consecutive_failures(1).break_for(SECOND);
    for breaker in [breaker.clone(), breaker.count_attempts()] {
        let module = module(hedged().breaker(breaker));
        let broken = Upstream::always(Err(BROKEN));
        assert!(module.run("p", (), || broken.call()).await.is_err());
        tokio::time::sleep(SECOND).await;
        let upstream = ScriptedUpstream::new([(400 * MS, Ok(1))]);
        assert_eq!(module.run("p", (), || upstream.run()).await, Ok(1));
        assert_eq!(upstream.counts(), (1, 1, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn the_delay_follows_the_observed_latency() {
    let spec = hedge().at_quantile(0.95).between(10 * MS, 300 * MS);
    let module = module(Policy::named("p").hedge(spec).idempotent());
    let pipeline = module.pipeline("p", ()).unwrap();
    assert_eq!(pipeline.hedge_delay(), Some(100 * MS), "the fixed delay until there are samples");
    let serve = async |latency: Duration, calls: usize| {
        for _ in 0..calls {
            assert_eq!(pipeline.run(|| after(latency, Ok(1))).await, Ok(1));
        }
    };
    serve(40 * MS, 100).await;
    let delay = pipeline.hedge_delay().unwrap();
    assert!((39 * MS..=41 * MS).contains(&delay), "{delay:?}");
    serve(2 * MS, 6_000).await;
    assert_eq!(pipeline.hedge_delay(), Some(10 * MS), "never below delay_min");
    for _ in 0..8 {
        let slow = [(); 40].map(|()| pipeline.run(|| after(900 * MS, Ok(1))));
        futures_util::future::join_all(slow).await;
    }
    assert_eq!(pipeline.hedge_delay(), Some(300 * MS), "never above delay_max");
}

/// Without samples of the overtaken attempts only quick answers would be counted and the delay would shrink to them.
#[tokio::test(start_paused = true)]
async fn an_attempt_overtaken_by_its_hedge_counts_as_slow() {
    let module = module(Policy::named("p").hedge(hedge().at_quantile(0.95)).idempotent());
    let pipeline = module.pipeline("p", ()).unwrap();
    let attempt = async |takes: Duration| {
        let upstream = ScriptedUpstream::new([(takes, Ok(1)), (10 * MS, Ok(2))]);
        pipeline.run(|| upstream.run()).await
    };
    for round in 0..400 {
        let slow = round % 10 == 9;
        let expected = if slow { 2 } else { 1 };
        assert_eq!(attempt(if slow { SECOND } else { 10 * MS }).await, Ok(expected));
    }
    // Every answer took 10 ms after its attempt or hedge, but one attempt in ten takes longer than the delay and 10 ms.
    let delay = pipeline.hedge_delay().unwrap();
    assert!(delay >= 20 * MS, "{delay:?}");
}
