//! The scripts for membership, locks and the health check, and the Lua server itself.

use std::time::Duration;

use phalanx_core::clock::Time;
use phalanx_lua::{
    ALL, LOCK_ACQUIRE, LOCK_COMPLETE, LOCK_COMPLETED, LOCK_RELEASE, LOCK_RENEW, MEMBERSHIP_HEARTBEAT, MEMBERSHIP_LEAVE,
    PROBE, RATE_LIMIT_ACQUIRE,
};
use phalanx_testkit::lua_server::{LuaServer, Reply, Stored};
use proptest::prelude::*;

use crate::harness::*;

const SECOND_KEY: &[u8] = b"ph2:{t}:2";
const TTL: u64 = 5_000_000;

fn two_keys() -> [Vec<u8>; 2] {
    [KEY.to_vec(), SECOND_KEY.to_vec()]
}

/// Sends a heartbeat. Returns the number of live replicas and the generation.
fn heartbeat(server: &LuaServer, id: &str, ttl: u64, token: &str) -> (i64, String) {
    let reply = server.run(&MEMBERSHIP_HEARTBEAT, &two_keys(), &args![id, ttl, token, 0]).unwrap();
    let generation = String::from_utf8(reply.parts()[2].bytes().to_vec()).unwrap();
    (reply.parts()[1].int(), generation)
}

/// Acquires the lock for a caller that has seen no fence. Returns whether it is held, the fence, and the microseconds
/// left.
fn acquire(server: &LuaServer, owner: &str, ttl: u64) -> (bool, i64, i64) {
    acquire_after(server, owner, ttl, 0)
}

/// The same for a caller that has seen this fence.
fn acquire_after(server: &LuaServer, owner: &str, ttl: u64, seen: i64) -> (bool, i64, i64) {
    let reply = server.run(&LOCK_ACQUIRE, &two_keys(), &args![owner, ttl, seen]).unwrap().ints();
    assert!([0, 1].contains(&reply[1]));
    (reply[1] == 1, reply[2], reply[3])
}

fn renew(server: &LuaServer, owner: &str, fence: i64) -> bool {
    is_done(&run(server, &LOCK_RENEW, &args![owner, fence, TTL]))
}

fn release(server: &LuaServer, owner: &str, fence: i64) -> bool {
    is_done(&run(server, &LOCK_RELEASE, &args![owner, fence, "ph2:locks", "id"]))
}

fn complete(server: &LuaServer, owner: &str, fence: i64) -> bool {
    let args = args![owner, fence, 2 * TTL, "ph2:locks", "id"];
    is_done(&server.run(&LOCK_COMPLETE, &two_keys(), &args).unwrap())
}

/// Returns the fence of the completion mark; 0 if there is none.
fn completed(server: &LuaServer) -> i64 {
    server.run(&LOCK_COMPLETED, &[SECOND_KEY.to_vec()], &args![]).unwrap().ints()[1]
}

#[test]
fn live_replicas_are_counted_and_expired_ones_are_not() {
    let server = LuaServer::new();
    assert_eq!(heartbeat(&server, "a", TTL, "x"), (1, "x".to_owned()));
    assert_eq!(heartbeat(&server, "b", 3 * TTL, "y"), (2, "x".to_owned()), "the first token stays");
    assert_eq!(heartbeat(&server, "a", TTL, "z").0, 2, "a replica counts once");
    server.clock().advance(Duration::from_micros(TTL));
    assert_eq!(heartbeat(&server, "c", TTL, "z").0, 2, "one expired, one has a longer TTL, one is new");
    assert_eq!(run(&server, &MEMBERSHIP_LEAVE, &args!["c"]).ints()[1], 1);
    assert_eq!(run(&server, &MEMBERSHIP_LEAVE, &args!["c"]).ints()[1], 1);
    assert!(server.pttl(KEY).is_some() && server.pttl(SECOND_KEY) > Some(86_000_000));
}

