//! Runs cargo-mutants on a sample of the mutants of core and the stores.
//!
//! What to leave out is in `.cargo/mutants.toml`; which tests are the cheapest for a crate is here, because that file has one
//! selection for all crates. A sample depends on its seed and on the names of the mutants without their line numbers, so
//! that it stays the same while code moves.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use super::survivors::{self, Survivor};
use super::workspace;

/// A crate, and the packages and tests that are run against its mutants.
struct Subject {
    package: &'static str,
    test_packages: &'static [&'static str],
    tests: &'static [&'static str],
}

const SUBJECTS: [Subject; 3] = [
    // A pipeline needs a store to run, so its tests are those of the crate that has both.
    Subject { package: "phalanx-core", test_packages: &["phalanx-core", "phalanx"], tests: &["bulkhead", "retry"] },
    Subject {
        package: "phalanx-store-memory",
        test_packages: &["phalanx-store-memory", "phalanx-integration-tests"],
        tests: &["conformance_memory"],
    },
    Subject {
        package: "phalanx-store-redis",
        test_packages: &["phalanx-store-redis", "phalanx-integration-tests"],
        tests: &["conformance_lua", "degraded"],
    },
];

/// A mutant as cargo-mutants lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RustMutant {
    package: String,
    file: String,
    /// `file:line:column: change`.
    name: String,
}

impl RustMutant {
    /// Returns the change without its place.
    fn change(&self) -> &str {
        self.name.split_once(": ").map_or(&self.name, |(_, change)| change)
    }

    fn is_listed(&self, survivors: &[Survivor]) -> bool {
        survivors.iter().any(|survivor| survivor.file == self.file && survivor.mutant == self.change())
    }
}

/// Runs a sample of `count` mutants. Returns whether all of them were caught or are listed.
pub fn run(count: usize, seed: u64) -> bool {
    assert!(is_installed(), "cargo-mutants is missing: cargo install --locked cargo-mutants");
    let list = fs::read_to_string(workspace().join("mutants/rust-survivors.toml")).expect("the list is readable");
    let listed = survivors::parse(&list).expect("the list is valid");
    let sample = sample(all(), count, seed);
    let (mut caught, mut survived, mut unviable, mut unlisted) = (0_u32, 0_u32, 0_u32, 0_u32);
    for subject in &SUBJECTS {
        let mutants: Vec<_> = sample.iter().filter(|mutant| mutant.package == subject.package).collect();
        for (mutant, outcome) in outcomes(subject, &mutants) {
            match outcome.as_str() {
                "CaughtMutant" | "Timeout" => caught += 1,
                "Unviable" => unviable += 1,
                _ => {
                    survived += 1;
                    let reason = mutant.is_listed(&listed);
                    unlisted += u32::from(!reason);
                    println!("survived{}: {}", if reason { ", as listed" } else { "" }, mutant.name);
                }
            }
        }
    }
    let tested = caught + survived;
    let missing = sample.len() - (tested + unviable) as usize;
    let share = 100.0 * f64::from(caught) / f64::from(tested).max(1.0);
    println!(
        "{tested} Rust mutants of a sample of {} (seed {seed}, {unviable} do not compile): {caught} caught ({share:.1} %), \
         {survived} survived, {unlisted} of them without a reason; {missing} were not run",
        sample.len()
    );
    unlisted == 0 && missing == 0
}

/// Prints the sample.
pub fn list(count: usize, seed: u64) {
    for mutant in sample(all(), count, seed) {
        println!("{}", mutant.name);
    }
}

fn cargo_mutants() -> Command {
    let mut command = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()));
    command.arg("mutants").current_dir(workspace());
    command
}

fn is_installed() -> bool {
    cargo_mutants().arg("--version").output().is_ok_and(|output| output.status.success())
}

