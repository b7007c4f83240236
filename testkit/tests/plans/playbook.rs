//! The tests A to E of the resiliency playbook (section 8), and its fault plan (section 12).

use phalanx_testkit::plan::Plan;

use crate::{plans, play, policies};

/// The fault plan as the playbook prints it.
const FAULT_PLAN: &str = r#"case,dep,inject,window_s,expected
LAT-200,tax,+200ms@p95,600,"retry<=1, breaker maybe open"
OUTAGE-5xx,catalog,5xx,120,"open breaker, fast 503, recovery to closed"
OVERLOAD,*,rps x4,180,"shed 503<=2%, no OOM"
DEADLINE,*,deadline=2s,60,"hop timeouts<=remaining, 504 on exceed"
"#;

#[test]
fn the_four_lines_of_the_playbook_are_read_as_they_are_written() {
    let plan = Plan::from_csv("playbook.csv", FAULT_PLAN, &policies()).unwrap();
    let read: Vec<String> = plan
        .steps
        .iter()
        .map(|step| {
            let expected: Vec<String> = step.expected.iter().map(ToString::to_string).collect();
            format!("{} {} {} {}s {}", step.id, step.target, step.fault, step.duration.as_secs(), expected.join(" "))
        })
        .collect();
    let expected = [
        "LAT-200 tax +200ms@p95 600s retry<=1 breaker=maybe",
        "OUTAGE-5xx catalog 5xx 120s breaker=open fast_503 recovers",
        "OVERLOAD * rps x4 180s shed_503<=2% no_oom",
        "DEADLINE * deadline=2s 60s hop<=remaining 504_on_exceed",
    ];
    assert_eq!(read, expected);
    let file = std::fs::read_to_string(plans().join("playbook.csv")).unwrap();
    assert!(file.starts_with(FAULT_PLAN), "{file}");
}

#[test]
fn the_playbook_and_a_duplicate_step_pass_against_its_budget_with_load_shedding() {
    let evidence = play("playbook.csv");
    assert!(evidence.passed(), "{}", evidence.to_text());
    // 2 for one policy, 3 for one, 2 for each of five, 2 for each of five, 2 for one.
    let verdicts: Vec<usize> = evidence.steps.iter().map(|step| step.verdicts.len()).collect();
    assert_eq!(verdicts, [2, 3, 10, 10, 2]);
}

#[test]
fn test_a_latency_at_p95_is_retried_with_jitter_within_the_p99_budget_and_sustained_latency_opens_the_breaker() {
    let evidence = play("test_a_latency.toml");
    assert!(evidence.passed(), "{}", evidence.to_text());
    let slow = &evidence.step("LAT-200").unwrap().policies[0];
    // The threshold of the playbook's runbook: http.p99_ms > 800.
    let (_, p95, p99) = slow.latency_ms.unwrap();
    assert!(p99 <= 800.0 && p95 > 40.0, "{slow:?}");
    let (shortest, longest) = slow.retry_delay_ms.unwrap();
    assert!(slow.retries >= 50 && longest - shortest > 50.0, "retries have jitter: {slow:?}");
    assert!(slow.attempts * 100 < slow.offered * 110, "no retry storm: {slow:?}");
}

#[test]
fn test_b_an_outage_opens_the_breaker_fails_fast_backs_off_and_recovers_through_probes() {
    let evidence = play("test_b_outage.toml");
    assert!(evidence.passed(), "{}", evidence.to_text());
    let outage = evidence.step("OUTAGE-5xx").unwrap();
    let catalog = &outage.policies[0];
    assert_eq!(catalog.served, 0, "{catalog:?}");
    assert!(catalog.rejected["circuit_open"] * 10 > catalog.offered * 9, "{catalog:?}");
    let (shortest, longest) = catalog.retry_delay_ms.unwrap();
    assert!(shortest >= 100.0 && longest <= 200.0, "clients back off: {catalog:?}");
    // Probes during the outage fail; the first one after it closes the breaker.
    let after: Vec<&str> = catalog.phases.0.iter().filter(|(at, _)| *at > 130.0).map(|(_, phase)| *phase).collect();
    assert_eq!(after, ["half_open", "closed"], "{:?}", catalog.phases);
}

#[test]
fn test_c_three_to_five_times_the_rate_is_shed_with_503_and_queues_stay_capped() {
    let evidence = play("test_c_overload.toml");
    assert!(evidence.passed(), "{}", evidence.to_text());
    for step in &evidence.steps {
        let catalog = &step.policies[0];
        let shed: u64 =
            ["bulkhead_full", "bulkhead_queue_timeout"].iter().filter_map(|it| catalog.rejected.get(it)).sum();
        assert_eq!(catalog.served + catalog.failed + catalog.rejected.values().sum::<u64>(), catalog.offered);
        assert!(shed * 100 > (catalog.offered - catalog.served) * 99, "503 and not a long tail: {catalog:?}");
        assert!(catalog.peak_in_flight <= 12, "slots and queue: {catalog:?}");
        assert!(catalog.latency_ms.unwrap().2 < 300.0, "{catalog:?}");
    }
}

#[test]
fn test_d_a_deadline_of_two_seconds_is_honoured_by_every_hop_and_answered_with_504_when_exceeded() {
    let evidence = play("test_d_deadline.toml");
    assert!(evidence.passed(), "{}", evidence.to_text());
    let step = evidence.step("DEADLINE").unwrap();
    let names: Vec<&str> = step.policies.iter().map(|policy| policy.policy.as_str()).collect();
    assert_eq!(names, ["auth", "catalog", "orders", "search", "tax"]);
    assert!(step.policies.iter().all(|policy| policy.rejected["deadline_exceeded"] > 0), "every hop cuts off");
    let offered: Vec<u64> = step.policies.iter().map(|policy| policy.offered).collect();
    assert!(offered.windows(2).all(|hops| hops[0] > hops[1]), "a later hop has fewer requests left: {offered:?}");
}

#[test]
fn test_e_a_write_whose_first_attempt_times_out_takes_effect_exactly_once() {
    let evidence = play("test_e_duplicate.toml");
    assert!(evidence.passed(), "{}", evidence.to_text());
    let orders = &evidence.step("DUPLICATE").unwrap().policies[0];
    let repeated = orders.attempts - orders.offered;
    assert!(repeated * 20 > orders.offered, "a tenth of the answers is lost: {orders:?}");
    assert_eq!(orders.served, orders.offered);
}
