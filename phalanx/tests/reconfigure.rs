//! Replacing the whole configuration while calls run: all or nothing, and state is kept.

#![allow(clippy::unwrap_used)] // helpers of tests may panic

mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use phalanx::policy::{LeverSpec, PolicySet};
use phalanx::*;
use support::*;

fn policy_set(policies: impl IntoIterator<Item = Policy>) -> PolicySet {
    PolicySet { policies: policies.into_iter().collect(), ..PolicySet::default() }
}

fn limited(permits: u64) -> Policy {
    Policy::named("p").rate_limit(RateLimitSpec::new(permits, 3_600 * SECOND))
}

#[tokio::test(start_paused = true)]
async fn changed_policies_keep_their_state_and_unchanged_ones_are_not_touched() {
    let log = Log::default();
    let tripping = Policy::named("q").breaker(BreakerSpec::consecutive_failures(1).break_for(60 * SECOND));
    let module = ResilienceModule::in_memory().observer(log.clone()).policies([limited(10), tripping.clone()]);
    let module = module.build().unwrap();
    let (p, q) = (module.pipeline("p", ()).unwrap(), module.pipeline("q", ()).unwrap());
    for _ in 0..4 {
        p.run(|| after(MS, Ok(1))).await.unwrap();
    }
    let _ = q.run(|| after(MS, Err::<u32, _>(BROKEN))).await;

    let applied = module.apply(policy_set([limited(8), tripping, Policy::named("r")])).unwrap();
    assert_eq!(applied.policies, ["p", "r"]);
    assert_eq!((applied.default_policy, applied.levers.len(), applied.count()), (false, 0, 2));
    assert_eq!(p.available_permits().await, Some(6), "the permits left are kept");
    assert_eq!(code(q.run(|| after(MS, Ok(1))).await), RejectionCode::CircuitOpen, "its breaker is still open");
    assert_eq!((p.describe().version, q.describe().version), (2, 1));
    assert_eq!(log.count("Retuned"), 1);
    assert_eq!(module.run("r", (), || after(MS, Ok(1))).await, Ok(1));
}

#[tokio::test]
async fn a_policy_set_with_mistakes_changes_nothing_and_reports_all_of_them() {
    let module = module(limited(10));
    let p = module.pipeline("p", ()).unwrap();
    let bad = PolicySet {
        policies: vec![limited(0), Policy::named("q").timeout(Duration::ZERO), Policy::named("q")],
        default_policy: Some(Policy::default().timeout(Duration::ZERO)),
        levers: BTreeMap::from([("r".to_owned(), LeverSpec::default().max_concurrency(0))]),
    };
    let error = module.apply(bad).unwrap_err();
    let paths: Vec<_> = error.mistakes.iter().map(|mistake| mistake.path.as_str()).collect();
    let expected = [
        "policies.p.rate_limit.permits",
        "policies.q.timeout",
        "policies.q",
        "policies.default.timeout",
        "levers.r.max_concurrency",
    ];
    assert_eq!(paths, expected);
    assert_eq!(p.available_permits().await, Some(10));
    assert_eq!(module.policies(), ["occ", "p", "transient"]);
}

#[tokio::test]
async fn a_removed_policy_is_treated_as_unknown() {
    let default = Policy::default().bulkhead(BulkheadSpec::fixed(1));
    let module = builder(limited(10)).default_policy(default.clone()).build().unwrap();
    let p = module.pipeline("p", ()).unwrap();
    let gone = PolicySet { default_policy: Some(default), ..PolicySet::default() };
    assert_eq!(module.apply(gone).unwrap().policies, ["p"]);
    assert_eq!((p.available_permits().await, p.available_slots()), (None, Some(1)));
    let wider =
        PolicySet { default_policy: Some(Policy::default().bulkhead(BulkheadSpec::fixed(2))), ..PolicySet::default() };
    let applied = module.apply(wider).unwrap();
    assert_eq!((applied.policies.len(), applied.default_policy, p.available_slots()), (0, true, Some(2)));
    module.apply(policy_set([limited(7)])).unwrap();
    assert_eq!((p.available_permits().await.is_some(), p.available_slots()), (true, None), "it is back");
    assert_eq!(p.describe().version, 4, "the version only grows");
}