#[test]
fn the_highest_number_of_expected_replicas_holds_while_one_that_sent_it_is_live() {
    let server = LuaServer::new();
    let expected = |id: &str, number: u32| {
        let reply = server.run(&MEMBERSHIP_HEARTBEAT, &two_keys(), &args![id, TTL, "x", number]).unwrap();
        assert_eq!(reply.parts()[2].bytes(), b"x", "the generation stays");
        reply.parts()[3].int()
    };
    assert_eq!([expected("a", 0), expected("b", 3), expected("c", 10)], [0, 3, 10]);
    server.clock().advance(Duration::from_micros(TTL / 2));
    assert_eq!([expected("a", 0), expected("b", 3)], [10, 10]);
    server.clock().advance(Duration::from_micros(TTL / 2));
    assert_eq!(
        [expected("a", 0), expected("b", 3), expected("a", 0)],
        [0, 3, 3],
        "the one that expects ten has expired"
    );
    assert_eq!(expected("a", u32::MAX), 100_000, "no more than can be configured");
    // A clock that was set back does not keep it for longer than the longest TTL.
    server.clock().step_back(Duration::from_secs(3_600));
    assert_eq!(expected("b", 3), 3);
    // What a later release appends is kept, and other text is replaced.
    let text = String::from_utf8(server.get(SECOND_KEY).unwrap()).unwrap();
    server.put(SECOND_KEY, Stored::Text(format!("{text} more").into_bytes()));
    assert_eq!(expected("b", 4), 4);
    assert!(server.get(SECOND_KEY).unwrap().ends_with(b" more"));
    for text in ["x", "x 1", "x 1 y", "", &"x".repeat(300)] {
        server.put(SECOND_KEY, Stored::Text(text.as_bytes().to_vec()));
        assert_eq!(expected("b", 2), 2, "{text}");
    }
}

#[test]
fn a_clock_that_steps_back_and_foreign_types_leave_no_member_forever() {
    let server = LuaServer::new();
    heartbeat(&server, "a", u64::MAX >> 12, "x");
    server.clock().step_back(Duration::from_secs(3_600));
    assert_eq!(heartbeat(&server, "b", TTL, "x").0, 1);
    server.put(KEY, Stored::Foreign);
    assert_eq!(run(&server, &MEMBERSHIP_LEAVE, &args!["b"]).ints()[1], 0);
    assert_eq!(heartbeat(&server, "b", TTL, "x").0, 1);
    server.put(SECOND_KEY, Stored::Foreign);
    assert_eq!(heartbeat(&server, "b", TTL, "fresh").1, "fresh");
    server.flush();
    assert_eq!(heartbeat(&server, "b", TTL, "later"), (1, "later".to_owned()), "a lost state changes the generation");
}

#[test]
fn a_lock_has_one_owner_which_gets_the_same_grant_again_if_it_has_not_seen_it() {
    let server = LuaServer::new();
    let (held, fence, left) = acquire(&server, "a b", TTL);
    assert_eq!((held, left), (true, TTL as i64));
    server.clock().advance(SECOND);
    assert_eq!(acquire(&server, "c", TTL), (false, fence, TTL as i64 - 1_000_000));
    assert_eq!(acquire(&server, "a b", TTL), (true, fence, TTL as i64));
    assert!(renew(&server, "a b", fence) && !renew(&server, "c", fence) && !renew(&server, "a b", fence + 1));
    assert!(!release(&server, "c", fence) && server.take_published().is_empty());
    assert!(release(&server, "a b", fence) && !release(&server, "a b", fence));
    assert_eq!(server.take_published(), [(b"ph2:locks".to_vec(), b"lock id".to_vec())]);
    assert!(acquire(&server, "c", TTL).1 > fence);
}

#[test]
fn an_expired_lock_is_lost_and_a_clock_that_steps_back_extends_it_by_at_most_one_ttl() {
    let server = LuaServer::new();
    let fence = acquire(&server, "a", TTL).1;
    server.clock().step_back(Duration::from_secs(3_600));
    assert_eq!(acquire(&server, "b", TTL), (false, fence, TTL as i64));
    server.clock().advance(Duration::from_micros(TTL));
    assert!(!renew(&server, "a", fence));
    let (held, next, _) = acquire(&server, "b", TTL);
    assert!(held && next == fence + 1, "the fence grows although the clock stepped back");
}

