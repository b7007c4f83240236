//! A bucket with a corrupt key, and edge cases.

use std::time::Duration;

use phalanx_core::rate_limit::{Rate, RateLimitSpec};
use phalanx_lua::{RATE_LIMIT_ACQUIRE, RATE_LIMIT_PEEK, RATE_LIMIT_REFUND, RATE_LIMIT_RETUNE};
use phalanx_testkit::lua_server::{LuaServer, Stored};
use proptest::prelude::*;

use crate::harness::*;
use crate::rate_limit::{rate_args, rates};

fn acquire(server: &LuaServer, rate: Rate, groups: &[(u64, u64, u64)]) -> Vec<i64> {
    let mut args = rate_args(rate);
    args.extend(args![0, groups.len()]);
    args.extend(groups.iter().flat_map(|(count, cost, wait)| args![count, cost, wait]));
    run(server, &RATE_LIMIT_ACQUIRE, &args).ints()
}

fn level(server: &LuaServer, rate: Rate) -> i64 {
    run(server, &RATE_LIMIT_PEEK, &rate_args(rate)).ints()[1]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(250))]

    /// Corrupt bytes are at worst one empty bucket, never a second full one.
    #[test]
    fn any_bytes_are_repaired_to_a_bucket_that_grants_no_more_than_its_burst(bytes in foreign(5)) {
        let server = fresh_server();
        let rate = rates()[0];
        server.put(KEY, bytes);
        let peeked = run(server, &RATE_LIMIT_PEEK, &rate_args(rate)).ints();
        prop_assert!(peeked[1] <= rate.capacity as i64);
        let (mut granted, mut repaired) = (0, 0);
        for _ in 0..5 {
            let reply = acquire(server, rate, &[(9, 1, 0)]);
            prop_assert!(reply[1] <= rate.capacity as i64);
            granted += reply[3];
            repaired += reply[2] & 1;
        }
        prop_assert!(granted <= 3 && repaired <= 1);
        prop_assert_eq!(repaired, peeked[2] & 1, "a peek reports what a write repairs");
        if repaired > 0 {
            prop_assert_eq!(granted, 0, "empty, not full");
            prop_assert!(raw(server).1.is_some(), "repaired, with a TTL");
            server.clock().advance(Duration::from_millis(100));
            prop_assert_eq!(acquire(server, rate, &[(9, 1, 0)])[2..].to_vec(), vec![0, 1], "and it fills again");
        }
    }

    #[test]
    fn a_damaged_text_grants_no_more_than_the_burst(at in any::<prop::sample::Index>(), word in damage()) {
        let server = fresh_server();
        let rate = rates()[0];
        acquire(server, rate, &[(2, 1, 0)]);
        server.put(KEY, damaged(&server.get(KEY).unwrap(), at, &word));
        let refund = [rate_args(rate), args![1, 1, now(server).as_micros()]].concat();
        prop_assert!(run(server, &RATE_LIMIT_REFUND, &refund).ints()[1] <= rate.capacity as i64);
        let granted: i64 = (0..3).map(|_| acquire(server, rate, &[(9, 1, 0)])[3]).sum();
        prop_assert!(granted <= 3);
    }
}

#[test]
fn a_rejection_and_a_peek_write_nothing_and_do_not_extend_the_ttl() {
    let server = LuaServer::new();
    let rate = rates()[0];
    acquire(&server, rate, &[(3, 1, 0)]);
    let (text, mut left) = raw(&server);
    for _ in 0..9 {
        server.clock().advance(Duration::from_millis(10));
        assert_eq!(acquire(&server, rate, &[(1, 1, 0)])[3], 0);
        level(&server, rate);
        let now = raw(&server);
        assert_eq!(now.0, text);
        assert!(now.1 < left);
        left = now.1;
    }
}

