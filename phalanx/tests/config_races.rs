//! Files and code that change the configuration at the same time: no deadlock, no lost change, and correct origins.

#![cfg(all(feature = "reload", feature = "toml"))]
#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers of tests may panic

mod support;

use std::sync::{Arc, Barrier, mpsc};
use std::thread;

use phalanx::config::Config;
use phalanx::describe::{Origin, StageDescription};
use phalanx::policy::PolicySet;
use phalanx::*;
use support::*;

fn file(millis: u64) -> Config {
    Config::from_toml(&format!("[policies.p]\ntimeout = \"{millis}ms\"\n")).unwrap()
}

/// Runs both at the same time.
fn concurrently(one: impl FnOnce() + Send, other: impl FnOnce() + Send) {
    let barrier = Barrier::new(2);
    thread::scope(|threads| {
        threads.spawn(|| {
            barrier.wait();
            one();
        });
        barrier.wait();
        other();
    });
}

fn timeout_of(module: &ResilienceModule) -> (String, Origin) {
    let described = module.describe();
    let value = described.policy("p").unwrap().value("timeout").unwrap();
    (value.value.clone(), value.from.clone())
}

#[test]
fn a_watcher_and_apply_config_never_deadlock() {
    let folder = Folder::new();
    folder.put("phalanx.toml", "[policies.p]\ntimeout = \"1s\"\n");
    let loader = Config::loader().file(folder.path("phalanx.toml"));
    let module = ResilienceModule::in_memory().config(loader.load().unwrap()).build().unwrap();
    let watcher = Arc::new(module.watch_config(loader).unwrap());
    let (done, ended) = mpsc::channel();
    for round in 0..2 {
        let (done, watcher, module) = (done.clone(), watcher.clone(), module.clone());
        thread::spawn(move || {
            for millis in 1..=1_500 {
                match round {
                    0 => drop(watcher.reload_now().unwrap()),
                    _ => drop(module.apply_config(file(millis)).unwrap()),
                }
            }
            done.send(()).unwrap();
        });
    }
    for _ in 0..2 {
        ended.recv_timeout(60 * SECOND).expect("a deadlock");
    }
}

#[test]
fn a_retune_is_not_undone_by_a_file_loaded_at_the_same_time() {
    for _ in 0..300 {
        let module = ResilienceModule::in_memory().config(file(1)).build().unwrap();
        let policy = Policy::named("p").timeout(7 * SECOND);
        concurrently(|| drop(module.apply_config(file(2)).unwrap()), || module.retune(policy).unwrap());
        assert_eq!(timeout_of(&module), ("\"7s\"".to_owned(), Origin::Code));
        let described = module.pipeline("p", ()).unwrap().describe();
        assert_eq!(described.stages, [StageDescription::Timeout(7 * SECOND)]);
    }
}

#[test]
fn a_policy_set_is_not_undone_by_a_file_loaded_at_the_same_time() {
    for _ in 0..300 {
        let module = ResilienceModule::in_memory().config(file(1)).build().unwrap();
        let plan = PolicySet { policies: vec![Policy::named("p").timeout(7 * SECOND)], ..PolicySet::default() };
        concurrently(|| drop(module.apply_config(file(2)).unwrap()), || drop(module.apply(plan).unwrap()));
        assert_eq!(timeout_of(&module), ("\"7s\"".to_owned(), Origin::Code));
    }
}

#[test]
fn an_invalid_retune_does_not_undo_a_file() {
    for _ in 0..300 {
        let module = ResilienceModule::in_memory().config(file(1)).build().unwrap();
        let nonsense = Policy::named("p").timeout(std::time::Duration::ZERO);
        concurrently(|| drop(module.apply_config(file(2)).unwrap()), || drop(module.retune(nonsense).unwrap_err()));
        let (value, from) = timeout_of(&module);
        assert_eq!(value, "\"2ms\"");
        assert!(matches!(from, Origin::File { .. }), "{from}");
    }
}

#[test]
fn a_value_and_its_line_come_from_the_same_file() {
    let lines = |line: usize| {
        let text = format!("{}[policies.p]\ntimeout = \"{}ms\"\n", "\n".repeat(line - 2), line);
        Config::from_toml(&text).unwrap()
    };
    for _ in 0..300 {
        let module = ResilienceModule::in_memory().config(lines(3)).build().unwrap();
        concurrently(|| drop(module.apply_config(lines(2)).unwrap()), || drop(module.apply_config(lines(5)).unwrap()));
        let (value, from) = timeout_of(&module);
        let Origin::File { line: Some(line), .. } = from else { panic!("{from}") };
        assert_eq!(value, format!("\"{line}ms\""));
    }
}

#[test]
fn a_setting_that_is_not_applied_does_not_become_an_origin() {
    let module = ResilienceModule::in_memory().config(file(1)).build().unwrap();
    let other = Config::from_toml("max_routes = 5\nunknown = \"error\"\n[policies.p]\n").unwrap();
    module.apply_config(other).unwrap();
    let described = module.describe();
    assert_eq!((described.max_routes.value.as_str(), described.max_routes.from), ("10000", Origin::BuiltIn));
    assert!(
        matches!(described.unknown.from, Origin::File { line: Some(2), .. }),
        "the file sets what is in force anyway"
    );
    module.apply_config(file(1)).unwrap();
    assert_eq!(module.describe().unknown.from, Origin::BuiltIn, "no source sets it any more");
}