#[test]
fn only_the_holder_marks_work_as_completed_and_a_corrupt_mark_is_ignored() {
    let server = LuaServer::new();
    let fence = acquire(&server, "a", TTL).1;
    assert!(!complete(&server, "b", fence) && !complete(&server, "a", fence + 1));
    server.put(SECOND_KEY, Stored::Foreign); // the key of the fence, so that the mark overwrites a value
    assert!(complete(&server, "a", fence) && !complete(&server, "a", fence));
    assert_eq!(server.take_published(), [(b"ph2:locks".to_vec(), b"lock id".to_vec())]);
    assert_eq!((completed(&server), server.pttl(SECOND_KEY)), (fence, Some(2 * TTL / 1_000)));
    server.clock().advance(Duration::from_micros(2 * TTL));
    assert_eq!(completed(&server), 0);
    for nonsense in ["", "x", "1", "1 7", "7 1800000000000000", "1 9007199254740992 9007199254740992 5", "1 -1 5 5"] {
        server.put(SECOND_KEY, Stored::Text(nonsense.as_bytes().to_vec()));
        assert_eq!(completed(&server), 0, "{nonsense}");
    }
    let fence = acquire(&server, "a", TTL).1;
    server.clock().advance(Duration::from_micros(TTL));
    assert!(!complete(&server, "a", fence), "the lock was lost");
}

/// The longest lease: 30 days.
const MONTH: u64 = 30 * 86_400_000_000;
const MAX_EXACT: u64 = (1 << 53) - 1;
/// The initial time of a server.
const NOW: u64 = 1_700_000_000_000_000;

fn put(server: &LuaServer, key: &[u8], text: &str) {
    server.put(key, Stored::Text(text.as_bytes().to_vec()));
}

#[test]
fn a_stored_lock_is_believed_within_its_range_and_not_one_beyond() {
    let server = LuaServer::new();
    let cases = [
        (7, NOW, TTL, false),
        (MAX_EXACT - 1, NOW, TTL, false),
        (MAX_EXACT, NOW, TTL, true),
        (7, MAX_EXACT, TTL, false),
        (7, MAX_EXACT + 1, TTL, true),
        (7, NOW, MONTH, false),
        (7, NOW, MONTH + 1, true),
        (7, NOW - TTL + 1, TTL, false),
        (7, NOW - TTL, TTL, true),
    ];
    for (fence, at, ttl, free) in cases {
        put(&server, KEY, &format!("1 {fence} {at} {ttl} 1 b"));
        assert_eq!(acquire(&server, "a", TTL).0, free, "{fence} at {at} for {ttl}");
    }
}

#[test]
fn a_lock_from_more_than_a_second_ahead_restarts_now() {
    let server = LuaServer::new();
    put(&server, KEY, &format!("1 7 {} {TTL} 1 b", NOW + 1_000_000));
    let before = raw(&server);
    assert_eq!(acquire(&server, "a", TTL), (false, 7, TTL as i64 + 1_000_000));
    assert_eq!(raw(&server), before, "nothing is written");
    put(&server, KEY, &format!("1 7 {} {TTL} 1 b", NOW + 1_000_001));
    assert_eq!(acquire(&server, "a", TTL), (false, 7, TTL as i64));
    assert_eq!(raw(&server), (Some(format!("1 7 {NOW} {TTL} 1 b").into_bytes()), Some(TTL / 1_000)));
}

#[test]
fn a_lock_is_lost_at_the_microsecond_its_lease_ends() {
    for (after, held) in [(TTL - 1, true), (TTL, false)] {
        let server = fresh_server();
        let fence = acquire(server, "a", TTL).1;
        server.clock().advance(Duration::from_micros(after));
        assert_eq!(release(server, "a", fence), held);
        assert_eq!((server.get(KEY), server.take_published().len()), (None, 1), "freed in any case");

        let fence = acquire(server, "a", TTL).1;
        server.clock().advance(Duration::from_micros(after));
        assert_eq!(renew(server, "a", fence), held);
        assert_eq!(server.pttl(KEY), held.then_some(TTL / 1_000).or(Some(0)));

        let fence = acquire(server, "a", TTL).1;
        server.clock().advance(Duration::from_micros(after));
        assert_eq!(complete(server, "a", fence), held);
        assert_eq!((server.get(KEY), server.take_published().len()), (None, 1), "freed in any case");
    }
}

