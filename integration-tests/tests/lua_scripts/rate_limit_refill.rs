//! The refill of a bucket with leased permits and abandoned places, at exact microseconds and at numbers that barely fit.

use std::time::Duration;

use phalanx_core::clock::Time;
use phalanx_lua::{RATE_LIMIT_ACQUIRE, RATE_LIMIT_PEEK, RATE_LIMIT_REFUND, RATE_LIMIT_RETUNE};
use phalanx_testkit::lua_server::{LuaServer, Stored};

use crate::harness::*;

/// The initial time of a server.
const NOW: u64 = 1_700_000_000_000_000;
const MAX_UNITS: i64 = 1 << 52;

/// Gain, price, capacity.
type Rate = [i64; 3];

/// One unit a microsecond, a thousand units a permit, 1,600 permits.
const RATE: Rate = [1, 1_000, 1_600_000];
/// Two units a microsecond, ten units a permit, three permits.
const SMALL: Rate = [2, 10, 30];

fn rate_args(rate: Rate) -> Vec<Vec<u8>> {
    args![rate[0], rate[1], rate[2]]
}

/// A lease lasts seven slots.
fn slot_of([gain, _, capacity]: Rate) -> u64 {
    ((200_000.min(capacity / (8 * gain)) / 7) as u64).max(1)
}

/// Stores a bucket at this time with these leases (slots after the present one, and permits) and abandoned places.
fn put(server: &LuaServer, rate: Rate, level: i64, leases: &[(u64, i64)], abandoned: [i64; 2]) {
    let mut sums = [0; 8];
    let first = now(server).as_micros() / slot_of(rate);
    for (slot, permits) in leases {
        sums[((first + slot) % 8) as usize] += permits;
    }
    let words: Vec<_> = sums.iter().chain(&abandoned).map(i64::to_string).collect();
    let [gain, price, capacity] = rate;
    let text = format!("2 {level} {} {gain} {price} {capacity} {}", now(server).as_micros(), words.join(" "));
    server.put(KEY, Stored::Text(text.into_bytes()));
}

/// Moves the clock to this many microseconds after the beginning of the slot that is this many after that of the start.
fn wait_until(server: &LuaServer, rate: Rate, slot: u64, micros: i64) {
    let begins = (NOW / slot_of(rate) + slot) * slot_of(rate);
    let by = begins.saturating_add_signed(micros) - now(server).as_micros();
    server.clock().advance(Duration::from_micros(by));
}

/// Returns level and flags.
fn peek(server: &LuaServer, rate: Rate) -> [i64; 2] {
    let reply = run(server, &RATE_LIMIT_PEEK, &rate_args(rate)).ints();
    [reply[1], reply[2]]
}

/// Acquires a permit for one caller that may wait for this long, so that the bucket is written. Returns how many are granted.
fn acquire(server: &LuaServer, rate: Rate, wait: u64) -> i64 {
    run(server, &RATE_LIMIT_ACQUIRE, &[rate_args(rate), args![0, 1, 1, 1, wait]].concat()).ints()[3]
}

/// The twelve numbers of the tail: the sums of leased permits, the abandoned places, the length of a slot and a pause.
fn tail(server: &LuaServer) -> Vec<i64> {
    let text = String::from_utf8(server.get(KEY).unwrap()).unwrap();
    text.split(' ').skip(6).map(|word| word.parse().unwrap()).collect()
}

fn leased(server: &LuaServer) -> i64 {
    tail(server)[..8].iter().sum()
}

#[test]
fn a_lease_ends_at_the_microsecond_its_slot_ends() {
    let rates =
        [RATE, [2, 1_000, 1_600_000], [1, 1_000, 16_000_000], [3, 1_000, 168_000], SMALL, [1, 1, 112], [1, 1, 55]];
    for rate in rates {
        let [gain, price, capacity] = rate;
        let permits = capacity / price - 1;
        for slot in [0, 3, 7] {
            let server = fresh_server();
            put(server, rate, price, &[(slot, permits)], [0, 0]);
            wait_until(server, rate, slot + 1, -1);
            let before = if slot > 0 || slot_of(rate) > 1 { peek(server, rate)[0] } else { price };
            assert_eq!(before, price, "full with its leases: {rate:?}, slot {slot}");
            wait_until(server, rate, slot + 1, 0);
            assert_eq!(peek(server, rate), [price, 0]);
            wait_until(server, rate, slot + 1, 3);
            assert_eq!(peek(server, rate)[0], (price + 3 * gain).min(capacity), "{rate:?}, slot {slot}");
        }
    }
}

