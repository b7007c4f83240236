//! Tests that every event is written at the level and with the fields of its row in `docs/telemetry.md`.

#[path = "../../../tests/support/spans.rs"]
mod spans;

use std::collections::BTreeMap;

use phalanx_core::breaker::Seen as Recorded;
use phalanx_core::bulkhead::LimitChange;
use phalanx_core::chaos::InjectedFault;
use phalanx_core::decision::{Decision, Verdict};
use phalanx_core::drain::Drained;
use phalanx_core::kind::{Kind, Outcome};
use phalanx_core::levers::LeverSpec;
use phalanx_core::rejection::RejectionCode;
use spans::{Seen, collect, collect_at, collect_twice};
use tracing_subscriber::filter::{LevelFilter, Targets};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn rejected(code: RejectionCode) -> Decision {
    Decision { verdict: Verdict::Rejected, reason: Some(code), retry_after: Some(SECOND), ..Decision::default() }
}

fn changed(from: Phase, to: Phase) -> EventKind<'static> {
    let seen = Recorded { calls: 10, failures: 6, slow: 1 };
    EventKind::Transition(Transition { from, to, epoch: 2, break_for: (to == Phase::Open).then_some(SECOND), seen })
}

/// Emits every event once.
fn emit_everything(log: &Log) {
    let key = StateKey::new("p", "eu");
    let emit = |kind: EventKind<'_>| log.on_event(&Event { key: Some(&key), kind });
    emit(EventKind::Retry { attempt: 1, delay: SECOND, kind: Kind::Infrastructure });
    emit(EventKind::AttemptTimeout { attempt: 1, limit: SECOND });
    emit(EventKind::RetryBudgetExhausted);
    emit(EventKind::RetryAbandoned { delay: SECOND });
    emit(EventKind::Hedge { hedge: 1, delay: SECOND });
    emit(EventKind::HedgeBudgetExhausted);
    emit(EventKind::FaultInjected(InjectedFault::Latency(SECOND)));
    emit(EventKind::FallbackServed { kind: Kind::Timeout });
    emit(EventKind::NearLimit { remaining: 1, burst: 10 });
    emit(EventKind::LimitLowered(LimitChange { from: 9, to: 6 }));
    emit(EventKind::StateRepaired);
    emit(EventKind::ConfigMismatch);
    emit(EventKind::OddReplica { break_for: SECOND });
    emit(EventKind::FleetShareLapsed { calls: 3 });
    emit(EventKind::Retuned { version: 2 });
    emit(EventKind::RoutesExhausted);
    emit(EventKind::TagsExhausted);
    emit(EventKind::Override(Some(phalanx_core::breaker::Override::Open)));
    emit(EventKind::Override(None));
    emit(changed(Phase::Closed, Phase::Open));
    emit(changed(Phase::Open, Phase::HalfOpen));
    emit(changed(Phase::HalfOpen, Phase::Closed));
    for code in RejectionCode::ALL {
        emit(EventKind::Finished { outcome: None, kind: Some(code.kind()), decision: &rejected(code) });
    }
    let twice = Decision { attempts: 2, reason: Some(RejectionCode::AttemptTimeout), ..Decision::default() };
    emit(EventKind::Finished { outcome: Some(Outcome::Failure), kind: Some(Kind::Infrastructure), decision: &twice });

    let emit = |kind: EventKind<'_>| log.on_event(&Event { key: None, kind });
    emit(EventKind::StoreSlow { share: 0.25 });
    emit(EventKind::ExpectedReplicasUnknown);
    emit(EventKind::StoreDegraded { reason: "timeout" });
    emit(EventKind::StoreRecovered { outage: SECOND, degraded_decisions: 5 });
    emit(EventKind::StoreConnected { server: "redis:6379", version: Some("redis 7.0.15") });
    emit(EventKind::StoreConnectFailed { reason: "dns" });
    emit(EventKind::PushLost { reason: "acl" });
    emit(EventKind::PushRestored);
    let lever = LeverSpec::force_open().without_retries().reason("the vendor\nasked");
    emit(EventKind::Lever { policy: "*", lever: Some(&lever) });
    emit(EventKind::Lever { policy: "*", lever: None });
    emit(EventKind::ConfigApplied { changed: 2 });
    emit(EventKind::ConfigRejected { reason: "policies.p.timeout: must be more than zero" });
    emit(EventKind::StateLost);
    emit(EventKind::Replicas { live: 3 });
    emit(EventKind::Draining { in_flight: 4 });
    emit(EventKind::Drained(Drained { in_flight: 4, leftovers: 1, stuck: 0, elapsed: SECOND }));
    emit(EventKind::StepFailed { step: "migrate", reason: "rejected" });
    emit(EventKind::LockLost { lock: "leader", fence: 7 });
}

/// The rows of the table: event, level, fields.
fn documented() -> BTreeMap<String, (String, Vec<String>)> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/telemetry.md");
    let page = std::fs::read_to_string(path).unwrap();
    let section = page.split("\n## ").find(|section| section.starts_with("Log events")).unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let fields = cells[4].split(',').map(|field| field.trim().trim_matches('`').to_owned());
        let fields = fields.filter(|field| !field.is_empty()).collect();
        (cells[1].trim_matches('`').to_owned(), (cells[2].to_owned(), fields))
    })
    .collect()
}

/// The fields of a line, without those that every line has.
fn own_fields(line: &Seen) -> Vec<String> {
    let common = ["event", "message", "policy", "route"];
    line.fields.keys().filter(|name| !common.contains(&name.as_str())).cloned().collect()
}

