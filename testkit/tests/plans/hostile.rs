//! Malformed, hostile and huge plans: every mistake with its place, and no panic.

use std::collections::BTreeSet;

use phalanx_testkit::plan::{MAX_STEPS, Plan, Player};
use proptest::prelude::*;

use crate::{plans, policies};

/// Every file of the folder, and the mistakes that are reported for it, without the folder.
fn expected_mistakes() -> Vec<(&'static str, Vec<&'static str>)> {
    vec![
        ("binary.csv", vec!["is not UTF-8"]),
        ("deep.toml:1", vec!["is nested too deeply"]),
        ("deep_keys.toml:1", vec!["is nested too deeply"]),
        ("double_column.csv:1", vec!["the column case appears twice"]),
        ("empty.csv", vec!["has no steps"]),
        ("empty.toml:1", vec!["steps: a plan needs steps"]),
        ("endless.csv:2", vec!["window_s: must be a whole number of seconds from 1 to 86400"]),
        ("fault_kind.toml:4", vec!["steps.fault.kind: there is no fault latensy; did you mean latency?"]),
        ("fault_parameters.toml:4", vec!["steps.fault.factor: the fault errors has no factor"]),
        ("header_only.csv", vec!["has no steps"]),
        ("invalid_utf8.toml", vec!["is not UTF-8"]),
        ("mismatch.toml:6", vec!["steps.expected: exactly_once needs a fault such as lost answer@10%"]),
        ("missing_column.csv:1", vec!["the column window_s is missing"]),
        (
            "missing_keys.toml:1",
            vec![
                "steps.target: is missing",
                "steps.fault: is missing",
                "steps.duration: is missing",
                "steps.expected: is missing",
            ],
        ),
        ("nan.toml", vec!["2: workload.rate: must be a number", "3: workload.capacity: must be a number"]),
        ("no_steps.toml:1", vec!["steps: a plan has 1 to 200 steps"]),
        ("only_comments.toml:1", vec!["steps: a plan needs steps"]),
        ("plan.yaml", vec!["must end in .toml or .csv"]),
        (
            "same_id.toml",
            vec![
                "9: steps.id: another step has this name, at line 2",
                "12: steps.duration: must be above zero and at most 1day",
                "13: steps.expected: must not be empty",
            ],
        ),
        ("short_row.csv:2", vec!["has 3 columns instead of 5"]),
        ("steps_of_numbers.toml:1", vec!["steps: must be a table", "steps: must be a table"]),
        ("steps_text.toml:1", vec!["steps: must be a list of tables: [[steps]]"]),
        (
            "ten_mistakes.csv",
            vec![
                "2: case: must be 1 to 64 letters, digits, '-', '_' or '.', and not begin with '.'",
                "2: dep: there is no policy taxe; did you mean tax?",
                "2: inject: the quantile must be written like p95, as in +200ms@p95",
                "2: window_s: must be a whole number of seconds from 1 to 86400",
                "2: expected: there is no expectation breaker may be open; did you mean breaker=maybe?",
                "3: inject: a share must be above 0 % and at most 100 %",
                "4: case: another step has this name, at line 3",
                "4: expected: hop<=remaining needs a fault such as deadline=2s",
                "5: inject: the factor must be a number after x, as in rps x4",
                "5: window_s: must be a whole number of seconds from 1 to 86400",
            ],
        ),
        (
            "ten_mistakes.toml",
            vec![
                "1: sed: there is no such key; did you mean seed?",
                "2: replicas: must be a whole number from 1 to 10000",
                "5: workload.rate: must be a number",
                "6: workload.latensy: there is no such key; did you mean latency?",
                "9: steps.id: must be 1 to 64 letters, digits, '-', '_' or '.', and not begin with '.'",
                "10: steps.target: there is no policy katalog; did you mean catalog?",
                "11: steps.fault: there is no fault 5xy; did you mean 5xx?",
                "12: steps.duration: must be a duration such as \"250ms\" or \"1m 30s\"",
                "13: steps.expected: there is no expectation breaker=opne; did you mean breaker=open?",
                "13: steps.expected: retry<=n needs a whole number from 0 to 1000",
            ],
        ),
        ("unclosed.toml:1", vec!["unclosed array table, expected `]`"]),
        (
            "unclosed_quote.csv:2",
            vec![
                "expected: there is no expectation recovers b; did you mean recovers?",
                "expected: there is no expectation tax; there are retry<=n, ",
                "expected: there is no expectation 5xx; there are retry<=n, ",
                "expected: there is no expectation 10; there are retry<=n, ",
            ],
        ),
        ("wrong_column.csv:1", vec!["there is no column window; did you mean window_s?"]),
    ]
}

