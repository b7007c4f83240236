//! Compares the `# Behaviour` lists of `core/src/{store,lock}.rs` with the conformance cases: every line has a case, every
//! case has a line, and every case that is written is run.

#![allow(clippy::unwrap_used, clippy::panic)] // a failed expectation panics, in helpers too

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use phalanx_testkit::conformance::cases;

/// A line of a list: the trait, the method and the line as a function name.
type Behaviour = (String, String, String);

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Converts a line such as "permits come back at the declared rate" to a function name.
fn slug(line: &str) -> String {
    let words = line.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_ascii_lowercase).collect::<Vec<_>>().join("_")
}

/// Returns the name that follows `word` on a line.
fn name_after<'a>(line: &'a str, word: &str) -> Option<&'a str> {
    let rest = line.strip_prefix(word)?;
    rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next()
}

/// Returns all list lines of a source text, in order. A list ends where its method begins; anything else in it would not be
/// checked, so it is rejected.
fn behaviours(source: &str) -> Vec<Behaviour> {
    let (mut store, mut list, mut found) = (String::new(), None::<Vec<String>>, Vec::new());
    for line in source.lines().map(str::trim) {
        if let Some(name) = name_after(line, "pub trait ") {
            store = name.into();
        } else if line == "/// # Behaviour" {
            assert!(list.is_none(), "two lists above one method of {store}");
            list = Some(Vec::new());
        } else if let Some(method) = name_after(line, "fn ") {
            let lines = list.take().into_iter().flatten();
            found.extend(lines.map(|line| (store.clone(), method.to_owned(), line)));
        } else if let Some(lines) = &mut list {
            let item = line.strip_prefix("/// - ");
            lines.push(slug(item.unwrap_or_else(|| panic!("not a line of a behaviour list: {line}"))));
        }
    }
    assert!(list.is_none(), "a list without a method at the end of {store}");
    found
}

fn set<T: Ord>(items: impl IntoIterator<Item = T>) -> BTreeSet<T> {
    items.into_iter().collect()
}

#[test]
fn every_line_of_a_behaviour_list_is_a_case_and_every_case_a_line() {
    let files = ["../core/src/store.rs", "../core/src/lock.rs"];
    let lines: Vec<Behaviour> = files.iter().flat_map(|file| behaviours(&read(&here(file)))).collect();
    let cases: Vec<Behaviour> = cases().map(|case| (case.store.into(), case.method.into(), case.name.into())).collect();
    assert_eq!(set(&lines).len(), lines.len(), "a line is twice in one list");
    let without_case: Vec<_> = lines.iter().filter(|line| !cases.contains(line)).collect();
    let without_line: Vec<_> = cases.iter().filter(|case| !lines.contains(case)).collect();
    assert!(without_case.is_empty(), "lines without a case in conformance.rs: {without_case:#?}");
    assert!(without_line.is_empty(), "cases without a line in core/src: {without_line:#?}");
    assert_eq!(lines, cases, "lines and cases are in the same order");
}

#[test]
fn every_case_that_is_written_is_run() {
    let run = set(cases().map(|case| (case.area.to_owned(), case.name.to_owned())));
    assert_eq!(set(written_cases()), run);
}

/// Returns every `pub async fn` of the conformance suite with its area: a top-level file and the folder of the same name.
fn written_cases() -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders = vec![here("../testkit/src/conformance")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let below = path.strip_prefix(here("../testkit/src/conformance")).unwrap();
            let area = Path::new(below.components().next().unwrap().as_os_str()).file_stem().unwrap();
            let area = area.to_str().unwrap().to_owned();
            let text = read(&path);
            let names = text.lines().filter_map(|line| name_after(line, "pub async fn "));
            found.extend(names.map(|name| (area.clone(), name.to_owned())));
        }
    }
    found
}

#[test]
fn a_list_is_read_with_its_trait_and_its_method() {
    let source = "
        /// A trait.
        pub trait Doors: Send {
            /// Opens it.
            ///
            /// # Behaviour
            /// - an open door stays open
            /// - it's quick, too
            fn open(&self);
            /// No list.
            fn close(&self);
        }
        pub trait Windows {
            /// # Behaviour
            /// - glass breaks
            fn throw(&self);
        }";
    let expected = [
        ("Doors", "open", "an_open_door_stays_open"),
        ("Doors", "open", "it_s_quick_too"),
        ("Windows", "throw", "glass_breaks"),
    ];
    let expected = expected.map(|(store, method, line)| (store.to_owned(), method.to_owned(), line.to_owned()));
    assert_eq!(behaviours(source), expected);
}

#[test]
#[should_panic(expected = "not a line of a behaviour list")]
fn a_wrapped_line_is_rejected() {
    behaviours("/// # Behaviour\n/// - a line so long\n///   that it is wrapped\nfn open(&self);");
}