#[test]
fn a_lease_that_has_just_ended_is_not_kept_for_another_round_of_slots() {
    let server = LuaServer::new();
    put(&server, RATE, 500_000, &[(2, 300), (4, 500)], [0, 0]);
    wait_until(&server, RATE, 3, -1);
    assert_eq!(acquire(&server, RATE, 0), 1);
    assert_eq!(leased(&server), 800);
    wait_until(&server, RATE, 3, 0);
    assert_eq!(acquire(&server, RATE, 0), 1);
    assert_eq!(leased(&server), 500);
}

#[test]
fn a_level_above_the_room_that_leases_leave_stays_as_it_is() {
    let server = LuaServer::new();
    put(&server, RATE, RATE[2], &[(7, 5)], [0, 0]);
    for slot in 1..9 {
        wait_until(&server, RATE, slot, 0);
        assert_eq!(peek(&server, RATE), [RATE[2], 0], "slot {slot}");
    }
}

#[test]
fn sums_of_leases_that_are_too_high_leave_no_room_and_end_like_others() {
    let server = LuaServer::new();
    put(&server, SMALL, -MAX_UNITS, &[(7, MAX_UNITS)], [0, 0]);
    server.clock().advance(Duration::from_micros(7));
    assert_eq!(peek(&server, SMALL), [-MAX_UNITS, 0], "leased beyond any capacity");
    server.clock().advance(Duration::from_micros(2));
    assert_eq!(peek(&server, SMALL), [-MAX_UNITS + 2, 0]);
    server.flush();
    put(&server, SMALL, 0, &[(2, MAX_UNITS), (3, MAX_UNITS), (5, MAX_UNITS)], [0, 0]);
    server.clock().advance(SECOND);
    assert_eq!(peek(&server, SMALL), [30, 0]);

    put(&server, SMALL, 20, &[(7, MAX_UNITS)], [0, 0]);
    let retuned = run(&server, &RATE_LIMIT_RETUNE, &[rate_args(SMALL), args![2, 10, 50]].concat()).ints();
    assert_eq!(retuned[1..], [-MAX_UNITS, 0], "no more debt than can be counted");
    assert_eq!(peek(&server, [2, 10, 50]), [-MAX_UNITS, 0]);
}

#[test]
fn one_leased_permit_is_kept_for_a_whole_lease_when_the_clock_is_set_far_back() {
    let server = LuaServer::new();
    put(&server, RATE, 0, &[(0, 1)], [0, 0]);
    server.clock().step_back(Duration::from_secs(3_600));
    assert_eq!(acquire(&server, RATE, 1_000), 1);
    assert_eq!(leased(&server), 1);
    let slot = slot_of(RATE);
    let end = (now(&server).as_micros() / slot + 8) * slot;
    server.clock().advance(Duration::from_micros(end - 1 - now(&server).as_micros()));
    assert_eq!(acquire(&server, RATE, 0), 1);
    assert_eq!(leased(&server), 1);
    server.clock().advance(Duration::from_micros(1));
    assert_eq!(acquire(&server, RATE, 0), 1);
    assert_eq!(leased(&server), 0);
}

/// A queue of 10 ms; of its places some are abandoned, from this many units after its head on.
#[test]
fn abandoned_places_move_with_the_queue_until_it_is_gone() {
    let cases = [
        // The queue, where the abandoned places are and how many, and what is left of them a millisecond later.
        (10_000, [5_000, 2_000], [4_000, 2_000]),
        (10_000, [1_000, 2_000], [0, 2_000]),
        (10_000, [400, 2_000], [0, 1_400]),
        (10_000, [0, 2_000], [0, 1_000]),
        (10_000, [0, 1_000], [0, 0]),
        (10_000, [0, 1_001], [0, 1]),
        (10_000, [5_000, 1], [4_000, 1]),
        (10_000, [5_000, 0], [0, 0]),
        (1_001, [0, 5_000], [0, 4_000]),
        (1_000, [0, 5_000], [0, 0]),
        (999, [0, 5_000], [0, 0]),
    ];
    for (queue, before, after) in cases {
        let server = fresh_server();
        put(server, RATE, -queue, &[], before);
        server.clock().advance(Duration::from_millis(1));
        assert_eq!(acquire(server, RATE, 1_000_000), 1);
        assert_eq!(tail(server)[8..10], after, "{before:?} of {queue}");
    }
}

#[test]
fn a_text_of_4_096_bytes_is_a_bucket_and_a_longer_one_is_not() {
    let server = LuaServer::new();
    put(&server, RATE, 5_000, &[], [0, 0]);
    let text = String::from_utf8(server.get(KEY).unwrap()).unwrap() + " ";
    for (length, reply) in [(4_096, [5_000, 0]), (4_097, [0, 1])] {
        let long = format!("{text}{}", "7".repeat(length - text.len()));
        server.put(KEY, Stored::Text(long.into_bytes()));
        assert_eq!(peek(&server, RATE), reply, "{length} bytes");
    }
}

