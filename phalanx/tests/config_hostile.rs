//! Malformed, hostile and huge files: an error with a location and without the values of the file, and no panic.

#![cfg(all(feature = "toml", feature = "yaml", feature = "json", feature = "csv"))]
#![allow(clippy::unwrap_used, clippy::panic)] // tests may unwrap

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use phalanx::config::Config;
use phalanx::{ConfigError, Policy};
use proptest::prelude::*;

const KEYS: &str = "there is no such key; there are deadline, rate_limit, limits, bulkhead, breaker, throttle, retry, hedge, \
                    idempotent, timeout, on_degraded, chaos";
const DURATION: &str = "must be a duration such as \"250ms\" or \"1m 30s\"";
const RANGE: &str = "must be a whole number that is not negative and not too large";
const RATIO: &str = "policies.p.breaker.failure_ratio: must be above 0 and at most 1";

/// Every file of the folder, and the first mistake that is reported for it.
fn expected_mistakes() -> Vec<(&'static str, String)> {
    let case = |file, what: &str| (file, what.to_owned());
    vec![
        case("alias_bomb.yaml:1", "anchors are not allowed"),
        case("beyond_float.json:1", "number out of range"),
        case("complex_key.yaml:2", "a key must be a scalar"),
        case("cut_off.json:1", "EOF while parsing an object"),
        case("dangling_alias.yaml:2", "while parsing node, found unknown anchor"),
        case("date.toml:2", "dates and times are not supported"),
        case("deep.json:1", "is nested too deeply"),
        case("deep.toml:1", "is nested too deeply"),
        case("deep.yaml:17", "is nested too deeply"),
        case("deep_flow.yaml:1", "recursion limit exceeded"),
        case("deep_tables.toml:1", "is nested too deeply"),
        case("deeper_than_parser.json:1", "is nested too deeply"),
        case("deeper_than_parser.toml:1", "is nested too deeply"),
        case("duplicate_key.json:1", "the key p is given twice"),
        case("duplicate_key.toml:3", "duplicate key"),
        case("duplicate_key.yaml:4", "the key timeout is given twice"),
        case("duplicate_table.toml:3", "duplicate key"),
        case("empty.json:1", "EOF while parsing a value"),
        case("empty.toml", "is empty"),
        case("empty.yaml", "is empty"),
        ("endless_duration.toml:2", format!("policies.p.timeout: {DURATION}")),
        ("guards.toml:2", format!("policies.p.guards: {KEYS}")),
        case("half_an_attempt.toml:2", "policies.p.retry.max_attempts: must be a whole number, not a fraction"),
        case("huge_float.json", "policies.p.throttle.k: must be between 1 and 1,000,000"),
        case("huge_float.toml:2", "policies.p.throttle.k: must be between 1 and 1,000,000"),
        ("huge_integer.toml:2", format!("policies.p.retry.max_attempts: {RANGE}")),
        case("infinite.toml:2", RATIO),
        case("infinite.yaml:3", "policies.p.throttle.k: must be between 1 and 1,000,000"),
        case("invalid_utf8.toml", "is not UTF-8"),
        case("list.json", "must be a table"),
        case("list.yaml:1", "must be a table"),
        case("malformed.toml:2", "string values must be quoted, expected literal string"),
        case("malformed.yaml:4", "while parsing a block mapping, did not find expected key"),
        ("merge_key.yaml:3", format!("policies.p.<<: {KEYS}")),
        case("nan.json:1", "expected value"),
        case("nan.toml:2", RATIO),
        case("nan.yaml:3", RATIO),
        ("negative.json", format!("policies.p.retry.max_attempts: {RANGE}")),
        ("negative_duration.toml:2", format!("policies.p.timeout: {DURATION}")),
        case("nothing.yaml:3", "policies.p.timeout: has no value: give it one, or leave the key out"),
        case("nul.toml:2", "invalid basic string, expected non-double-quote visible characters, `\\`"),
        case("null.json", "policies.p.timeout: has no value: give it one, or leave the key out"),
        ("number_for_duration.toml:2", format!("policies.p.timeout: {DURATION}, not a whole number")),
        case("only_comments.toml", "is empty"),
        case("program.json:1", "expected value"),
        case("tabs.yaml:2", "tabs disallowed within this context (block indentation)"),
        case("tag.yaml:2", "tags are not allowed"),
        case("text_for_table.toml:1", "policies: must be a table, not text"),
        case("trailing_comma.json:1", "trailing comma"),
        case("trailing_text.json:1", "trailing characters"),
        case("two_documents.yaml:4", "a second document begins"),
        case("unclosed.toml:1", "unclosed table, expected `]`"),
        case("unknown_format.ini", "must end in .toml, .yaml, .yml or .json"),
        case("utf16.toml", "is not UTF-8"),
    ]
}

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/config").join(name)
}