#[test]
fn a_bucket_whose_anchor_is_an_hour_ahead_refills_from_the_first_rejection() {
    let server = LuaServer::new();
    let rate = rates()[0];
    acquire(&server, rate, &[(3, 1, 0)]);
    server.clock().step_back(Duration::from_secs(3_600));
    assert_eq!(acquire(&server, rate, &[(1, 1, 0)])[3], 0, "nothing minted");
    server.clock().advance(Duration::from_millis(100));
    assert_eq!(acquire(&server, rate, &[(9, 1, 0)])[3], 1);
}

#[test]
fn groups_are_served_in_order_and_each_with_its_own_max_wait() {
    let server = LuaServer::new();
    let rate = Rate::of(&RateLimitSpec::per_second(10).burst(3));
    let reply =
        acquire(&server, rate, &[(2, 1, 0), (4, 1, 200_000), (1, 0, 0), (1, 1, 0), (2, 4, u64::MAX), (1, 1, 300_000)]);
    assert_eq!(reply[3..], [2, 3, 1, 0, 0, 1]);
    assert_eq!(level(&server, rate), -3 * rate.price as i64);
}

#[test]
fn one_a_day_and_a_billion_a_second_both_work() {
    let server = LuaServer::new();
    let day = Duration::from_secs(86_400);
    let slow = Rate::of(&RateLimitSpec::new(1, day));
    assert_eq!(acquire(&server, slow, &[(9, 1, 0)])[3], 1);
    server.clock().advance(day - Duration::from_micros(1));
    assert_eq!(acquire(&server, slow, &[(9, 1, 0)])[3], 0);
    server.clock().advance(Duration::from_micros(1));
    assert_eq!(acquire(&server, slow, &[(9, 1, 0)])[3], 1);
    server.flush();
    let fast = Rate::of(&RateLimitSpec::per_second(1_000_000_000));
    assert_eq!(acquire(&server, fast, &[(1_000_000_001, 1, 0)])[3], 1_000_000_000);
    server.clock().advance(Duration::from_micros(7));
    assert_eq!(acquire(&server, fast, &[(10_000, 1, 0)])[3], 7_000);
}

#[test]
fn reservations_stay_within_the_countable_range() {
    let server = LuaServer::new();
    let rate = Rate::of(&RateLimitSpec::new(1, Duration::from_secs(3_600)).burst(1_000_000));
    assert_eq!(acquire(&server, rate, &[(9, 1_000_000, u64::MAX)])[3], 2);
    assert_eq!(acquire(&server, rate, &[(1_000_000, 1, u64::MAX)])[3], 250_999);
}

#[test]
fn another_rate_is_flagged_and_keeps_whole_permits() {
    let server = LuaServer::new();
    let (old, new) = (Rate::of(&RateLimitSpec::per_second(10)), Rate::of(&RateLimitSpec::per_minute(30)));
    acquire(&server, old, &[(4, 1, 0)]);
    let reply = acquire(&server, new, &[(2, 1, 0)]);
    assert_eq!(reply[1..], [6 * new.price as i64, 2, 2]);
    let retune = [rate_args(old), rate_args(new)].concat();
    assert_eq!(
        run(&server, &RATE_LIMIT_RETUNE, &retune).ints()[1..],
        [4 * new.price as i64, 0],
        "already at the new rate"
    );
    let back = [rate_args(new), rate_args(old)].concat();
    assert_eq!(run(&server, &RATE_LIMIT_RETUNE, &back).ints()[1..], [4 * old.price as i64, 0]);
    assert_eq!(level(&server, old), 4 * old.price as i64);
}

#[test]
fn a_sorted_set_under_the_key_is_overwritten() {
    let server = LuaServer::new();
    server.put(KEY, Stored::Sorted([(b"a".to_vec(), 1.0)].into()));
    let rate = rates()[0];
    assert_eq!(acquire(&server, rate, &[(1, 1, 0)])[1..], [0, 1, 0]);
    assert!(server.get(KEY).is_some());
}
