//! Spans of calls and attempts in `tracing`, for every outcome.

#![cfg(feature = "tracing")]
#![allow(clippy::unwrap_used)] // helpers of tests may panic

#[path = "support/spans.rs"]
mod spans;
mod support;

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};

use phalanx::policy::{BudgetSpec, Jitter};
use phalanx::*;
use spans::*;
use support::*;
use tracing::{Level, Span, info_span};
use tracing_subscriber::filter::{LevelFilter, Targets};

const CALL: &str = "phalanx.call";
const ATTEMPT: &str = "phalanx.attempt";

fn traced(policy: Policy) -> ResilienceModule {
    builder(policy).traced().build().unwrap()
}

fn retrying() -> Policy {
    Policy::named("p").retry(RetrySpec::attempts(3).backoff(Backoff::exponential(100 * MS))).timeout(SECOND)
}

fn fields(span: &Seen, names: &[&str]) -> Vec<Option<String>> {
    names.iter().map(|name| span.field(name).map(str::to_owned)).collect()
}

fn some(values: &[&str]) -> Vec<Option<String>> {
    values.iter().map(|value| (!value.is_empty()).then(|| (*value).to_owned())).collect()
}

#[tokio::test(start_paused = true)]
async fn a_call_has_a_span_with_its_outcome_and_every_attempt_a_child_span() {
    let (seen, _guard) = collect();
    let module = traced(retrying().breaker(BreakerSpec::failure_ratio(0.9)));
    let upstream = Upstream::scripted([Err(BROKEN), Ok(7)]);
    let request = info_span!("request");
    let call = module.call("p", "eu").within(10 * SECOND).run(|| upstream.call());
    assert_eq!(tracing::Instrument::instrument(call, request).await, Ok(7));

    let call = seen.only(CALL);
    assert_eq!((call.level, call.target.as_str(), call.closed), (Level::INFO, "phalanx", true));
    let names = ["policy", "route", "attempts", "outcome", "breaker_state", "source", "code", "error.type"];
    assert_eq!(fields(&call, &names), some(&["p", "eu", "2", "success", "closed", "local", "", ""]));
    let left: u64 = call.field("deadline_remaining_ms").unwrap().parse().unwrap();
    assert!((9_000..10_000).contains(&left), "the backoff is subtracted: {left}");
    assert_eq!(fields(&call, &["otel.status_code", "degraded", "hedge_won"]), some(&["", "", ""]));
    assert_eq!(seen.spans()[call.parent.unwrap()].name, "request");

    let attempts = seen.named(ATTEMPT);
    let names = ["attempt", "timeout_ms", "outcome", "error.type", "otel.status_code", "hedge"];
    assert_eq!(fields(&attempts[0], &names), some(&["1", "1000", "failure", "infrastructure", "ERROR", ""]));
    assert_eq!(fields(&attempts[1], &names), some(&["2", "1000", "success", "", "", ""]));
    for attempt in &attempts {
        assert_eq!((attempt.level, attempt.closed), (Level::DEBUG, true));
        assert_eq!(seen.spans()[attempt.parent.unwrap()].name, CALL);
    }
}

#[tokio::test(start_paused = true)]
async fn the_span_of_an_attempt_ends_before_the_backoff() {
    let (seen, _guard) = collect();
    let upstream = Upstream::scripted([Err(BROKEN), Ok(7)]);
    traced(retrying()).run("p", (), || upstream.call()).await.unwrap();
    let first = ["new phalanx.call", "new phalanx.attempt", "end phalanx.attempt"];
    let second = ["new phalanx.attempt", "end phalanx.attempt", "end phalanx.call"];
    assert_eq!(seen.lifecycle(), [first, second].concat());
}

