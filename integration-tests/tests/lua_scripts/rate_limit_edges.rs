//! A bucket at exact levels and times, and the stored values that it believes.

use std::time::Duration;

use phalanx_lua::{RATE_LIMIT_ACQUIRE, RATE_LIMIT_PEEK, RATE_LIMIT_REFUND, RATE_LIMIT_RETUNE};
use phalanx_testkit::lua_server::{LuaServer, Stored};

use crate::harness::*;

/// The initial time of a server.
const NOW: i64 = 1_700_000_000_000_000;
const MAX_UNITS: i64 = 1 << 52;

/// No leases and no abandoned places.
const EMPTY: &str = " 0 0 0 0 0 0 0 0 0 0 0 0";

/// A rate as the scripts take it: gain, price, capacity.
type Units = [i64; 3];

/// Two units a microsecond, ten units a permit, three permits.
const RATE: Units = [2, 10, 30];

fn units(rate: Units) -> Vec<Vec<u8>> {
    args![rate[0], rate[1], rate[2]]
}

fn put(server: &LuaServer, level: i64, at: i64, rate: Units) {
    let [gain, price, capacity] = rate;
    server.put(KEY, Stored::Text(format!("2 {level} {at} {gain} {price} {capacity}{EMPTY}").into_bytes()));
}

/// Returns level and flags.
fn peek(server: &LuaServer, rate: Units) -> [i64; 2] {
    let reply = run(server, &RATE_LIMIT_PEEK, &units(rate)).ints();
    [reply[1], reply[2]]
}

/// Acquires one permit for each of `count` callers that do not wait. Returns how many are granted.
fn acquire(server: &LuaServer, rate: Units, count: u64) -> i64 {
    run(server, &RATE_LIMIT_ACQUIRE, &[units(rate), args![0, 1, count, 1, 0]].concat()).ints()[3]
}

/// Refunds permits that are due in this number of microseconds. Returns the level.
fn refund(server: &LuaServer, rate: Units, permits: u64, due_in: i64) -> i64 {
    let due = now(server).as_micros().saturating_add_signed(due_in);
    run(server, &RATE_LIMIT_REFUND, &[units(rate), args![1, permits, due]].concat()).ints()[1]
}

fn retune(server: &LuaServer, old: Units, new: Units) -> [i64; 2] {
    let reply = run(server, &RATE_LIMIT_RETUNE, &[units(old), units(new)].concat()).ints();
    [reply[1], reply[2]]
}

#[test]
fn a_stored_level_and_time_are_believed_within_their_range_and_not_one_beyond() {
    // A double holds no odd number above 2^53.
    let cases = [
        (30, NOW, [30, 0]),
        (31, NOW, [0, 1]),
        (-MAX_UNITS, NOW, [-MAX_UNITS, 0]),
        (-MAX_UNITS - 1, NOW, [0, 1]),
        (7, 2 * MAX_UNITS, [7, 0]),
        (7, 2 * MAX_UNITS + 2, [0, 1]),
        (7, 0, [30, 0]),
    ];
    for (level, at, reply) in cases {
        let server = fresh_server();
        put(server, level, at, RATE);
        assert_eq!(peek(server, RATE), reply, "level {level} at {at}");
    }
}

#[test]
fn a_stored_rate_is_believed_within_its_range_and_not_one_beyond() {
    let cases = [
        ([0, 10, 30], 1),
        ([1, 10, 30], 2),
        ([2 * MAX_UNITS, 10, 30], 2),
        ([2 * MAX_UNITS + 2, 10, 30], 1),
        ([2, 0, 30], 1),
        ([2, 1, 30], 2),
        ([2, 30, 30], 2),
        ([2, 31, 30], 1),
        ([2, MAX_UNITS, MAX_UNITS], 2),
        ([2, 10, MAX_UNITS], 2),
        ([2, 10, MAX_UNITS + 1], 1),
    ];
    for (stored, flags) in cases {
        let server = fresh_server();
        put(server, 20, NOW, stored);
        assert_eq!(peek(server, RATE)[1], flags, "{stored:?}");
    }
    let server = fresh_server();
    put(server, 50, NOW, [2, 10, 50]);
    assert_eq!(peek(server, RATE), [30, 2], "full by the rate it was stored with");
    put(server, 51, NOW, [2, 10, 50]);
    assert_eq!(peek(server, RATE), [0, 1]);
    put(server, 31, NOW, RATE);
    assert_eq!(peek(server, [2, 10, 50]), [0, 1], "more than the rate it was stored with can hold");
}

/// Its level is never enough for a permit of any rate, and a rejection writes nothing, so it would stay as it is.
#[test]
fn a_bucket_whose_stored_rate_holds_no_permit_is_repaired_and_refills() {
    let server = fresh_server();
    put(server, 20, NOW, [2, 31, 30]);
    assert_eq!(acquire(server, RATE, 1), 0);
    server.clock().advance(Duration::from_micros(15));
    assert_eq!(peek(server, RATE), [30, 0]);
    assert_eq!(acquire(server, RATE, 3), 3);
}

#[test]
fn a_clock_that_steps_back_by_a_second_stops_the_bucket_and_by_more_moves_it() {
    let server = LuaServer::new();
    put(&server, 5, NOW + 1_000_000, RATE);
    let before = raw(&server);
    assert_eq!(acquire(&server, RATE, 1), 0);
    assert_eq!(raw(&server), before, "a rejection writes nothing");
    put(&server, 5, NOW + 1_000_001, RATE);
    assert_eq!(acquire(&server, RATE, 1), 0);
    assert_eq!(server.get(KEY).unwrap(), format!("2 5 {NOW} 2 10 30{EMPTY}").into_bytes());
}

