//! Runs cargo-mutants on a sample of the mutants of core and the stores.
//!
//! What to leave out is in `.cargo/mutants.toml`; which tests are the cheapest for a crate is here, because that file has one
//! selection for all crates. A sample depends on its seed and on the names of the mutants without their line numbers, so
//! that it stays the same while code moves.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use serde_json::Value;

use super::survivors::{self, Survivor};
use super::workspace;

/// A crate, and what is run against its mutants.
struct Subject {
    package: &'static str,
    /// Cheapest first: the next stage builds and runs only for the mutants that are left.
    stages: &'static [Stage],
}

/// The unit tests of the crate and of these packages, and these tests of theirs.
struct Stage {
    packages: &'static [&'static str],
    tests: &'static [&'static str],
}

const SUBJECTS: [Subject; 3] = [
    Subject {
        package: "phalanx-core",
        stages: &[
            Stage { packages: &[], tests: &[] },
            // A pipeline needs a store to run, so its tests are those of the crate that has both.
            Stage { packages: &["phalanx"], tests: &["bulkhead", "chaos", "describe", "hedge", "retry"] },
            Stage { packages: &["phalanx-integration-tests"], tests: &["fleet_budgets"] },
        ],
    },
    Subject {
        package: "phalanx-store-memory",
        stages: &[
            Stage { packages: &[], tests: &[] },
            Stage { packages: &["phalanx-integration-tests"], tests: &["conformance_memory"] },
        ],
    },
    Subject {
        package: "phalanx-store-redis",
        stages: &[
            Stage { packages: &[], tests: &[] },
            Stage { packages: &["phalanx-integration-tests"], tests: &["conformance_lua", "degraded"] },
        ],
    },
];

/// The outcome of a mutant that no test has caught.
const MISSED: &str = "MissedMutant";

/// Built without optimisation and debug information: that takes half the time, and every mutant is a build.
const OPTIMISED: [&str; 6] = [
    "phalanx-core",
    "phalanx-store-memory",
    "phalanx-store-redis",
    "phalanx",
    "phalanx-testkit",
    "phalanx-integration-tests",
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

    fn line(&self) -> usize {
        let line = self.name[self.file.len()..].split(':').nth(1).and_then(|line| line.parse().ok());
        line.expect("the name of a mutant has its line")
    }

    fn is_listed(&self, survivors: &[Survivor]) -> bool {
        survivors.iter().any(|survivor| survivor.file == self.file && survivor.mutant == self.change())
    }
}

