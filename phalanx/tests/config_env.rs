//! Environment variables override files value by value; names match case-insensitively, and unknown keys are mistakes.

#![cfg(feature = "toml")]
#![allow(clippy::unwrap_used)] // tests may unwrap

mod support;

use phalanx::config::{Config, Loader};
use phalanx::policy::{DeadlineSpec, LeverSpec, UnknownPolicy};
use phalanx::*;
use support::*;

fn load_with<const N: usize>(loader: Loader, variables: [(&str, &str); N]) -> Result<Config, ConfigError> {
    loader.vars(variables).load()
}

fn mistakes<const N: usize>(variables: [(&str, &str); N]) -> Vec<String> {
    let error = load_with(Config::loader(), variables).unwrap_err();
    error.mistakes.iter().map(ToString::to_string).collect()
}

/// A temporary file, deleted at the end of the test.
struct TempFile(std::path::PathBuf);

impl TempFile {
    fn new(name: &str, text: &str) -> (Self, Loader) {
        let path = std::env::temp_dir().join(format!("phalanx-env-{}-{name}.toml", std::process::id()));
        std::fs::write(&path, text).unwrap();
        let loader = Config::loader().file(&path);
        (Self(path), loader)
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn a_variable_overrides_one_value_of_a_file() {
    let text = "[policies.payments]\ntimeout = \"1s\"\nretry = { max_attempts = 3, retry_on = [\"throttled\"] }\n";
    let (_file, loader) = TempFile::new("one", text);
    let config = load_with(loader, [("PHALANX__POLICIES__PAYMENTS__TIMEOUT", "2s")]).unwrap();
    let retry = RetrySpec::attempts(3).on([Kind::Throttled]);
    assert_eq!(config.policies(), [Policy::named("payments").timeout(2 * SECOND).retry(retry)]);
}

#[test]
fn a_variable_is_parsed_as_the_type_of_its_key() {
    let config = load_with(
        Config::loader(),
        [
            ("PHALANX__MAX_ROUTES", " 500 "),
            ("PHALANX__UNKNOWN", "passthrough"),
            ("PHALANX__DEFAULT__IDEMPOTENT", "TRUE"),
            ("PHALANX__LEVERS__PAYMENTS__REASON", "42"),
            ("PHALANX__LEVERS__PAYMENTS__HEDGING", "false"),
            ("PHALANX__POLICIES__PAYMENTS__ON_DEGRADED", "closed"),
            ("PHALANX__POLICIES__PAYMENTS__RETRY__MAX_ATTEMPTS", "4"),
            ("PHALANX__POLICIES__PAYMENTS__RETRY__RETRY_ON", "infrastructure, throttled"),
            ("PHALANX__POLICIES__PAYMENTS__RETRY__BACKOFF__MULTIPLIER", "3"),
            ("PHALANX__POLICIES__PAYMENTS__DEADLINE", "2s"),
            ("PHALANX__POLICIES__PAYMENTS__DEADLINE__SAFETY_MARGIN", "10ms"),
        ],
    )
    .unwrap();
    let retry = RetrySpec::attempts(4).on([Kind::Infrastructure, Kind::Throttled]);
    let payments = Policy::named("payments")
        .on_degraded(OnDegraded::Closed)
        .retry(retry.backoff(Backoff::default().multiplier(3.0)))
        .deadline(DeadlineSpec::total(2 * SECOND).safety_margin(10 * MS));
    assert_eq!(config.policies(), [payments]);
    assert_eq!(config.default_policy(), Some(&Policy::named("default").idempotent()));
    assert_eq!((config.max_routes(), config.unknown()), (Some(500), Some(UnknownPolicy::Passthrough)));
    assert_eq!(config.levers()["payments"], LeverSpec::default().without_hedging().reason("42"));
}

#[test]
fn a_policy_name_matches_without_case_and_punctuation() {
    let text = "[policies.payment-gateway]\ntimeout = \"1s\"\n[policies.\"Stock.EU\"]\ntimeout = \"1s\"\n";
    let (_file, loader) = TempFile::new("names", text);
    let variables =
        [("PHALANX__POLICIES__PAYMENT_GATEWAY__TIMEOUT", "2s"), ("PHALANX__policies__Stock_EU__timeout", "3s")];
    let config = load_with(loader, variables).unwrap();
    let expected = [("Stock.EU", 3), ("payment-gateway", 2)];
    assert_eq!(config.policies(), expected.map(|(name, seconds)| Policy::named(name).timeout(seconds * SECOND)));
}

#[test]
fn a_lever_is_found_by_the_name_of_its_policy() {
    let text = "[policies.payment-gateway]\ntimeout = \"1s\"\n[policies.\"Stock.EU\"]\ntimeout = \"1s\"\n\
                [levers.payment-gateway]\nhedging = false\n[levers.of-code]\nhedging = false\n";
    let (_file, loader) = TempFile::new("levers", text);
    let variables = [
        ("PHALANX__LEVERS__PAYMENT_GATEWAY__RETRIES", "false"),
        ("PHALANX__LEVERS__STOCK_EU__RETRIES", "false"),
        ("PHALANX__LEVERS__OF_CODE__RETRIES", "false"),
    ];
    let (retries, both) =
        (LeverSpec::default().without_retries(), LeverSpec::default().without_retries().without_hedging());
    let expected = [("Stock.EU", &retries), ("of-code", &both), ("payment-gateway", &both)];
    let config = load_with(loader, variables).unwrap();
    assert!(config.levers().iter().map(|(name, lever)| (name.as_str(), lever)).eq(expected), "{:?}", config.levers());

    let (_file, loader) = TempFile::new("lever-of-two", "[policies.pay-out]\n[levers.\"pay.out\"]\n");
    let error = load_with(loader, [("PHALANX__LEVERS__PAY_OUT__RETRIES", "false")]).unwrap_err();
    assert!(error.to_string().ends_with(": could mean pay-out or pay.out"), "{error}");
}

#[test]
fn the_lever_all_is_that_of_every_policy_unless_a_policy_has_this_name() {
    let name_of = |text: &str, variables: &[(&str, &str)]| {
        let (_file, loader) = TempFile::new("all", text);
        let variable = [("PHALANX__LEVERS__ALL__RETRIES", "false")];
        let config = loader.vars(variables.iter().copied().chain(variable)).load().unwrap();
        let mut levers = config.levers().iter().filter(|(_, lever)| !lever.retries);
        (levers.next().unwrap().0.clone(), levers.count())
    };
    let expected = |name: &str| (name.to_owned(), 0);
    assert_eq!(name_of("[policies.p]\n", &[]), expected("*"));
    assert_eq!(name_of("[levers.\"*\"]\nhedging = false\n", &[]), expected("*"));
    assert_eq!(name_of("[policies.All]\n", &[]), expected("All"));
    assert_eq!(name_of("[levers.all]\n", &[]), expected("all"));
    assert_eq!(name_of("[policies.p]\n", &[("PHALANX__Policies__All__TIMEOUT", "1s")]), expected("all"));
}

#[test]
fn an_ambiguous_name_is_a_mistake() {
    let text = "[policies.pay-out]\ntimeout = \"1s\"\n[policies.pay_out]\ntimeout = \"1s\"\n";
    let (_file, loader) = TempFile::new("two", text);
    let error = load_with(loader, [("PHALANX__POLICIES__PAY_OUT__TIMEOUT", "2s")]).unwrap_err();
    let expected = "environment variable PHALANX__POLICIES__PAY_OUT__TIMEOUT: could mean pay-out or pay_out";
    assert_eq!(error.mistakes[0].to_string(), expected);
}

#[test]
fn a_variable_with_an_unknown_key_is_a_mistake_with_the_nearest_name() {
    let variables = [
        ("PHALANX__POLICIES__P__TIMEUOT", "2s"),
        ("PHALANX__POLICYS__P__TIMEOUT", "2s"),
        ("PHALANX__POLICIES__P__RETRY__MAX_ATTEMPTS", "three"),
        ("PHALANX__POLICIES__P__RETRY__RETRY_ON", "infrastructure,throtled"),
        ("PHALANX__POLICIES__P", "x"),
        ("PHALANX__", "x"),
        ("PHALANX__DEFAULT____TIMEOUT", "1s"),
    ];
    let expected = [
        "environment variable PHALANX__: two underscores separate keys, and a key is empty here",
        "environment variable PHALANX__DEFAULT____TIMEOUT: two underscores separate keys, and a key is empty here",
        "environment variable PHALANX__POLICIES__P__RETRY__MAX_ATTEMPTS: contradicts environment variable \
         PHALANX__POLICIES__P",
        "environment variable PHALANX__POLICIES__P__RETRY__RETRY_ON: contradicts environment variable \
         PHALANX__POLICIES__P",
        "environment variable PHALANX__POLICIES__P__TIMEUOT: contradicts environment variable PHALANX__POLICIES__P",
        "environment variable PHALANX__POLICIES__P: policies.p: must be a table, not text",
        "environment variable PHALANX__POLICYS__P__TIMEOUT: policys: there is no such key; did you mean policies?",
    ];
    assert_eq!(mistakes(variables), expected);
    let variables = [
        ("PHALANX__POLICIES__P__TIMEUOT", "2s"),
        ("PHALANX__POLICIES__P__RETRY__MAX_ATTEMPTS", "three"),
        ("PHALANX__POLICIES__P__BREAKER__FAILURE_RATIO", "NaN"),
        ("PHALANX__POLICIES__P__IDEMPOTENT", "yes"),
    ];
    let expected = [
        "environment variable PHALANX__POLICIES__P__BREAKER__FAILURE_RATIO: policies.p.breaker.failure_ratio: must be \
         above 0 and at most 1",
        "environment variable PHALANX__POLICIES__P__IDEMPOTENT: policies.p.idempotent: must be true or false, not text",
        "environment variable PHALANX__POLICIES__P__RETRY__MAX_ATTEMPTS: policies.p.retry.max_attempts: must be a \
         whole number, not text",
        "environment variable PHALANX__POLICIES__P__TIMEUOT: policies.p.timeuot: there is no such key; did you mean \
         timeout?",
    ];
    assert_eq!(mistakes(variables), expected);
}

#[test]
fn two_variables_for_one_value_are_a_mistake() {
    let variables = [("PHALANX__POLICIES__P__TIMEOUT", "2s"), ("PHALANX__policies__p__timeout", "3s")];
    let expected = "environment variable PHALANX__policies__p__timeout: contradicts environment variable \
                    PHALANX__POLICIES__P__TIMEOUT";
    assert_eq!(mistakes(variables), [expected]);
}

#[test]
fn variables_without_the_prefix_are_ignored() {
    let config = load_with(Config::loader(), [("PHALANX_TEST_REDIS", "spawn"), ("PATH", "/bin"), ("phalanx__x", "y")]);
    assert!(config.unwrap().policies().is_empty());
}

#[test]
fn the_environment_of_the_process_is_read_when_it_is_asked_for() {
    const VARIABLE: &str = "PHALANX__POLICIES__CHILD__TIMEOUT";
    // A process cannot safely change its own environment, so this test runs once more in one that has the variable.
    if std::env::var_os(VARIABLE).is_some() {
        let config = Config::loader().env().load().unwrap();
        assert_eq!(config.policies(), [Policy::named("child").timeout(2 * SECOND)]);
        assert!(Config::loader().load().unwrap().policies().is_empty(), "only with env()");
        return;
    }
    let own_name = "the_environment_of_the_process_is_read_when_it_is_asked_for";
    let mut again = std::process::Command::new(std::env::current_exe().unwrap());
    let ended = again.args(["--exact", own_name]).env(VARIABLE, "2s").output().unwrap();
    let output = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success() && output.contains("1 passed"), "{output}");
}
