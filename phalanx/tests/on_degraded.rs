//! The module's `on_degraded`: it holds for every policy without its own, whichever way the policy came in, and a policy's
//! own value wins, also when it is `local`.

#![cfg(feature = "redis")] // without a shared store there are no degraded decisions
#![allow(clippy::unwrap_used)] // tests may unwrap

mod support;

use phalanx::policy::PolicySet;
use phalanx::*;
use support::*;

/// A module that rejects while Redis is away, with one policy that leaves the choice to it.
fn closed() -> ResilienceModule {
    let policy = Policy::named("p").timeout(SECOND);
    ResilienceModule::in_memory().policy(policy).on_degraded(OnDegraded::Closed).build().unwrap()
}

/// Returns what calls under this policy do, and what the module's description says about it.
fn choice(module: &ResilienceModule, policy: &str) -> (OnDegraded, String) {
    let compiled = module.pipeline(policy, "eu").unwrap().describe().on_degraded;
    let described = module.describe();
    let policy = described.policy(policy).or(described.default.as_ref()).unwrap();
    (compiled, policy.value("on_degraded").unwrap().value.clone())
}

fn says(choice: OnDegraded) -> (OnDegraded, String) {
    let name = match choice {
        OnDegraded::Local => "\"local\"",
        OnDegraded::Open => "\"open\"",
        OnDegraded::Closed => "\"closed\"",
    };
    (choice, name.to_owned())
}

#[test]
fn it_stays_after_a_retune() {
    let module = closed();
    let kept = module.pipeline("p", "eu").unwrap();
    module.retune(Policy::named("p").timeout(2 * SECOND)).unwrap();
    assert_eq!(choice(&module, "p"), says(OnDegraded::Closed));
    assert_eq!(kept.describe().on_degraded, OnDegraded::Closed, "a pipeline that was resolved before");
}

#[test]
fn it_holds_for_policies_that_are_added_or_applied() {
    let module = closed();
    module.add(Policy::named("added").timeout(SECOND)).unwrap();
    assert_eq!(choice(&module, "added"), says(OnDegraded::Closed));
    let policies = vec![Policy::named("p"), Policy::named("applied").timeout(SECOND)];
    let default_policy = Some(Policy::named("default").timeout(SECOND));
    module.apply(PolicySet { policies, default_policy, ..PolicySet::default() }).unwrap();
    for policy in ["p", "applied", "without a policy"] {
        assert_eq!(choice(&module, policy), says(OnDegraded::Closed), "{policy}");
    }
}

#[test]
fn it_holds_for_the_built_in_policies_and_for_names_without_one() {
    let module = ResilienceModule::in_memory()
        .on_degraded(OnDegraded::Open)
        .unknown_policy(policy::UnknownPolicy::Passthrough)
        .build()
        .unwrap();
    assert_eq!(choice(&module, "occ"), says(OnDegraded::Open));
    assert_eq!(module.pipeline("unknown", ()).unwrap().describe().on_degraded, OnDegraded::Open);
}

#[test]
fn a_policy_in_code_may_decide_locally_under_a_module_that_rejects() {
    let module = closed();
    module.add(Policy::named("own").on_degraded(OnDegraded::Local)).unwrap();
    assert_eq!(choice(&module, "own"), says(OnDegraded::Local));
    module.retune(Policy::named("p").on_degraded(OnDegraded::Local)).unwrap();
    assert_eq!(choice(&module, "p"), says(OnDegraded::Local));
    let built = ResilienceModule::in_memory()
        .policy(Policy::named("p").on_degraded(OnDegraded::Local))
        .on_degraded(OnDegraded::Closed)
        .build()
        .unwrap();
    assert_eq!(choice(&built, "p"), says(OnDegraded::Local));
}

#[test]
fn a_module_that_says_nothing_decides_locally() {
    let module = ResilienceModule::in_memory().policy(Policy::named("p")).build().unwrap();
    assert_eq!(choice(&module, "p"), says(OnDegraded::Local));
    let from = module.describe().policy("p").unwrap().value("on_degraded").unwrap().from.clone();
    assert_eq!(from, describe::Origin::BuiltIn);
}