#[test]
fn every_event_is_written_at_the_level_and_with_the_fields_of_its_row() {
    let (seen, _guard) = collect();
    emit_everything(&Log::new(Clock::manual()));
    let mut table = documented();
    for line in seen.lines() {
        let event = line.field("event").unwrap();
        let (level, fields) = table.remove(event).unwrap_or_else(|| panic!("no row, or two lines, for {event}"));
        assert_eq!(line.level.as_str(), level, "{event}");
        for field in own_fields(&line) {
            assert!(fields.contains(&field), "the row of {event} does not name {field}");
        }
        assert!(!line.field("message").unwrap().is_empty());
    }
    assert!(table.is_empty(), "rows without a line: {:?}", table.keys());
}

#[test]
fn a_lever_line_lists_its_settings_and_the_reason() {
    let (seen, _collecting) = collect();
    emit_everything(&Log::new(Clock::manual()));
    let line = &seen.lines_of("lever_pulled")[0];
    assert_eq!((line.field("policy"), line.field("lever")), (Some("*"), Some("force_open, retries_off")));
    assert_eq!(line.field("reason"), Some("the vendor\\nasked"));
}

#[test]
fn lines_about_a_route_name_it() {
    let (seen, _guard) = collect();
    let log = Log::new(Clock::manual());
    let emit = |key: &StateKey| log.on_event(&Event { key: Some(key), kind: EventKind::RetryBudgetExhausted });
    emit(&StateKey::new("p", "eu"));
    emit(&StateKey::new("p", ()));
    let names: Vec<_> =
        seen.lines().iter().map(|line| (line.fields["policy"].clone(), line.field("route").is_some())).collect();
    assert_eq!(names, [("p".to_owned(), true), ("p".to_owned(), false)]);
}

#[test]
fn a_disabled_level_is_neither_written_nor_counted() {
    let clock = Clock::manual();
    let log = Log::new(clock.clone());
    let key = StateKey::new("p", ());
    let decision = rejected(RejectionCode::RateLimited);
    let kind = EventKind::Finished { outcome: None, kind: Some(Kind::Throttled), decision: &decision };
    let reject = |times: u32| (0..times).for_each(|_| log.on_event(&Event { key: Some(&key), kind }));
    let (seen, guard) = collect_at(Targets::new().with_default(LevelFilter::ERROR));
    reject(5);
    assert!(seen.lines().is_empty());
    drop(guard);
    let (seen, _guard) = collect_at(Targets::new().with_default(LevelFilter::WARN));
    reject(3);
    clock.advance(10 * SECOND);
    reject(1);
    let counts: Vec<_> = seen.lines().iter().map(|line| line.field("suppressed").map(str::to_owned)).collect();
    assert_eq!(counts, [None, Some("2".to_owned())], "not the five that were disabled");
}

#[test]
fn a_suppressed_line_does_not_affect_the_next_event_of_the_application() {
    let ([coarse, fine], _guard) = collect_twice([LevelFilter::INFO, LevelFilter::DEBUG]);
    let log = Log::new(Clock::manual());
    let key = StateKey::new("p", ());
    for _ in 0..2 {
        log.on_event(&Event { key: Some(&key), kind: EventKind::Hedge { hedge: 1, delay: SECOND } });
    }
    tracing::info!(target: "app", "not ours");
    assert_eq!([&coarse, &fine].map(|layer| layer.lines_of("hedge").len()), [0, 1]);
    assert_eq!([&coarse, &fine].map(|layer| layer.count("app")), [1, 1]);
}

#[test]
fn a_flapping_breaker_writes_one_line_per_change_and_the_next_counts_the_rest() {
    let (seen, _guard) = collect();
    let clock = Clock::manual();
    let log = Log::new(clock.clone());
    let emit = |route: &str, kind| log.on_event(&Event { key: Some(&StateKey::new("p", route)), kind });
    let flap = |route: &str| {
        emit(route, changed(Phase::Closed, Phase::Open));
        emit(route, changed(Phase::Open, Phase::HalfOpen));
        emit(route, changed(Phase::HalfOpen, Phase::Closed));
    };
    (0..100).for_each(|_| flap("eu"));
    flap("us");
    clock.advance(10 * SECOND);
    flap("eu");
    for event in ["circuit_opened", "circuit_half_open", "circuit_closed"] {
        let lines = seen.lines_of(event);
        let written: Vec<_> =
            lines.iter().map(|line| (line.field("route").unwrap(), line.field("suppressed"))).collect();
        assert_eq!(written, [("eu", None), ("us", None), ("eu", Some("99"))], "{event}");
    }
}

#[test]
fn successful_and_cancelled_calls_and_domain_errors_write_no_line() {
    let (seen, _guard) = collect();
    let log = Log::new(Clock::manual());
    let key = StateKey::new("p", ());
    for attempts in [1, 2] {
        let decision = Decision { attempts, ..Decision::default() };
        let ends = [
            (Outcome::Success, None),
            (Outcome::Success, Some(Kind::NotFound)),
            (Outcome::Cancelled, Some(Kind::Infrastructure)),
        ];
        for (outcome, kind) in ends {
            let kind = EventKind::Finished { outcome: Some(outcome), kind, decision: &decision };
            log.on_event(&Event { key: Some(&key), kind });
        }
    }
    assert!(seen.lines().is_empty(), "{:?}", seen.lines());
}