#[test]
fn every_lease_is_rounded_up_to_milliseconds_and_is_at_most_a_month() {
    for (lease, stored, millis) in [(0, 0, 1), (1_000, 1_000, 1), (1_500, 1_500, 2), (u64::MAX, MONTH, MONTH / 1_000)] {
        let server = fresh_server();
        let (held, fence, left) = acquire(server, "a", lease);
        assert_eq!((held, left), (true, stored as i64));
        assert_eq!(raw(server), (Some(format!("1 {fence} {NOW} {stored} 1 a").into_bytes()), Some(millis)));
        if lease > 0 {
            assert_eq!(run(server, &LOCK_RENEW, &args!["a", fence, lease]).ints()[1], 1);
            assert_eq!(raw(server).1, Some(millis));
            let args = args!["a", fence, lease, "ph2:locks", "id"];
            assert_eq!(server.run(&LOCK_COMPLETE, &two_keys(), &args).unwrap().ints()[1], 1);
            assert_eq!(server.get(SECOND_KEY), Some(format!("1 {fence} {} {stored}", NOW + stored).into_bytes()));
            assert_eq!(server.pttl(SECOND_KEY), Some(millis));
        }
        run(server, &PROBE, &args![lease.min(MONTH)]);
        assert_eq!(raw(server).1, Some(millis));
    }
    let server = fresh_server();
    let fence = acquire(server, "a", TTL).1;
    let args = args!["a", fence, 0, "ph2:locks", "id"];
    assert_eq!(server.run(&LOCK_COMPLETE, &two_keys(), &args).unwrap().ints()[1], 1);
    assert_eq!((server.pttl(SECOND_KEY), completed(server)), (Some(1), 0), "a mark that has expired at once");
}

#[test]
fn a_completion_mark_is_believed_until_it_expires() {
    let server = LuaServer::new();
    let cases = [
        (7, NOW + 1, TTL, 7),
        (7, NOW, TTL, 0),
        (MAX_EXACT - 1, NOW + 1, TTL, MAX_EXACT - 1),
        (MAX_EXACT, NOW + 1, TTL, 0),
        (7, NOW + 1, MONTH, 7),
        (7, NOW + 1, MONTH + 1, 0),
    ];
    for (fence, expires, ttl, found) in cases {
        put(&server, SECOND_KEY, &format!("1 {fence} {expires} {ttl}"));
        assert_eq!(completed(&server), found as i64, "{fence} until {expires}, for {ttl}");
    }
}

/// A pod that is restarted every ten days finds the mark for as long as it is.
#[test]
fn a_mark_that_is_read_within_its_life_outlives_thirty_days() {
    let server = LuaServer::new();
    let fence = acquire(&server, "a", TTL).1;
    let args = args!["a", fence, MONTH, "ph2:locks", "id"];
    assert_eq!(server.run(&LOCK_COMPLETE, &two_keys(), &args).unwrap().ints()[1], 1);
    for _ in 0..12 {
        server.clock().advance(Duration::from_micros(MONTH / 3));
        assert_eq!((completed(&server), server.pttl(SECOND_KEY)), (fence, Some(MONTH / 1_000)));
    }
    server.clock().advance(Duration::from_micros(MONTH));
    assert_eq!(completed(&server), 0, "nothing asks for it any more");
}

#[test]
fn a_mark_that_is_read_after_the_clock_stepped_back_lives_for_its_ttl_from_then() {
    let server = LuaServer::new();
    let fence = acquire(&server, "a", TTL).1;
    assert!(complete(&server, "a", fence));
    server.clock().step_back(Duration::from_secs(3_600));
    assert_eq!(completed(&server), fence);
    let now = now(&server).as_micros();
    assert_eq!(server.get(SECOND_KEY), Some(format!("1 {fence} {} {}", now + 2 * TTL, 2 * TTL).into_bytes()));
}

#[test]
fn a_fence_is_higher_than_the_one_that_the_caller_has_seen() {
    for (seen, fence) in [
        (NOW as i64 + 500, NOW as i64 + 501),
        (NOW as i64 - 500, NOW as i64),
        (MAX_EXACT as i64 - 2, MAX_EXACT as i64 - 1),
        (MAX_EXACT as i64 - 1, NOW as i64),
        (i64::MAX, NOW as i64),
    ] {
        let server = fresh_server();
        assert_eq!(acquire_after(server, "a", TTL, seen), (true, fence, TTL as i64), "after {seen}");
        assert!(!acquire(server, "b", TTL).0, "held after {seen}");
    }
}