#[test]
fn every_hostile_plan_is_rejected_with_every_mistake_at_its_place() {
    let folder = plans().join("hostile");
    let files = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let checked = expected_mistakes().into_iter().map(|(place, _)| place.split(':').next().unwrap().to_owned());
    assert_eq!(files.collect::<BTreeSet<_>>(), checked.collect(), "every file is checked");
    for (place, expected) in expected_mistakes() {
        let (file, line) = place.split_once(':').map_or((place, ""), |(file, line)| (file, line));
        let path = folder.join(file);
        let error = Plan::load(&path, &policies()).unwrap_err();
        let found: Vec<String> = error.mistakes.iter().map(ToString::to_string).collect();
        assert_eq!(found.len(), expected.len(), "{file}: {found:#?}");
        for (found, expected) in found.iter().zip(expected) {
            let separator = if expected.starts_with(|it: char| it.is_ascii_digit()) { ":" } else { ": " };
            let line = if line.is_empty() { String::new() } else { format!(":{line}") };
            let whole = format!("{}{line}{separator}{expected}", path.display());
            assert!(found.starts_with(&whole), "{found}\n{whole}");
        }
    }
}

#[test]
fn a_file_that_is_missing_or_too_large_is_rejected() {
    let missing = Plan::load(plans().join("nothing.toml"), &policies()).unwrap_err();
    assert!(missing.to_string().contains("nothing.toml: cannot be read: "), "{missing}");
    let large = "#".repeat((1 << 20) + 1);
    for error in [Plan::from_toml("a", &large, &policies()), Plan::from_csv("a", &large, &policies())] {
        assert_eq!(error.unwrap_err().mistakes[0].to_string(), "a: is larger than 1 MiB");
    }
}

#[test]
fn a_plan_with_too_many_steps_or_mistakes_is_read_no_further() {
    let header = "case,dep,inject,window_s,expected\n";
    let rows: String = (0..=MAX_STEPS).map(|row| format!("S{row},tax,5xx,1,recovers\n")).collect();
    let error = Plan::from_csv("a.csv", &(header.to_owned() + &rows), &policies()).unwrap_err();
    assert_eq!(error.mistakes[0].to_string(), "a.csv:202: a plan has at most 200 steps");
    let wrong: String = (0..40_000).map(|row| format!("S{row},nothing,6xx,0,\n")).collect();
    let error = Plan::from_csv("a.csv", &(header.to_owned() + &wrong), &policies()).unwrap_err();
    assert!((100..=101).contains(&error.mistakes.len()), "{}", error.mistakes.len());
    let list = format!("steps = [{}]", "1,".repeat(100_000));
    assert_eq!(Plan::from_toml("a.toml", &list, &policies()).unwrap_err().mistakes.len(), 1);
    let keys: String = (0..10_000).map(|key| format!("k{key} = 1\n")).collect();
    assert_eq!(Plan::from_toml("a.toml", &keys, &policies()).unwrap_err().mistakes.len(), 101);
}

