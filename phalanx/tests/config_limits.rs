//! Several limits from files and from environment variables, with all mistakes where they are.

#![cfg(feature = "toml")]
#![allow(clippy::unwrap_used)] // tests may unwrap

mod support;

use phalanx::config::Config;
use phalanx::policy::{LimitCost, LimitKey, LimitSpec, MissingTag, RateOverride};
use phalanx::*;
use support::*;

const FILE: &str = r#"
[policies.api.limits.all]
permits = 10_000
per = "1s"
key = "policy"

[policies.api.limits.tenant]
permits = 100
per = "1s"
burst = 200
max_wait = "20ms"
key = "tag:tenant"
missing = "reject"
overrides.acme = { permits = 5_000, burst = 6_000 }

[policies.api.limits.requests]
permits = 600
per = "1m"
cost = 1
consistency = "leased"
"#;

fn expected() -> Policy {
    let tenant = LimitSpec::per_second(100).burst(200).max_wait(20 * MS).key(LimitKey::tag("tenant"));
    let requests = LimitSpec::per_minute(600).cost(LimitCost::Fixed(1)).consistency(Consistency::Leased);
    Policy::named("api")
        .limit("all", LimitSpec::per_second(10_000).key(LimitKey::Policy))
        .limit("requests", requests)
        .limit("tenant", tenant.missing(MissingTag::Reject).rate_for("acme", RateOverride::permits(5_000).burst(6_000)))
}

#[test]
fn limits_are_a_table_by_name() {
    let config = Config::from_toml(FILE).unwrap();
    assert_eq!(config.policies(), [expected()]);
    let module = ResilienceModule::in_memory().config(config).build().unwrap();
    let values = expected().values();
    for (path, value) in [
        ("limits.tenant.key", "\"tag:tenant\""),
        ("limits.tenant.overrides.acme.permits", "5000"),
        ("limits.requests.cost", "1"),
        ("limits.all.cost", "\"call\""),
    ] {
        assert!(values.contains(&(path.to_owned(), value.to_owned())), "{path}: {values:?}");
    }
    assert!(module.describe().to_string().contains("limits.tenant.permits"), "{}", module.describe());
}

#[test]
fn a_variable_sets_one_value_of_a_limit() {
    let variables = [
        ("PHALANX__POLICIES__API__LIMITS__TENANT__PERMITS", "7"),
        ("PHALANX__POLICIES__API__LIMITS__TENANT__PER", "1s"),
        ("PHALANX__POLICIES__API__LIMITS__TENANT__KEY", "tag:tenant"),
        ("PHALANX__POLICIES__API__LIMITS__TENANT__COST", "2"),
        ("PHALANX__POLICIES__API__LIMITS__TENANT__OVERRIDES__ACME__PERMITS", "9"),
    ];
    let config = Config::loader().vars(variables).load().unwrap();
    let limit = LimitSpec::per_second(7).key(LimitKey::tag("tenant")).cost(LimitCost::Fixed(2));
    assert_eq!(
        config.policies(),
        [Policy::named("api").limit("tenant", limit.rate_for("acme", RateOverride::permits(9)))]
    );
}

#[test]
fn mistakes_in_limits_are_reported_together_each_with_its_line() {
    let text = r#"[policies.api.limits.a]
permits = 10
per = "1s"
key = "tenant"

[policies.api.limits.b]
permits = 10
per = "1s"
cots = 1
cost = 0
"#;
    let error = Config::from_toml(text).unwrap_err();
    let mistakes: Vec<_> = error.mistakes.iter().map(ToString::to_string).collect();
    assert_eq!(mistakes.len(), 2, "{mistakes:#?}");
    assert!(mistakes[0].starts_with("toml:4: policies.api.limits.a.key: "), "{mistakes:#?}");
    assert!(mistakes[0].contains("tag:<name>"), "{mistakes:#?}");
    assert!(mistakes[1].starts_with("toml:9: policies.api.limits.b.cots: there is no such key"), "{mistakes:#?}");
    assert!(mistakes[1].contains("did you mean cost?"), "{mistakes:#?}");

    let text = "[policies.api.limits.b]\npermits = 10\nper = \"1s\"\ncost = 11\n[policies.api.limits.rate_limit]\npermits = 1\nper = \"1s\"\n";
    let build = || ResilienceModule::in_memory().config(Config::from_toml(text)?).build();
    let error = build().unwrap_err();
    let mistakes: Vec<_> = error.mistakes.iter().map(ToString::to_string).collect();
    assert_eq!(mistakes.len(), 2, "{mistakes:#?}");
    assert!(mistakes[0].starts_with("toml:4: policies.api.limits.b.cost: is above the burst"), "{mistakes:#?}");
    assert!(mistakes[1].contains("policies.api.limits.rate_limit: is the name of"), "{mistakes:#?}");
    let twice =
        "[policies.api.limits.b]\npermits = 10\nper = \"1s\"\n[policies.api.limits.b]\npermits = 10\nper = \"1s\"\n";
    assert!(Config::from_toml(twice).is_err(), "two limits of one name");
}

#[tokio::test(start_paused = true)]
async fn a_reload_changes_an_override_and_keeps_what_was_spent() {
    let file = |acme: u64| {
        format!(
            "[policies.api.limits.tenant]\npermits = 1\nper = \"1s\"\nkey = \"tag:tenant\"\noverrides.acme = {{ permits = {acme} }}\n"
        )
    };
    let config = |acme| Config::from_toml(&file(acme)).unwrap();
    let module = ResilienceModule::in_memory().config(config(10)).build().unwrap();
    let admitted = async |cost| {
        let call = module.call("api", ()).tag("tenant", "acme").cost(cost);
        call.run(async || Ok::<_, std::io::Error>(())).await.is_ok()
    };
    assert!(admitted(6).await);
    module.apply_config(config(20)).unwrap();
    assert!(!admitted(5).await && admitted(4).await, "four of the ten were left");
    tokio::time::advance(SECOND).await;
    assert!(admitted(20).await);
}
