//! The stored text of a breaker: what the scripts write, field by field, and which values they believe.

use std::time::Duration;

use phalanx_core::breaker::{BreakerSpec, Override, Phase};
use phalanx_testkit::lua_server::{LuaServer, Stored};

use crate::breaker_client::*;
use crate::harness::*;

pub(crate) const AT: usize = 1;
pub(crate) const PHASE: usize = 2;
pub(crate) const EPOCH: usize = 3;
pub(crate) const SINCE: usize = 4;
const ENDS: usize = 5;
const ESCALATION: usize = 6;
const STREAK: usize = 7;
pub(crate) const SLOW_SINCE: usize = 8;
pub(crate) const SLOW_SEEN: usize = 9;
const PROVEN: usize = 10;
pub(crate) const NEXT_LEASE: usize = 11;
const RAMP_STEP: usize = 12;
const RAMP_ASKED: usize = 13;
const FINGERPRINT: usize = 14;
const SLICE_LEN: usize = 15;
const NEWEST: usize = 16;
const SEEN: usize = 17;
pub(crate) const LEASES: usize = 47;

/// The initial time of a server.
pub(crate) const NOW: i64 = 1_700_000_000_000_000;
/// The largest integer below which a double holds all others exactly.
pub(crate) const MAX_EXACT: i64 = (1 << 53) - 1;
/// The highest epoch and lease, which can still grow exactly.
pub(crate) const MAX_SERIAL: i64 = 1 << 52;
const MAX_COUNT: i64 = 1 << 48;
pub(crate) const MAX_U32: i64 = (1 << 32) - 1;

pub(crate) const CLOSED: i64 = 1;
const OPEN: i64 = 2;
const HALF_OPEN: i64 = 3;

/// The fields of a half-open breaker with counts in every slice and the leases 1 and 4.
pub(crate) fn half_open() -> Vec<i64> {
    let mut fields = vec![2, NOW, HALF_OPEN, 7, 0, 0, 2, 0, 0, 0, 1, 5, -1, 0, 0, 1_000_000, 0];
    fields.extend([5, 3, 2].repeat(10));
    fields.extend([1, NOW + 1_000_000, 42, 4, NOW + 1_000_000, 42]);
    fields
}

pub(crate) fn line(letter: &str, fields: &[i64]) -> String {
    fields.iter().fold(letter.to_owned(), |line, field| format!("{line} {field}"))
}

/// The text of these fields: the line of the breaker, of its window, and of each lease.
pub(crate) fn text_of(fields: &[i64]) -> String {
    let mut lines = vec![line(&fields[0].to_string(), &fields[1..SLICE_LEN]), line("w", &fields[SLICE_LEN..LEASES])];
    lines.extend(fields[LEASES..].chunks(3).map(|lease| line("l", lease)));
    lines.join("\n")
}

pub(crate) fn put(server: &LuaServer, fields: &[i64]) {
    server.put(KEY, Stored::Text(text_of(fields).into_bytes()));
}

pub(crate) fn text(server: &LuaServer) -> String {
    String::from_utf8(server.get(KEY).unwrap()).unwrap()
}

/// Returns the stored fields, without an override.
pub(crate) fn fields(server: &LuaServer) -> Vec<i64> {
    let text = text(server);
    let numbers = text.lines().filter(|line| !line.starts_with('o')).flat_map(|line| line.split(' '));
    numbers.filter(|field| *field != "w" && *field != "l").map(|field| field.parse().unwrap()).collect()
}

/// Returns whether a stored text with this value in one field is believed.
fn is_believed(base: &[i64], field: usize, value: i64) -> bool {
    let server = fresh_server();
    let mut changed = base.to_vec();
    changed[field] = value;
    put(server, &changed);
    match steady(0).inspect(server).0.flags {
        0 | 2 => true,
        1 => false,
        flags => panic!("flags {flags}"),
    }
}

fn assert_range(base: &[i64], field: usize, least: i64, most: i64) {
    let believed = [least - 1, least, most, most + 1].map(|value| is_believed(base, field, value));
    assert_eq!(believed, [false, true, true, false], "field {field} holds {least} to {most}");
}