#[test]
fn a_bucket_is_kept_for_twice_the_time_to_full_and_a_second() {
    let server = LuaServer::new();
    // One unit a microsecond, a million units: a second to full from empty.
    let rate = [1, 1_000, 1_000_000];
    assert_eq!(acquire(&server, rate, 1_000), 1_000);
    assert_eq!(raw(&server).1, Some(2_000 + 1_000));
    put(&server, 999_999, NOW, rate);
    assert_eq!(acquire(&server, rate, 1), 1);
    assert_eq!(raw(&server).1, Some(3 + 1_000), "1,001 µs to full, twice, rounded up to milliseconds");
    put(&server, 1_000_000, NOW + 1_000_000, rate);
    assert_eq!(acquire(&server, rate, 1), 1);
    assert_eq!(raw(&server).1, Some(2 + 2_000 + 1_000), "a clock that stopped for a second starts first");
    let fast = [4, 1_000, 1_000_000];
    server.flush();
    assert_eq!(acquire(&server, fast, 1_000), 1_000);
    assert_eq!(raw(&server).1, Some(500 + 1_000));
}

/// Three units of debt take two microseconds, rounded up; half the time of a permit is 2.5 µs, rounded down.
#[test]
fn a_refund_counts_if_it_is_due_no_earlier_than_the_end_of_the_queue() {
    for (due_in, level) in [(-1, -3), (0, 7)] {
        let server = fresh_server();
        put(server, -3, NOW, RATE);
        let before = raw(server);
        assert_eq!(refund(server, RATE, 1, due_in), level, "due in {due_in} µs");
        assert_eq!(raw(server) == before, level == -3, "a lapsed refund writes nothing");
    }
    for (level, after) in [(0, 10), (1, 11), (25, 30), (30, 30)] {
        let server = fresh_server();
        put(server, level, NOW, RATE);
        let before = raw(server);
        assert_eq!(refund(server, RATE, 1, 0), after, "without a queue a refund counts");
        assert_eq!(raw(server) == before, level == after, "an unchanged level is not written");
    }
    // Two units a microsecond have been refilled since; a time that was not reached yet is of a clock that was set back.
    for (due_in, after) in [(-1, 8), (-4, 2), (-5, 0), (-1_000_000, 0), (1, 0)] {
        let server = fresh_server();
        put(server, 0, NOW, RATE);
        assert_eq!(refund(server, RATE, 1, due_in), after, "due in {due_in} µs");
    }
    let server = fresh_server();
    put(server, -3, NOW + 5, RATE);
    assert_eq!(refund(server, RATE, 1, 4), -3, "the queue ends later while the clock stands still");
    assert_eq!(refund(server, RATE, 1, 5), 7);
}

#[test]
fn a_refund_returns_no_more_than_can_be_counted() {
    let server = LuaServer::new();
    put(&server, -MAX_UNITS, NOW, RATE);
    assert_eq!(refund(&server, RATE, 1 << 52, MAX_UNITS), 0);
    assert_eq!(refund(&server, RATE, 1 << 52, 0), 30);
}

#[test]
fn a_refund_to_a_missing_bucket_writes_nothing() {
    let server = LuaServer::new();
    assert_eq!(refund(&server, RATE, 1, 0), 30);
    assert!(server.keys().is_empty());
}

#[test]
fn a_converted_level_keeps_whole_permits_and_less_than_its_fraction() {
    let server = LuaServer::new();
    // Five tenths of a permit are 500 of 1,000 units; one is taken off, so that nothing is minted.
    for (level, converted) in [(20, 2_000), (25, 2_499), (-5, -501), (-20, -2_000)] {
        put(&server, level, NOW, RATE);
        assert_eq!(peek(&server, [2, 1_000, 3_000]), [converted, 2], "{level}");
    }
    put(&server, -MAX_UNITS, NOW, [1, 1, 30]);
    assert_eq!(peek(&server, RATE), [-MAX_UNITS, 2], "no more debt than can be counted");
}

#[test]
fn a_retune_writes_only_what_it_changes_and_flags_a_third_rate() {
    let (slow, fast) = ([1, 10, 30], [2, 10, 20]);
    let server = LuaServer::new();
    assert_eq!(retune(&server, fast, fast), [20, 0]);
    assert!(server.keys().is_empty(), "a missing bucket is full");
    assert_eq!(retune(&server, fast, slow), [20, 0]);
    assert_eq!(peek(&server, slow), [20, 0], "a missing bucket was full by the old rate");
    server.flush();
    assert_eq!(retune(&server, slow, fast), [20, 0]);
    assert!(server.keys().is_empty(), "and is full by the new one");

    put(&server, 10, NOW, RATE);
    let before = raw(&server);
    assert_eq!(retune(&server, slow, RATE), [10, 0]);
    assert_eq!(raw(&server), before, "stored by the new rate already");
    assert_eq!(retune(&server, slow, fast), [10, 2], "stored by a third rate");
    assert_eq!(peek(&server, fast), [10, 0]);
    assert_eq!(retune(&server, fast, slow), [10, 0]);
    assert_eq!(server.get(KEY).unwrap(), format!("2 10 {NOW} 1 10 30{EMPTY}").into_bytes());
}