#[test]
fn a_charge_without_callers_is_taken() {
    let server = LuaServer::new();
    let charge =
        |permits: u64| run(&server, &RATE_LIMIT_ACQUIRE, &[rate_args(RATE), args![permits, 0]].concat()).ints();
    assert_eq!(charge(7), [NOW as i64, RATE[2] - 7_000, 0]);
    assert_eq!(peek(&server, RATE), [RATE[2] - 7_000, 0]);
    let before = raw(&server);
    charge(0);
    assert_eq!(raw(&server), before, "nothing is charged, and nothing written");
}

/// Refunds permits that were due at this time. Returns the level.
fn refund(server: &LuaServer, rate: Rate, permits: u64, due: u64) -> i64 {
    run(server, &RATE_LIMIT_REFUND, &[rate_args(rate), args![1, permits, due]].concat()).ints()[1]
}

#[test]
fn a_refund_leaves_room_for_the_leases_of_every_slot() {
    for slot in 0..8 {
        let server = fresh_server();
        put(server, RATE, 0, &[(slot, 600)], [0, 0]);
        assert_eq!(refund(server, RATE, 5_000, NOW), 1_000_000, "slot {slot}");
    }
}

#[test]
fn what_was_refilled_since_a_permit_was_due_is_not_refunded_and_neither_is_the_future() {
    for (due, level) in [(NOW, 6_000), (NOW - 600, 5_400), (NOW - 1_000, 5_000), (NOW + 1, 5_000), (0, 5_000)] {
        let server = fresh_server();
        put(server, RATE, 5_000, &[], [0, 0]);
        assert_eq!(refund(server, RATE, 1, due), level, "due at {due}");
    }
    let server = fresh_server();
    server.clock().set(Time::from_micros(5));
    put(server, RATE, 0, &[], [0, 0]);
    assert_eq!(refund(server, RATE, 0, 5), 0, "no permits");
}

#[test]
fn an_abandoned_place_is_kept_where_it_is_in_the_queue() {
    let fast: Rate = [2, 1_000, 1_600_000];
    let cases = [
        // The rate, the queue in units, the places that were abandoned before, a refund and when it is due, and the places.
        (RATE, 10_000, [0, 0], (5, 2_000), [0, 2_000]),
        (RATE, 10_000, [0, 0], (1, 8_000), [6_999, 1_000]),
        (fast, 20_000, [0, 0], (1, 8_000), [14_998, 1_000]),
        (fast, 20_000, [0, 0], (5, 1_000), [0, 2_000]),
        (RATE, 10_000, [5_000, 1_000], (1, 0), [5_000, 1_000]),
        (RATE, 10_000, [5_000, 1_000], (1, 3_000), [1_999, 2_000]),
        (RATE, 10_000, [1_000, 1_000], (1, 8_000), [1_000, 2_000]),
    ];
    for (rate, queue, before, (permits, due), after) in cases {
        let server = fresh_server();
        put(server, rate, -queue, &[], before);
        let stored = raw(server);
        assert_eq!(refund(server, rate, permits, NOW + due), -queue);
        assert_eq!(tail(server)[8..10], after, "{permits} due in {due} µs, {before:?}");
        assert_eq!(raw(server) == stored, before == after, "written only if a place was added");
    }
}

/// Waits are rounded up, so half the time of a permit may be between them and the end of the queue.
#[test]
fn abandoned_places_at_the_end_of_the_queue_are_given_back() {
    let odd: Rate = [1, 1_001, 1_601_600];
    let cases = [
        // The rate, the abandoned places of a queue of 10,000 units, and the level after a refund that has lapsed.
        (RATE, [8_500, 1_000], -9_000),
        (RATE, [8_499, 1_000], -10_000),
        (RATE, [9_500, 1], -9_999),
        (RATE, [9_499, 1], -9_999),
        (RATE, [9_498, 1], -10_000),
        (RATE, [9_500, 0], -10_000),
        (RATE, [10_000, 1_000], -10_000),
        (RATE, [20_000, 1_000], -10_000),
        (odd, [8_500, 1_000], -9_000),
        (odd, [8_499, 1_000], -10_000),
    ];
    for (rate, abandoned, level) in cases {
        let server = fresh_server();
        put(server, rate, -10_000, &[], abandoned);
        assert_eq!(refund(server, rate, 1, NOW), level, "{abandoned:?}");
        let gone = level > -10_000 || abandoned[0] >= 10_000;
        assert_eq!(tail(server)[8..10], if gone { [0, 0] } else { abandoned }, "{abandoned:?}");
    }
}
