//! The record of a bucket: leased permits, abandoned places, charges, and what a later release appends. The sums are written
//! by hand, as by a release that did not store the length of their slots.

use phalanx_lua::{RATE_LIMIT_ACQUIRE, RATE_LIMIT_LEASE, RATE_LIMIT_PEEK, RATE_LIMIT_REFUND, RATE_LIMIT_RETUNE};
use phalanx_testkit::lua_server::{LuaServer, Stored};

use crate::harness::*;

const NOW: u64 = 1_700_000_000_000_000;

/// One permit a millisecond, 1,600 permits: a lease lasts 200 ms, and a slot 28,571 µs.
const RATE: [u64; 3] = [1, 1_000, 1_600_000];
const CAPACITY: i64 = 1_600_000;
const SLOT: u64 = 28_571;
/// The slot of now.
const FIRST: u64 = NOW / SLOT;

fn rate_args() -> Vec<Vec<u8>> {
    args![RATE[0], RATE[1], RATE[2]]
}

/// Stores a bucket at the time now with these leases (slots after the present one, and permits), abandoned places, and
/// what a later release has appended.
fn put(server: &LuaServer, level: i64, leases: &[(u64, u64)], abandoned: [u64; 2], rest: &str) {
    let mut sums = [0; 8];
    for (slot, permits) in leases {
        sums[((FIRST + slot) % 8) as usize] += permits;
    }
    let words: Vec<_> = sums.iter().chain(&abandoned).map(u64::to_string).collect();
    let text = format!("2 {level} {NOW} 1 1000 1600000 {}{rest}", words.join(" "));
    server.put(KEY, Stored::Text(text.into_bytes()));
}

/// The record, as words.
fn record(server: &LuaServer) -> Vec<String> {
    let text = String::from_utf8(server.get(KEY).unwrap()).unwrap();
    text.split(' ').map(str::to_owned).collect()
}

fn level(server: &LuaServer) -> i64 {
    run(server, &RATE_LIMIT_PEEK, &rate_args()).ints()[1]
}

/// Moves the clock to this many microseconds after the beginning of the present slot.
fn wait_until(server: &LuaServer, after_slot_began: u64) {
    let by = FIRST * SLOT + after_slot_began - now(server).as_micros();
    server.clock().advance(std::time::Duration::from_micros(by));
}

/// Acquires one permit for each of `callers`. Returns how many are granted.
fn acquire(server: &LuaServer, charge: u64, callers: u64) -> i64 {
    run(server, &RATE_LIMIT_ACQUIRE, &[rate_args(), args![charge, 1, callers, 1, 0]].concat()).ints()[3]
}

#[test]
fn a_bucket_whose_permits_are_all_leased_is_refilled_when_the_lease_ends_and_not_before() {
    let server = LuaServer::new();
    put(&server, 0, &[(7, 1_600)], [0, 0], "");
    for slot in 1..8 {
        wait_until(&server, slot * SLOT);
        assert_eq!(level(&server), 0, "leased until the end of the eighth slot");
    }
    wait_until(&server, 8 * SLOT - 1);
    assert_eq!(level(&server), 0);
    wait_until(&server, 8 * SLOT + 5_000);
    assert_eq!(level(&server), 5_000, "refilled from the end of the lease on");
}

#[test]
fn the_refill_leaves_room_for_leased_permits() {
    let server = LuaServer::new();
    put(&server, 950_000, &[(2, 400), (5, 200)], [0, 0], "");
    wait_until(&server, 3 * SLOT - 1);
    assert_eq!(level(&server), 1_000_000, "level + leased = capacity");
    wait_until(&server, 3 * SLOT + 10_000);
    assert_eq!(level(&server), 1_010_000, "the first lease has ended");
    wait_until(&server, 6 * SLOT);
    assert_eq!(level(&server), 1_000_000 + 3 * SLOT as i64, "below the room that the second leaves");
    wait_until(&server, 400 * SLOT);
    assert_eq!(level(&server), CAPACITY);
}

