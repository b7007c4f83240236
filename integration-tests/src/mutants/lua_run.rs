//! Runs the in-process suites against every Lua mutant.
//!
//! The test binaries are built once. Each mutant is a run of them with the original and the changed file in the
//! environment (`testkit/src/lua_server/engine.rs`), which ends at the first failed test. Random tests use a fixed seed, so that
//! two runs catch the same mutants.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use phalanx_lua::ALL;

use super::lua::{Mutant, mutants_in};
use super::{survivors, workspace};

/// A suite that uses more CPU time than this loops, which counts as caught. The longest one takes four seconds. CPU time,
/// because on a busy machine a test that takes long does not loop.
const MAX_CPU_SECONDS: u32 = 20;
/// A suite without a finished test for this long hangs, which counts as caught.
const MAX_SILENCE: Duration = Duration::from_secs(900);
const SUITES: [&str; 3] = ["lua_scripts", "conformance_lua", "differential"];

/// The tests of one binary.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Suite {
    name: &'static str,
    arguments: Vec<&'static str>,
}

/// The random tests of modules that have others too: they run after those.
const RANDOM_TESTS: [&str; 5] = [
    "a_fence_only_grows",
    "a_request_never_has_two_owners",
    "a_shared_digest_equals_a_local_one_with_all_samples",
    "any_bytes_are_an_empty_digest_and_are_repaired",
    "late_runs_count_in_their_slices",
];

/// The tests of the breaker that compute what they expect; those of large fleets take half of the time and run later.
const BREAKER_EDGES: [&str; 12] = [
    "breaker_edges::",
    "breaker_text::",
    "breaker_text_limits::",
    "breaker_evidence::",
    "breaker_weighing::",
    "breaker_override::",
    "cells::",
    "foreign_arguments::",
    "--skip",
    "a_sample_answers_for_many_replicas",
    "--skip",
    "evidence_stays_within_five_kilobytes",
];
/// Those of large fleets, and those that compare random runs with the machine.
const BREAKER_LONG: [&str; 4] =
    ["a_sample_answers_for_many_replicas", "evidence_stays_within_five_kilobytes", "breaker::", "breaker_recovery::"];

/// The same for buckets.
const RATE_LIMIT_EDGES: [&str; 7] = [
    "rate_limit_charge::",
    "rate_limit_edges::",
    "rate_limit_record::",
    "rate_limit_lease::",
    "rate_limit_refill::",
    "cells::",
    "foreign_arguments::",
];

/// Returns the suites that run this script, cheapest first.
fn suites(file: &str) -> Vec<Suite> {
    let suite = |name, arguments: &[&'static str]| Suite { name, arguments: arguments.to_vec() };
    let without_random_tests = |module| Suite {
        name: "lua_scripts",
        arguments: [module, "cells::", "foreign_arguments::"]
            .into_iter()
            .chain(RANDOM_TESTS.iter().flat_map(|test| ["--skip", *test]))
            .collect(),
    };
    match file.trim_start_matches("include/").split(['_', '.']).next() {
        Some("breaker") => vec![
            suite("lua_scripts", &BREAKER_EDGES),
            suite("conformance_lua", &["breaker::"]),
            suite("lua_scripts", &BREAKER_LONG),
            suite("differential", &["every_breaker_replies_like_the_machine"]),
        ],
        Some("rate" | "bucket") => vec![
            suite("lua_scripts", &RATE_LIMIT_EDGES),
            suite("conformance_lua", &["rate_limit::"]),
            suite("lua_scripts", &["rate_limit::", "rate_limit_recovery::", "rate_limit_all::"]),
            suite("differential", &["every_bucket_replies_like_the_machine"]),
        ],
        Some("digest") => vec![
            without_random_tests("digest::"),
            suite("conformance_lua", &["digest::"]),
            suite("lua_scripts", &["digest::"]),
        ],
        Some("tally") => vec![
            without_random_tests("tally::"),
            suite("conformance_lua", &["tally::"]),
            suite("lua_scripts", &["tally::"]),
            suite("differential", &["every_tally_replies_like_the_machine"]),
        ],
        Some("slots") => vec![
            without_random_tests("slots::"),
            suite("conformance_lua", &["slots::"]),
            suite("lua_scripts", &["slots::"]),
        ],
        Some("log") => vec![suite("lua_scripts", &["cells::", "breaker_evidence::"])],
        Some("cells") => vec![suite("lua_scripts", &["cells::"]), suite("conformance_lua", &[])],
        Some("value") => vec![suite("lua_scripts", &["cells::", "tally::", "rate_limit_record::", "breaker_text::"])],
        Some("idempotency") => vec![without_random_tests("idempotency::"), suite("lua_scripts", &["idempotency::"])],
        _ => vec![
            without_random_tests("membership_and_locks::"),
            suite("conformance_lua", &["lock::"]),
            suite("lua_scripts", &["membership_and_locks::"]),
        ],
    }
}

/// Runs the mutants whose id begins with one of `only` (separated by commas). Returns whether all of them were caught or are listed.
pub fn run(only: &str, workers: usize) -> bool {
    let mutants = selected(only);
    let list = fs::read_to_string(workspace().join("mutants/lua-survivors.toml")).expect("the list is readable");
    let listed = survivors::parse(&list).expect("the list is valid");
    let binaries = build();
    let is_listed = |mutant: &Mutant| listed.iter().any(|survivor| survivor.lists(mutant));
    let caught_by = caught_by(&binaries, &mutants, is_listed, workers);
    let (mut caught, mut unlisted) = (0, 0);
    for (mutant, suite) in mutants.iter().zip(&caught_by) {
        match (suite, is_listed(mutant)) {
            (Some(_), false) => caught += 1,
            (Some(suite), true) => {
                caught += 1;
                println!("listed, but caught by {suite}: {}\n  {}", mutant.id(), mutant.after);
            }
            (None, true) => {}
            (None, false) => {
                unlisted += 1;
                println!("survived: {}\n- {}\n+ {}", mutant.id(), mutant.before, mutant.after);
            }
        }
    }
    let survived = mutants.len() - caught;
    let share = 100.0 * caught as f64 / mutants.len().max(1) as f64;
    println!(
        "{} Lua mutants: {caught} caught ({share:.1} %), {survived} survived, {unlisted} of them without a reason",
        mutants.len()
    );
    unlisted == 0
}

/// Prints the mutants whose id begins with one of `only`.
pub fn list(only: &str) {
    for mutant in selected(only) {
        println!("{}\n- {}\n+ {}", mutant.id(), mutant.before, mutant.after);
    }
}

fn selected(only: &str) -> Vec<Mutant> {
    let mutants = mutants_in(&workspace().join("lua/scripts"));
    let embedded = |mutant: &Mutant| ALL.iter().any(|script| script.virtual_source.contains(&mutant.original));
    assert!(mutants.iter().all(embedded), "a script has changed since this was built");
    let selected = |mutant: &Mutant| only.split(',').any(|prefix| mutant.id().starts_with(prefix));
    mutants.into_iter().filter(selected).collect()
}

/// Builds the suites. Returns the path of each binary.
fn build() -> BTreeMap<&'static str, PathBuf> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let mut command = Command::new(cargo);
    command.current_dir(workspace()).args(["test", "--locked", "--all-features", "--no-run", "--message-format=json"]);
    command.args(SUITES.iter().flat_map(|suite| ["--test", suite]));
    let output = command.stderr(Stdio::inherit()).output().expect("cargo runs");
    assert!(output.status.success(), "the tests do not build");
    let messages = output.stdout.split(|byte| *byte == b'\n');
    let messages = messages.filter_map(|line| serde_json::from_slice::<serde_json::Value>(line).ok());
    let binaries = messages.filter_map(|message| {
        let suite = SUITES.into_iter().find(|suite| message["target"]["name"] == **suite)?;
        Some((suite, PathBuf::from(message["executable"].as_str()?)))
    });
    let binaries: BTreeMap<_, _> = binaries.collect();
    assert_eq!(binaries.len(), SUITES.len());
    binaries
}

