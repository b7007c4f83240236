//! Files, the program and its hand at the same time: nobody waits for ever, nobody's word is lost, and who said what is true.

#![cfg(all(feature = "reload", feature = "toml"))]
#![allow(clippy::unwrap_used, clippy::expect_used)] // a panic is how a test says no, in its helpers too

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

/// Both at the same moment.
fn together(one: impl FnOnce() + Send, other: impl FnOnce() + Send) {
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
fn who_follows_and_who_applies_never_wait_for_each_other() {
    let folder = Folder::new();
    folder.put("phalanx.toml", "[policies.p]\ntimeout = \"1s\"\n");
    let loader = Config::loader().file(folder.path("phalanx.toml"));
    let module = ResilienceModule::in_memory().config(loader.load().unwrap()).build().unwrap();
    let following = Arc::new(module.watch_config(loader).unwrap());
    let (done, ended) = mpsc::channel();
    for round in 0..2 {
        let (done, following, module) = (done.clone(), following.clone(), module.clone());
        thread::spawn(move || {
            for millis in 1..=1_500 {
                match round {
                    0 => drop(following.reload_now().unwrap()),
                    _ => drop(module.apply_config(file(millis)).unwrap()),
                }
            }
            done.send(()).unwrap();
        });
    }
    for _ in 0..2 {
        ended.recv_timeout(60 * SECOND).expect("one of them waits for ever");
    }
}

#[test]
fn a_word_of_the_program_is_not_undone_by_a_file_that_is_read_meanwhile() {
    for _ in 0..300 {
        let module = ResilienceModule::in_memory().config(file(1)).build().unwrap();
        let policy = Policy::named("p").timeout(7 * SECOND);
        together(|| drop(module.apply_config(file(2)).unwrap()), || module.retune(policy).unwrap());
        assert_eq!(timeout_of(&module), ("\"7s\"".to_owned(), Origin::Code));
        let described = module.pipeline("p", ()).unwrap().describe();
        assert_eq!(described.stages, [StageDescription::Timeout(7 * SECOND)]);
    }
}

#[test]
fn a_plan_of_the_program_is_not_undone_by_a_file_that_is_read_meanwhile() {
    for _ in 0..300 {
        let module = ResilienceModule::in_memory().config(file(1)).build().unwrap();
        let plan = PolicySet { policies: vec![Policy::named("p").timeout(7 * SECOND)], ..PolicySet::default() };
        together(|| drop(module.apply_config(file(2)).unwrap()), || drop(module.apply(plan).unwrap()));
        assert_eq!(timeout_of(&module), ("\"7s\"".to_owned(), Origin::Code));
    }
}

#[test]
fn a_word_that_makes_no_sense_costs_a_file_nothing() {
    for _ in 0..300 {
        let module = ResilienceModule::in_memory().config(file(1)).build().unwrap();
        let nonsense = Policy::named("p").timeout(std::time::Duration::ZERO);
        together(|| drop(module.apply_config(file(2)).unwrap()), || drop(module.retune(nonsense).unwrap_err()));
        let (value, from) = timeout_of(&module);
        assert_eq!(value, "\"2ms\"");
        assert!(matches!(from, Origin::File { .. }), "{from}");
    }
}

#[test]
fn a_value_and_its_line_are_of_the_same_file() {
    let lines = |line: usize| {
        let text = format!("{}[policies.p]\ntimeout = \"{}ms\"\n", "\n".repeat(line - 2), line);
        Config::from_toml(&text).unwrap()
    };
    for _ in 0..300 {
        let module = ResilienceModule::in_memory().config(lines(3)).build().unwrap();
        together(|| drop(module.apply_config(lines(2)).unwrap()), || drop(module.apply_config(lines(5)).unwrap()));
        let (value, from) = timeout_of(&module);
        let Origin::File { line: Some(line), .. } = from else { panic!("{from}") };
        assert_eq!(value, format!("\"{line}ms\""));
    }
}

#[test]
fn a_rule_that_is_not_applied_is_not_said_to_be() {
    let module = ResilienceModule::in_memory().config(file(1)).build().unwrap();
    let other = Config::from_toml("max_routes = 5\nunknown = \"error\"\n[policies.p]\n").unwrap();
    module.apply_config(other).unwrap();
    let described = module.describe();
    assert_eq!((described.max_routes.value.as_str(), described.max_routes.from), ("10000", Origin::BuiltIn));
    assert!(matches!(described.unknown.from, Origin::File { line: Some(2), .. }), "it says what holds anyway");
    module.apply_config(file(1)).unwrap();
    assert_eq!(module.describe().unknown.from, Origin::BuiltIn, "nobody says it any more");
}
