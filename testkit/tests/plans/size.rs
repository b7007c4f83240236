//! Plans that ask for more than can be done.

use std::time::Duration;

use phalanx_testkit::plan::{Fault, Plan, Player, Step, Target, Workload};

use crate::policies;

fn plan(replicas: u32, rate: f64, duration: Duration) -> Plan {
    let workload = Workload { rate, ..Workload::default() };
    let step = Step::new("HUGE", Target::policy("tax"), Fault::Errors { share: 1.0 }, duration).workload(workload);
    Plan { name: "huge.toml".to_owned(), seed: 1, replicas, steps: vec![step.expected(["no_oom".parse().unwrap()])] }
}

#[test]
fn a_plan_that_takes_too_long_is_rejected_with_the_time_it_would_take() {
    let day = Duration::from_secs(24 * 3_600);
    let error = Player::new(policies()).play(&plan(10_000, 1_000.0, day)).unwrap_err();
    let message = error.mistakes[0].to_string();
    assert!(message.starts_with("huge.toml: would take about ") && message.contains("day"), "{message}");
    // Ten thousand replicas with a thousand calls a second for a day and 70 s of warm-up and recovery.
    assert!(
        message.contains(" for 864700000000 calls in 1day 1m 10s of virtual time; the budget is 10m:"),
        "{message}"
    );
}

#[test]
fn a_step_with_too_many_calls_for_memory_is_rejected_whatever_the_budget() {
    let player = Player::new(policies()).budget(Duration::MAX);
    let message = player.play(&plan(1, 1_000.0, Duration::from_secs(10_000))).unwrap_err().to_string();
    assert!(message.contains("a step has 10070000 calls of at most 5000000"), "{message}");
}

#[test]
fn more_pipelines_than_memory_has_room_for_are_rejected() {
    let many: String = (0..11).map(|number| format!("[policies.p{number}]\ntimeout = '1s'\n")).collect();
    let policies = phalanx::config::Config::from_toml(&many).unwrap();
    let mut plan = plan(10_000, 0.01, Duration::from_secs(1));
    plan.steps[0].target = Target::policy("p1");
    let error = Player::new(policies).play(&plan).unwrap_err();
    let expected = "huge.toml: replicas: 10000 replicas × 11 policies are more than 100000";
    assert_eq!(error.mistakes[0].to_string(), expected);
}

#[test]
fn a_budget_below_the_estimate_stops_a_plan_that_would_be_played_otherwise() {
    let plan = plan(1, 50.0, Duration::from_secs(5));
    assert!(Player::new(policies()).play(&plan).unwrap().passed());
    let estimate = Player::new(policies()).estimate(&plan);
    assert_eq!((estimate.calls, estimate.virtual_time.as_secs()), (3_750, 75));
    assert!(estimate.takes > Duration::ZERO, "{estimate}");
    let error = Player::new(policies()).budget(Duration::from_nanos(1)).play(&plan).unwrap_err();
    assert!(error.to_string().contains("the budget is 1ns"), "{error}");
}

#[test]
fn a_plan_built_in_code_is_checked_like_a_file() {
    let mut plan = plan(0, f64::NAN, Duration::ZERO);
    plan.steps[0].id = "a/b".to_owned();
    plan.steps[0].target = Target::policy("taxes");
    plan.steps[0].fault = Fault::Overload { factor: f64::INFINITY };
    plan.steps.push(plan.steps[0].clone());
    let error = Player::new(policies()).play(&plan).unwrap_err();
    let paths: Vec<&str> = error.mistakes.iter().map(|mistake| mistake.path.as_str()).collect();
    let step = ["steps.id", "steps.duration", "steps.fault", "steps.workload.rate", "steps.target"];
    let mut expected = vec!["replicas"];
    expected.extend(step);
    expected.extend(["steps.id"]);
    expected.extend(step);
    assert_eq!(paths, expected, "{error}");
}
