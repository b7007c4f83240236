//! A module describes itself: the policies in force, value by value, each with its origin.

#![allow(clippy::unwrap_used)] // tests may unwrap

mod support;

use phalanx::describe::{ModuleDescription, Origin};
use phalanx::policy::{LeverSpec, PolicySet, UnknownPolicy};
use phalanx::*;
use support::*;

fn described_as(description: &ModuleDescription, policy: &str, path: &str) -> (String, Origin) {
    let value = description.policy(policy).unwrap().value(path).unwrap();
    (value.value.clone(), value.from.clone())
}

#[test]
fn without_a_file_every_value_is_from_code_or_built_in() {
    let module = ResilienceModule::in_memory()
        .policy(Policy::named("p").timeout(1_500 * MS))
        .default_policy(Policy::named("d").idempotent())
        .unknown_policy(UnknownPolicy::Passthrough)
        .build()
        .unwrap();
    let described = module.describe();
    assert_eq!(described_as(&described, "p", "timeout"), ("\"1500ms\"".to_owned(), Origin::Code));
    assert_eq!(described_as(&described, "occ", "retry.max_attempts"), ("3".to_owned(), Origin::BuiltIn));
    assert_eq!(described.default.as_ref().unwrap().value("idempotent").unwrap().from, Origin::Code);
    assert_eq!((described.unknown.from, described.max_routes.from), (Origin::Code, Origin::BuiltIn));
    let names: Vec<_> = described.policies.iter().map(|policy| policy.name.as_str()).collect();
    assert_eq!(names, ["occ", "p", "transient"], "sorted");
}

#[test]
fn a_policy_that_replaces_a_built_in_one_is_from_code() {
    let module = ResilienceModule::in_memory().policy(Policy::named("occ").timeout(SECOND)).build().unwrap();
    assert_eq!(described_as(&module.describe(), "occ", "timeout").1, Origin::Code);
}

#[test]
fn names_without_a_policy_are_listed_once_they_are_used() {
    let module = ResilienceModule::in_memory().default_policy(Policy::named("d").timeout(SECOND)).build().unwrap();
    assert!(module.describe().without_policy.is_empty());
    module.pipeline("billing", "eu").unwrap();
    module.pipeline("occ", "eu").unwrap();
    let described = module.describe();
    assert_eq!(described.without_policy, ["billing"]);
    assert!(described.to_string().contains("\n# by the default policy: billing\n"));
}

#[test]
fn a_description_follows_changes_made_by_code() {
    let module = ResilienceModule::in_memory().policy(Policy::named("p").timeout(SECOND)).build().unwrap();
    module.retune(Policy::named("transient").timeout(2 * SECOND)).unwrap();
    module.add(Policy::named("q").timeout(3 * SECOND)).unwrap();
    module.pull("p", LeverSpec::default().without_retries()).unwrap();
    let described = module.describe();
    assert_eq!(described_as(&described, "transient", "timeout"), ("\"2s\"".to_owned(), Origin::Code));
    assert_eq!(described_as(&described, "q", "timeout"), ("\"3s\"".to_owned(), Origin::Code));
    assert_eq!(described.levers[0].name, "p");
    module.release("p");
    module.apply(PolicySet { policies: vec![Policy::named("r").timeout(SECOND)], ..PolicySet::default() }).unwrap();
    let described = module.describe();
    assert_eq!(described_as(&described, "r", "timeout").1, Origin::Code);
    assert_eq!(
        described_as(&described, "transient", "timeout"),
        ("\"30s\"".to_owned(), Origin::BuiltIn),
        "the built-in one is back"
    );
    assert!(described.policy("p").is_none() && described.levers.is_empty());
}

#[test]
fn a_duration_is_printed_in_the_largest_unit_that_fits() {
    let written = |duration| Policy::named("p").timeout(duration).values().remove(1).1;
    let micro = MS / 1_000;
    for (duration, text) in [
        (250 * MS, "250ms"),
        (90 * SECOND, "90s"),
        (600 * SECOND, "10m"),
        (7_200 * SECOND, "2h"),
        (1_500 * micro, "1500us"),
    ] {
        assert_eq!(written(duration), format!("\"{text}\""));
    }
}

#[cfg(all(feature = "toml", feature = "yaml", feature = "json"))]
mod from_files {
    use std::collections::BTreeMap;

    use phalanx::config::Config;
    use serde_json::Value;

    use super::*;