#[tokio::test(start_paused = true)]
async fn the_operation_always_runs_inside_the_span_of_its_attempt() {
    let (_seen, _guard) = collect();
    let module = traced(retrying());
    let names = Mutex::new(Vec::new());
    let note = || names.lock().unwrap().push((Span::current().metadata().unwrap().name(), Span::current().id()));
    module
        .run("p", (), || {
            note(); // while the future is created
            async {
                note();
                tokio::time::sleep(MS).await;
                note();
                Ok::<_, Failure>(())
            }
        })
        .await
        .unwrap();
    assert!(Span::current().is_none(), "the span is left afterwards");
    let names = names.into_inner().unwrap();
    assert_eq!(names, vec![(ATTEMPT, names[0].1.clone()); 3]);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_call_and_its_attempt_are_recorded_as_cancelled() {
    let (seen, _guard) = collect();
    let module = traced(retrying());
    {
        let mut call = pin!(module.run("p", (), hang));
        assert!(poll_once(call.as_mut()).is_pending());
    }
    let names = ["outcome", "otel.status_code", "error.type"];
    for span in [seen.only(CALL), seen.only(ATTEMPT)] {
        assert_eq!((fields(&span, &names), span.closed), (some(&["cancelled", "", ""]), true));
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_dropped_during_backoff_keeps_the_outcome_of_its_last_attempt() {
    let (seen, _guard) = collect();
    let module = traced(retrying());
    {
        let mut call = pin!(module.run("p", (), async || Err::<(), _>(BROKEN)));
        assert!(poll_once(call.as_mut()).is_pending());
    }
    assert_eq!(seen.only(ATTEMPT).field("outcome"), Some("failure"));
    assert_eq!(seen.only(CALL).field("outcome"), Some("cancelled"));
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_the_operation_is_a_failure_of_call_and_attempt() {
    let (seen, _guard) = collect();
    let module = traced(retrying());
    let broken = async || -> Result<(), Failure> { std::panic::resume_unwind(Box::new("broken")) };
    let joined = tokio::spawn(async move { module.run("p", (), broken).await }).await;
    assert!(joined.unwrap_err().is_panic());
    for span in [seen.only(CALL), seen.only(ATTEMPT)] {
        assert_eq!(fields(&span, &["outcome", "otel.status_code"]), some(&["failure", "ERROR"]));
    }
}

#[tokio::test(start_paused = true)]
async fn a_rejected_call_has_a_span_and_no_attempt() {
    let (seen, _guard) = collect();
    let module = traced(Policy::named("p").rate_limit(RateLimitSpec::per_second(1)));
    let upstream = Upstream::always(Ok(1));
    module.run("p", (), || upstream.call()).await.unwrap();
    module.run("p", (), || upstream.call()).await.unwrap_err();
    let rejected = &seen.named(CALL)[1];
    let names = ["attempts", "outcome", "code", "error.type", "otel.status_code", "route", "breaker_state"];
    assert_eq!(fields(rejected, &names), some(&["0", "rejected", "rate_limited", "throttled", "ERROR", "", ""]));
    assert_eq!(seen.named(ATTEMPT).len(), 1, "of the first call");
}

#[tokio::test(start_paused = true)]
async fn the_span_has_the_phase_of_the_breaker_for_this_call() {
    let (seen, _guard) = collect();
    let module = traced(Policy::named("p").breaker(BreakerSpec::consecutive_failures(1).break_for(SECOND)));
    let upstream = Upstream::scripted([Err(BROKEN), Ok(1)]);
    for _ in 0..2 {
        module.run("p", (), || upstream.call()).await.unwrap_err();
    }
    tokio::time::advance(2 * SECOND).await;
    for _ in 0..2 {
        module.run("p", (), || upstream.call()).await.unwrap();
    }
    let states: Vec<_> = seen.named(CALL).iter().map(|call| call.field("breaker_state").unwrap().to_owned()).collect();
    assert_eq!(states, ["closed", "open", "half_open", "closed"]);
}

#[tokio::test(start_paused = true)]
async fn every_hedge_runs_in_its_own_span() {
    let (seen, _guard) = collect();
    let policy = Policy::named("p").hedge(HedgeSpec::after(10 * MS)).idempotent();
    let module = traced(policy);
    let (ids, slow) = (Mutex::new(Vec::new()), Mutex::new(true));
    let answer = module.run("p", (), || {
        ids.lock().unwrap().push(Span::current().id());
        let slow = std::mem::take(&mut *slow.lock().unwrap());
        async move {
            after(if slow { SECOND } else { 5 * MS }, Ok(1)).await.inspect(|_| info_span!("deepest").in_scope(|| ()))
        }
    });
    answer.await.unwrap();
    let ids = ids.into_inner().unwrap();
    assert!(ids.len() == 2 && ids[0] != ids[1] && ids.iter().all(Option::is_some), "{ids:?}");

    let attempts = seen.named(ATTEMPT);
    let names = ["attempt", "hedge", "outcome"];
    assert_eq!(fields(&attempts[0], &names), some(&["1", "", "cancelled"]), "it was dropped");
    assert_eq!(fields(&attempts[1], &names), some(&["1", "1", "success"]));
    let deepest = seen.only("deepest").parent.unwrap();
    assert_eq!(seen.spans()[deepest].field("hedge"), Some("1"), "work of the hedge is inside the span of the hedge");
    let call = seen.only(CALL);
    assert_eq!(fields(&call, &["attempts", "outcome", "hedge_won"]), some(&["1", "success", "true"]));
    assert!(attempts.iter().all(|attempt| attempt.closed && seen.spans()[attempt.parent.unwrap()].name == CALL));
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_fails_while_its_hedge_runs_on_is_recorded_as_failed() {
    let (seen, _guard) = collect();
    let module = traced(Policy::named("p").hedge(HedgeSpec::after(10 * MS)).idempotent());
    let first = Mutex::new(true);
    let answer = module.run("p", (), || {
        let first = std::mem::take(&mut *first.lock().unwrap());
        if first { after(15 * MS, Err(BROKEN)) } else { after(20 * MS, Ok(1)) }
    });
    answer.await.unwrap();
    let outcomes: Vec<_> =
        seen.named(ATTEMPT).iter().map(|attempt| attempt.field("outcome").unwrap().to_owned()).collect();
    assert_eq!(outcomes, ["failure", "success"]);
}

#[tokio::test(start_paused = true)]
async fn the_span_of_a_nested_call_is_inside_the_outer_attempt() {
    let (seen, _guard) = collect();
    let module = traced(Policy::named("p"));
    let upstream = Upstream::always(Ok(1));
    let inner = || async { module.run("p", "inner", || upstream.call()).await.map_err(|_| BROKEN) };
    module.run("p", "outer", inner).await.unwrap();
    let spans = seen.spans();
    let inner = spans.iter().find(|span| span.field("route") == Some("inner")).unwrap();
    let attempt = &spans[inner.parent.unwrap()];
    assert_eq!(attempt.name, ATTEMPT);
    assert_eq!(spans[attempt.parent.unwrap()].field("route"), Some("outer"));
}

#[tokio::test(start_paused = true)]
async fn a_fallback_runs_inside_the_span_of_the_call_and_marks_it_degraded() {
    let (seen, _guard) = collect();
    let module = traced(Policy::named("p"));
    let answer = module.call("p", ()).fallback_async(|_: &Error<Failure>| async {
        tokio::time::sleep(MS).await;
        info_span!("cache").in_scope(|| 5)
    });
    assert_eq!(answer.run(async || Err(BROKEN)).await, Ok(5));
    let call = seen.only(CALL);
    assert_eq!(fields(&call, &["outcome", "degraded", "otel.status_code"]), some(&["failure", "true", "OK"]));
    assert_eq!(seen.spans()[seen.only("cache").parent.unwrap()].name, CALL);
    assert_eq!(seen.spans()[seen.lines_of("fallback_used")[0].parent.unwrap()].name, CALL);
    assert!(call.closed);
}

#[tokio::test(start_paused = true)]
async fn observers_run_inside_the_span_of_the_call() {
    let (_seen, _guard) = collect();
    let emitted = Arc::new(Mutex::new(Vec::new()));
    let sink = emitted.clone();
    let policy = retrying().hedge(HedgeSpec::after(10 * MS)).idempotent().timeout(50 * MS);
    let module = builder(policy).traced().on_event(move |event| {
        let kind = format!("{:?}", event.kind);
        let span = Span::current().metadata().map(tracing::Metadata::name);
        sink.lock().unwrap().push((kind.split([' ', '(']).next().unwrap().to_owned(), span));
    });
    let module = module.build().unwrap();
    module.run("p", (), hang).await.unwrap_err();
    {
        let mut dropped = pin!(module.run("p", (), hang));
        assert!(poll_once(dropped.as_mut()).is_pending());
    }
    let emitted = emitted.lock().unwrap();
    for kind in ["Hedge", "AttemptTimeout", "Retry", "Finished"] {
        assert!(emitted.iter().any(|(emitted, _)| emitted == kind), "{kind} in {emitted:?}");
    }
    assert_eq!(emitted.iter().filter(|(kind, _)| kind == "Finished").count(), 2);
    assert!(emitted.iter().all(|(_, span)| *span == Some(CALL)), "{emitted:?}");
}

#[tokio::test(start_paused = true)]
async fn a_detached_attempt_stays_inside_its_span() {
    let (seen, _guard) = collect();
    let module = traced(Policy::named("p").timeout(10 * MS));
    let work = || async {
        tokio::time::sleep(20 * MS).await;
        info_span!("late").in_scope(|| Ok::<_, Failure>(()))
    };
    assert_eq!(code(module.call("p", ()).run_detached(work).await), RejectionCode::AttemptTimeout);
    assert!(!seen.only(ATTEMPT).closed, "it still runs");
    tokio::time::sleep(30 * MS).await;
    assert_eq!(seen.spans()[seen.only("late").parent.unwrap()].name, ATTEMPT);
    assert!(seen.only(ATTEMPT).closed);
}

#[tokio::test(start_paused = true)]
async fn at_info_only_calls_have_spans_and_the_operation_runs_inside_them() {
    let (seen, _guard) = collect_at(Targets::new().with_default(LevelFilter::INFO));
    let upstream = Upstream::scripted([Err(BROKEN), Ok(7)]);
    let call = traced(retrying())
        .run("p", (), || async { info_span!("deepest").in_scope(|| upstream.clone()).call().await })
        .await;
    call.unwrap();
    assert_eq!(seen.only(CALL).field("attempts"), Some("2"));
    assert!(seen.named(ATTEMPT).is_empty());
    assert!(seen.named("deepest").iter().all(|span| seen.spans()[span.parent.unwrap()].name == CALL));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_traced_unless_enabled_and_subscribed() {
    let failing = async || Err::<(), _>(BROKEN);
    let (seen, guard) = collect();
    module(retrying()).run("p", (), failing).await.unwrap_err();
    assert!(seen.spans().is_empty() && seen.lines().is_empty());
    drop(guard);

    let all = Targets::new().with_default(LevelFilter::TRACE);
    let (seen, _guard) = collect_at(all.with_target("phalanx", LevelFilter::OFF));
    let outer = info_span!("outer");
    let inside = Mutex::new(None);
    let noting = || async {
        *inside.lock().unwrap() = Span::current().id();
        Err::<(), _>(BROKEN)
    };
    let module = traced(retrying());
    tracing::Instrument::instrument(module.run("p", (), noting), outer.clone()).await.unwrap_err();
    assert!(seen.named(CALL).is_empty() && seen.named(ATTEMPT).is_empty() && seen.lines().is_empty());
    assert_eq!(*inside.lock().unwrap(), outer.id(), "the span of the caller is unchanged");
}

#[tokio::test(start_paused = true)]
async fn control_characters_in_a_route_are_escaped() {
    let (seen, _guard) = collect();
    let module = traced(Policy::named("p").rate_limit(RateLimitSpec::per_second(1)));
    let upstream = Upstream::always(Ok(1));
    let route = "x\n2026-01-01 ERROR all is lost\u{1b}[2J";
    for _ in 0..2 {
        let _ = module.run("p", route, || upstream.call()).await;
    }
    let shown = "x\\n2026-01-01 ERROR all is lost\\u{1b}[2J";
    assert_eq!(seen.named(CALL)[0].field("route"), Some(shown));
    assert_eq!(seen.lines_of("rate_limited")[0].field("route"), Some(shown));
}

/// Polls the call this many times, with time passing in between, and drops it.
async fn drop_after<F: Future>(polls: usize, call: F) -> bool {
    let mut call = pin!(call);
    for _ in 0..polls {
        if poll_once(call.as_mut()).is_ready() {
            return true;
        }
        tokio::time::advance(10 * MS).await;
    }
    false
}

#[tokio::test(start_paused = true)]
async fn wherever_a_call_is_dropped_every_span_ends_with_an_outcome() {
    let policy = || {
        let retry = RetrySpec::attempts(3).backoff(Backoff::constant(20 * MS).jitter(Jitter::None));
        let hedge = HedgeSpec::after(20 * MS).budget(BudgetSpec::ratio(1.0).min_per_second(100));
        Policy::named("p").bulkhead(BulkheadSpec::fixed(4)).retry(retry).hedge(hedge).timeout(50 * MS).idempotent()
    };
    for polls in 0.. {
        let (seen, _guard) = collect();
        let module = traced(policy());
        let fallback = module.call("p", ()).fallback_async(|_: &Error<Failure>| async {
            tokio::time::sleep(20 * MS).await;
            7
        });
        let done = drop_after(polls, fallback.run(hang)).await;
        for span in seen.spans() {
            assert!(span.closed && span.field("outcome").is_some(), "after {polls} polls: {span:?}");
        }
        assert_eq!(seen.spans().is_empty(), polls == 0);
        if done {
            assert!(polls > 20 && seen.named(ATTEMPT).len() >= 6, "three attempts and their hedges");
            assert_eq!(seen.only(CALL).field("degraded"), Some("true"));
            return;
        }
    }
}