/// Runs those of a sample of `count` mutants whose names begin with one of `only` (separated by commas). Returns whether all
/// of them were caught or are listed.
pub fn run(only: &str, count: usize, seed: u64) -> bool {
    assert!(is_installed(), "cargo-mutants is missing: cargo install --locked cargo-mutants");
    let list = fs::read_to_string(workspace().join("mutants/rust-survivors.toml")).expect("the list is readable");
    let listed = survivors::parse(&list).expect("the list is valid");
    let sample = selected(only, count, seed);
    let (mut caught, mut survived, mut unviable, mut unlisted) = (0_u32, 0_u32, 0_u32, 0_u32);
    for subject in &SUBJECTS {
        let mutants = sample.iter().filter(|mutant| mutant.package == subject.package).collect();
        for (mutant, outcome) in outcomes(subject, mutants) {
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

/// Prints the mutants of the sample whose names begin with one of `only`.
pub fn list(only: &str, count: usize, seed: u64) {
    for mutant in selected(only, count, seed) {
        println!("{}", mutant.name);
    }
}

fn selected(only: &str, count: usize, seed: u64) -> Vec<RustMutant> {
    let mut sample = sample(all(), count, seed);
    sample.retain(|mutant| only.split(',').any(|prefix| mutant.name.starts_with(prefix)));
    sample
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
fn outcomes<'a>(subject: &Subject, mutants: Vec<&'a RustMutant>) -> Vec<(&'a RustMutant, String)> {
    let (mut decided, mut left) = (Vec::new(), mutants);
    for (number, stage) in subject.stages.iter().enumerate() {
        let outcomes = outcomes_of(subject, stage, number, &left);
        left = outcomes.iter().filter(|(_, outcome)| outcome == MISSED).map(|(mutant, _)| *mutant).collect();
        decided.extend(outcomes.into_iter().filter(|(_, outcome)| outcome != MISSED));
    }
    decided.extend(left.into_iter().map(|mutant| (mutant, MISSED.to_owned())));
    decided
}

/// Runs one stage of tests against these mutants.
fn outcomes_of<'a>(
    subject: &Subject,
    stage: &Stage,
    number: usize,
    mutants: &[&'a RustMutant],
) -> Vec<(&'a RustMutant, String)> {
    if mutants.is_empty() {
        return Vec::new();
    }
    let folder = workspace().join("target/mutants-out").join(format!("{}-{number}", subject.package));
    fs::create_dir_all(&folder).expect("the folder can be created");
    let mut command = cargo_mutants();
    command.args(["--package", subject.package, "--colors", "never", "--output"]).arg(&folder);
    // Without its feature a mutant is not compiled, and so survives.
    command.arg("--all-features");
    // Builds with as many jobs as any other, not with one for each core.
    command.arg("--jobserver=false");
    // Not as `--test-package`, of which the run without a mutant knows nothing.
    command.args(stage.packages.iter().map(|package| format!("--cargo-arg=--package={package}")));
    // The selection of tests for the build as well, or every test of the packages would be built.
    command.arg("--cargo-arg=--lib").args(stage.tests.iter().map(|test| format!("--cargo-arg=--test={test}")));
    command.args(OPTIMISED.map(|package| format!("--cargo-arg=--config=profile.dev.package.{package}.opt-level=0")));
    command.env("CARGO_PROFILE_DEV_DEBUG", "0");
    command.args(mutants.iter().map(|mutant| format!("--re=^{}$", escape(&mutant.name))));
    // cargo-mutants 27 runs every deleted field, whatever `--re` names: only those of these lines then.
    let diff = folder.join("lines.diff");
    fs::write(&diff, diff_of(mutants)).expect("the folder is writable");
    command.arg("--in-diff").arg(diff);
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

/// Returns a diff that has added the lines of these mutants.
fn diff_of(mutants: &[&RustMutant]) -> String {
    let mut lines = BTreeMap::<_, BTreeSet<_>>::new();
    for mutant in mutants {
        lines.entry(&mutant.file).or_default().insert(mutant.line());
    }
    let of_file = |(file, lines): (&String, BTreeSet<usize>)| {
        let text = fs::read_to_string(workspace().join(file)).expect("the file is readable");
        let hunk = |(added, line): (usize, usize)| {
            let text = text.lines().nth(line - 1).unwrap_or_default();
            format!("@@ -{},0 +{line},1 @@\n+{text}\n", line - 1 - added)
        };
        let hunks: String = lines.into_iter().enumerate().map(hunk).collect();
        format!("--- a/{file}\n+++ b/{file}\n{hunks}")
    };
    lines.into_iter().map(of_file).collect()
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
    fn a_diff_has_added_every_line_once() {
        let file = "mutants/rust-survivors.toml";
        let of_line = |line| RustMutant {
            package: "core".to_owned(),
            file: file.to_owned(),
            name: format!("{file}:{line}:5: replace 1 with ()"),
        };
        let text = fs::read_to_string(workspace().join(file)).unwrap();
        let [first, second] = [0, 1].map(|line| text.lines().nth(line).unwrap());
        let diff = format!("--- a/{file}\n+++ b/{file}\n@@ -0,0 +1,1 @@\n+{first}\n@@ -0,0 +2,1 @@\n+{second}\n");
        assert_eq!(diff_of(&[&of_line(2), &of_line(1), &of_line(2)]), diff);
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
