//! Draws and closed blocks of leased permits: what a block gives back, and which pauses of draws are kept.

use std::time::Duration;

use phalanx_core::clock::Time;
use phalanx_lua::{RATE_LIMIT_ACQUIRE, RATE_LIMIT_LEASE};
use phalanx_testkit::lua_server::{LuaServer, Stored};

use crate::harness::*;

/// The length of a slot at one unit a microsecond and 1,600,000 units.
const SLOT: u64 = 28_571;
const CAPACITY: u64 = 1_600_000;

/// A server whose clock is this many microseconds from its zero, where the numbers of slots are small.
fn server_at(micros: u64) -> LuaServer {
    let server = LuaServer::new();
    server.clock().set(Time::from_micros(micros));
    server
}

/// Stores a bucket of one permit a millisecond, with these leases (number of the slot, and permits) and this end of a pause.
fn put(server: &LuaServer, level: i64, at: u64, leases: &[(u64, u64)], pause: u64) {
    let mut sums = [0; 8];
    for (number, permits) in leases {
        sums[(number % 8) as usize] += permits;
    }
    let sums = sums.map(|sum| sum.to_string()).join(" ");
    let text = format!("2 {level} {at} 1 1000 {CAPACITY} {sums} 0 0 {SLOT} {pause}");
    server.put(KEY, Stored::Text(text.into_bytes()));
}

/// The numbers of the record from this one on.
fn record(server: &LuaServer, first: usize) -> Vec<u64> {
    let text = String::from_utf8(server.get(KEY).unwrap()).unwrap();
    text.split(' ').skip(first).map(|word| word.parse().unwrap()).collect()
}

/// The length of the slots and the end of the pause, as stored.
fn slot_and_pause(server: &LuaServer) -> Vec<u64> {
    record(server, 16)
}

/// Draws permits and closes blocks (end, size, unspent permits). Returns the level and the permits.
fn lease(server: &LuaServer, capacity: u64, want: u64, closed: &[[u64; 3]]) -> [i64; 2] {
    let blocks = closed.iter().flat_map(|block| args![block[0], block[1], block[2]]).collect();
    let args = [args![1, 1_000, capacity, want, closed.len()], blocks].concat();
    let reply = run(server, &RATE_LIMIT_LEASE, &args).ints();
    [reply[1], reply[3]]
}

/// Acquires one permit, so that the bucket is written.
fn acquire(server: &LuaServer) {
    assert_eq!(run(server, &RATE_LIMIT_ACQUIRE, &args![1, 1_000, CAPACITY, 0, 1, 1, 1, 0]).ints()[3], 1);
}

#[test]
fn a_pause_is_kept_for_at_most_two_of_the_longest_leases_and_not_by_a_clock_that_was_set_back() {
    for (at, pause, kept) in [(5, 400_005, 400_005), (5, 400_006, 0), (2_000_000, 2_100_000, 0)] {
        let server = server_at(5);
        put(&server, 5_000, at, &[(0, 1)], pause);
        acquire(&server);
        assert_eq!(slot_and_pause(&server), [SLOT, kept], "until {pause}, stored at {at}");
    }
}

#[test]
fn a_record_of_a_release_without_pauses_has_none() {
    let server = server_at(5);
    let text = format!("2 5000 5 1 1000 {CAPACITY} 0 0 0 0 0 0 0 0 0 0");
    server.put(KEY, Stored::Text(text.into_bytes()));
    acquire(&server);
    assert_eq!(slot_and_pause(&server), [0, 0]);
}

#[test]
fn a_bucket_in_debt_leases_nothing() {
    let server = server_at(5);
    for level in [-5_000, -1, 0, 999] {
        put(&server, level, 5, &[], 0);
        assert_eq!(lease(&server, CAPACITY, 10, &[]), [level, 0]);
    }
    put(&server, 1_000, 5, &[], 0);
    assert_eq!(lease(&server, CAPACITY, 10, &[]), [0, 1]);
}

#[test]
fn a_closed_block_leaves_room_for_the_other_leases() {
    let server = server_at(5);
    // More than the capacity, as after a smaller rate.
    put(&server, 900_000, 5, &[(3, 600), (7, 600)], 0);
    assert_eq!(lease(&server, CAPACITY, 0, &[[8 * SLOT, 600, 600]])[0], 1_000_000);
}

#[test]
fn a_block_of_a_lease_that_no_draw_could_have_got_yet_is_not_closed() {
    let server = server_at(5);
    put(&server, 0, 5, &[(0, 600)], 0);
    assert_eq!(lease(&server, CAPACITY, 0, &[[9 * SLOT, 600, 600]])[0], 0, "it ends eight slots after the present one");
    assert_eq!(lease(&server, CAPACITY, 0, &[[SLOT, 600, 600]])[0], 600_000);
}

#[test]
fn a_draw_closes_nothing_that_is_no_block_of_its_arguments() {
    // The capacity could be the end of a lease, and what follows it the rest of a block.
    let capacity = 56 * SLOT;
    let server = server_at(48 * SLOT);
    assert_eq!(lease(&server, capacity, 1_000, &[])[1], 1_000);
    server.clock().advance(Duration::from_micros(7 * SLOT));
    assert_eq!(lease(&server, capacity, 5, &[])[1], 5);
    assert_eq!(record(&server, 6)[..8], [0, 0, 0, 0, 0, 0, 5, 1_000]);
}
