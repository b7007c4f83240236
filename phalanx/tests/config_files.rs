//! Policies from files: every stage and every field, all mistakes together with their places.

#![cfg(all(feature = "toml", feature = "yaml", feature = "json"))]
#![allow(clippy::unwrap_used)] // a test may

use phalanx::config::Config;

/// Every mistake of a text, as people see it.
fn mistakes(text: &str) -> Vec<String> {
    let error = Config::from_toml(text).unwrap_err();
    error.mistakes.iter().map(ToString::to_string).collect()
}

#[test]
fn all_mistakes_are_told_together_each_with_its_line() {
    let text = r#"
unknwon = "error"
max_routes = "many"

[policies.payments]
timeuot = "1s"
deadline = "soon"
circuit = {}

[policies.payments.retry]
max_atempts = 3
retry_on = ["infrastructure", "throtled", 3]

[policies.vendor.retry]
max_attempts = 2
backoff = { base = "2s", max = "1s" }

[policies.vendor.breaker]
failure_ratio = 1.5
min_throughput = -1

[default]
name = "other"
hedge = { delay = "10ms" }
"#;
    let expected = [
        "toml:2: unknwon: there is no such key; did you mean unknown?",
        "toml:3: max_routes: must be a whole number, not text",
        "toml:6: policies.payments.timeuot: there is no such key; did you mean timeout?",
        "toml:7: policies.payments.deadline.total: must be a duration such as \"250ms\" or \"1m 30s\"",
        "toml:8: policies.payments.circuit: there is no such key; there are deadline, rate_limit, bulkhead, breaker, \
         throttle, retry, hedge, idempotent, timeout, on_degraded",
        "toml:11: policies.payments.retry.max_atempts: there is no such key; did you mean max_attempts?",
        "toml:12: policies.payments.retry.retry_on: must be concurrency, infrastructure, throttled, timeout, \
         validation, domain, precondition, not_found, conflict, authentication, authorization, configuration or \
         internal; did you mean throttled?",
        "toml:12: policies.payments.retry.retry_on: must be one of the words for it, not a whole number",
        "toml:16: policies.vendor.retry.backoff.max: must not be shorter than base",
        "toml:19: policies.vendor.breaker.failure_ratio: must be above 0 and at most 1",
        "toml:20: policies.vendor.breaker.min_throughput: must be a whole number that is not negative and not too large",
        "toml:22: default.idempotent: a hedge runs the operation twice at a time: say idempotent = true if it may",
        "toml:23: default.name: there is no such key: a policy's name is the key it stands under",
    ];
    assert_eq!(mistakes(text), expected);
}

#[test]
fn a_policy_from_a_file_is_in_force() {
    let config = Config::from_toml("[policies.payments]\ntimeout = \"250ms\"\n[default]\nidempotent = true").unwrap();
    let module = phalanx::ResilienceModule::in_memory().config(config).build().unwrap();
    println!("{}", module.describe());
    let timeout = module.describe().policy("payments").unwrap().value("timeout").unwrap().to_string();
    assert_eq!(timeout.split_whitespace().collect::<Vec<_>>(), ["timeout", "=", "\"250ms\"", "#", "toml:2"]);
}