/// A grant whose reply was lost is granted again; one that was seen may have been given back, and its late release must not
/// free the lock.
#[test]
fn an_owner_that_has_seen_its_fence_gets_a_new_one() {
    let server = LuaServer::new();
    let first = acquire(&server, "a", TTL).1;
    assert_eq!(acquire_after(&server, "a", TTL, first - 1), (true, first, TTL as i64));
    assert_eq!(acquire_after(&server, "a", TTL, first), (true, first + 1, TTL as i64));
    assert!(!release(&server, "a", first) && !complete(&server, "a", first), "a late release");
    assert!(renew(&server, "a", first + 1));
    assert_eq!(acquire_after(&server, "a", TTL, first), (true, first + 1, TTL as i64), "an acquire executed late");
    assert_eq!(acquire(&server, "b", TTL), (false, first + 1, TTL as i64));
}

#[test]
fn an_owner_that_does_not_know_its_fence_releases_any() {
    let server = LuaServer::new();
    let fence = acquire(&server, "a", TTL).1;
    assert!(!release(&server, "b", 0) && renew(&server, "a", fence));
    assert!(release(&server, "a", 0) && server.get(KEY).is_none());
    assert_eq!(server.take_published(), [(b"ph2:locks".to_vec(), b"lock id".to_vec())]);
    assert!(!release(&server, "a", 0));
}

/// Records of a release that stores more: nothing of them is lost or called corrupt.
#[test]
fn fields_that_a_later_release_has_appended_are_kept() {
    let server = LuaServer::new();
    put(&server, KEY, &format!("1 7 {NOW} {TTL} 3 a b 8 x"));
    put(&server, SECOND_KEY, "9 y z");
    assert_eq!(acquire(&server, "c", TTL), (false, 7, TTL as i64));
    server.clock().advance(SECOND);
    let at = NOW + 1_000_000;
    assert!(renew(&server, "a b", 7));
    assert_eq!(server.get(KEY), Some(format!("1 7 {at} {TTL} 3 a b 8 x").into_bytes()));
    assert_eq!(acquire(&server, "a b", TTL), (true, 7, TTL as i64));
    assert_eq!(server.get(KEY), Some(format!("1 7 {at} {TTL} 3 a b 8 x").into_bytes()));
    let next = acquire_after(&server, "a b", TTL, 7).1;
    assert_eq!(server.get(KEY), Some(format!("1 {next} {at} {TTL} 3 a b 8 x").into_bytes()));
    assert_eq!(server.get(SECOND_KEY), Some(format!("{next} y z").into_bytes()));
    server.clock().step_back(Duration::from_secs(10));
    assert_eq!(acquire(&server, "c", TTL), (false, next, TTL as i64), "restarts after a step back");
    assert_eq!(server.get(KEY), Some(format!("1 {next} {} {TTL} 3 a b 8 x", at - 10_000_000).into_bytes()));
    assert!(release(&server, "a b", next));
    assert!(acquire(&server, "c", TTL).0);
    assert!(raw(&server).0.unwrap().ends_with(b" 1 c"), "the fields were those of the former hold");
    assert!(server.get(SECOND_KEY).unwrap().ends_with(b" y z"));

    let expires = at + TTL;
    put(&server, SECOND_KEY, &format!("1 7 {expires} {TTL} w"));
    assert_eq!(completed(&server), 7);
    let until = now(&server).as_micros() + TTL;
    assert_eq!(server.get(SECOND_KEY), Some(format!("1 7 {until} {TTL} w").into_bytes()));
}

#[test]
fn a_record_that_goes_on_without_a_blank_or_is_too_short_is_corrupt() {
    let server = LuaServer::new();
    for text in ["3 a bx", "3 ab", "99999999999999999999999999 ab", "2 ", "x"] {
        put(&server, KEY, &format!("1 7 {NOW} {TTL} {text}"));
        assert!(acquire(&server, "c", TTL).0, "{text}");
    }
    put(&server, SECOND_KEY, &format!("{}x", NOW + 500));
    server.put(KEY, Stored::Foreign);
    assert_eq!(acquire(&server, "c", TTL).1, NOW as i64, "a last fence that is none");
    put(&server, SECOND_KEY, &format!("1 7 {} {TTL}x", NOW + 1));
    assert_eq!(completed(&server), 0);
}

#[test]
fn the_first_fence_is_one_if_the_clock_reads_zero() {
    let server = LuaServer::new();
    server.clock().set(Time::from_micros(0));
    assert_eq!(acquire(&server, "a", TTL), (true, 1, TTL as i64));
}