fn all() -> Vec<RustMutant> {
    let mut command = cargo_mutants();
    command.args(["--list", "--json"]).args(SUBJECTS.iter().flat_map(|subject| ["--package", subject.package]));
    let output = command.output().expect("cargo-mutants runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mutants: Vec<Value> = serde_json::from_slice(&output.stdout).expect("a list of mutants");
    let text = |mutant: &Value, key: &str| mutant[key].as_str().expect("a text").to_owned();
    let mutant = |mutant: &Value| RustMutant {
        package: text(mutant, "package"),
        file: text(mutant, "file"),
        name: text(mutant, "name"),
    };
    mutants.iter().map(mutant).collect()
}

/// Returns `count` of the mutants, in the order of a hash of seed, file and change.
fn sample(mut mutants: Vec<RustMutant>, count: usize, seed: u64) -> Vec<RustMutant> {
    mutants.sort_by_cached_key(|mutant| hash(&format!("{seed} {} {}", mutant.file, mutant.change())));
    mutants.truncate(count);
    mutants
}

/// FNV-1a, with the bits mixed at the end: the same for every toolchain.
fn hash(text: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325, step);
    (hash ^ hash >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Runs the mutants of one crate. Returns each with its outcome.
fn outcomes<'a>(subject: &Subject, mutants: &[&'a RustMutant]) -> Vec<(&'a RustMutant, String)> {
    if mutants.is_empty() {
        return Vec::new();
    }
    let folder = output_folder(subject);
    let mut command = cargo_mutants();
    command.args(["--package", subject.package, "--colors", "never", "--output"]).arg(&folder);
    // Without its feature a mutant is not compiled, and so survives.
    command.arg("--all-features");
    command.args(subject.test_packages.iter().flat_map(|package| ["--test-package", package]));
    // The selection of tests for the build as well, or every test of the packages would be built.
    command.arg("--cargo-arg=--lib").args(subject.tests.iter().map(|test| format!("--cargo-arg=--test={test}")));
    command.args(mutants.iter().map(|mutant| format!("--re=^{}$", escape(&mutant.name))));
    // cargo-mutants 27 runs the deleted fields of all files, whatever `--re` names: only those of these files then.
    let files: BTreeSet<_> = mutants.iter().map(|mutant| mutant.file.as_str()).collect();
    command.args(files.iter().flat_map(|file| ["--file", file]));
    // The copied tree shares the dependencies that the runs before it have built.
    if std::env::var_os("CARGO_TARGET_DIR").is_none() {
        command.env("CARGO_TARGET_DIR", workspace().join("target/mutants"));
    }
    // Its exit code says no more than the outcomes: survivors may be listed.
    command.status().expect("cargo-mutants runs");
    let report = fs::read(folder.join("mutants.out/outcomes.json")).expect("cargo-mutants writes its outcomes");
    let report: Value = serde_json::from_slice(&report).expect("outcomes are JSON");
    let outcome = |mutant: &&'a RustMutant| {
        let outcomes = report["outcomes"].as_array()?;
        let found = outcomes.iter().find(|outcome| outcome["scenario"]["Mutant"]["name"] == mutant.name.as_str())?;
        Some((*mutant, found["summary"].as_str()?.to_owned()))
    };
    mutants.iter().filter_map(outcome).collect()
}

fn output_folder(subject: &Subject) -> PathBuf {
    let folder = workspace().join("target/mutants-out").join(subject.package);
    fs::create_dir_all(&folder).expect("the folder can be created");
    folder
}

/// Returns a regular expression that matches this text only.
fn escape(text: &str) -> String {
    // Not every character may be escaped: `\<` is the beginning of a word.
    let escaped = |c: char| if r"\.+*?()|[]{}^$".contains(c) { format!("\\{c}") } else { c.to_string() };
    text.chars().map(escaped).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutants(lines: std::ops::Range<u32>) -> Vec<RustMutant> {
        let mutant = |line| RustMutant {
            package: "core".to_owned(),
            file: "a.rs".to_owned(),
            name: format!("a.rs:{line}:5: replace {} with ()", line % 10),
        };
        lines.map(mutant).collect()
    }

    #[test]
    fn a_sample_is_the_same_for_its_seed_and_stays_when_code_moves() {
        let changes = |lines, seed| {
            let sample = sample(mutants(lines), 4, seed);
            sample.iter().map(|mutant| mutant.change().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(changes(0..10, 1), changes(10..20, 1));
        assert_ne!(changes(0..10, 1), changes(0..10, 2));
    }

    #[test]
    fn a_name_is_matched_literally() {
        assert_eq!(
            escape("a.rs:1:2: replace f -> Vec<u8> with vec![] in <T>"),
            r"a\.rs:1:2: replace f -> Vec<u8> with vec!\[\] in <T>"
        );
    }

    #[test]
    fn the_list_of_rust_survivors_is_valid() {
        let text = fs::read_to_string(workspace().join("mutants/rust-survivors.toml")).unwrap();
        let listed = survivors::parse(&text).unwrap();
        for survivor in listed {
            assert!(workspace().join(&survivor.file).exists(), "{survivor:?}");
        }
    }
}