#[tokio::test]
async fn removing_a_policy_in_use_is_rejected() {
    let module = ResilienceModule::in_memory().policies([limited(10), Policy::named("idle")]).build().unwrap();
    let p = module.pipeline("p", ()).unwrap();
    let error = module.apply(PolicySet::default()).unwrap_err();
    assert_eq!(error.mistakes.iter().map(|it| it.path.as_str()).collect::<Vec<_>>(), ["policies.p"]);
    assert_eq!(p.available_permits().await, Some(10));
    let applied = module.apply(policy_set([limited(10)])).unwrap();
    assert_eq!(applied.policies, ["idle"], "it was not in use");
}

#[tokio::test]
async fn built_in_policies_come_back_when_no_longer_replaced() {
    let module = module(limited(10));
    module.apply(policy_set([limited(10), Policy::named("occ").timeout(SECOND)])).unwrap();
    assert_eq!(module.pipeline("occ", ()).unwrap().describe().stages.len(), 1);
    module.apply(policy_set([limited(10)])).unwrap();
    let occ = module.pipeline("occ", ()).unwrap().describe();
    assert_eq!((occ.stages.len(), occ.stages[0].name()), (1, "retry"));
}

#[tokio::test]
async fn levers_of_a_policy_set_are_pulled_and_released_below_those_pulled_by_code() {
    let module = module(limited(10));
    let upstream = Upstream::always(Ok(1));
    let forced =
        |lever: LeverSpec| PolicySet { levers: BTreeMap::from([("p".to_owned(), lever)]), ..policy_set([limited(10)]) };
    let applied = module.apply(forced(LeverSpec::force_open())).unwrap();
    assert_eq!((applied.policies.len(), applied.levers.as_slice()), (0, ["p".to_owned()].as_slice()));
    assert_eq!(code(module.run("p", (), || upstream.call()).await), RejectionCode::ForcedOpen);
    module.pull("p", LeverSpec::default().without_retries()).unwrap();
    assert_eq!(
        module.apply(policy_set([limited(10)])).unwrap().levers.len(),
        0,
        "the lever pulled by code did not change"
    );
    assert_eq!(module.levers().len(), 1);
    module.release("p");
    assert!(module.levers().is_empty());
    assert_eq!(module.run("p", (), || upstream.call()).await, Ok(1));
}

/// The transaction below `retune`, `apply` and `pull`.
#[tokio::test]
async fn several_changes_of_one_transaction_are_made_together_or_not_at_all() {
    use phalanx::internal::core::engine::{Engine, EngineSpec};
    use phalanx::internal::core::event::Observer;
    use phalanx::store::MemoryStore;

    let log = Log::default();
    let mut spec = EngineSpec { policies: vec![limited(10)], ..EngineSpec::default() };
    spec.observers.0.push(std::sync::Arc::new(log.clone()) as std::sync::Arc<dyn Observer>);
    let engine = Engine::new(MemoryStore::default(), spec).unwrap();
    let p = engine.pipeline("p", ()).unwrap();

    let failed = engine.change(|txn| {
        txn.retune(limited(3))?;
        txn.add(Policy::named("q"))?;
        assert!(txn.present().policies.iter().any(|policy| policy.name == "q"), "it sees its own changes");
        txn.pull("p", LeverSpec::default().max_concurrency(0))
    });
    assert_eq!(failed.unwrap_err().mistakes[0].path, "levers.p.max_concurrency");
    assert_eq!((engine.policies().len(), p.describe().version, engine.levers().len()), (3, 1, 0));
    assert_eq!(p.available_permits().await, Some(10));
    assert!(log.lines().is_empty());

    let made = engine.change(|txn| {
        txn.retune(limited(3))?;
        txn.add(Policy::named("q"))?;
        txn.pull("p", LeverSpec::force_open())?;
        Ok(7)
    });
    assert_eq!(made.unwrap(), 7);
    assert_eq!((engine.policies().len(), p.describe().version, engine.levers().len()), (4, 2, 1));
    assert_eq!((log.count("Retuned"), log.count("Lever")), (1, 1));
}
