//! The list of promises in `docs/guarantees.md`: every test and oracle that it names exists, every section and every oracle
//! has its line, and every promise that is not planned has a test.

#![allow(clippy::unwrap_used, clippy::panic)] // a failed expectation panics, in helpers too

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const PLANNED: &str = "**planned**";
const ORACLES: &str = "testkit/src/simulator/oracle.rs";

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: impl AsRef<Path>) -> String {
    let path = workspace().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn page() -> String {
    read("docs/guarantees.md")
}

/// One line of the list.
struct Promise {
    number: String,
    cells: Vec<String>,
}

impl Promise {
    fn cell(&self, column: usize) -> &str {
        &self.cells[column]
    }

    /// The names in code in a column.
    fn names(&self, column: usize) -> Vec<&str> {
        self.cell(column).split('`').skip(1).step_by(2).collect()
    }
}

fn list() -> Vec<Promise> {
    let page = page();
    let rows = page.lines().filter(|line| line.starts_with("| I-"));
    rows.map(|row| {
        let cells: Vec<String> = row.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
        assert_eq!(cells.len(), 5, "{row}");
        Promise { number: cells[0].clone(), cells }
    })
    .collect()
}

/// The functions of all Rust files below a folder, build output and generated files excluded.
fn functions(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            functions(&path, found);
        } else if name.ends_with(".rs") {
            let text = fs::read_to_string(&path).unwrap();
            let named = text.split("fn ").skip(1).filter_map(|rest| rest.split(['(', '<']).next());
            found.extend(named.filter(|name| name.chars().all(|c| c.is_alphanumeric() || c == '_')).map(str::to_owned));
        }
    }
}

/// The checking functions of the simulator's oracles, by the number of their promise.
fn oracles() -> BTreeMap<String, String> {
    let source = read(ORACLES);
    let declared = source.split("id: \"").skip(1).filter_map(|rest| {
        let (id, rest) = rest.split_once('"')?;
        let check = rest.split_once("check: ")?.1.split([',', ' ', '}']).next()?;
        Some((id.to_owned(), check.rsplit("::").next()?.to_owned()))
    });
    declared.filter(|(id, _)| id.starts_with("I-")).collect()
}

#[test]
fn every_section_has_one_line_and_every_line_a_section() {
    let listed: Vec<_> = list().into_iter().map(|promise| promise.number).collect();
    let page = page();
    let sections: BTreeSet<_> =
        page.lines().filter_map(|line| line.strip_prefix("### ")?.split(' ').next()).map(str::to_owned).collect();
    assert_eq!(listed.iter().cloned().collect::<BTreeSet<_>>(), sections);
    assert_eq!(listed.len(), sections.len(), "one line for each");
    let expected: Vec<_> = (1..=listed.len()).map(|number| format!("I-{number}")).collect();
    assert_eq!(listed, expected, "in order, without a gap");
}

#[test]
fn every_test_in_the_list_exists_and_every_promise_has_one_or_is_planned() {
    let mut existing = BTreeSet::new();
    functions(&workspace(), &mut existing);
    assert!(existing.len() > 3_000, "{} functions", existing.len());
    for promise in list() {
        let tests = promise.names(3);
        assert_eq!(tests.is_empty(), promise.cell(3) == PLANNED, "{}: {}", promise.number, promise.cell(3));
        for test in tests {
            assert!(existing.contains(test), "{} names {test}, which does not exist", promise.number);
        }
    }
}

#[test]
fn no_promise_is_held_by_a_scenario_that_is_known_to_fail() {
    let source = read("integration-tests/tests/known_failures.rs");
    let known = source.split("const KNOWN").nth(1).and_then(|rest| rest.split("];").next()).unwrap();
    for promise in list() {
        for test in promise.names(3) {
            assert!(!known.contains(test), "{} names {test}, which fails", promise.number);
        }
    }
}

#[test]
fn every_oracle_is_in_the_line_of_its_promise() {
    let listed: BTreeMap<_, _> = list()
        .iter()
        .flat_map(|promise| promise.names(4).into_iter().map(|name| (promise.number.clone(), name.to_owned())))
        .collect();
    assert!(listed.len() > 10);
    assert_eq!(listed, oracles());
}

#[test]
fn every_promise_states_its_allowance() {
    for promise in list() {
        assert!(!promise.cell(2).is_empty() && !promise.cell(1).is_empty(), "{}", promise.number);
    }
}
