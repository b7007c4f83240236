//! A port in use: no change of the configuration lets its policy retry the whole of it.

#![allow(clippy::unwrap_used)] // tests may unwrap

mod support;

use phalanx::policy::{LeverSpec, PolicySet, UnknownPolicy};
use phalanx::*;
use support::*;

/// Retries calls of which it is unknown whether they took effect.
fn blanket(name: &str) -> Policy {
    Policy::named(name).retry(RetrySpec::attempts(3).on([Kind::Infrastructure]))
}

/// A module with a port under the policy `port`, and a policy `free` that guards none.
fn module() -> ResilienceModule {
    let module = ResilienceModule::in_memory()
        .policies([Policy::named("port").timeout(SECOND), Policy::named("free")])
        .unknown_policy(UnknownPolicy::Passthrough)
        .build()
        .unwrap();
    module.port_pipeline("port", "eu").unwrap();
    module
}

fn paths<T: std::fmt::Debug>(changed: Result<T, ConfigError>) -> Vec<String> {
    changed.unwrap_err().mistakes.into_iter().map(|mistake| mistake.path).collect()
}

const PATH: &str = "policies.port.retry.retry_on";

#[test]
fn a_retune_that_would_retry_a_port_is_rejected_and_changes_nothing() {
    let module = module();
    assert_eq!(paths(module.retune(blanket("port"))), [PATH]);
    assert!(module.describe().policy("port").unwrap().value("retry.max_attempts").is_none());
    assert!(module.port_pipeline("port", "eu").is_ok() && module.port_pipeline("port", "us").is_ok());
}

#[test]
fn a_retry_of_kinds_that_took_no_effect_and_a_policy_without_a_port_are_not_concerned() {
    let module = module();
    let throttled = RetrySpec::attempts(3).on([Kind::Throttled, Kind::Concurrency]);
    module.retune(Policy::named("port").retry(throttled)).unwrap();
    module.retune(blanket("free")).unwrap();
    assert_eq!(module.port_pipeline("free", ()).unwrap_err().code(), RejectionCode::BlanketRetry);
    module.retune(blanket("free").timeout(SECOND)).unwrap(); // a rejected port is not in use
    assert!(module.port_pipeline("port", "eu").is_ok());
}

#[test]
fn a_set_with_one_such_policy_is_rejected_as_a_whole() {
    let module = module();
    let policies = vec![blanket("port"), Policy::named("free").timeout(SECOND)];
    let set = PolicySet { policies, default_policy: Some(blanket("default")), ..PolicySet::default() };
    assert_eq!(paths(module.apply(set)), [PATH]);
    assert!(module.describe().policy("free").unwrap().value("timeout").is_none());
}

#[test]
fn a_port_without_a_policy_of_its_own_is_guarded_by_the_default_policy_and_by_one_that_is_added() {
    let module = module();
    module.port_pipeline("unnamed", ()).unwrap();
    let default_policy = Some(blanket("default"));
    let policies = vec![Policy::named("port"), Policy::named("free")];
    let set = PolicySet { policies, default_policy, ..PolicySet::default() };
    assert_eq!(paths(module.apply(set)), ["policies.default.retry.retry_on"]);
    assert_eq!(paths(module.add(blanket("unnamed"))), ["policies.unnamed.retry.retry_on"]);
    // The policy of a port that is removed from the set is the default policy.
    let set = PolicySet { default_policy: Some(blanket("default")), ..PolicySet::default() };
    assert_eq!(paths(module.apply(set)), ["policies.default.retry.retry_on"]);
}

#[test]
fn a_lever_that_switches_retries_off_does_not_hide_what_its_release_would_bring() {
    let module = ResilienceModule::in_memory().policy(blanket("port")).build().unwrap();
    module.pull("port", LeverSpec::default().without_retries()).unwrap();
    assert_eq!(module.port_pipeline("port", "eu").unwrap_err().code(), RejectionCode::BlanketRetry);
    module.retune(Policy::named("port")).unwrap();
    assert!(module.port_pipeline("port", "eu").is_ok());
    assert_eq!(paths(module.retune(blanket("port"))), [PATH], "also while the lever is pulled");
}

#[test]
fn a_port_stays_in_use_when_its_route_is_removed_for_newer_ones() {
    let module = ResilienceModule::in_memory().policy(Policy::named("port")).max_routes(2).build().unwrap();
    module.port_pipeline("port", "eu").unwrap();
    for route in 0..50 {
        module.pipeline("occ", &*route.to_string()).unwrap();
    }
    assert!(module.pipelines().iter().all(|pipeline| pipeline.key().policy() != "port"), "removed");
    assert_eq!(paths(module.retune(blanket("port"))), [PATH]);
}

#[cfg(feature = "toml")]
#[test]
fn a_reload_that_would_retry_a_port_is_rejected_as_a_whole_with_its_line() {
    use phalanx::config::Config;

    let module = ResilienceModule::in_memory()
        .config(Config::from_toml("[policies.port]\ntimeout = \"1s\"\n[policies.free]\ntimeout = \"1s\"").unwrap())
        .build()
        .unwrap();
    module.port_pipeline("port", "eu").unwrap();
    let text = "[policies.free]\ntimeout = \"2s\"\n[policies.port]\ntimeout = \"2s\"\n\
                retry = { max_attempts = 3, retry_on = [\"infrastructure\"] }";
    let error = module.apply_config(Config::from_toml(text).unwrap()).unwrap_err();
    let mistakes: Vec<_> = error.mistakes.iter().map(ToString::to_string).collect();
    assert_eq!(mistakes.len(), 1, "{mistakes:?}");
    assert!(mistakes[0].starts_with("toml:5: policies.port.retry.retry_on: must not contain `infrastructure`"));
    let described = module.describe();
    for policy in ["port", "free"] {
        assert_eq!(described.policy(policy).unwrap().value("timeout").unwrap().value, "\"1s\"", "{policy}");
    }
    // Kinds that are not written are the default ones, so the mistake has the line of the table.
    let text = "[policies.port]\ntimeout = \"2s\"\n[policies.port.retry]\nmax_attempts = 3";
    let error = module.apply_config(Config::from_toml(text).unwrap()).unwrap_err();
    assert_eq!(error.mistakes.last().unwrap().at.as_deref(), Some("toml:4"));
}
