//! The stored text of a breaker at its limits: the lines that are not always there, more lines than are kept, times near
//! the beginning of the clock, and claims and specs of an earlier release.

use std::time::Duration;

use phalanx_core::breaker::{BreakerSpec, Phase};
use phalanx_core::clock::Time;
use phalanx_lua::BREAKER_SYNC;
use phalanx_testkit::lua_server::{LuaServer, Stored};

use crate::breaker_client::*;
use crate::breaker_text::*;
use crate::harness::*;

const SLOW_SUCCESS: u8 = 1;
const FAILURE: u8 = 2;

/// Stores a breaker with these fields and these lines behind them.
fn put_with(server: &LuaServer, fields: &[i64], lines: &str) {
    server.put(KEY, Stored::Text(format!("{}\n{lines}", text_of(fields)).into_bytes()));
}

/// Returns the stored line that begins with this letter.
fn line_of(server: &LuaServer, letter: &str) -> String {
    let text = text(server);
    let found = text.lines().find(|line| line.starts_with(letter));
    found.unwrap_or_else(|| panic!("{letter} in {text}")).to_owned()
}

/// Checks that a line of this letter is believed with the least and the highest value of each field, and not one beyond.
fn assert_ranges(letter: &str, base: &[i64], ranges: &[(i64, i64)], behind: &str) {
    let is_believed = |field: usize, value: i64| {
        let server = fresh_server();
        let mut changed = base.to_vec();
        changed[field] = value;
        put_with(server, &half_open(), &format!("{}{behind}", line(letter, &changed)));
        match steady(0).inspect(server).0.flags {
            0 => true,
            1 => false,
            flags => panic!("flags {flags}"),
        }
    };
    for (field, (least, most)) in ranges.iter().enumerate() {
        let believed = [least - 1, *least, *most, most + 1].map(|value| is_believed(field, value));
        assert_eq!(believed, [false, true, true, false], "field {field} of {letter} holds {least} to {most}");
    }
}

#[test]
fn every_field_of_the_evidence_is_believed_within_its_range_and_not_one_beyond() {
    let ranges = [(0, NOW - 1), (NOW - 2, NOW), (0, 1), (0, NOW), (0, 64), (0, MAX_EXACT)];
    assert_ranges("e", &[NOW - 2, NOW - 1, 0, NOW, 3, NOW], &ranges, "");
    assert_ranges("e", &[0, 0, 0, 0, 0, 0], &[(0, 0), (0, NOW)], "");
}

#[test]
fn every_field_of_an_override_is_believed_within_its_range_and_not_one_beyond() {
    let ranges = [(1, MAX_EXACT), (0, MAX_U32), (0, MAX_EXACT), (0, MAX_EXACT)];
    assert_ranges("o", &[7, 1, 42, 0], &ranges, " - -");
}

#[test]
fn a_field_has_no_sign() {
    let server = LuaServer::new();
    let whole = text_of(&half_open());
    for (from, to) in [("2 1", "2 +1"), ("2 1", "2 -1"), ("w 1", "w +1"), ("l 4", "l +4")] {
        let text = whole.replacen(from, to, 1);
        assert_ne!(text, whole);
        server.put(KEY, Stored::Text(text.into_bytes()));
        assert_eq!(steady(0).inspect(&server).0.flags, 1, "{to}");
    }
}

#[test]
fn evidence_with_too_few_fields_or_other_than_numbers_is_repaired() {
    let server = LuaServer::new();
    for line in ["e 0 0 0 0 0", "e 0 0 0 0 0 x", "e 0 0 0 0 0 0 x", "e 0 0 0 0 0 -"] {
        put_with(&server, &half_open(), line);
        assert_eq!(steady(0).inspect(&server).0.flags, 1, "{line}");
    }
}