fn first(error: ConfigError) -> String {
    error.mistakes[0].to_string()
}

#[test]
fn every_hostile_file_is_rejected_with_its_location() {
    let folder = fixture("hostile");
    let files = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let checked = expected_mistakes().into_iter().map(|(location, _)| location.split(':').next().unwrap().to_owned());
    assert_eq!(files.collect::<BTreeSet<_>>(), checked.collect(), "every file is checked");
    for (location, reason) in expected_mistakes() {
        let file = folder.join(location.split(':').next().unwrap());
        let error = Config::loader().file(file).load().unwrap_err();
        assert_eq!(first(error), format!("{}: {reason}", folder.join(location).display()));
    }
}

#[test]
fn a_path_that_is_not_a_readable_file_is_rejected() {
    let folder = fixture("hostile.toml"); // does not exist
    let missing = Config::loader().file(&folder).load().unwrap_err();
    assert!(first(missing).starts_with(&format!("{}: cannot be read: ", folder.display())));

    let folder = std::env::temp_dir().join(format!("phalanx-folder-{}.toml", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let rejected = Config::loader().file(&folder).load().unwrap_err();
    fs::remove_dir(&folder).unwrap();
    assert_eq!(first(rejected), format!("{}: is not a file", folder.display()));
}

#[test]
fn a_file_over_a_mebibyte_is_rejected_and_one_below_it_is_read() {
    let file = std::env::temp_dir().join(format!("phalanx-large-{}.toml", std::process::id()));
    let beginning = "[policies.p]\ntimeout = \"1s\"\n#";
    for (size, fits) in [(1 << 20, true), ((1 << 20) + 1, false), (2 << 20, false)] {
        fs::write(&file, beginning.to_owned() + &" ".repeat(size - beginning.len())).unwrap();
        let read = Config::loader().file(&file).load();
        let expected = format!("{}: is larger than 1 MiB", file.display());
        assert_eq!(read.err().map(first), (!fits).then_some(expected));
    }
    fs::remove_file(file).unwrap();
    let text = " ".repeat(2 << 20);
    assert_eq!(first(Config::from_yaml(&text).unwrap_err()), "yaml: is larger than 1 MiB");
}

#[test]
fn a_byte_order_mark_is_ignored() {
    let policy = |config: Result<Config, ConfigError>| config.unwrap().policies().to_vec();
    let expected = [Policy::named("p").idempotent()];
    assert_eq!(policy(Config::from_toml("\u{feff}[policies.p]\nidempotent = true")), expected);
    assert_eq!(policy(Config::from_yaml("\u{feff}policies: {p: {idempotent: true}}")), expected);
    assert_eq!(policy(Config::from_json("\u{feff}{\"policies\": {\"p\": {\"idempotent\": true}}}")), expected);
}

/// A tree is dropped recursively, and every level uses some of the stack.
#[test]
fn nesting_by_dots_inside_braces_does_not_overflow_the_stack() {
    let key = "a.".repeat(78) + "a";
    let deep = format!("{key}={{").repeat(79) + &key + "=1" + &"}".repeat(79);
    let (cut_off, twice) = (deep.trim_end_matches('}').to_owned(), format!("b=1\nb={{{deep}}}"));
    let spaced = format!("b = [ {{ {} }} ]", deep.replace('.', " . "));
    let by_dots = format!("[{key}]\n{key}=1");
    let (key, quoted) = ("a.".repeat(15) + "a", key.replace('a', "\"\"\"a\"\"\""));
    let just_too_deep = format!("{key}={{").repeat(16) + &key + "=1" + &"}".repeat(16);
    for text in [deep, cut_off, twice, spaced, by_dots, format!("{quoted}=1"), just_too_deep] {
        let read = move || Config::from_toml(&text).map(drop).unwrap_err();
        let error = std::thread::Builder::new().stack_size(512 << 10).spawn(read).unwrap().join().unwrap();
        assert!(first(error).ends_with(": is nested too deeply"));
    }
    let dots = "a.".repeat(100) + &"{[".repeat(100);
    let harmless = format!("# {dots}\n[levers.p]\nreason = '{dots}'\n");
    assert!(Config::from_toml(&harmless).is_ok(), "strings and comments may contain dots");
}

#[test]
fn too_many_policies_are_rejected() {
    let text: String = (0..10_001).map(|number| format!("[policies.p{number}]\nidempotent = true\n")).collect();
    assert_eq!(first(Config::from_toml(&text).unwrap_err()), "toml:1: policies: must be at most 10000");
}

#[test]
fn too_many_levers_are_rejected() {
    let text = |levers: usize| (0..levers).map(|number| format!("[levers.p{number}]\n")).collect::<String>();
    assert!(Config::from_toml(&text(10_000)).is_ok());
    let error = Config::from_toml(&text(10_001)).unwrap_err();
    assert_eq!(error.mistakes.len(), 1);
    assert_eq!(first(error), "toml:1: levers: must be at most 10000");
}

#[test]
fn a_name_that_is_too_long_is_rejected_with_a_short_message() {
    for (table, value) in [("policies", "idempotent = true"), ("levers", "retries = false")] {
        // Some characters become nine times longer when they are escaped.
        for letter in ["x", "\u{e0001}"] {
            let read = |bytes: usize| {
                let name = letter.repeat(bytes / letter.len());
                Config::from_toml(&format!("[{table}.\"{name}\"]\n{value}\n"))
            };
            assert!(read(128).is_ok(), "{table}");
            for bytes in [132, (1 << 20) - 100] {
                let error = read(bytes).unwrap_err();
                assert_eq!(error.mistakes.len(), 1, "{table}");
                assert!(error.to_string().len() < 1_000, "{table}: {error}");
                assert!(error.to_string().ends_with(": a name must be at most 128 bytes long"), "{error}");
            }
        }
    }
}

#[test]
fn at_most_a_hundred_mistakes_are_reported() {
    let wrong: String = (0..500).map(|number| format!("[policies.p{number}]\ntimeuot = \"1s\"\n")).collect();
    let unreadable = "a = \n".repeat(500);
    for text in [wrong, unreadable] {
        let mistakes = Config::from_toml(&text).unwrap_err().mistakes;
        assert_eq!(mistakes.len(), 101);
        assert_eq!(mistakes[100].to_string(), "there may be more mistakes: these are the first 100");
    }
}

#[test]
fn a_message_contains_names_and_never_values() {
    let secret = "hunter2";
    for text in [
        format!("timeout = \"{secret}\""),
        format!("on_degraded = \"{secret}\""),
        format!("deadline = {{ total = \"{secret}\" }}"),
        format!("retry = {{ max_attempts = \"{secret}\", retry_on = [\"{secret}\"] }}"),
        format!("breaker = \"{secret}\""),
        format!("idempotent = \"{secret}\""),
        format!("timeout = {secret}"),
    ] {
        let error = Config::from_toml(&format!("[policies.p]\n{text}")).unwrap_err();
        assert!(!error.to_string().contains(secret), "{error}");
    }
}

#[test]
fn a_name_from_a_file_is_escaped_in_messages() {
    let error = Config::from_json(r#"{"\u001b[2J": 1, "policies": {"a\nb": {"x": 1}}}"#).unwrap_err().to_string();
    assert!(error.contains(r"json: \u{1b}[2J: ") && error.contains(r"policies.a\nb.x: "), "{error}");
    let long = format!("{{\"{}\": 1}}", "x".repeat(1_000));
    assert!(first(Config::from_json(&long).unwrap_err()).len() < 300);
}

/// Reads a text in every format. Only a panic fails the test.
fn read_in_every_format(text: &str) {
    for read in [Config::from_toml, Config::from_yaml, Config::from_json, Config::from_budget] {
        if let Err(error) = read(text) {
            assert!(error.mistakes.iter().all(|mistake| !mistake.reason.is_empty()));
        }
    }
}

fn full(extension: &str) -> String {
    fs::read_to_string(fixture(&format!("full.{extension}"))).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        read_in_every_format(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn random_pieces_of_the_languages_never_panic(text in r#"([\[\]{}:,'"|>&*!?#=.~%\\-]|---|\n|\n  |\n    |policies|default|p|deadline|timeout|1s|250ms|1e308|nan|null|-1|true){0,60}"#) {
        read_in_every_format(&text);
    }

    #[test]
    fn random_damage_to_a_good_file_never_panics(
        format in 0..4_usize,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3_u8), 1..8),
    ) {
        let texts = [full("toml"), full("yaml"), full("json"), BUDGET.to_owned()];
        let mut bytes = texts[format].clone().into_bytes();
        for (location, byte, how) in damage {
            let location = location.index(bytes.len());
            match how {
                0 => bytes[location] = byte,
                1 => bytes.insert(location, byte),
                _ => drop(bytes.remove(location)),
            }
        }
        read_in_every_format(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn random_variables_never_panic(name in "(__|_|-|POLICIES|LEVERS|DEFAULT|P|DEADLINE|TOTAL|RETRY|RETRY_ON|é){0,8}", value in any::<String>()) {
        let _ = Config::loader().vars([(format!("PHALANX__{name}"), value)]).load();
    }
}

const BUDGET: &str = "dep,role,max_attempts,per_attempt_timeout_ms,breaker_threshold_p95_ms,notes\n\
                      auth,critical,1,100,150,no retry\ntax,important,2,200,300,hedge_reads=true\n";