#[test]
fn every_script_keeps_the_leases_that_are_alive() {
    let server = LuaServer::new();
    let leased = |server: &LuaServer| record(server)[6..14].iter().map(|sum| sum.parse::<u64>().unwrap()).sum::<u64>();
    put(&server, 500_000, &[(1, 3), (6, 500)], [0, 0], "");
    assert_eq!(acquire(&server, 0, 100), 100);
    assert_eq!((leased(&server), level(&server)), (503, 400_000));
    wait_until(&server, 3 * SLOT);
    acquire(&server, 0, 1);
    assert_eq!(leased(&server), 500, "three ended");
    let refund = [rate_args(), args![1, 5_000, now(&server).as_micros()]].concat();
    assert_eq!(run(&server, &RATE_LIMIT_REFUND, &refund).ints()[1], 1_100_000, "a refund leaves room too");
    assert_eq!(leased(&server), 500);
    let retune = [rate_args(), args![1, 1_000, 800_000]].concat();
    assert_eq!(run(&server, &RATE_LIMIT_RETUNE, &retune).ints()[1], 300_000, "so does a smaller capacity");
    assert_eq!(leased(&server), 500);
    let retune = [args![1, 1_000, 800_000], args![1, 1_000, 100_000]].concat();
    assert_eq!(run(&server, &RATE_LIMIT_RETUNE, &retune).ints()[1], -400_000, "below zero if it must be");
}

#[test]
fn a_clock_that_is_set_far_back_keeps_leases_for_a_whole_one() {
    let server = LuaServer::new();
    put(&server, 0, &[(0, 600), (7, 1_000)], [0, 0], "");
    server.clock().step_back(std::time::Duration::from_secs(3_600));
    assert_eq!(acquire(&server, 0, 1), 0);
    let now = now(&server).as_micros();
    let end = (now / SLOT + 8) * SLOT - now;
    server.clock().advance(std::time::Duration::from_micros(end - 1));
    assert_eq!(level(&server), 0);
    server.clock().advance(std::time::Duration::from_micros(1_001));
    assert_eq!(level(&server), 1_000);
}

#[test]
fn what_a_later_release_appends_survives_this_one() {
    for leases in [&[][..], &[(7, 10)]] {
        let server = LuaServer::new();
        let rest = " 7 a:b -1.5 {x}";
        let ends = |server: &LuaServer| String::from_utf8(server.get(KEY).unwrap()).unwrap().ends_with(rest);
        put(&server, 900_000, leases, [0, 0], rest);
        assert_eq!(acquire(&server, 0, 10), 10);
        assert!(ends(&server), "{:?}", record(&server));
        let refund = [rate_args(), args![1, 5, NOW]].concat();
        assert_eq!(run(&server, &RATE_LIMIT_REFUND, &refund).ints()[1..], [895_000, 0]);
        assert!(ends(&server));
        let retune = [rate_args(), args![2, 1_000, 800_000]].concat();
        run(&server, &RATE_LIMIT_RETUNE, &retune);
        assert!(ends(&server));
        let words = record(&server);
        assert_eq!(words[6..14].iter().filter(|sum| *sum == "10").count(), leases.len(), "{words:?}");
    }
}

/// Draws so many permits, and closes blocks. Returns the level, the permits, the end of the lease and how long it lasts.
fn lease(server: &LuaServer, want: u64, closed: &[[u64; 3]]) -> [i64; 4] {
    let blocks = closed.iter().flat_map(|block| args![block[0], block[1], block[2]]).collect();
    let reply = run(server, &RATE_LIMIT_LEASE, &[rate_args(), args![want, closed.len()], blocks].concat()).ints();
    assert_eq!((reply[0], reply[2], reply.len()), (now(server).as_micros() as i64, 0, 6));
    [reply[1], reply[3], reply[4], reply[5]]
}

#[test]
fn a_draw_takes_what_is_there_and_writes_the_length_of_its_slots() {
    let server = LuaServer::new();
    let end = (now(&server).as_micros() / SLOT + 8) * SLOT;
    assert_eq!(lease(&server, 1_000, &[]), [600_000, 1_000, end as i64, 7 * SLOT as i64]);
    assert_eq!(record(&server)[16..], [SLOT.to_string(), "0".to_owned()]);
    assert_eq!(lease(&server, 1_000, &[])[..2], [0, 600]);
    let before = raw(&server);
    assert_eq!(lease(&server, 1_000, &[])[..2], [0, 0]);
    assert_eq!(raw(&server), before, "a draw that gets nothing writes nothing");
    assert_eq!(lease(&server, 0, &[[end, 1_000, 400]])[..2], [400_000, 0]);
    assert_eq!(lease(&server, 0, &[[end, 9_999, 9_999]])[..2], [1_000_000, 0], "600 were left in the slot");
    assert_eq!(record(&server)[6..], ["0"; 12], "as if nothing had been leased");
    assert_eq!(lease(&server, 0, &[[end, 1, 1]])[..2], [1_000_000, 0]);
}