#[test]
fn two_windows_and_a_hundred_leases_are_kept() {
    let server = LuaServer::new();
    let circuit = steady(0);
    let mut fields = half_open();
    fields.truncate(LEASES);
    fields[NEXT_LEASE] = 102;
    (1..=101).for_each(|id| fields.extend([id, NOW + 1_000_000, 42]));
    let counts = " 0".repeat(30);
    put_with(&server, &fields, &format!("w 500 0{counts}\nw 700 0{counts}"));
    let (state, tail) = circuit.inspect(&server);
    assert_eq!((state.flags, tail[4]), (0, 100));
    circuit.settle(&server, &[(7, 1, 6)]);
    let text = text(&server);
    let lengths = text.lines().filter_map(|line| line.strip_prefix("w ")?.split(' ').next());
    assert_eq!(lengths.collect::<Vec<_>>(), ["1000000", "500"]);
}

#[test]
fn a_later_release_may_add_4_096_bytes() {
    let server = LuaServer::new();
    for (length, kept) in [(4_095, true), (4_096, false)] {
        let line = format!("r {}", "x".repeat(length - 2));
        put_with(&server, &half_open(), &line);
        assert_eq!(steady(0).settle(&server, &[(7, 1, 6)]).flags, 0);
        assert_eq!(text(&server).ends_with(&format!("\n{line}")), kept, "a line break and {length} bytes");
    }
}

#[test]
fn the_highest_sequence_of_an_override_that_can_be_followed_is_believed() {
    let server = LuaServer::new();
    server.clock().set(Time::from_micros(MAX_SERIAL as u64));
    let mut fields = half_open();
    fields[AT] = MAX_SERIAL;
    for (sequence, overridden) in [(MAX_SERIAL - 1, 1), (MAX_SERIAL, 0)] {
        put_with(&server, &fields, &format!("o {sequence} 1 42 0 - -"));
        let state = steady(0).inspect(&server).0;
        assert_eq!((state.overridden, state.flags), (overridden, 0), "{sequence}");
    }
}

/// Stores a breaker of 4 s after the beginning of the clock with this line, and steps back to 10 µs.
fn step_back_near_the_beginning(server: &LuaServer, slow: (i64, i64), line: &str) {
    let mut fields = half_open();
    fields[AT] = 4_000_000;
    (fields[SLOW_SINCE], fields[SLOW_SEEN]) = slow;
    put_with(server, &fields, line);
    server.clock().set(Time::from_micros(10));
    assert_eq!(steady(0).sync(server, &[]).flags, 0);
}

#[test]
fn the_end_of_an_override_moves_back_with_the_clock_and_none_stays_none() {
    let server = LuaServer::new();
    for (before, after) in [(0, 0), (1, 1), (5, 1), (3_999_992, 2), (3_999_999, 9), (4_000_005, 15)] {
        step_back_near_the_beginning(&server, (0, 0), &format!("o 7 1 42 {before} ops why"));
        assert_eq!(line_of(&server, "o"), format!("o 7 1 42 {after} ops why"));
    }
}

#[test]
fn evidence_moves_back_with_the_clock_and_an_open_call_is_closed() {
    let server = LuaServer::new();
    for (before, after) in
        [("5 7 0 5 3 9", "0 0 0 0 0 9"), ("3999995 3999999 0 3999999 3 4000001", "5 9 0 0 0 4000001")]
    {
        step_back_near_the_beginning(&server, (0, 0), &format!("e {before} 77"));
        assert_eq!(line_of(&server, "e"), format!("e {after} 77"));
    }
}

#[test]
fn a_slow_quantile_moves_back_with_the_clock_from_its_first_microsecond_on() {
    let server = LuaServer::new();
    for (before, after) in [((1, 3_999_995), [1, 5]), ((1, 1), [1, 1]), ((3_999_993, 3_999_995), [3, 5])] {
        step_back_near_the_beginning(&server, before, "z");
        let head: Vec<i64> = line_of(&server, "2").split(' ').map(|field| field.parse().unwrap()).collect();
        assert_eq!([head[SLOW_SINCE], head[SLOW_SEEN]], after);
    }
}

