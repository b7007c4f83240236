//! Policies from files: every stage and every field, and all mistakes together with their lines.

#![cfg(all(feature = "toml", feature = "yaml", feature = "json"))]
#![allow(clippy::unwrap_used)] // tests may unwrap

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use phalanx::config::Config;
use phalanx::describe::PolicyDescription;
use phalanx::guard::Guards;
use phalanx::policy::{AdaptiveSpec, BudgetSpec, CountBy, Curve, GradientSpec, Jitter, Override, RampSpec};
use phalanx::policy::{ChaosSpec, DeadlineSpec, LeverSpec, UnknownPolicy};
use phalanx::policy::{LimitCost, LimitKey, LimitSpec, Limits, MissingTag, RateOverride};
use phalanx::store::StateScope;
use phalanx::*;
use support::*;

/// The messages of all mistakes in a text.
fn mistakes(text: &str) -> Vec<String> {
    let error = Config::from_toml(text).unwrap_err();
    error.mistakes.iter().map(ToString::to_string).collect()
}

#[test]
fn all_mistakes_are_reported_together_each_with_its_line() {
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
        "toml:8: policies.payments.circuit: there is no such key; there are deadline, rate_limit, limits, bulkhead, breaker, \
         throttle, retry, hedge, idempotent, timeout, on_degraded, chaos",
        "toml:11: policies.payments.retry.max_atempts: there is no such key; did you mean max_attempts?",
        "toml:12: policies.payments.retry.retry_on: must be concurrency, infrastructure, throttled, timeout, \
         validation, domain, precondition, not_found, conflict, authentication, authorization, configuration or \
         internal; did you mean throttled?",
        "toml:12: policies.payments.retry.retry_on: must be one of its names, not a whole number",
        "toml:16: policies.vendor.retry.backoff.max: must not be shorter than base",
        "toml:19: policies.vendor.breaker.failure_ratio: must be above 0 and at most 1",
        "toml:20: policies.vendor.breaker.min_throughput: must be a whole number that is not negative and not too large",
        "toml:22: default.idempotent: a hedge runs the operation twice at a time: say idempotent = true if it may",
        "toml:23: default.name: there is no such key: a policy's name is the key of its table",
    ];
    assert_eq!(mistakes(text), expected);
}

/// A temporary file, deleted at the end of the test.
struct TempFile(PathBuf);

