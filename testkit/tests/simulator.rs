//! The simulator: repeatable, and plans are read with all their mistakes. That every oracle finds its planted fault is
//! checked by `make simulate`, in an optimised build.
#![cfg(feature = "simulator")]
#![allow(clippy::unwrap_used, clippy::panic)] // a failed expectation panics, in helpers too

use std::process::Command;

use phalanx_testkit::simulator::{FaultKind, Plan, run, run_beside};

#[test]
fn the_same_seed_gives_the_same_history_beside_other_tasks() {
    for seed in [3, 11] {
        let plan = Plan::of_seed(seed);
        let (alone, beside) = (run(&plan), run_beside(&plan, None, 7));
        for (one, other) in alone.history.entries.iter().zip(&beside.history.entries) {
            assert_eq!(one, other, "seed {seed}");
        }
        assert_eq!(alone.history.entries.len(), beside.history.entries.len());
    }
}

#[test]
fn the_same_seed_gives_the_same_history_in_another_process() {
    let digest = |seed: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_simulate")).args(["--seed", seed]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().find(|line| line.starts_with("digest")).unwrap().split(',').next().unwrap().to_owned()
    };
    // Every process has other hash seeds.
    assert_eq!(digest("7"), digest("7"));
    let here = format!("digest {:016x}", run(&Plan::of_seed(7)).history.digest());
    assert_eq!(digest("7"), here);
    assert_ne!(digest("7"), digest("8"));
}

#[test]
fn a_plan_survives_its_file() {
    for seed in 1..=50 {
        let plan = Plan::of_seed(seed);
        assert_eq!(Plan::parse(&plan.to_toml()).unwrap(), plan, "seed {seed}");
    }
}

#[test]
fn the_plans_of_a_hundred_seeds_reach_every_kind_of_fault() {
    let kinds: std::collections::BTreeSet<&str> =
        (1..=100).flat_map(|seed| Plan::of_seed(seed).faults).map(|fault| fault.kind.name()).collect();
    let missing: Vec<_> = FaultKind::NAMES.iter().filter(|name| !kinds.contains(*name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn a_plan_with_many_mistakes_names_them_all_and_the_nearest_names() {
    let mut plan = Plan::of_seed(1);
    plan.replicas = 0;
    plan.seconds = 0;
    plan.masters = 99;
    plan.loads[0].policy = "limted".to_owned();
    plan.loads[1].per_second = f64::NAN;
    plan.loads[2].cancelled = 2.0;
    plan.faults.truncate(1);
    plan.faults[0].kind = FaultKind::Lever { policy: "gaurded".to_owned(), replica: 77 };
    let mistakes = plan.mistakes();
    assert!(mistakes.len() >= 9, "{mistakes:#?}");
    assert!(mistakes.iter().any(|mistake| mistake.contains("did you mean \"limited\"?")), "{mistakes:#?}");
    assert!(mistakes.iter().any(|mistake| mistake.contains("did you mean \"guarded\"?")), "{mistakes:#?}");
}

#[test]
fn a_foreign_file_is_an_error_with_a_place() {
    for text in ["", "seed = 'x'", "[[faults]]\nfault = 'explode'", "\u{0}", "seed = 1\nreplicas = 1e99"] {
        let error = Plan::parse(text).unwrap_err();
        assert!(!error.is_empty(), "{text:?}");
    }
    let unknown = Plan::of_seed(1)
        .to_toml()
        .replace("kill_replica", "kill_replca")
        .replace("dependency_fails", "dependency_fail");
    let error = Plan::parse(&unknown).unwrap_err();
    assert!(error.contains("line") && error.contains("dependency_fails"), "{error}");
}
