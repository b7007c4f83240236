//! Custom guards: their order, when they are called, and the outcomes they get.

#![allow(clippy::unwrap_used)] // helpers of tests may unwrap

mod support;

use std::sync::{Arc, Mutex};

use phalanx::describe::Outcome;
use phalanx::guard::{CallInfo, Guard};
use phalanx::*;
use support::*;

async fn ok() -> Result<u32, Failure> {
    Ok(1)
}

#[tokio::test(start_paused = true)]
async fn a_guard_sees_a_call_cut_off_by_its_deadline_as_a_failure() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let module = module(Policy::named("p").deadline(SECOND).guard(RecordingGuard(50, "guard", log.clone())));
    assert_eq!(code(module.run("p", (), hang).await), RejectionCode::DeadlineExceeded);
    assert_eq!(*log.lock().unwrap(), ["guard? 0", "guard: 0 Failure"]);
}

/// Records when it admits and settles a call.
struct RecordingGuard(u16, &'static str, Arc<Mutex<Vec<String>>>);

impl Guard for RecordingGuard {
    fn name(&self) -> &str {
        self.1
    }

    fn order(&self) -> u16 {
        self.0
    }

    fn admit(&self, call: &CallInfo<'_>) -> Result<(), Rejection> {
        self.2.lock().unwrap().push(format!("{}? {}", self.1, call.attempt));
        Ok(())
    }

    fn settle(&self, call: &CallInfo<'_>, outcome: Outcome) {
        self.2.lock().unwrap().push(format!("{}: {} {outcome:?}", self.1, call.attempt));
    }
}

#[tokio::test(start_paused = true)]
async fn custom_guards_run_in_their_order_and_settle_in_reverse() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let guard = |order, name| RecordingGuard(order, name, log.clone());
    // Configured in reverse on purpose: the order depends on the numbers only.
    let policy = Policy::named("p")
        .guard(guard(650, "attempt"))
        .retry(RetrySpec::attempts(2).backoff(Backoff::constant(MS)))
        .guard(guard(450, "inner"))
        .breaker(BreakerSpec::failure_ratio(0.5))
        .guard(guard(250, "middle"))
        .rate_limit(RateLimitSpec::per_second(9))
        .guard(guard(50, "outer"));
    let module = module(policy);
    let upstream = Upstream::scripted([Err(BROKEN), Ok(1)]);
    assert_eq!(module.run("p", (), || upstream.call()).await, Ok(1));
    let expected = [
        "outer? 0",
        "middle? 0",
        "inner? 0",
        "attempt? 1",
        "attempt: 1 Failure",
        "attempt? 2",
        "attempt: 2 Success",
        "inner: 0 Success",
        "middle: 0 Success",
        "outer: 0 Success",
    ];
    assert_eq!(*log.lock().unwrap(), expected);
    let described: Vec<_> = module.pipelines()[0].describe().stages.iter().map(|s| s.name().to_owned()).collect();
    assert_eq!(described, ["outer", "rate_limit", "middle", "breaker", "inner", "retry", "attempt"]);
}

struct RejectingGuard(u16);

impl Guard for RejectingGuard {
    fn name(&self) -> &str {
        "closed"
    }

    fn order(&self) -> u16 {
        self.0
    }

    fn admit(&self, _: &CallInfo<'_>) -> Result<(), Rejection> {
        Err(Rejection::new(RejectionCode::GuardRejected).retry_in(SECOND))
    }
}

#[tokio::test(start_paused = true)]
async fn a_rejection_of_a_guard_returns_permits_of_outer_stages() {
    for order in [50, 250, 450, 650] {
        let policy = Policy::named("p")
            .rate_limit(RateLimitSpec::per_second(5))
            .breaker(BreakerSpec::failure_ratio(0.5))
            .guard(RejectingGuard(order));
        let pipeline = module(policy).pipeline("p", ()).unwrap();
        let rejected = *pipeline.run(ok).await.unwrap_err().rejection().unwrap();
        assert_eq!(
            (rejected.code(), rejected.retry_after(), rejected.policy()),
            (RejectionCode::GuardRejected, Some(SECOND), Some("p"))
        );
        assert_eq!(pipeline.available_permits().await, Some(5), "guard at {order}");
        assert_eq!(pipeline.circuit().await.unwrap().calls, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_retuned_policy_keeps_its_guards() {
    let module = module(Policy::named("p").guard(RejectingGuard(50)));
    module.retune(Policy::named("p").timeout(SECOND)).unwrap();
    assert_eq!(code(module.run("p", (), ok).await), RejectionCode::GuardRejected);
}

#[tokio::test(start_paused = true)]
async fn a_guard_below_order_100_runs_outside_the_deadline_as_it_is_described() {
    let late = || Context::EMPTY.with_timeout(std::time::Duration::ZERO);
    for (order, described, asked) in [
        (50, ["guard", "deadline"], vec!["guard? 0", "guard: 0 Cancelled"]),
        (99, ["guard", "deadline"], vec!["guard? 0", "guard: 0 Cancelled"]),
        (100, ["deadline", "guard"], vec![]),
        (150, ["deadline", "guard"], vec![]),
    ] {
        let story = Arc::new(Mutex::new(Vec::new()));
        let module = module(Policy::named("p").deadline(SECOND).guard(RecordingGuard(order, "guard", story.clone())));
        let pipeline = module.pipeline("p", ()).unwrap();
        let stages: Vec<_> = pipeline.describe().stages.iter().map(|stage| stage.name().to_owned()).collect();
        assert_eq!(stages, described, "guard at {order}");
        assert_eq!(code(scope(late(), pipeline.run(ok)).await), RejectionCode::DeadlineExceeded);
        assert_eq!(*story.lock().unwrap(), asked, "guard at {order}");
    }
}

/// Rejects calls below `Normal`.
struct OnlyNormal;

impl Guard for OnlyNormal {
    fn name(&self) -> &str {
        "only_normal"
    }

    fn order(&self) -> u16 {
        50
    }

    fn admit(&self, call: &CallInfo<'_>) -> Result<(), Rejection> {
        let rejection = Rejection::new(RejectionCode::GuardRejected);
        (call.criticality >= Criticality::Normal).then_some(()).ok_or(rejection)
    }
}

#[tokio::test(start_paused = true)]
async fn a_guard_outside_the_deadline_sees_the_criticality_of_the_task() {
    let module = module(Policy::named("p").guard(OnlyNormal));
    let low = Context::EMPTY.with_criticality(Criticality::Degraded);
    assert_eq!(code(scope(low, module.run("p", (), ok)).await), RejectionCode::GuardRejected);
    assert_eq!(module.run("p", (), ok).await, Ok(1));
    let lowered = module.call("p", ()).criticality(Criticality::BestEffort).run(ok).await;
    assert_eq!(code(lowered), RejectionCode::GuardRejected);
}