#[test]
fn a_lease_that_has_ended_gives_nothing_back() {
    let server = LuaServer::new();
    let [_, _, end, _] = lease(&server, 1_600, &[]);
    server.clock().advance(std::time::Duration::from_micros(end as u64 - 1 - now(&server).as_micros()));
    assert_eq!(lease(&server, 0, &[[end as u64 - 1, 1, 1], [end as u64 + SLOT, 1, 1]])[0], 0, "no lease of these ends");
    assert_eq!(lease(&server, 0, &[[end as u64, 1_600, 10]])[0], 10_000);
    lease(&server, 10, &[]);
    server.clock().advance(std::time::Duration::from_micros(1 + 8 * SLOT));
    assert_eq!(lease(&server, 0, &[[end as u64, 1_600, 1_600]])[0], 8 * SLOT as i64 + 1 - 10_000 + 10_000);
}

#[test]
fn slots_keep_their_length_while_anything_is_leased_and_follow_the_rate_afterwards() {
    let server = LuaServer::new();
    lease(&server, 100, &[]);
    // A rate of an eighth of the capacity in 50 ms.
    let other = || args![4, 1_000, 1_600_000];
    let reply = run(&server, &RATE_LIMIT_LEASE, &[other(), args![5, 0]].concat()).ints();
    assert_eq!((reply[2], reply[5]), (2, 7 * SLOT as i64));
    server.clock().advance(std::time::Duration::from_millis(300));
    let reply = run(&server, &RATE_LIMIT_LEASE, &[other(), args![5, 0]].concat()).ints();
    assert_eq!((reply[2], reply[5]), (0, 7 * 7_142));
}

#[test]
fn a_cost_without_room_beside_leases_pauses_draws_once() {
    let server = LuaServer::new();
    let large =
        |cost: u64| run(&server, &RATE_LIMIT_ACQUIRE, &[rate_args(), args![0, 1, 1, cost, 0]].concat()).ints()[3];
    lease(&server, 600, &[]);
    assert_eq!(large(1_000), 1);
    acquire(&server, 0, 1);
    assert_eq!((large(1_000), record(&server)[17].as_str()), (0, "0"), "the leases leave room for it");
    assert_eq!(large(1_001), 0);
    let pause = now(&server).as_micros() + 14 * SLOT;
    assert_eq!(record(&server)[17], pause.to_string());
    let before = raw(&server);
    assert_eq!((large(1_001), raw(&server)), (0, before), "marked once");
    server.clock().advance(std::time::Duration::from_micros(14 * SLOT - 1));
    assert_eq!(lease(&server, 1, &[])[1], 0);
    server.clock().advance(std::time::Duration::from_micros(1));
    assert_eq!(lease(&server, 1, &[])[1], 1);
    assert_eq!(large(1_600), 0);
    assert_eq!(lease(&server, 1, &[])[1], 1, "not paused again for two leases");
    server.clock().advance(std::time::Duration::from_micros(399_999));
    assert_eq!(lease(&server, 1, &[])[1], 1);
    assert_eq!(large(1_600), 0);
    assert_eq!(lease(&server, 1, &[])[1], 1, "nor a microsecond earlier");
    server.clock().advance(std::time::Duration::from_micros(1));
    assert_eq!(large(1_600), 0);
    assert_eq!(lease(&server, 1, &[])[1], 0);
}

#[test]
fn a_pause_ends_when_the_cost_is_served_and_no_record_pauses_for_longer() {
    let server = LuaServer::new();
    let large = |cost: u64, wait: u64| {
        run(&server, &RATE_LIMIT_ACQUIRE, &[rate_args(), args![0, 1, 1, cost, wait]].concat()).ints()[3]
    };
    lease(&server, 600, &[]);
    assert_eq!((large(1_100, 0), large(1_100, 200_000)), (0, 1));
    assert_eq!(record(&server)[17], "0");
    let sums = "600 0 0 0 0 0 0 0 0 0";
    server.put(KEY, Stored::Text(format!("2 800000 {NOW} 1 1000 1600000 {sums} {SLOT} 9000000000000000").into_bytes()));
    assert_eq!(lease(&server, 1, &[])[1], 1, "foreign");
    server.put(
        KEY,
        Stored::Text(format!("2 800000 {NOW} 1 1000 1600000 {sums} {SLOT} {}", NOW + 14 * SLOT).into_bytes()),
    );
    assert_eq!(lease(&server, 1, &[])[1], 0);
    server.clock().step_back(std::time::Duration::from_secs(7));
    assert_eq!(lease(&server, 1, &[])[1], 1, "the clock was set back");
}

