//! The example `play_plan`, run as from a shell.

use crate::plans;

#[allow(dead_code)] // its `main`
#[path = "../../examples/play_plan.rs"]
mod play_plan;

/// Runs the example with these arguments; a word with a dot is a file of the folder of the plans.
fn run(arguments: &str) -> Result<phalanx_testkit::plan::Evidence, String> {
    let words = arguments.split_whitespace();
    let file = |word: &str| if word.contains('.') { plans().join(word).into_os_string() } else { word.into() };
    play_plan::run(words.map(file)).map_err(|error| error.to_string())
}

#[test]
fn the_example_plays_a_plan_against_a_budget_and_a_policy_file_and_writes_the_report() {
    let folder = std::env::temp_dir().join(format!("phalanx-example-{}", std::process::id()));
    let evidence = run(&format!("test_e_duplicate.toml budget.csv policies.toml --seed 5 --out {}", folder.display()));
    assert!(evidence.is_ok_and(|evidence| evidence.passed() && evidence.seed == 5));
    let mut files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    files.sort();
    assert_eq!(files, ["DUPLICATE.svg", "evidence.json", "report.md"]);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn the_example_reports_wrong_arguments_and_every_mistake_of_a_plan() {
    for wrong in ["", "test_e_duplicate.toml", "--seed", "--seed x", "--what a b", "a b --out"] {
        assert!(run(wrong).unwrap_err().starts_with("usage: "), "{wrong}");
    }
    let error = run("hostile/ten_mistakes.toml budget.csv policies.toml").unwrap_err();
    assert!(error.starts_with("10 mistakes in the plan\n"), "{error}");
}