/// Returns which suite has caught each mutant. Runs the cheapest suite against all mutants first, then the next one against
/// those that are left, listed ones last.
fn caught_by(
    binaries: &BTreeMap<&str, PathBuf>,
    mutants: &[Mutant],
    is_listed: impl Fn(&Mutant) -> bool,
    workers: usize,
) -> Vec<Option<&'static str>> {
    let caught_by = Mutex::new(vec![None; mutants.len()]);
    let mut left: Vec<usize> = (0..mutants.len()).collect();
    left.sort_by_key(|index| is_listed(&mutants[*index]));
    for level in 0.. {
        let run = |index: &usize| suites(&mutants[*index].file).into_iter().nth(level).map(|suite| (*index, suite));
        let runs: Vec<(usize, Suite)> = left.iter().filter_map(run).collect();
        if runs.is_empty() {
            break;
        }
        for suite in runs.iter().map(|(_, suite)| suite).collect::<BTreeSet<_>>() {
            assert!(!catches(binaries, suite, None), "{suite:?} fails without a mutant");
        }
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..workers.max(1) {
                scope.spawn(|| {
                    while let Some((index, suite)) = runs.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let caught = catches(binaries, suite, Some(&mutants[*index]));
                        println!("{} {} {}", mutants[*index].id(), suite.name, if caught { "caught" } else { "left" });
                        if caught {
                            caught_by.lock().expect("no worker panics")[*index] = Some(suite.name);
                        }
                    }
                });
            }
        });
        left.retain(|index| caught_by.lock().expect("no worker panics")[*index].is_none());
    }
    caught_by.into_inner().expect("no worker panics")
}

/// Returns whether a test of the suite fails with this mutant.
fn catches(binaries: &BTreeMap<&str, PathBuf>, suite: &Suite, mutant: Option<&Mutant>) -> bool {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit -t {MAX_CPU_SECONDS}; exec \"$@\""), "sh"]).arg(&binaries[suite.name]);
    // As `cargo test` starts it: tests read files relative to their package.
    command.current_dir(env!("CARGO_MANIFEST_DIR")).args(&suite.arguments).arg("--test-threads=1");
    command.env("PROPTEST_RNG_SEED", "1").env("PROPTEST_MAX_SHRINK_ITERS", "0");
    command.env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true");
    if let Some(mutant) = mutant {
        command.env("PHALANX_LUA_ORIGINAL", &mutant.original).env("PHALANX_LUA_MUTANT", &mutant.source);
    }
    fails(command)
}

/// Returns whether a test fails or hangs. The run ends at the first failure.
fn fails(mut command: Command) -> bool {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the test binary starts");
    let lines = BufReader::new(child.stdout.take().expect("the output is piped")).lines();
    let (sender, receiver) = channel();
    std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| sender.send(line)));
    loop {
        match receiver.recv_timeout(MAX_SILENCE) {
            Ok(line) if line.ends_with("FAILED") => return end(&mut child),
            Ok(_) => {}
            Err(RecvTimeoutError::Timeout) => return end(&mut child),
            Err(RecvTimeoutError::Disconnected) => {
                return !child.wait().expect("the test binary ends").success();
            }
        }
    }
}

fn end(child: &mut Child) -> bool {
    // It may have ended by itself; a run that failed to end would keep its core busy.
    let _ = child.kill();
    child.wait().expect("the test binary ends");
    true
}
