//! Replays the corpus through the bodies of the targets, and keeps the seeds in it.
//!
//! `PHALANX_RENEW_CORPUS=1 cargo test -p phalanx-fuzz` writes the seeds. Files of other names are inputs that fuzzing found;
//! they stay.

use std::fs;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::{TARGETS, Target};

/// CPU time of one input. The bar is that of a release build; without optimisation the same work takes up to fifty times
/// as long.
const MAX_CPU: Duration = if cfg!(debug_assertions) { Duration::from_secs(1) } else { Duration::from_millis(20) };
/// An input that has not ended by then hangs.
const HANG: Duration = Duration::from_secs(120);
/// How many of the slowest inputs are printed.
const SHOWN: usize = 10;

fn folder(target: &Target) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name)
}

fn corpus(target: &Target) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(folder(target)).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = entries
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), fs::read(&path).unwrap()))
        .collect();
    files.sort();
    files
}

/// CPU time of this thread: a busy machine does not lengthen it.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Runs all inputs of a target in one thread. Returns the name and the CPU time of each.
fn replay(target: Target) -> Vec<(String, Duration)> {
    let (sender, receiver) = mpsc::channel();
    let inputs = corpus(&target);
    let names: Vec<_> = inputs.iter().map(|(name, _)| name.clone()).collect();
    let worker = std::thread::spawn(move || {
        (target.run)(&[]); // compiles what all inputs share
        for (_, data) in inputs {
            let before = cpu_time();
            (target.run)(&data);
            sender.send(cpu_time() - before).unwrap();
        }
    });
    let mut times = Vec::new();
    for name in names {
        match receiver.recv_timeout(HANG) {
            Ok(time) => times.push((name, time)),
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("{}/{name} hangs", target.name),
            Err(mpsc::RecvTimeoutError::Disconnected) => panic!("{}/{name}: {:?}", target.name, worker.join()),
        }
    }
    times
}

#[test]
fn every_seed_is_in_the_corpus() {
    for target in TARGETS {
        if std::env::var_os("PHALANX_RENEW_CORPUS").is_some() {
            fs::create_dir_all(folder(target)).unwrap();
            for (name, data) in (target.seeds)() {
                fs::write(folder(target).join(format!("seed-{name}")), data).unwrap();
            }
        }
        let (corpus, mut seeds) = (corpus(target), (target.seeds)());
        seeds.iter_mut().for_each(|(name, _)| name.insert_str(0, "seed-"));
        let missing: Vec<_> = seeds.iter().filter(|seed| !corpus.contains(seed)).map(|(name, _)| name).collect();
        assert!(missing.is_empty(), "{}: PHALANX_RENEW_CORPUS=1 writes {missing:?}", target.name);
        let known = |name: &str| seeds.iter().any(|(seed, _)| seed == name);
        let old: Vec<_> = corpus.iter().filter(|(name, _)| name.starts_with("seed-") && !known(name)).collect();
        assert!(old.is_empty(), "{}: no seeds any more: {old:?}", target.name);
    }
}

#[test]
fn every_input_of_the_corpus_passes_within_its_time() {
    let mut inputs = Vec::new();
    for target in TARGETS {
        let times = replay(*target);
        let total = times.iter().map(|(_, time)| *time).sum::<Duration>();
        println!("{}: {} inputs, {total:?} CPU", target.name, times.len());
        inputs.extend(times.into_iter().map(|(name, time)| (time, target.name, name)));
    }
    inputs.sort_by(|a, b| b.cmp(a));
    println!("the slowest of {}, of {MAX_CPU:?} CPU each:", inputs.len());
    inputs.iter().take(SHOWN).for_each(|(time, target, name)| println!("  {time:?} {target}/{name}"));
    let slow: Vec<_> = inputs.iter().filter(|(time, ..)| *time > MAX_CPU).collect();
    assert!(slow.is_empty(), "longer than {MAX_CPU:?}: {slow:?}");
}

#[test]
fn every_target_has_a_binary_of_its_name() {
    let manifest = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let binaries = fs::read_dir(manifest.join("targets")).unwrap().count();
    assert_eq!(binaries, TARGETS.len());
    let listed = fs::read_to_string(manifest.join("Cargo.toml")).unwrap();
    for target in TARGETS {
        let text = fs::read_to_string(manifest.join("targets").join(format!("{}.rs", target.name))).unwrap();
        assert!(text.contains(&format!("target!({});", target.name)), "{}", target.name);
        assert!(listed.contains(&format!("name = \"{}\"", target.name)), "{}", target.name);
    }
}