    fn full() -> &'static str {
        include_str!("config/full.toml")
    }

    #[test]
    fn every_value_has_its_origin() {
        let config = Config::from_toml(full()).unwrap();
        let module = ResilienceModule::in_memory().config(config).build().unwrap();
        let described = module.describe();
        let at = |line| Origin::File { name: "toml".into(), line: Some(line) };
        let payments = described.policy("payments").unwrap();
        assert!(payments.values.iter().all(|value| matches!(value.from, Origin::File { .. })), "{described}");
        assert_eq!(described_as(&described, "payments", "timeout"), ("\"250ms\"".to_owned(), at(10)));
        assert_eq!(described_as(&described, "payments", "deadline.total"), ("\"2s\"".to_owned(), at(9)));
        assert_eq!(
            described_as(&described, "payments", "retry.retry_on"),
            ("[\"infrastructure\", \"throttled\"]".to_owned(), at(74))
        );
        assert_eq!(described_as(&described, "search", "bulkhead.max_queue"), ("0".to_owned(), Origin::BuiltIn));
        assert_eq!((described.unknown.from, described.max_routes.from), (at(2), at(3)));
        let lever = &described.levers[0];
        assert_eq!((lever.name.as_str(), &lever.values[0].from), ("search", &at(101)));
    }

    #[test]
    fn a_printed_description_can_be_parsed_again() {
        let config = Config::from_toml(full()).unwrap();
        let module = ResilienceModule::in_memory().config(config.clone()).build().unwrap();
        let again = Config::from_toml(&module.describe().to_string()).unwrap();
        let ours = |policy: &&Policy| !["occ", "transient"].contains(&policy.name.as_str());
        // What a policy leaves to the module is printed as the value in force.
        let in_force = |policy: &Policy| policy.clone().on_degraded(policy.on_degraded.unwrap_or_default());
        let expected: Vec<_> = config.policies().iter().map(in_force).collect();
        assert_eq!(again.policies().iter().filter(ours).cloned().collect::<Vec<_>>(), expected);
        assert_eq!(again.default_policy().cloned(), config.default_policy().map(in_force));
        assert_eq!(again.levers(), config.levers());
        assert_eq!((again.unknown(), again.max_routes()), (config.unknown(), config.max_routes()));
    }

    /// Collects the paths and values of all leaves of a JSON tree.
    fn paths(value: &Value, path: &str, found: &mut BTreeMap<String, String>) {
        let Value::Object(table) = value else {
            found.insert(path.to_owned(), value.to_string().replace("\",\"", "\", \""));
            return;
        };
        for (key, value) in table {
            let dot = if path.is_empty() { "" } else { "." };
            paths(value, &format!("{path}{dot}{key}"), found);
        }
    }

    #[test]
    fn the_values_of_a_policy_are_those_that_serde_writes() {
        for policy in Config::from_toml(full()).unwrap().policies() {
            let mut written = BTreeMap::new();
            let mut json = serde_json::to_value(policy).unwrap();
            json.as_object_mut().unwrap().remove("name");
            paths(&json, "", &mut written);
            assert_eq!(policy.values().into_iter().collect::<BTreeMap<_, _>>(), written);
        }
    }

    #[test]
    fn a_description_serializes() {
        let config = Config::from_toml("[policies.p]\ntimeout = \"1s\"").unwrap();
        let module = ResilienceModule::in_memory().config(config).build().unwrap();
        let json = serde_json::to_value(module.describe()).unwrap();
        let value = &json["policies"][1]["values"][1];
        assert_eq!(
            (&value["path"], &value["value"], &value["from"]),
            (&"timeout".into(), &"\"1s\"".into(), &"toml:2".into())
        );
    }

    #[cfg(feature = "redis")] // on_degraded needs a shared store
    #[test]
    fn on_degraded_of_the_module_applies_where_a_file_has_none() {
        let text = "[policies.p]\ntimeout = \"1s\"\n[policies.q]\non_degraded = \"local\"\n[default]\ntimeout = \"1s\"";
        let config = Config::from_toml(text).unwrap();
        let module = ResilienceModule::in_memory().config(config).on_degraded(OnDegraded::Closed).build().unwrap();
        let described = module.describe();
        let at = |line| Origin::File { name: "toml".into(), line: Some(line) };
        assert_eq!(described_as(&described, "p", "on_degraded"), ("\"closed\"".to_owned(), Origin::Code));
        assert_eq!(described_as(&described, "q", "on_degraded"), ("\"local\"".to_owned(), at(4)), "the file sets it");
        assert_eq!(described.default.unwrap().value("on_degraded").unwrap().from, Origin::Code);
    }
}
