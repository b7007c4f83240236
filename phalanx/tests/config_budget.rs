//! A dependency budget in CSV: every column sets its field, and files override it.

#![cfg(all(feature = "csv", feature = "toml"))]
#![allow(clippy::unwrap_used)] // tests may unwrap

mod support;

use std::time::Duration;

use phalanx::config::Config;
use phalanx::policy::Jitter;
use phalanx::store::Rng;
use phalanx::*;
use support::*;

const HEADER: &str = "dep,role,max_attempts,per_attempt_timeout_ms,breaker_threshold_p95_ms,notes";

/// The example of the resiliency playbook that defines such budgets.
fn budget() -> String {
    format!(
        "{HEADER}\nauth,critical,1,100,150,no retry\ncatalog,important,2,150,250,backoff+jitter\n\
         tax,important,2,200,300,hedge_reads=true\nsearch,optional,1,150,250,graceful_degrade=cache\n"
    )
}

fn breaker(ratio: f64, rest: u32, slow: u32) -> BreakerSpec {
    BreakerSpec::failure_ratio(ratio).break_for(rest * SECOND).or_latency(0.95, slow * MS, 5 * SECOND)
}

fn mistakes(text: &str) -> Vec<String> {
    let error = Config::from_budget(text).unwrap_err();
    error.mistakes.iter().map(ToString::to_string).collect()
}

#[test]
fn every_column_sets_its_field() {
    let backoff = Backoff::exponential(200 * MS).max(2 * SECOND).jitter(Jitter::Equal);
    let retry = RetrySpec::attempts(2).on([Kind::Infrastructure, Kind::Throttled]).backoff(backoff);
    let mut hedge = HedgeSpec::after(100 * MS).at_quantile(0.95);
    hedge.delay_max = Some(200 * MS);
    let expected = [
        Policy::named("auth").timeout(100 * MS).breaker(breaker(0.5, 5, 150)),
        Policy::named("catalog").timeout(150 * MS).breaker(breaker(0.5, 15, 250)).retry(retry),
        Policy::named("search").timeout(150 * MS).breaker(breaker(0.25, 30, 250)),
        Policy::named("tax").timeout(200 * MS).breaker(breaker(0.5, 15, 300)).retry(retry).hedge(hedge).idempotent(),
    ];
    assert_eq!(Config::from_budget(&budget()).unwrap().policies(), expected);
}

#[test]
fn the_backoff_is_the_one_of_the_playbook() {
    let config = Config::from_budget(&format!("{HEADER}\nd,critical,4,100,150,\n")).unwrap();
    let backoff = config.policies()[0].retry.unwrap().backoff;
    let rng = Rng::seeded(7);
    for (failed, least, most) in [(1, 100, 200), (2, 200, 400), (3, 400, 800), (9, 1_000, 2_000)] {
        for _ in 0..100 {
            let wait = backoff.delay(failed, Duration::ZERO, &rng);
            assert!((least * MS..=most * MS).contains(&wait), "{wait:?} after {failed}");
        }
    }
}

#[test]
fn the_columns_may_stand_in_any_order() {
    let text = "notes,dep,breaker_threshold_p95_ms,per_attempt_timeout_ms,max_attempts,role\n\
                \"a, b; hedge_reads=false\",auth,150,100,1,critical\n";
    let expected = [Policy::named("auth").timeout(100 * MS).breaker(breaker(0.5, 5, 150))];
    assert_eq!(Config::from_budget(text).unwrap().policies(), expected);
}

#[test]
fn every_bad_row_is_reported_with_its_line() {
    let text = format!(
        "{HEADER}\nauth,crticial,0,100,150,\n,important,2,-1,1e9,hedge_reads=maybe\nshort,critical\n\
         ok,optional,1,1,1,\nok,optional,1,1,1,\n"
    );
    let expected = [
        "csv:2: role: must be critical, important or optional; did you mean critical?",
        "csv:2: max_attempts: must be a whole number from 1 to 1000000",
        "csv:3: dep: a dependency needs a name",
        "csv:3: per_attempt_timeout_ms: must be a whole number from 1 to 86400000",
        "csv:3: breaker_threshold_p95_ms: must be a whole number from 1 to 86400000",
        "csv:3: notes: hedge_reads must be true or false",
        "csv:4: has 2 columns instead of 6",
        "csv:6: dep: ok appears twice, first at csv:5",
    ];
    assert_eq!(mistakes(&text), expected);
}

#[test]
fn a_wrong_header_is_rejected() {
    let mistakes_of = |header: &str| mistakes(&format!("{header}\nauth,critical,1,100,150,x\n"));
    assert_eq!(
        mistakes_of(&HEADER.replace("max_attempts", "max_atempts")),
        ["csv:1: there is no column max_atempts; did you mean max_attempts?"]
    );
    assert_eq!(mistakes_of(&HEADER.replace(",notes", "")), ["csv:1: the column notes is missing"]);
    assert_eq!(mistakes_of(&HEADER.replace("notes", "dep")), ["csv:1: the column dep appears twice"]);
    assert_eq!(mistakes(HEADER), ["csv: is empty"]);
    assert_eq!(mistakes(""), ["csv: is empty"]);
}

#[test]
fn a_budget_that_is_too_large_is_rejected() {
    let wrong = mistakes(&format!("{HEADER}\n{}", ",,,,,\n".repeat(170_000)));
    assert_eq!((wrong.len(), wrong[100].as_str()), (101, "there may be more mistakes: these are the first 100"));
    let rows: String = (0..10_001).map(|row| format!("d{row},critical,1,1,1,\n")).collect();
    assert_eq!(mistakes(&format!("{HEADER}\n{rows}")), ["csv:2: policies: must be at most 10000"]);
}

#[test]
fn files_and_variables_override_a_budget_value_by_value() {
    let folder = std::env::temp_dir().join(format!("phalanx-budget-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (csv, toml) = (folder.join("dependencies.csv"), folder.join("phalanx.toml"));
    std::fs::write(&csv, budget()).unwrap();
    std::fs::write(&toml, "[policies.catalog.retry]\nmax_attempts = 3\n").unwrap();
    let loader = Config::loader().file(&toml).budget(&csv).vars([("PHALANX__POLICIES__CATALOG__TIMEOUT", "90ms")]);
    let config = loader.load();
    std::fs::remove_dir_all(&folder).unwrap();
    let module = ResilienceModule::in_memory().config(config.unwrap()).build().unwrap();
    let described = module.describe();
    let described_as = |path: &str| {
        let value = described.policy("catalog").unwrap().value(path).unwrap();
        (value.value.clone(), value.from.to_string().replace(&format!("{}/", folder.display()), ""))
    };
    let expected = |value: &str, from: &str| (value.to_owned(), from.to_owned());
    assert_eq!(described_as("retry.max_attempts"), expected("3", "phalanx.toml:2"));
    assert_eq!(described_as("retry.backoff.jitter"), expected("\"equal\"", "dependencies.csv:3"));
    assert_eq!(
        described_as("timeout"),
        expected("\"90ms\"", "environment variable PHALANX__POLICIES__CATALOG__TIMEOUT")
    );
    assert_eq!(described_as("breaker.min_throughput"), expected("20", "built in"));
}