#[test]
fn a_restored_breaker_was_not_closed_before_the_beginning_of_the_clock() {
    for (age, since) in [(2, 3), (5, 0), (6, 0), (9, 0)] {
        let server = fresh_server();
        server.clock().set(Time::from_micros(5));
        let claim = Claim { epoch: 6, phase: Phase::Closed, age: Duration::from_micros(age), ..NO_CLAIM };
        Circuit { claim, ..steady(0) }.sync(server, &[]);
        assert_eq!(fields(server)[SINCE], since, "closed for {age} µs");
    }
}

/// Sends calls of one kind as a replica of a fleet of two, all of them bad.
fn send_as_one_of_two(server: &LuaServer, circuit: &Circuit, kind: u8) {
    let window = if kind == FAILURE { "4 4 0 4" } else { "4 0 4 0" };
    let args = args![2, 50_000, 0, window, 1, next_number(), 1, kind, 4, 0, 0];
    assert_eq!(circuit.ask_as(server, 1, &BREAKER_SYNC, &args).0.flags, 0);
}

#[test]
fn the_first_evidence_of_a_breaker_is_stored_field_by_field() {
    let spec = BreakerSpec::failure_ratio(0.5).or_slow_call_ratio(0.5, SLOW).min_throughput(2);
    let circuit = Circuit { spec, ..steady(0) };
    let ends = NOW + 50_000;
    let mut closed = half_open();
    closed.truncate(LEASES);
    (closed[PHASE], closed[EPOCH]) = (CLOSED, 1);
    let stored = format!("{}\n", text_of(&closed));
    for stored in [None, Some(stored)] {
        let store = |server: &LuaServer| {
            if let Some(text) = &stored {
                server.put(KEY, Stored::Text(text.clone().into_bytes()));
            }
        };
        let server = fresh_server();
        store(server);
        send_as_one_of_two(server, &circuit, SLOW_SUCCESS);
        assert_eq!(line_of(server, "e"), format!("e 0 0 1 {NOW} 2 {ends}"), "no failure in a row");
        server.flush();
        store(server);
        send_as_one_of_two(server, &circuit, FAILURE);
        assert_eq!(line_of(server, "e"), format!("e {NOW} {NOW} 0 {NOW} 2 {ends}"));
        server.flush();
        store(server);
        circuit.sync(server, &[(1, FAILURE, 1, 0)]);
        assert_eq!(line_of(server, "e"), format!("e {NOW} {NOW} 0 0 0 0"), "nobody is asked");
    }
}

#[test]
fn a_spec_of_an_earlier_release_has_no_quorum() {
    let server = LuaServer::new();
    let spec = spec_text(&steady(0).spec, 0);
    let spec: Vec<_> = spec.split(' ').take(16).collect();
    let mut args = args![spec.join(" "), "0 1 0 0 0", "ph2:news", "id7@1", 0.5];
    args.extend(args![2, 50_000, 0, "0 0 0 0", 0]);
    run(&server, &BREAKER_SYNC, &args);
    assert_eq!(server.get(EVIDENCE), None, "without a quorum a poll brings no evidence");
}

#[test]
fn what_a_claim_leaves_out_of_its_entry_is_zero() {
    for (entry, overridden, adopted) in [
        ("", 0, 0),
        ("7", 0, 8),
        ("7 1", 0, 8),
        ("7 1 42", 0, 8),
        ("7 1 42 x", 0, 8),
        ("x 1 42 -1", 0, 0),
        ("7 1 42 9", 1, 8),
    ] {
        let server = fresh_server();
        let state = Circuit { claim: Claim { entry, ..NO_CLAIM }, ..steady(0) }.sync(server, &[]);
        assert_eq!((state.overridden, state.flags), (overridden, adopted), "{entry:?}");
    }
}

#[test]
fn an_override_of_a_later_release_is_kept_and_not_applied() {
    for (value, overridden) in [(4, 4), (5, 0)] {
        let server = fresh_server();
        put_with(server, &half_open(), &format!("o 7 {value} 42 0 - -"));
        assert_eq!(steady(0).inspect(server).0.overridden, overridden, "value {value}");
    }
}