#[test]
fn every_field_is_believed_within_its_range_and_not_one_beyond() {
    let base = half_open();
    let ranges = [
        (0, 2, 2),
        (AT, 0, MAX_EXACT),
        (PHASE, CLOSED, HALF_OPEN),
        (EPOCH, 1, MAX_SERIAL),
        (SINCE, 0, NOW),
        (ENDS, 0, MAX_EXACT),
        (ESCALATION, 0, 1_000),
        (STREAK, 0, MAX_U32),
        (SLOW_SINCE, 0, NOW),
        (SLOW_SEEN, 0, NOW),
        (PROVEN, 0, MAX_U32),
        (NEXT_LEASE, 5, MAX_SERIAL),
        (RAMP_STEP, -1, MAX_U32),
        (RAMP_ASKED, 0, MAX_EXACT),
        (SLICE_LEN, 1, MAX_EXACT),
        (NEWEST, 0, NOW / 1_000_000),
        (FINGERPRINT, 0, MAX_U32),
    ];
    for (field, least, most) in ranges {
        assert_range(&base, field, least, most);
    }
    let without_leases = base[..LEASES].to_vec();
    assert_range(&without_leases, NEXT_LEASE, 1, MAX_SERIAL);
}

#[test]
fn every_slice_counts_no_more_failures_and_slow_calls_than_calls() {
    let base = half_open();
    for slice in 0..10 {
        let calls = SEEN + 3 * slice;
        assert_range(&base, calls, 3, MAX_COUNT);
        assert_range(&base, calls + 1, 0, 5);
        assert_range(&base, calls + 2, 0, 5);
    }
}

#[test]
fn every_lease_has_a_number_that_was_given_and_exact_numbers() {
    let base = half_open();
    for lease in [LEASES, LEASES + 3] {
        assert_range(&base, lease, 1, 4);
        assert_range(&base, lease + 1, 0, MAX_EXACT);
        assert_range(&base, lease + 2, 0, MAX_EXACT);
    }
}

#[test]
fn a_text_of_64_kib_is_read_and_a_longer_one_is_not() {
    let server = LuaServer::new();
    let circuit = steady(0);
    put(&server, &half_open());
    let mut text = server.get(KEY).unwrap();
    text.push(b'\n');
    for (length, flags) in [(1 << 16, 0), ((1 << 16) + 1, 1)] {
        text.resize(length, b'x');
        server.put(KEY, Stored::Text(text.clone()));
        assert_eq!(circuit.inspect(&server).0.flags, flags, "{length} bytes");
    }
}

#[test]
fn a_line_with_too_few_fields_or_other_than_numbers_is_repaired() {
    let server = LuaServer::new();
    let circuit = steady(0);
    let whole = text_of(&half_open());
    let cut = |line: &str| whole.replace(line, line.rsplit_once(' ').unwrap().0);
    let lines: Vec<_> = whole.lines().collect();
    let mut wrong: Vec<_> = lines.iter().map(|line| cut(line)).collect();
    wrong.extend(lines.iter().map(|line| whole.replace(line, &format!("{line} 0x1"))));
    wrong.extend(["o 1 1 1 0 -", "o 0 1 1 0 - -", "o 1 -1 1 0 - -"].map(|line| format!("{whole}\n{line}")));
    wrong.extend([whole.replace('2', "3"), format!("w 1 1\n{whole}"), String::new()]);
    for text in wrong {
        server.put(KEY, Stored::Text(text.clone().into_bytes()));
        assert_eq!(circuit.inspect(&server).0.flags, 1, "{text}");
    }
}

/// I-38: what a later release has added is no damage, and is still there after this release has written.
#[test]
fn fields_and_lines_of_a_later_release_are_kept_and_written_back() {
    let server = LuaServer::new();
    let circuit = steady(0);
    let lines = ["w 500 0", "o 7 4 42 0 ops why", "r 1 quorum", "z"];
    let counts = " 0".repeat(30);
    let mut text = text_of(&half_open()).replace('\n', " 77\n");
    text = format!("{text} 77\n{}{counts} 78 79\n{} a b\n{}\n{}", lines[0], lines[1], lines[2], lines[3]);
    server.put(KEY, Stored::Text(text.clone().into_bytes()));
    let (state, tail) = circuit.inspect(&server);
    assert_eq!((state.flags, state.phase, state.overridden, tail[4]), (0, HALF_OPEN, 4, 2));
    circuit.settle(&server, &[(7, 1, 6)]);
    let stored = self::text(&server);
    let last_of = |letter: &str| {
        let line =
            stored.lines().find(|line| line.starts_with(letter)).unwrap_or_else(|| panic!("{letter} in {stored}"));
        line.rsplit(' ').next().unwrap().to_owned()
    };
    assert_eq!(["2 ", "w 1000000 ", "w 500 ", "l 4 ", "o "].map(last_of), ["77", "77", "79", "77", "b"]);
    assert!(stored.ends_with("\nr 1 quorum\nz"), "{stored}");
    circuit.sync(&server, &[(7, 0, 1, 0)]);
    assert_eq!(self::text(&server), stored, "written again, it is the same");
}

