//! Fuzz targets for everything that reads bytes from outside, and the replay of their corpus.
//!
//! One module for each target: `run` is its body, `seeds` returns the inputs that the corpus starts with. `cargo fuzz`
//! calls the bodies through the binaries in `targets/`. `cargo test` replays the corpus through the same bodies, without
//! libFuzzer (`replay.rs`); so do the binaries in an ordinary build, for the files that they are given.
//!
//! A body panics if a property does not hold. Bodies depend on nothing but their input: no wall clock, no entropy that
//! changes a decision, no state that survives an input except compiled scripts.

// All of this is test code: a failed expectation panics.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod config;
pub mod headers;
pub mod input;
pub mod keys;
pub mod operations;
#[cfg(test)]
mod replay;
pub mod replies;
pub mod resp;
pub mod scripts;
pub mod sketch;

use std::path::PathBuf;

/// A fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The name of its module, its binary and its folder in the corpus.
    pub name: &'static str,
    /// Runs one input. Panics if a property does not hold.
    pub run: fn(&[u8]),
    /// Returns the inputs that the corpus starts with, by name.
    pub seeds: fn() -> Vec<(String, Vec<u8>)>,
}

/// All targets, in the order of "Fuzz targets" in `CONTRIBUTING.md`.
pub const TARGETS: &[Target] = &[
    Target { name: "keys", run: keys::run, seeds: keys::seeds },
    Target { name: "replies", run: replies::run, seeds: replies::seeds },
    Target { name: "sketch", run: sketch::run, seeds: sketch::seeds },
    Target { name: "config", run: config::run, seeds: config::seeds },
    Target { name: "headers", run: headers::run, seeds: headers::seeds },
    Target { name: "operations", run: operations::run, seeds: operations::seeds },
    Target { name: "scripts", run: scripts::run, seeds: scripts::seeds },
    Target { name: "resp", run: resp::run, seeds: resp::seeds },
];

/// Makes a binary of a target: for libFuzzer if `cargo fuzz` builds it, otherwise for replaying files.
#[macro_export]
macro_rules! target {
    ($name:ident) => {
        #[cfg(fuzzing)]
        libfuzzer_sys::fuzz_target!(|data: &[u8]| $crate::$name::run(data));

        #[cfg(not(fuzzing))]
        fn main() -> std::io::Result<()> {
            $crate::replay_files($crate::$name::run, std::env::args_os().skip(1).map(Into::into))
        }
    };
}

/// Runs the files one after the other.
///
/// # Errors
/// A file cannot be read.
pub fn replay_files(run: fn(&[u8]), files: impl Iterator<Item = PathBuf>) -> std::io::Result<()> {
    for file in files {
        let data = std::fs::read(&file)?;
        println!("{} ({} bytes)", file.display(), data.len());
        run(&data);
    }
    Ok(())
}

/// Runs a future on a runtime of its own, whose time is paused: it advances when all tasks wait.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(future)
}