#[test]
fn a_tail_that_no_release_writes_is_corrupt_and_a_long_one_too() {
    for rest in ["x", "-", &format!(" {}", "7".repeat(4_096))] {
        let server = LuaServer::new();
        put(&server, 900_000, &[], [0, 0], rest);
        assert_eq!(
            run(&server, &RATE_LIMIT_ACQUIRE, &[rate_args(), args![0, 1, 1, 1, 0]].concat()).ints()[1..],
            [0, 1, 0]
        );
        assert!(server.get(KEY).unwrap().len() < 100);
    }
    let server = LuaServer::new();
    server.put(KEY, Stored::Text(format!("2 900000 {NOW} 1 1000 1600000 0 0").into_bytes()));
    assert_eq!(run(&server, &RATE_LIMIT_PEEK, &rate_args()).ints()[1..], [0, 1]);
}

#[test]
fn a_record_takes_at_most_300_bytes() {
    let server = LuaServer::new();
    let most = 1_u64 << 52;
    let rate = args![1_000_000_000, 1_000_000, most];
    let leases = [most / 1_000_000; 8].map(|sum| sum.to_string()).join(" ");
    let text = format!("2 -{most} 9007199254740991 1000000000 1000000 {most} {leases} {most} {most}");
    server.put(KEY, Stored::Text(text.into_bytes()));
    run(&server, &RATE_LIMIT_ACQUIRE, &[rate, args![0, 1, 1, 0, 0]].concat());
    assert!(server.get(KEY).unwrap().len() <= 300, "{}", server.get(KEY).unwrap().len());
}

#[test]
fn a_charge_is_taken_before_the_callers_and_down_to_a_debt_of_one_capacity() {
    let server = LuaServer::new();
    assert_eq!(acquire(&server, 600, 2_000), 1_000);
    assert_eq!(acquire(&server, 100, 1), 0);
    assert_eq!(level(&server), -100_000, "a rejection with a charge is written");
    assert_eq!(acquire(&server, 1_000_000, 1), 0);
    assert_eq!(level(&server), -CAPACITY);
    assert_eq!(acquire(&server, 5, 1), 0);
    assert_eq!(level(&server), -CAPACITY, "and no further");
    put(&server, -2 * CAPACITY, &[], [0, 0], "");
    let before = raw(&server);
    assert_eq!(acquire(&server, 5, 1), 0);
    assert_eq!(raw(&server), before, "waiters have reserved more");
}

#[test]
fn abandoned_places_move_with_the_queue_and_are_given_back_with_the_last_one() {
    let server = LuaServer::new();
    let refund = |due: u64| run(&server, &RATE_LIMIT_REFUND, &[rate_args(), args![1, 1, due]].concat()).ints()[1];
    let abandoned = || record(&server)[14..16].iter().map(|word| word.parse::<u64>().unwrap()).collect::<Vec<_>>();
    // Ten waiters, one a millisecond.
    put(&server, -10_000, &[], [0, 0], "");
    assert_eq!(refund(NOW + 8_000), -10_000);
    assert_eq!(abandoned(), [6_999, 1_000]);
    assert_eq!(refund(NOW + 9_000), -10_000);
    assert_eq!(abandoned(), [6_999, 2_000]);
    server.clock().advance(std::time::Duration::from_millis(2));
    assert_eq!(refund(NOW + 10_000), -5_000, "three places are free: seven waiters, of whom two have passed");
    assert_eq!(abandoned(), [0, 0]);
    // A place that the queue has reached is not given back.
    assert_eq!(refund(NOW + 4_000), -5_000);
    assert_eq!(abandoned(), [999, 1_000]);
    server.clock().advance(std::time::Duration::from_millis(3));
    assert_eq!(refund(NOW + 7_000), -1_000, "the last waiter's");
    assert_eq!(abandoned(), [0, 0]);
}