#[test]
fn a_fence_grows_by_one_if_the_clock_is_behind_it() {
    let server = LuaServer::new();
    let ahead = NOW as i64 + 1_000;
    put(&server, SECOND_KEY, &ahead.to_string());
    assert_eq!(acquire(&server, "a", TTL).1, ahead + 1, "after the last fence");
    assert_eq!(server.get(SECOND_KEY), Some((ahead + 1).to_string().into_bytes()));
    assert_eq!(server.pttl(SECOND_KEY), Some(30 * 86_400_000));
    server.flush();
    put(&server, KEY, &format!("1 {ahead} {} 1 1 b", NOW - 1));
    assert_eq!(acquire(&server, "a", TTL).1, ahead + 1, "after the lock that has expired");
    server.flush();
    assert_eq!(acquire(&server, "a", TTL).1, NOW as i64, "the clock, if both are lost");
}

/// A corrupt fence must not be so high that the lock it protects cannot be read back: then every caller would hold it.
#[test]
fn a_fence_that_cannot_grow_counts_as_lost_and_the_lock_still_has_one_owner() {
    let highest = MAX_EXACT as i64 - 2;
    for (last, fence) in
        [(highest - 1, highest), (highest, highest + 1), (highest + 1, NOW as i64), (highest + 2, NOW as i64)]
    {
        let server = fresh_server();
        put(server, SECOND_KEY, &last.to_string());
        assert_eq!(acquire(server, "a", TTL), (true, fence, TTL as i64), "after {last}");
        assert!(!acquire(server, "b", TTL).0, "held with the fence after {last}");

        server.flush();
        put(server, KEY, &format!("1 {last} {} 1 1 b", NOW - 1));
        assert_eq!(acquire(server, "a", TTL), (true, fence, TTL as i64), "after an expired lock with {last}");
        assert!(!acquire(server, "b", TTL).0, "held with the fence after {last}");
    }
    let server = fresh_server();
    put(server, SECOND_KEY, &"9".repeat(400));
    assert_eq!(acquire(server, "a", TTL).1, NOW as i64);
}

#[test]
fn a_replica_is_live_for_its_ttl_from_a_microsecond_to_ten_minutes() {
    let most = 600_000_000;
    for (ttl, lives) in [(0, 1), (1, 1), (TTL, TTL), (most, most), (most + 1, most)] {
        for (after, live) in [(lives - 1, 2), (lives, 1)] {
            let server = fresh_server();
            heartbeat(server, "a", ttl, "x");
            server.clock().advance(Duration::from_micros(after));
            assert_eq!(heartbeat(server, "b", TTL, "x").0, live, "a TTL of {ttl} after {after}");
        }
    }
    let server = fresh_server();
    heartbeat(server, "a", most, "x");
    assert_eq!((server.pttl(KEY), server.pttl(SECOND_KEY)), (Some(1_200_000), Some(86_400_000)));
    server.clock().step_back(Duration::from_micros(1));
    assert_eq!(heartbeat(server, "b", TTL, "x").0, 1, "no replica may expire later than ten minutes from now");
}

#[test]
fn a_heartbeat_renews_members_and_generation() {
    let server = LuaServer::new();
    heartbeat(&server, "a", TTL, "x");
    server.clock().advance(Duration::from_secs(600));
    heartbeat(&server, "b", TTL, "y");
    assert_eq!((server.pttl(KEY), server.pttl(SECOND_KEY)), (Some(1_200_000), Some(86_400_000)));
}

#[test]
fn a_generation_is_kept_unless_it_is_empty_or_longer_than_a_token() {
    let server = LuaServer::new();
    for (stored, kept) in [(String::new(), false), ("g".repeat(128), true), ("g".repeat(129), false)] {
        put(&server, SECOND_KEY, &stored);
        let expected = if kept { stored } else { "new".to_owned() };
        assert_eq!(heartbeat(&server, "a", TTL, "new").1, expected);
        assert_eq!(server.pttl(SECOND_KEY), Some(86_400_000));
    }
}