#[test]
fn a_step_with_too_many_expectations_is_rejected() {
    let expected = vec!["no OOM"; 33].join(", ");
    let csv = format!("case,dep,inject,window_s,expected\nA,tax,5xx,1,\"{expected}\"\n");
    let error = Plan::from_csv("a.csv", &csv, &policies()).unwrap_err();
    assert_eq!(error.mistakes[0].to_string(), "a.csv:2: expected: a step has at most 32 expectations");
    let list = "'no_oom', ".repeat(33);
    let toml = format!("[[steps]]\nid = 'A'\ntarget = 'tax'\nfault = '5xx'\nduration = '1s'\nexpected = [{list}]");
    let error = Plan::from_toml("a.toml", &toml, &policies()).unwrap_err();
    assert_eq!(error.mistakes[0].to_string(), "a.toml:6: steps.expected: a step has at most 32 expectations");
}

#[test]
fn a_byte_order_mark_moves_no_line() {
    let toml = Plan::from_toml("a.toml", "\u{feff}name = 'x'\nsed = 1\nsteps = 1", &policies()).unwrap_err();
    assert_eq!(toml.mistakes[0].to_string(), "a.toml:2: sed: there is no such key; did you mean seed?");
    let csv = "\u{feff}case,dep,inject,window_s,expected\nA,tax,5xx,0,recovers\n";
    let csv = Plan::from_csv("a.csv", csv, &policies()).unwrap_err();
    assert!(csv.mistakes[0].to_string().starts_with("a.csv:2: window_s: "), "{csv}");
}

#[test]
fn a_name_that_resembles_none_gets_the_list_and_a_route_belongs_to_its_policy() {
    let plan = |target: &str| format!("case,dep,inject,window_s,expected\nA,{target},5xx,1,recovers\n");
    let error = Plan::from_csv("a.csv", &plan("warehouse"), &policies()).unwrap_err();
    let list = "there is no policy warehouse; there are auth, catalog, orders, search, tax";
    assert_eq!(error.mistakes[0].to_string(), format!("a.csv:2: dep: {list}"));
    let error = Plan::from_csv("a.csv", &plan("katalog/eu"), &policies()).unwrap_err();
    assert!(error.to_string().ends_with("there is no policy katalog; did you mean catalog?"), "{error}");
    let routed = Plan::from_csv("a.csv", &plan("catalog/eu/west"), &policies()).unwrap();
    assert_eq!(routed.steps[0].target.to_string(), "catalog/eu/west");
}

/// A valid plan to damage.
fn fixture() -> String {
    std::fs::read_to_string(plans().join("test_b_outage.toml")).unwrap()
}

/// Reads a text in both formats, and plays what is a plan, if it can be played in no time.
fn read(text: &str) {
    for plan in [Plan::from_toml("plan.toml", text, &policies()), Plan::from_csv("plan.csv", text, &policies())] {
        match plan {
            Ok(plan) => drop(Player::new(policies()).budget(std::time::Duration::from_millis(100)).play(&plan)),
            Err(error) => assert!(!error.mistakes.is_empty() && error.mistakes.len() <= 101),
        }
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        read(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn arbitrary_rows_never_panic(
        rows in proptest::collection::vec("[^,\"\n]{0,12},[*a-z/]{0,9},[+0-9a-z@%=. ]{0,14},[-0-9]{0,22},\"[a-z0-9<=%_, ]{0,30}\"", 0..6)
    ) {
        read(&format!("case,dep,inject,window_s,expected\n{}\n", rows.join("\n")));
    }

    #[test]
    fn a_damaged_plan_never_panics(
        cuts in proptest::collection::vec((any::<proptest::sample::Index>(), "[\\[\\]{}=\"'.,0-9a-z\n]{0,4}"), 1..6)
    ) {
        let mut letters: Vec<char> = fixture().chars().collect();
        for (cut, insert) in cuts {
            let at = cut.index(letters.len());
            letters.splice(at..(at + 1).min(letters.len()), insert.chars());
        }
        read(&letters.into_iter().collect::<String>());
    }
}
