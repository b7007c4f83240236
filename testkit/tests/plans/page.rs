//! `docs/fault-plans.md` against the code: its plans are valid and pass, and its tables have every name.

use phalanx::config::Config;
use phalanx_testkit::plan::{Expectation, Fault, Plan, Player, Workload};

use crate::policies;

fn page() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/fault-plans.md");
    std::fs::read_to_string(path).unwrap()
}

/// The fenced blocks of the page in this language.
fn blocks(language: &str) -> Vec<String> {
    let begin = format!("```{language}\n");
    page().split(begin.as_str()).skip(1).map(|rest| rest.split("\n```").next().unwrap().to_owned() + "\n").collect()
}

#[test]
fn the_worked_plan_passes_against_the_policy_file_beside_it() {
    let policies = Config::from_toml(&blocks("toml")[0]).unwrap();
    let plans = blocks("toml plan");
    assert_eq!(plans.len(), 1);
    let plan = Plan::from_toml("fault-plans.md", &plans[0], &policies).unwrap();
    let evidence = Player::new(policies).play(&plan).unwrap();
    assert!(evidence.passed(), "{}", evidence.to_text());
}

#[test]
fn the_csv_of_the_page_is_the_one_that_the_tests_play() {
    let csv = blocks("csv");
    assert_eq!(csv, [std::fs::read_to_string(crate::plans().join("playbook.csv")).unwrap()]);
    assert_eq!(Plan::from_csv("page", &csv[0], &policies()).unwrap().steps.len(), 5);
}

/// The first cells of the rows of a table, by its heading.
fn rows(heading: &str) -> Vec<Vec<String>> {
    let page = page();
    let (_, table) = page.split_once(heading).unwrap_or_else(|| panic!("no table {heading}"));
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|row| row.split('|').skip(1).map(|cell| cell.trim().to_owned()).collect()).collect()
}

/// The first text between backticks.
fn code(cell: &str) -> &str {
    cell.split('`').nth(1).unwrap_or_else(|| panic!("no code in {cell}"))
}

#[test]
fn every_expectation_of_the_page_is_read_and_its_prose_means_the_same() {
    let rows = rows("| expectation | in the playbook's words |");
    assert_eq!(rows.len(), 11);
    for row in rows {
        let name = code(&row[0]).replace("<=n", "<=1").replace("<=x%", "<=2%");
        let (named, prose): (Expectation, Expectation) = (name.parse().unwrap(), code(&row[1]).parse().unwrap());
        assert_eq!((named, named.to_string()), (prose, name));
    }
}

#[test]
fn every_fault_of_the_page_is_read_in_both_notations() {
    let rows = rows("| fault | as a table |");
    assert_eq!(rows.len(), 5);
    for row in rows {
        // Where the table gives a share, the text has one too.
        let text = row[0].split('`').skip(1).step_by(2).last().unwrap();
        let fault: Fault = text.parse().unwrap();
        let step = format!(
            "[[steps]]\nid = 'S'\ntarget = 'tax'\nduration = '1s'\nexpected = ['no_oom']\nfault = {}",
            code(&row[1])
        );
        let plan = Plan::from_toml("page", &step, &policies()).unwrap();
        assert_eq!(plan.steps[0].fault, fault, "{text}");
    }
}

#[test]
fn every_key_of_the_workload_is_on_the_page_with_its_default() {
    let rows = rows("| key of `workload` | default |");
    let keys: Vec<&str> = rows.iter().flat_map(|row| row[0].split('`').skip(1).step_by(2)).collect();
    let error = Plan::from_toml("page", "workload = { x = 1 }\nsteps = []", &policies()).unwrap_err().to_string();
    let (_, known) = error.split_once("there are ").unwrap();
    let known: Vec<&str> = known.lines().next().unwrap().split(", ").collect();
    let sorted = |mut keys: Vec<String>| {
        keys.sort();
        keys
    };
    let owned = |keys: &[&str]| sorted(keys.iter().map(|key| (*key).to_owned()).collect());
    assert_eq!(owned(&keys), owned(&known));
    let default = Workload::default();
    assert!(rows.iter().any(|row| row[0] == "`rate`" && row[1] == default.rate.to_string()));
    let parts = format!("{} s, {} s", default.warmup.as_secs(), default.recovery.as_secs());
    assert!(rows.iter().any(|row| row[1] == parts), "{parts}");
}