#[test]
fn a_replica_that_leaves_counts_only_those_that_live() {
    let server = LuaServer::new();
    heartbeat(&server, "a", TTL, "x");
    heartbeat(&server, "b", 3 * TTL, "x");
    heartbeat(&server, "c", 3 * TTL, "x");
    server.clock().advance(Duration::from_micros(TTL - 1));
    assert_eq!(run(&server, &MEMBERSHIP_LEAVE, &args!["b"]).ints()[1], 2);
    server.clock().advance(Duration::from_micros(1));
    assert_eq!(run(&server, &MEMBERSHIP_LEAVE, &args!["b"]).ints()[1], 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// Invariant I-13 of `docs/guarantees.md`: every new holder has a higher fence, for any clock and any bytes under the
    /// keys.
    #[test]
    fn a_fence_only_grows(
        steps in prop::collection::vec((clock_step(), 0_u8..3, any::<bool>(), prop::option::weighted(0.1, foreign(4))), 1..40),
    ) {
        let server = fresh_server();
        let (mut last, mut holder) = (0, None);
        for (by, owner, give_back, bytes) in steps {
            move_clock(server, by);
            if let Some(bytes) = bytes {
                // Corrupt bytes, not a valid lock.
                server.put(KEY, match bytes { Stored::Text(text) => Stored::Text([b"x", &*text].concat()), other => other });
                holder = None;
            }
            let owner = owner.to_string();
            let (held, fence, left) = acquire(server, &owner, TTL);
            prop_assert!(left > 0 && left <= TTL as i64 + 1_000_000);
            if held {
                prop_assert!(fence > last || (fence == last && holder == Some(owner.clone())));
                (last, holder) = (fence, Some(owner.clone()));
            }
            if held && give_back {
                prop_assert!(release(server, &owner, fence));
                holder = None;
            }
        }
    }
}

#[test]
fn the_health_check_writes_and_reads_back() {
    let server = LuaServer::new();
    let reply = run(&server, &PROBE, &args![TTL]);
    assert_eq!(reply.ints(), [now(&server).as_micros() as i64]);
    assert_eq!(raw(&server).1, Some(5_000));
    server.put(KEY, Stored::Foreign);
    run(&server, &PROBE, &args![TTL]);
}

#[test]
fn every_key_written_by_a_script_has_a_ttl() {
    let server = LuaServer::new();
    heartbeat(&server, "a", TTL, "x");
    acquire(&server, "a", TTL);
    run(&server, &RATE_LIMIT_ACQUIRE, &args![1, 1, 10, 0, 1, 1, 1, 0]);
    assert!(server.keys().iter().all(|key| server.pttl(key).is_some()));
}

#[test]
fn the_lua_server_runs_scripts_like_redis() {
    use phalanx_lua::Script;
    let server = LuaServer::new();
    let script = |source: &'static str| Script { name: "test", source, virtual_source: source, keys: 1 };
    let ask = |source| server.run(&script(source), &[KEY.to_vec()], &[]);
    assert_eq!(ask("return {3.99, 'a', true, false, nil, 5}"), {
        Ok(Reply::Array(vec![Reply::Int(3), Reply::Bytes(b"a".to_vec()), Reply::Int(1), Reply::Nil]))
    });
    assert_eq!(ask("return redis.call('SET', KEYS[1], 1e15)"), Ok(Reply::Bytes(b"OK".to_vec())));
    assert_eq!(ask("return redis.call('GET', KEYS[1])"), Ok(Reply::Bytes(b"1000000000000000".to_vec())));
    assert_eq!(ask("return redis.call('GET', 'none')"), Ok(Reply::Nil));
    assert!(ask("return redis.call('ZCARD', KEYS[1])").unwrap_err().contains("WRONGTYPE"));
    assert_eq!(ask("return type(redis.pcall('ZCARD', KEYS[1]))"), Ok(Reply::Bytes(b"table".to_vec())));
    assert!(ask("x = 1").is_err() && ask("return y").is_err(), "no globals");
    assert!(ask("return redis.call('GET', {})").is_err());
    assert!(ALL.len() > 10);
}

#[test]
fn a_holder_of_the_last_fence_that_is_exact_is_the_only_one() {
    for last in [(1_i64 << 53) - 3, (1 << 53) - 2] {
        let server = LuaServer::new();
        server.put(SECOND_KEY, Stored::Text(last.to_string().into_bytes()));
        let (held, fence, _) = acquire(&server, "a", TTL);
        assert!(held && renew(&server, "a", fence), "{last}");
        assert_eq!(acquire(&server, "b", TTL), (false, fence, TTL as i64), "{last}");
        assert!(release(&server, "a", fence));
    }
}

#[test]
fn a_grant_that_is_repeated_lasts_for_a_lease_from_then() {
    let server = LuaServer::new();
    let fence = acquire(&server, "a", TTL).1;
    server.clock().advance(SECOND);
    assert_eq!(acquire(&server, "a", 2 * TTL), (true, fence, 2 * TTL as i64));
    let at = NOW + 1_000_000;
    assert_eq!(raw(&server), (Some(format!("1 {fence} {at} {} 1 a", 2 * TTL).into_bytes()), Some(2 * TTL / 1_000)));
    server.clock().advance(Duration::from_micros(2 * TTL - 1));
    assert_eq!(acquire(&server, "b", TTL), (false, fence, 1));
}

#[test]
fn a_foreign_last_fence_counts_as_none_also_when_the_clock_begins() {
    let server = LuaServer::new();
    server.clock().set(Time::from_micros(0));
    for last in ["x", "1x", "-1"] {
        server.flush();
        put(&server, SECOND_KEY, last);
        assert_eq!(acquire(&server, "a", TTL).1, 1, "{last}");
    }
}

#[test]
fn a_lock_of_4_097_bytes_is_held_and_a_longer_one_is_none() {
    let server = LuaServer::new();
    let head = format!("1 7 {NOW} {TTL} ");
    for (length, free) in [(4_097, false), (4_098, true)] {
        let size = length - head.len() - "0000 ".len();
        put(&server, KEY, &format!("{head}{size} {}", "b".repeat(size)));
        assert_eq!(acquire(&server, "a", TTL).0, free, "{length} bytes");
    }
}

#[test]
fn work_that_was_never_completed_has_no_mark() {
    let server = LuaServer::new();
    assert_eq!(completed(&server), 0);
    server.put(SECOND_KEY, Stored::Foreign);
    assert_eq!(completed(&server), 0);
}

/// Sends a heartbeat of a replica that expects this many. Returns how many are expected.
fn expect(server: &LuaServer, id: &str, ttl: u64, number: u32) -> i64 {
    server.run(&MEMBERSHIP_HEARTBEAT, &two_keys(), &args![id, ttl, "x", number]).unwrap().parts()[3].int()
}

#[test]
fn the_expected_number_holds_as_long_as_any_replica_that_sends_it() {
    let server = LuaServer::new();
    expect(&server, "a", TTL, 10);
    server.clock().advance(Duration::from_micros(TTL / 2));
    expect(&server, "b", TTL, 10);
    server.clock().advance(Duration::from_micros(TTL / 2));
    assert_eq!(expect(&server, "c", TTL, 0), 10, "the second one is live");
    server.clock().advance(Duration::from_micros(TTL / 2));
    assert_eq!(expect(&server, "c", TTL, 0), 0);

    let longest = 600_000_000;
    expect(&server, "a", longest, u32::MAX);
    assert_eq!(expect(&server, "b", TTL, 3), 100_000, "the highest number, for the longest time");
}

#[test]
fn a_replica_of_an_earlier_release_expects_none() {
    let server = LuaServer::new();
    let args = [args![3, 3], args!["a", TTL, "x"], args!["b", TTL, "y"]].concat();
    let keys = [two_keys().to_vec(), vec![b"ph2:{t}:3".to_vec(), b"ph2:{t}:4".to_vec()]].concat();
    let replies = server.run(&MEMBERSHIP_HEARTBEAT, &keys, &args).unwrap();
    assert_eq!(replies.parts().iter().map(|reply| reply.parts()[3].int()).collect::<Vec<_>>(), [0, 0]);
    assert_eq!(server.get(SECOND_KEY), Some(format!("x 0 {}", NOW + TTL).into_bytes()));
}

#[test]
fn a_generation_of_256_bytes_with_its_fields_is_kept() {
    let server = LuaServer::new();
    for (length, kept) in [(256, true), (257, false)] {
        let text = format!("g 5 {} ", NOW + TTL);
        let more = "m".repeat(length - text.len());
        put(&server, SECOND_KEY, &format!("{text}{more}"));
        assert_eq!(expect(&server, "a", TTL, 0), if kept { 5 } else { 0 });
        let stored = String::from_utf8(server.get(SECOND_KEY).unwrap()).unwrap();
        assert_eq!(stored == format!("{text}{more}"), kept, "{length} bytes: {stored}");
    }
}
