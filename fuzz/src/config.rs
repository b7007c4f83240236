//! Configuration from files, budgets and variables: any text gives a configuration or mistakes, each with a reason, and a
//! configuration that was read can be built, described and read again.

use phalanx::config::Config;
use phalanx::{ConfigError, ResilienceModule};

use crate::input::{Input, random};

type Reader = fn(&str) -> Result<Config, ConfigError>;

const READERS: [Reader; 5] =
    [Config::from_toml, Config::from_yaml, Config::from_json, Config::from_budget, from_variables];

/// The longest message of one mistake: names are escaped and cut off.
const MAX_REASON_BYTES: usize = 4_096;

/// Reads lines `NAME=value`.
fn from_variables(text: &str) -> Result<Config, ConfigError> {
    let variables = text.lines().filter_map(|line| line.split_once('=').filter(|(name, _)| !name.contains('\0')));
    Config::loader().vars(variables).load()
}

/// Runs one input: the first byte selects the format.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let read = input.pick(&READERS);
    let text = String::from_utf8_lossy(input.rest());
    match read(&text) {
        Ok(config) => {
            let again = read(&text).expect("the same text is read again");
            assert_eq!(config.policies(), again.policies());
            // The parts that are valid alone may contradict each other; that is an error too, not a panic.
            if let Ok(module) = ResilienceModule::in_memory().config(config).build() {
                assert!(!module.describe().to_string().is_empty());
            }
        }
        Err(error) => {
            assert!(!error.mistakes.is_empty() && error.mistakes.len() <= 101, "{}", error.mistakes.len());
            for mistake in &error.mistakes {
                let text = mistake.to_string();
                assert!(!mistake.reason.is_empty() && text.len() <= MAX_REASON_BYTES, "{text}");
                assert!(!text.chars().any(char::is_control), "{text:?}");
            }
        }
    }
}

/// Returns the inputs that the corpus starts with.
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    let texts: [(&str, u8, &str); 26] = [
        ("reference", 0, include_str!("../../docs/reference.toml")),
        ("full", 0, include_str!("../../phalanx/tests/config/full.toml")),
        ("full", 1, include_str!("../../phalanx/tests/config/full.yaml")),
        ("full", 2, include_str!("../../phalanx/tests/config/full.json")),
        ("dots", 0, "a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a={a.a={a=[{a.a=1}]}}"),
        ("huge-number", 0, "max_routes = 1e308\n[policies.p]\ntimeout = 9223372036854775807"),
        ("nan", 0, "[policies.p]\nbreaker = { failure_ratio = nan, break_multiplier = inf }"),
        ("negative", 0, "max_routes = -1\n[policies.p]\nrate_limit = { permits = -5, per = \"-1s\" }"),
        ("long-duration", 0, "[policies.p]\ntimeout = \"18446744073709551615y 99999999999999999999ns\""),
        ("duplicate", 0, "[policies.p]\ntimeout = \"1s\"\n[policies.p]\ntimeout = \"2s\""),
        ("open-string", 0, "[policies.\"p]\ntimeout = '''"),
        ("date", 0, "[policies.p]\ntimeout = 1979-05-27T07:32:00.999999-07:00"),
        ("bom", 0, "\u{feff}[policies.p]\nidempotent = true"),
        ("anchor", 1, "a: &a [1]\nb: *a\npolicies: {p: !!str x}"),
        ("block", 1, "policies:\n  p:\n    timeout: |+\n      1s\n    deadline: >-\n      2s\n"),
        ("flow", 1, "{policies: {p: {timeout: 1s, retry: {max_attempts: 2, retry_on: [throttled]}}}}"),
        ("documents", 1, "---\npolicies: {p: {idempotent: true}}\n...\n---\n{}"),
        ("nested", 1, "[[[[[[[[[[[[[[[[[[[[[["),
        ("nested", 2, "[[[[[[[[[[[[[[[[[[[[[["),
        ("escapes", 2, r#"{"policies": {"\ud800\u0000\u001b[2J": {"timeout": "1s"}}}"#),
        ("number", 2, r#"{"max_routes": 123456789012345678901234567890.5e-99999}"#),
        (
            "budget",
            3,
            "dep,role,max_attempts,per_attempt_timeout_ms,breaker_threshold_p95_ms,notes\ntax,important,2,200,300,hedge_reads=true\n",
        ),
        (
            "quotes",
            3,
            "dep,role,max_attempts,per_attempt_timeout_ms,breaker_threshold_p95_ms,notes\n\"a\"\"b\",critical,4294967296,-1,1e9,\"\n\n",
        ),
        ("lever", 4, "PHALANX__LEVERS__ALL__RETRIES=false\nPHALANX__POLICIES__ALL__TIMEOUT=1s"),
        ("contradiction", 4, "PHALANX__POLICIES__P=1\nPHALANX__POLICIES__P__TIMEOUT=1s\nPHALANX__=\nPHALANX____A=b"),
        ("list", 4, "PHALANX__POLICIES__P__RETRY__RETRY_ON=infrastructure, throttled,,\nPHALANX__MAX_ROUTES= 5 "),
    ];
    let formats = ["toml", "yaml", "json", "budget", "variables"];
    let seed = |(name, format, text): (&str, u8, &str)| {
        (format!("{}-{name}", formats[usize::from(format)]), [&[format], text.as_bytes()].concat())
    };
    texts.into_iter().map(seed).chain(random(&[], 4, 64)).collect()
}