#[test]
fn what_a_later_release_adds_is_bounded() {
    let server = LuaServer::new();
    let circuit = steady(0);
    let mut line = "\nr ".to_owned();
    line.push_str(&"x".repeat(5_000));
    server.put(KEY, Stored::Text((text_of(&half_open()) + &line).into_bytes()));
    assert_eq!(circuit.settle(&server, &[(7, 1, 6)]).flags, 0);
    assert!(text(&server).len() < 1_000);
}

/// The fields after those of the breaker and the head of its window: no counts and no leases.
fn nothing_counted() -> Vec<i64> {
    vec![0; 30]
}

#[test]
fn every_step_of_a_recovery_is_stored_field_by_field() {
    let server = LuaServer::new();
    let circuit = steady(0);
    circuit.force(&server, None);
    let new = [2, NOW, CLOSED, 1, NOW, NOW, 0, 0, 0, 0, 0, 1, -1, 0, 0, 1_000_000, 0];
    assert_eq!(fields(&server), [&new[..], &nothing_counted()].concat());

    circuit.sync(&server, &[(1, 2, 9, 0)]);
    let ends = NOW + 3_000_000;
    let open = [2, NOW, OPEN, 2, NOW, ends, 1, 0, 0, 0, 0, 1, -1, 0, 0, 1_000_000, 0];
    assert_eq!(fields(&server), [&open[..], &nothing_counted()].concat());

    server.clock().advance(Duration::from_micros(3_000_000));
    circuit.admit(&server, 2);
    let probing = [2, ends, HALF_OPEN, 3, ends, ends, 1, 0, 0, 0, 0, 3, -1, 0, 0, 1_000_000, 0];
    let leases = [1, ends + 2_000_000, 42, 2, ends + 2_000_000, 42];
    assert_eq!(fields(&server), [&probing[..], &nothing_counted(), &leases].concat());

    server.clock().advance(SECOND);
    circuit.settle(&server, &[(3, 1, 0)]);
    assert_eq!((fields(&server)[PROVEN], fields(&server).len()), (1, LEASES + 3));
    circuit.settle(&server, &[(3, 2, 0)]);
    let closed_at = ends + 1_000_000;
    let ramping = [2, closed_at, CLOSED, 4, closed_at, ends, 1, 0, 0, 0, 0, 3, 0, 0, 0, 1_000_000, 0];
    assert_eq!(fields(&server), [&ramping[..], &nothing_counted()].concat());

    circuit.admit(&server, 3);
    assert_eq!((fields(&server)[RAMP_STEP], fields(&server)[RAMP_ASKED]), (0, 3));
    let ramping = server.get(KEY).unwrap();
    circuit.reset(&server);
    let reset = [2, closed_at, CLOSED, 5, closed_at, ends, 0, 0, 0, 0, 0, 3, -1, 0, 0, 1_000_000, 0];
    assert_eq!(fields(&server), [&reset[..], &nothing_counted()].concat());

    server.put(KEY, Stored::Text(ramping));
    server.clock().advance(5 * SECOND);
    circuit.admit(&server, 3);
    assert_eq!((fields(&server)[RAMP_STEP], fields(&server)[RAMP_ASKED]), (-1, 0), "the ramp has ended");
}

/// The messages that a breaker has published, without signature and time.
fn published(server: &LuaServer) -> Vec<String> {
    let text = |(channel, message): (Vec<u8>, Vec<u8>)| {
        assert_eq!(channel, b"ph2:news");
        let text = without_change_number(&String::from_utf8(message).unwrap());
        let now = now(server).as_micros();
        let numbers = text.strip_prefix(&format!("id7 {now} ")).unwrap_or_else(|| panic!("{text} at {now}"));
        numbers.split(' ').take(11).collect::<Vec<_>>().join(" ") // the entry of the override is behind them
    };
    server.take_published().into_iter().map(text).collect()
}