impl TempFile {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("phalanx-{}-{name}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn fixture(name: &str) -> String {
    std::fs::read_to_string(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/config").join(name)).unwrap()
}

/// The content of the three full files. Without `..`, so that a new field must be added here and in the files.
fn full() -> Vec<Policy> {
    let payments = Policy {
        name: "payments".to_owned(),
        deadline: Some(DeadlineSpec { total: Some(2 * SECOND), safety_margin: 100 * MS, failure_floor: 20 * MS }),
        rate_limit: Some(RateLimitSpec {
            permits: 100,
            per: SECOND,
            burst: Some(200),
            max_wait: Some(50 * MS),
            consistency: Consistency::Leased,
            near_limit: 0.9,
        }),
        limits: {
            let mut limits = Limits::default();
            let acme = RateOverride { permits: 5_000, per: Some(2 * SECOND), burst: Some(6_000) };
            let tenant = LimitSpec {
                permits: 50,
                per: SECOND,
                burst: Some(90),
                max_wait: Some(20 * MS),
                key: LimitKey::tag("tenant"),
                cost: LimitCost::Fixed(2),
                missing: MissingTag::Reject,
                consistency: Consistency::Leased,
                overrides: [("acme".to_owned(), acme)].into(),
                resolver: None,
            };
            limits.add("tenant", tenant);
            limits
        },
        bulkhead: Some(BulkheadSpec {
            max_concurrency: 64,
            fleet_max_concurrency: Some(512),
            max_queue: 128,
            queue_timeout: Some(300 * MS),
            queue_target: Some(5 * MS),
            queue_interval: 200 * MS,
            queue_adaptive_lifo: true,
            prioritized: true,
            adaptive: Some(AdaptiveSpec {
                latency_threshold: 80 * MS,
                min_concurrency: 4,
                backoff_ratio: 0.8,
                increase_step: 2.0,
                cooldown: 500 * MS,
                latency_quantile: Some(0.9),
            }),
            gradient: None,
        }),
        breaker: Some(BreakerSpec {
            failure_ratio: Some(0.5),
            consecutive_failures: Some(7),
            slow_call_ratio: Some(0.75),
            slow_call_threshold: Some(400 * MS),
            latency_quantile: Some(0.95),
            latency_threshold: Some(300 * MS),
            latency_duration: 5 * SECOND,
            sampling_window: 20 * SECOND,
            min_throughput: 10,
            break_duration: 15 * SECOND,
            break_multiplier: 2.0,
            max_break_duration: 300 * SECOND,
            break_jitter: 0.1,
            half_open_max_calls: 3,
            success_threshold: 2,
            probe_lease: Some(12 * SECOND),
            ramp: Some(RampSpec { over: 8 * SECOND, steps: 8 }),
            quorum_share: Some(0.5),
            quorum_replicas: None,
            count: CountBy::Attempts,
        }),
        throttle: None,
        retry: Some(RetrySpec {
            max_attempts: 3,
            retry_on: [Kind::Infrastructure, Kind::Throttled].into(),
            backoff: Backoff {
                curve: Curve::Linear,
                base: 150 * MS,
                max: 3 * SECOND,
                multiplier: 1.5,
                jitter: Jitter::Full,
            },
            budget: Some(BudgetSpec { ratio: 0.1, min_per_second: 2, scope: StateScope::Fleet }),
            retry_exhausted: true,
        }),
        hedge: Some(HedgeSpec {
            delay: 60 * MS,
            max_attempts: 3,
            adaptive_delay_quantile: Some(0.99),
            delay_min: Some(10 * MS),
            delay_max: Some(150 * MS),
            budget: BudgetSpec { ratio: 0.05, min_per_second: 0, scope: StateScope::Fleet },
        }),
        idempotent: true,
        timeout: Some(250 * MS),
        on_degraded: Some(OnDegraded::Closed),
        chaos: Some(ChaosSpec {
            latency_ratio: 0.25,
            latency: 40 * MS,
            latency_max: Some(90 * MS),
            error_ratio: 0.02,
            rejection_ratio: 0.01,
        }),
        guards: Guards::default(),
    };
    let gradient =
        GradientSpec { min_concurrency: 5, rtt_tolerance: 2.0, smoothing: 0.5, long_window: 300, headroom: Some(4.0) };
    let search = Policy::named("search")
        .throttle(ThrottleSpec { k: 1.5, window: 60 * SECOND, min_throughput: 50, scope: StateScope::Fleet })
        .bulkhead(BulkheadSpec::gradient(100, gradient));
    vec![payments, search]
}

#[test]
fn the_same_document_is_equal_in_every_format() {
    let lever = LeverSpec {
        force: Some(Override::Closed),
        hedging: false,
        retries: false,
        max_concurrency: Some(20),
        chaos: false,
        reason: Some("INC-17".to_owned()),
    };
    for config in [
        Config::from_toml(&fixture("full.toml")),
        Config::from_yaml(&fixture("full.yaml")),
        Config::from_json(&fixture("full.json")),
    ] {
        let config = config.unwrap();
        assert_eq!(config.policies(), full());
        assert_eq!(config.default_policy(), Some(&Policy::named("default").timeout(30 * SECOND)));
        assert_eq!(config.levers(), &[("search".to_owned(), lever.clone())].into());
        assert_eq!((config.unknown(), config.max_routes()), (Some(UnknownPolicy::Passthrough), Some(5_000)));
    }
}

#[test]
fn in_the_full_file_no_field_is_left_at_its_default() {
    let plain = Config::from_toml(&fixture("plain.toml")).unwrap();
    // The second policy has the fields that exclude those of the first.
    let only_in_second = |path: &str| path.starts_with("throttle.") || path.starts_with("bulkhead.gradient.");
    let mut stages = BTreeSet::new();
    for (policy, plain) in full().iter().zip(plain.policies()) {
        let values: BTreeMap<_, _> = policy.values().into_iter().collect();
        // A hedge needs `idempotent`, so the plain file sets it too; its default is false.
        let is_compared =
            |path: &str| if policy.name == "search" { only_in_second(path) } else { path != "idempotent" };
        for (path, value) in plain.values().into_iter().filter(|(path, _)| is_compared(path)) {
            assert_ne!(values[&path], value, "{path} of {}", policy.name);
            stages.insert(path.split('.').next().unwrap().to_owned());
        }
    }
    // Values that are absent by default are not compared above.
    assert!(full()[0].idempotent && full()[0].timeout.is_some());
    assert!(full()[0].on_degraded.is_some_and(|choice| choice != OnDegraded::default()));
    let every = ["breaker", "bulkhead", "deadline", "hedge", "limits", "rate_limit", "retry", "throttle"];
    assert_eq!(stages, every.map(str::to_owned).into(), "every stage was compared");
}

#[test]
fn a_required_key_that_is_missing_is_reported() {
    let text = "[policies.p]\nrate_limit = { permits = 5 }\nretry = {}\nhedge = { max_attempts = 2, delay = 5 }\n";
    let expected = [
        "toml:2: policies.p.rate_limit.per: is missing",
        "toml:3: policies.p.retry.max_attempts: is missing",
        "toml:4: policies.p.hedge.delay: must be a duration such as \"250ms\" or \"1m 30s\", not a whole number",
    ];
    assert_eq!(mistakes(text), expected);
}

#[test]
fn an_invalid_value_of_a_policy_is_reported_with_its_line() {
    let text = r#"
[policies."a.b".breaker]
min_throughput = 5
[policies.p.retry]
max_attempts = 3
retry_on = ["validation"]
[levers."a.b"]
max_concurrency = 0
"#;
    let expected = [
        "toml:2: policies.a.b.breaker: never trips: set failure_ratio, consecutive_failures, slow_call_ratio or \
         latency_quantile",
        "toml:6: policies.p.retry.retry_on: validation cannot be retried; only concurrency, infrastructure and \
         throttled can",
        "toml:8: levers.a.b.max_concurrency: must be at least 1; force = \"open\" rejects every call",
    ];
    assert_eq!(mistakes(text), expected);
}

#[test]
fn a_later_file_overrides_single_values_of_an_earlier_one() {
    let base =
        "policies:\n  p:\n    deadline: 2s\n    timeout: 1s\n    retry: { max_attempts: 3, retry_on: [throttled] }\n";
    let base = TempFile::new("base.yml", base);
    let over = "[policies.p]\ntimeout = \"500ms\"\ndeadline = { safety_margin = \"50ms\" }\nretry.max_attempts = 2\n\
                retry.retry_on = [\"infrastructure\"]\n[policies.q]\nidempotent = true\n";
    let over = TempFile::new("over.toml", over);
    let loader = Config::loader().file(&base.0).file(&over.0);
    assert_eq!(loader.paths().collect::<Vec<_>>(), [&base.0, &over.0]);
    let p = Policy::named("p")
        .deadline(DeadlineSpec::total(2 * SECOND).safety_margin(50 * MS))
        .timeout(500 * MS)
        .retry(RetrySpec::attempts(2));
    assert_eq!(loader.load().unwrap().policies(), [p, Policy::named("q").idempotent()]);
}

#[test]
fn mistakes_of_all_files_are_reported_together() {
    let broken = TempFile::new("broken.json", "{");
    let wrong = TempFile::new("wrong.yaml", "policies:\n  p:\n    timeout: soon\n");
    let missing = PathBuf::from("nowhere.toml");
    let error = Config::loader().file(&broken.0).file(&wrong.0).file(&missing).load().unwrap_err();
    let locations: Vec<_> = error.mistakes.iter().map(|mistake| mistake.at.clone().unwrap()).collect();
    let broken = format!("{}:1", broken.0.display());
    assert_eq!(locations, [broken, "nowhere.toml".to_owned(), format!("{}:3", wrong.0.display())]);
}

#[test]
fn code_overrides_a_file() {
    let text = "unknown = \"passthrough\"\nmax_routes = 7\n[default]\ntimeout = \"1s\"\n\
                [policies.p]\ntimeout = \"1s\"\nidempotent = true\n[policies.q]\ntimeout = \"3s\"\n[levers.q]\nretries = false\n";
    let config = || Config::from_toml(text).unwrap();
    let module = ResilienceModule::in_memory()
        .policy(Policy::named("p").timeout(2 * SECOND))
        .config(config())
        .default_policy(Policy::named("d").timeout(9 * SECOND))
        .unknown_policy(UnknownPolicy::Error)
        .max_routes(11)
        .lever("q", LeverSpec::force_open())
        .build()
        .unwrap();
    let described = module.describe();
    let of = |policy: &PolicyDescription, path: &str| policy.value(path).map(|value| value.value.clone());
    let p = described.policy("p").unwrap();
    assert_eq!(of(p, "timeout").unwrap(), "\"2s\"");
    assert_eq!(of(p, "idempotent").unwrap(), "false", "a policy of code replaces the whole policy of the file");
    assert_eq!(of(described.policy("q").unwrap(), "timeout").unwrap(), "\"3s\"");
    assert_eq!(of(described.default.as_ref().unwrap(), "timeout").unwrap(), "\"9s\"");
    assert_eq!((described.unknown.value.as_str(), described.max_routes.value.as_str()), ("\"error\"", "11"));
    assert_eq!(module.levers()["q"], LeverSpec::force_open());

    let described = ResilienceModule::in_memory().config(config()).build().unwrap().describe();
    assert_eq!((described.unknown.value.as_str(), described.max_routes.value.as_str()), ("\"passthrough\"", "7"));
}

#[test]
fn a_mistake_that_only_the_module_finds_has_its_line_too() {
    let config = Config::from_toml("[levers.missing]\nretries = false\n").unwrap();
    let error = ResilienceModule::in_memory().config(config).build().unwrap_err();
    assert_eq!(error.mistakes[0].to_string(), "toml:2: levers.missing: no policy has this name");
}

#[tokio::test(start_paused = true)]
async fn a_policy_of_a_file_is_applied() {
    let config = Config::from_toml("[policies.p]\ntimeout = \"250ms\"").unwrap();
    let module = ResilienceModule::in_memory().config(config).build().unwrap();
    let start = tokio::time::Instant::now();
    let answer: Result<(), _> = module.run("p", "", std::future::pending::<Result<(), Failure>>).await;
    assert_eq!((code(answer), start.elapsed()), (RejectionCode::AttemptTimeout, 250 * MS));
}

#[tokio::test(start_paused = true)]
async fn a_running_module_applies_a_new_configuration_and_keeps_the_policies_of_code() {
    let config = |text| Config::from_toml(text).unwrap();
    let module = ResilienceModule::in_memory()
        .policy(Policy::named("code").timeout(SECOND))
        .config(config(
            "[policies.p]\ntimeout = \"1s\"\n[policies.gone]\ntimeout = \"1s\"\n[default]\nidempotent = true",
        ))
        .build()
        .unwrap();
    module.add(Policy::named("later").timeout(SECOND)).unwrap();
    let next = "[policies.p]\ntimeout = \"2s\"\n[policies.code]\ntimeout = \"9s\"\n[policies.later]\ntimeout = \"9s\"";
    let applied = module.apply_config(config(next)).unwrap();
    assert_eq!(applied.policies, ["gone", "p"]);
    assert!(applied.default_policy);
    let timeout =
        |name: &str| module.describe().policy(name).map(|policy| policy.value("timeout").unwrap().to_string());
    let described_as = |value: &str, from: &str| Some(format!("{value:<48} # {from}"));
    assert_eq!(timeout("p"), described_as("timeout = \"2s\"", "toml:2"));
    assert_eq!(timeout("code"), described_as("timeout = \"1s\"", "code"));
    assert_eq!(timeout("later"), described_as("timeout = \"1s\"", "code"));
    assert_eq!(timeout("gone"), None);
    assert_eq!(module.describe().default, None);

    let bad = module.apply_config(config("[policies.p]\ntimeout = \"3s\"\n[levers.missing]\nretries = false"));
    assert_eq!(bad.unwrap_err().mistakes[0].at.as_deref(), Some("toml:4"));
    assert_eq!(timeout("p"), described_as("timeout = \"2s\"", "toml:2"), "nothing has changed");
}
