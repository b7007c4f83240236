//! Every expectation in a step in which it is not met, so that none of them is met by everything.

use phalanx::config::Config;
use phalanx_testkit::plan::{Plan, Player, Verdict};

/// Plays one step of 30 s against the policy `p`; returns the verdict on the expectation.
fn verdict(policy: &str, fault: &str, workload: &str, expectation: &str) -> Verdict {
    let policies = Config::from_toml(&format!("[policies.p]\n{policy}")).unwrap();
    let plan = format!(
        "[[steps]]\nid = 'S'\ntarget = 'p'\nfault = '{fault}'\nduration = '30s'\nworkload = {{ {workload} }}\n\
         expected = ['{expectation}']"
    );
    let plan = Plan::from_toml("plan.toml", &plan, &policies).unwrap();
    let evidence = Player::new(policies).play(&plan).unwrap();
    evidence.step("S").unwrap().verdict(expectation).unwrap().clone()
}

#[track_caller]
fn unmet(policy: &str, fault: &str, workload: &str, expectation: &str, measured: &str) {
    let verdict = verdict(policy, fault, workload, expectation);
    assert!(!verdict.passed && verdict.measured.contains(measured), "{verdict:?}");
}

#[track_caller]
fn met(policy: &str, fault: &str, workload: &str, expectation: &str, measured: &str) {
    let verdict = verdict(policy, fault, workload, expectation);
    assert!(verdict.passed && verdict.measured.contains(measured), "{verdict:?}");
}

const BREAKER: &str = "breaker = { failure_ratio = 0.5, break_duration = '5s' }";

#[test]
fn retries_beyond_the_number_are_not_accepted() {
    let policy = "retry = { max_attempts = 3 }\nidempotent = true";
    met(policy, "5xx@50%", "", "retry<=2", "at most 2 retries");
    unmet(policy, "5xx@50%", "", "retry<=1", "at most 2 retries");
}

#[test]
fn a_breaker_that_stays_closed_is_not_open() {
    met(BREAKER, "5xx", "", "breaker=open", "opened");
    unmet(BREAKER, "5xx@5%", "", "breaker=open", "did not open");
    unmet("timeout = '1s'", "5xx", "", "breaker=open", "no breaker");
}

#[test]
fn a_breaker_that_may_open_must_exist_and_close_again() {
    met(BREAKER, "5xx", "", "breaker=maybe", "closed at the end");
    met(BREAKER, "5xx@5%", "", "breaker=maybe", "did not open");
    let endless = "breaker = { failure_ratio = 0.5, break_duration = '10m' }";
    unmet(endless, "5xx", "", "breaker=maybe", "open at the end");
    unmet("timeout = '1s'", "5xx", "", "breaker=maybe", "no breaker");
}

#[test]
fn a_breaker_that_opens_is_not_closed() {
    met(BREAKER, "5xx@5%", "", "breaker=closed", "opened 0 times");
    unmet(BREAKER, "5xx", "", "breaker=closed", "times");
}

#[test]
fn a_breaker_that_lets_most_calls_try_is_not_fast() {
    met(BREAKER, "5xx", "", "fast_503", "%");
    let hasty = "breaker = { consecutive_failures = 1, break_duration = '10ms' }";
    unmet(hasty, "5xx", "", "fast_503", "%");
    unmet(BREAKER, "5xx@5%", "", "fast_503", "the breaker did not open");
}

#[test]
fn a_breaker_that_is_open_after_the_recovery_has_not_recovered() {
    met(BREAKER, "5xx", "", "recovers", "closed");
    let endless = "breaker = { failure_ratio = 0.5, break_duration = '10m' }";
    unmet(endless, "5xx", "", "recovers", "breaker open");
    unmet(BREAKER, "5xx", "recovery = '0s'", "recovers", "");
}

#[test]
fn a_dependency_that_is_still_slow_after_the_fault_has_not_recovered() {
    // Without a limit the queue of the dependency is as long at the end of the recovery as a minute of overload made it.
    unmet("deadline = '1m'", "rps x8", "capacity = 60, recovery = '20s'", "recovers", "served");
}

#[test]
fn a_policy_without_load_shedding_loses_calls_within_capacity() {
    let shedding = "timeout = '100ms'\nbulkhead = { max_concurrency = 4, max_queue = 8 }";
    met(shedding, "rps x4", "", "shed_503<=2%", "shed with 503");
    unmet("timeout = '100ms'", "rps x4", "", "shed_503<=2%", " 0 shed with 503");
    let strict = "bulkhead = { max_concurrency = 1 }";
    unmet(strict, "rps x4", "", "shed_503<=2%", "not served");
}

#[test]
fn an_unbounded_queue_exceeds_the_memory_of_a_replica() {
    met("bulkhead = { max_concurrency = 4, max_queue = 8 }", "rps x8", "", "no_oom", "at most 12 calls");
    unmet("deadline = '1h'", "rps x8", "", "no_oom", "calls in flight of 1000");
    unmet("idempotent = true", "lost answer@10%", "", "no_oom", "never answered");
}

#[test]
fn a_caller_that_does_not_pass_its_deadline_on_exceeds_it() {
    for expectation in ["hop<=remaining", "504_on_exceed"] {
        met("timeout = '3s'", "deadline=2s", "", expectation, "");
        unmet("timeout = '3s'", "deadline=2s", "propagate_deadline = false", expectation, "");
    }
}

#[test]
fn a_dependency_without_keys_or_a_policy_without_retries_does_not_write_exactly_once() {
    let retrying = "timeout = '200ms'\nretry = { max_attempts = 2 }";
    met(retrying, "lost answer@10%", "", "exactly_once", " 0 more than once, 0 never; 0 answered otherwise");
    unmet(retrying, "lost answer@10%", "idempotency_keys = false", "exactly_once", " 0 never; 0 answered otherwise");
    unmet("timeout = '200ms'", "lost answer@10%", "", "exactly_once", " 0 repeated");
}