/// Phase, epoch, time left, override, ramping, escalation; of the last transition: from, break, calls, failures, slow calls.
#[test]
fn every_change_of_phase_epoch_or_override_is_published_once() {
    let server = LuaServer::new();
    let circuit = steady(0);
    circuit.sync(&server, &[(1, 0, 1, 0), (1, 1, 1, 0)]);
    assert!(published(&server).is_empty(), "outcomes alone are no news");
    circuit.sync(&server, &[(1, 3, 2, 0)]);
    assert_eq!(published(&server), ["2 2 3000000 0 0 1 1 3000000 4 2 3"]);
    server.clock().advance(SECOND);
    circuit.admit(&server, 1);
    assert!(published(&server).is_empty(), "a rejection is no news");
    circuit.force(&server, Some(Override::MetricsOnly));
    assert_eq!(published(&server), ["2 2 2000000 4 0 1 0 -1 0 0 0"]);
    circuit.force(&server, None);
    assert_eq!(published(&server), ["2 2 2000000 0 0 1 0 -1 0 0 0"]);
    server.clock().advance(2 * SECOND);
    circuit.admit(&server, 2);
    assert_eq!(published(&server), ["3 3 0 0 0 1 2 -1 0 0 0"]);
    circuit.settle(&server, &[(3, 1, 0)]);
    assert!(published(&server).is_empty());
    circuit.settle(&server, &[(3, 2, 0)]);
    assert_eq!(published(&server), ["1 4 0 0 1 1 3 -1 0 0 0"]);
    circuit.sync(&server, &[(4, 2, 1, 0)]);
    circuit.reset(&server);
    assert_eq!(published(&server), ["1 5 0 0 0 0 0 -1 0 0 0"], "a new epoch, but no transition");
    circuit.sync(&server, &[(5, 2, 4, 0)]);
    assert_eq!(published(&server), ["2 6 3000000 0 0 1 1 3000000 4 4 0"]);
    circuit.reset(&server);
    assert_eq!(published(&server), ["1 7 0 0 0 0 2 -1 0 0 0"]);
}

#[test]
fn a_change_that_may_not_be_published_is_stored_and_flagged() {
    let server = LuaServer::new();
    let circuit = steady(0);
    server.deny_channels(true);
    assert_eq!(circuit.sync(&server, &[(1, 0, 1, 0)]).flags, 0, "no change");
    let tripped = circuit.sync(&server, &[(1, 3, 4, 0)]);
    assert_eq!((tripped.transitions.len(), tripped.flags), (1, 16));
    assert!(published(&server).is_empty());
    server.deny_channels(false);
    assert_eq!(circuit.admit(&server, 1).0.epoch, tripped.epoch, "it was stored");
    server.clock().advance(4 * SECOND);
    assert_eq!(circuit.admit(&server, 1).0.flags, 0);
    assert_eq!(published(&server).len(), 1);
}

#[test]
fn a_reply_lists_every_transition_of_its_script() {
    let server = LuaServer::new();
    let circuit = steady(0);
    let tripped = circuit.sync(&server, &[(1, 0, 1, 0), (1, 3, 4, 0)]);
    assert_eq!(tripped.transitions, [[CLOSED, OPEN, 2, 3_000_000, 5, 4, 4]]);
    assert_eq!((tripped.now, tripped.left, tripped.escalation, tripped.ramping), (NOW, 3_000_000, 1, 0));
    server.clock().advance(4 * SECOND);
    assert_eq!(circuit.inspect(&server).0.left, 0, "its break is over");
    let probing = circuit.admit(&server, 1).0;
    assert_eq!(probing.transitions, [[OPEN, HALF_OPEN, 3, -1, 0, 0, 0]]);
    let failed = circuit.settle(&server, &[(3, 1, 2)]);
    assert_eq!(failed.transitions, [[HALF_OPEN, OPEN, 4, 5_100_000, 0, 0, 0]]);
    let reset = circuit.reset(&server);
    assert_eq!(reset.transitions, [[OPEN, CLOSED, 5, -1, 0, 0, 0]]);
    assert!(circuit.reset(&server).transitions.is_empty(), "a reset of a closed breaker is no transition");
}

#[test]
fn a_clock_that_steps_back_by_a_second_stops_and_by_more_moves_every_stored_time() {
    let server = LuaServer::new();
    let circuit = steady(0);
    circuit.sync(&server, &[(1, 2, 9, 0)]);
    let stored = server.get(KEY);
    server.clock().step_back(SECOND);
    assert_eq!(circuit.admit(&server, 1).0.left, 4_000_000, "the break ends when it was to end");
    assert_eq!(server.get(KEY), stored, "nothing is moved");
    server.clock().step_back(Duration::from_micros(1));
    assert_eq!(circuit.admit(&server, 1).0.left, 3_000_000, "the break is as long as it was");
    assert_eq!((fields(&server)[AT], fields(&server)[SINCE]), (NOW - 1_000_001, NOW - 1_000_001));
    assert_eq!(fields(&server)[ENDS], NOW - 1_000_001 + 3_000_000);
}

