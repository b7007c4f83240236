//! The same plan in the simulator and on real servers: same workloads, same faults, same oracles.
#![cfg(all(feature = "simulator", feature = "servers"))]
#![allow(clippy::unwrap_used, clippy::panic)] // a failed expectation panics, in helpers too

use std::path::Path;

use phalanx_testkit::simulator::{EntryKind, Fault, FaultKind, Plan, Run, play_on_servers, run};

const PLAN: &str = include_str!("../plans/real-servers.toml");

fn simulate() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_simulate"))
}

/// What has to be in the history of the plan, wherever it was played.
fn shows_the_plan(run: &Run) {
    assert!(run.broken.is_empty(), "{:#?}", run.broken);
    let count = |wanted: fn(&EntryKind) -> bool| run.history.entries.iter().filter(|entry| wanted(&entry.kind)).count();
    let calls = count(|kind| matches!(kind, EntryKind::Finished { .. }));
    assert!(calls > 2_000, "{calls} calls");
    let fleet =
        |kind: &EntryKind| matches!(kind, EntryKind::Finished { answer, .. } if answer.source.name() == "fleet");
    assert!(run.history.entries.iter().filter(|entry| fleet(&entry.kind)).count() * 2 > calls);
    assert!(count(|kind| matches!(kind, EntryKind::Transition { .. })) >= 3, "a trip is seen by every replica");
    assert_eq!(count(|kind| matches!(kind, EntryKind::ProcessEnded { .. })), 1);
    assert!(count(|kind| matches!(kind, EntryKind::Degraded { .. })) > 0);
    assert!(count(|kind| matches!(kind, EntryKind::Recovered { .. })) > 0);
    let wrote =
        |kind: &EntryKind| matches!(kind, EntryKind::Script(script) if script.writes > 0 && !script.stored.is_empty());
    let scripts = count(|kind| matches!(kind, EntryKind::Script(script) if !script.failed));
    assert!(scripts > 1_000, "{scripts} scripts");
    assert!(run.history.entries.iter().any(|entry| wrote(&entry.kind)));
    assert!(count(|kind| matches!(kind, EntryKind::LockWrite { .. })) > 50);
}

#[test]
fn the_plan_keeps_every_promise_in_the_simulator() {
    shows_the_plan(&run(&Plan::parse(PLAN).unwrap()));
}

#[test]
fn the_same_plan_keeps_every_promise_on_a_real_server_with_real_processes() {
    shows_the_plan(&play_on_servers(&Plan::parse(PLAN).unwrap(), simulate()).unwrap());
}

#[test]
fn a_plan_that_real_servers_cannot_play_names_every_reason() {
    let mut plan = Plan::parse(PLAN).unwrap();
    plan.masters = 3;
    let kinds = [
        FaultKind::StepServerClock { by_ms: 5 },
        FaultKind::NextRelease { replica: 0 },
        FaultKind::StopMaster { master: 1 },
        FaultKind::RedisError { error: "LOADING".to_owned() },
        FaultKind::FailOver { lost_ms: 1, skew_ms: 5 },
    ];
    plan.faults = kinds.map(|kind| Fault { at_ms: 1, for_ms: 1, kind }).to_vec();
    let error = play_on_servers(&plan, simulate()).unwrap_err();
    assert_eq!(error.lines().count(), 6, "{error}");
}