#[test]
fn stored_times_move_back_with_the_clock_and_end_at_zero() {
    let server = LuaServer::new();
    let circuit = steady(0);
    let at_of = |since, ends, slow_since, expires| {
        let mut stored = half_open();
        (stored[AT], stored[PHASE]) = (NOW + 2_000_000, CLOSED);
        (stored[SINCE], stored[ENDS], stored[SLOW_SINCE]) = (since, ends, slow_since);
        stored[SLOW_SEEN] = slow_since;
        (stored[LEASES + 1], stored[LEASES + 4]) = (expires, expires);
        put(&server, &stored);
        circuit.sync(&server, &[]);
        let moved = fields(&server);
        assert_eq!(moved[AT], NOW);
        assert_eq!(moved[SEEN..LEASES], [0; 30], "counts of a time that is yet to come are dropped");
        assert!(raw(&server).1.is_some(), "written, with a TTL");
        assert_eq!(moved[SLOW_SINCE], moved[SLOW_SEEN]);
        [moved[SINCE], moved[ENDS], moved[SLOW_SINCE], moved[LEASES + 1], moved[LEASES + 4]]
    };
    let later = |by| NOW + by;
    assert_eq!(
        at_of(later(0), later(3), later(1), later(7)),
        [later(0), later(3), later(1), later(7), later(7)].map(|time| time - 2_000_000)
    );
    assert_eq!(at_of(5, 5, 5, 5), [0, 0, 1, 0, 0]);
    assert_eq!(at_of(2_000_000, 2_000_000, 2_000_000, 2_000_000), [0, 0, 1, 0, 0]);
    assert_eq!(at_of(2_000_001, 2_000_001, 2_000_002, 2_000_001), [1, 1, 2, 1, 1]);
    assert_eq!(at_of(5, 5, 0, 5)[2], 0, "a quantile that is not above its threshold stays so");
}

#[test]
fn stored_breaks_and_leases_are_limited_to_those_of_the_spec() {
    let server = LuaServer::new();
    let mut circuit = steady(0);
    circuit.spec = circuit.spec.escalate(1.7, Duration::from_micros(20_000_001));
    let mut stored = half_open();
    (stored[PHASE], stored[SINCE], stored[ENDS]) = (OPEN, NOW - 5, MAX_EXACT);
    put(&server, &stored);
    assert_eq!(circuit.inspect(&server).0.left, 26_000_001 - 5, "1.3 times the longest break, rounded down");

    circuit.claim =
        Claim { epoch: 9, phase: Phase::Open, left: Duration::from_secs(900), escalation: 1_001, ..NO_CLAIM };
    let restored = circuit.inspect(&server).0;
    assert_eq!((restored.left, restored.escalation), (26_000_001, 1_000));
    circuit.claim = NO_CLAIM;

    let mut stored = half_open();
    (stored[LEASES + 1], stored[LEASES + 4]) = (MAX_EXACT, NOW + 1);
    put(&server, &stored);
    assert_eq!(circuit.inspect(&server).1[4], 2);
    server.clock().advance(Duration::from_micros(1));
    assert_eq!(circuit.inspect(&server).1[4], 1, "a lease has ended when its time is reached");
    server.clock().advance(Duration::from_micros(1_999_998));
    assert_eq!(circuit.inspect(&server).1[4], 1);
    server.clock().advance(Duration::from_micros(1));
    assert_eq!(circuit.inspect(&server).1[4], 0, "the other one has ended after one lease");
}

#[test]
fn a_breaker_is_kept_for_twice_its_longest_duration_and_five_minutes() {
    let spec = steady(0).spec;
    let specs: [(BreakerSpec, u64); 6] = [
        (spec.clone(), 2 * 26_000),
        (spec.clone().escalate(1.7, Duration::from_micros(20_000_001)), 2 * 26_000 + 1),
        (spec.clone().break_for(30 * SECOND), 2 * 39_000),
        (spec.clone().window(60 * SECOND), 2 * 60_000),
        (spec.clone().probe_lease(40 * SECOND), 2 * 40_000),
        (spec.ramp(50 * SECOND, 3), 2 * 50_000),
    ];
    for (spec, millis) in specs {
        let server = fresh_server();
        let circuit = Circuit { spec, ..steady(0) };
        circuit.sync(server, &[(1, 0, 1, 0)]);
        assert_eq!(raw(server).1, Some(millis + 300_000));
        circuit.force(server, Some(Override::Closed));
        assert_eq!(raw(server).1, Some(30 * 86_400_000));
        circuit.force(server, None);
        assert_eq!(raw(server).1, Some(7 * 86_400_000), "a release is kept for a week");
    }
}

#[test]
fn a_slice_is_a_tenth_of_the_window_rounded_down_and_at_least_a_microsecond() {
    for (window, slice_len) in [(1, 1), (7, 1), (19, 1), (29, 2), (10_000_000, 1_000_000)] {
        let server = fresh_server();
        let mut circuit = steady(0);
        circuit.spec = circuit.spec.window(Duration::from_micros(window));
        circuit.force(server, None);
        assert_eq!(fields(server)[SLICE_LEN], slice_len, "a window of {window} µs");
    }
}

#[test]
fn a_quantile_above_its_threshold_is_stored_once_and_trips_when_it_has_lasted() {
    let server = LuaServer::new();
    let circuit = steady(2);
    let observe = |kind| circuit.sync(&server, &[(1, kind, 1, 0)]);
    assert_eq!(observe(5).phase, CLOSED);
    assert_eq!((fields(&server)[SLOW_SINCE], fields(&server)[SLOW_SEEN]), (NOW, NOW));
    server.clock().advance(Duration::from_micros(1));
    observe(4);
    assert_eq!((fields(&server)[SLOW_SINCE], fields(&server)[SLOW_SEEN], fields(&server)[AT]), (0, 0, NOW + 1));
    server.clock().advance(Duration::from_micros(1));
    let before = raw(&server);
    observe(4);
    assert_eq!(raw(&server), before, "nothing has changed");
    observe(5);
    server.clock().advance(Duration::from_micros(1_999_999));
    assert_eq!(observe(5).phase, CLOSED);
    assert_eq!((fields(&server)[SLOW_SINCE], fields(&server)[SLOW_SEEN]), (NOW + 2, NOW + 2_000_001));
    server.clock().advance(Duration::from_micros(1));
    assert_eq!(observe(5).phase, OPEN);
    assert_eq!((fields(&server)[SLOW_SINCE], fields(&server)[SLOW_SEEN]), (0, 0), "the period has ended with the trip");
    observe(5);
    assert_eq!(fields(&server)[SLOW_SINCE], 0, "an open breaker observes nothing");

    let at_once = Circuit { spec: BreakerSpec::latency(0.9, SLOW, Duration::ZERO), ..steady(2) };
    server.flush();
    assert_eq!(at_once.sync(&server, &[(1, 5, 1, 0)]).phase, OPEN);

    let mut first_microsecond = half_open();
    (first_microsecond[PHASE], first_microsecond[EPOCH], first_microsecond[SLOW_SINCE]) = (CLOSED, 1, 1);
    first_microsecond[FINGERPRINT] = 2;
    put(&server, &first_microsecond);
    observe(4);
    assert_eq!(fields(&server)[SLOW_SINCE], 0);
}

#[test]
fn a_quantile_counts_again_one_window_after_a_reset() {
    let server = LuaServer::new();
    let circuit = steady(2);
    circuit.reset(&server);
    let slow_since = || {
        circuit.sync(&server, &[(2, 5, 1, 0)]);
        fields(&server)[SLOW_SINCE]
    };
    assert_eq!(slow_since(), 0);
    server.clock().advance(10 * SECOND - Duration::from_micros(1));
    assert_eq!(slow_since(), 0);
    server.clock().advance(Duration::from_micros(1));
    assert_eq!(slow_since(), NOW + 10_000_000);
}

#[test]
fn a_quantile_counts_unless_the_breaker_is_forced_closed_or_disabled() {
    for (overridden, counts) in OVERRIDES.into_iter().zip([true, true, false, false, true]) {
        let server = fresh_server();
        let circuit = steady(2);
        circuit.sync(server, &[(1, 5, 1, 0)]);
        circuit.force(server, overridden);
        server.clock().advance(SECOND);
        circuit.sync(server, &[(1, 5, 1, 0)]);
        assert_eq!(fields(server)[SLOW_SINCE], if counts { NOW } else { 0 }, "{overridden:?}");
    }
}
