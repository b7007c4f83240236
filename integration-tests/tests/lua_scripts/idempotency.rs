//! The idempotency scripts.

use std::time::Duration;

use phalanx_lua::{IDEMPOTENCY_CLAIM, IDEMPOTENCY_COMPLETE, IDEMPOTENCY_RELEASE, IDEMPOTENCY_RENEW};
use phalanx_testkit::lua_server::{LuaServer, Stored};
use proptest::prelude::*;

use crate::harness::*;

const LEASE: u64 = 5_000_000;
const TTL: u64 = 86_400_000_000;
/// Replies to a claim: claimed by the owner, in progress elsewhere, completed, or a different request.
const CLAIMED: i64 = 1;
const IN_PROGRESS: i64 = 0;
const COMPLETED: i64 = 2;
const MISMATCH: i64 = 3;

fn claim(server: &LuaServer, owner: &str, fingerprint: &str) -> (i64, i64, Vec<u8>) {
    claim_as(server, owner, fingerprint, false)
}

/// The same as a request that waits for the answer.
fn wait(server: &LuaServer, owner: &str, fingerprint: &str) -> (i64, i64, Vec<u8>) {
    claim_as(server, owner, fingerprint, true)
}

fn claim_as(server: &LuaServer, owner: &str, fingerprint: &str, waits: bool) -> (i64, i64, Vec<u8>) {
    let reply = run(server, &IDEMPOTENCY_CLAIM, &args![owner, fingerprint, LEASE, u8::from(waits)]);
    let parts = reply.parts();
    (parts[1].int(), parts[2].int(), parts[3].bytes().to_vec())
}

fn renew(server: &LuaServer, owner: &str) -> bool {
    is_done(&run(server, &IDEMPOTENCY_RENEW, &args![owner, LEASE]))
}

fn complete(server: &LuaServer, owner: &str, answer: &[u8]) -> bool {
    let mut args = args![owner, "ff", "", TTL, "ph2:c", "id"];
    args[2] = answer.to_vec();
    is_done(&run(server, &IDEMPOTENCY_COMPLETE, &args))
}

fn release(server: &LuaServer, owner: &str) -> bool {
    is_done(&run(server, &IDEMPOTENCY_RELEASE, &args![owner, "ph2:c", "id"]))
}

#[test]
fn one_owner_claims_a_request_and_others_see_it_in_progress_until_it_is_completed() {
    let server = LuaServer::new();
    assert_eq!(claim(&server, "a1", "ff"), (CLAIMED, LEASE as i64, vec![]));
    server.clock().advance(SECOND);
    let before = raw(&server);
    assert_eq!(claim(&server, "b2", "ff"), (IN_PROGRESS, LEASE as i64 - 1_000_000, vec![]));
    assert_eq!(claim(&server, "a1", "ff").0, CLAIMED, "claiming again keeps the claim");
    assert_eq!(claim(&server, "b2", "ee").0, MISMATCH);
    assert!(!renew(&server, "b2") && !release(&server, "b2") && !complete(&server, "b2", b"no"));
    assert_eq!(raw(&server), before, "rejections write nothing");
    assert!(renew(&server, "a1"));
    let answer = b"any \0 bytes \xff\n";
    assert!(complete(&server, "a1", answer));
    assert_eq!(server.pttl(KEY), Some(TTL / 1_000));
    let before = raw(&server);
    assert_eq!(claim(&server, "b2", "ff"), (COMPLETED, 0, answer.to_vec()));
    assert_eq!(claim(&server, "b2", "ee").0, MISMATCH);
    assert!(!renew(&server, "a1") && !release(&server, "a1") && !complete(&server, "a1", b"another"));
    assert_eq!(raw(&server), before, "a completed request does not change");
}

#[test]
fn an_abandoned_claim_expires_and_a_released_one_can_be_claimed() {
    let server = LuaServer::new();
    claim(&server, "a1", "ff");
    assert!(release(&server, "a1") && server.get(KEY).is_none());
    claim(&server, "b2", "ff");
    server.clock().advance(Duration::from_micros(LEASE));
    assert!(!renew(&server, "b2") && !release(&server, "b2"));
    assert_eq!(claim(&server, "c3", "ee").0, CLAIMED, "also for another request");
    assert!(!complete(&server, "b2", b"late"), "another owner has claimed it");
}

#[test]
fn an_expired_claim_without_a_new_owner_can_still_be_completed() {
    let server = LuaServer::new();
    claim(&server, "a1", "ff");
    server.clock().advance(Duration::from_micros(LEASE));
    assert!(complete(&server, "a1", b"late"));
    assert_eq!(claim(&server, "b2", "ff"), (COMPLETED, 0, b"late".to_vec()));
}

#[test]
fn a_clock_that_steps_back_extends_a_claim_by_at_most_one_lease() {
    let server = LuaServer::new();
    claim(&server, "a1", "ff");
    server.clock().step_back(Duration::from_secs(3_600));
    assert_eq!(claim(&server, "b2", "ff"), (IN_PROGRESS, LEASE as i64, vec![]));
    server.clock().advance(Duration::from_micros(LEASE));
    assert_eq!(claim(&server, "b2", "ff").0, CLAIMED);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// There is at most one owner at any time, for any clock and any bytes under the key.
    #[test]
    fn a_request_never_has_two_owners(
        steps in prop::collection::vec((clock_step(), 0_u8..3, 0_u8..4, prop::option::weighted(0.1, foreign(4))), 1..40),
    ) {
        let server = fresh_server();
        for (by, owner, action, bytes) in steps {
            move_clock(server, by);
            if let Some(bytes) = bytes {
                server.put(KEY, match bytes { Stored::Text(text) => Stored::Text([b"x", &*text].concat()), other => other });
            }
            let owner = format!("a{owner}");
            let found = claim(server, &owner, "ff").0;
            prop_assert!([CLAIMED, IN_PROGRESS, COMPLETED].contains(&found));
            prop_assert!(server.pttl(KEY).is_some());
            for other in ["a0", "a1", "a2"].into_iter().filter(|other| *other != owner) {
                prop_assert!(found != CLAIMED || !renew(server, other));
            }
            match action {
                0 => prop_assert_eq!(release(server, &owner), found == CLAIMED),
                1 => prop_assert_eq!(complete(server, &owner, b"done"), found == CLAIMED),
                2 => prop_assert_eq!(renew(server, &owner), found == CLAIMED),
                _ => {}
            }
        }
    }
}

/// The longest lease or TTL: 30 days.
const MONTH: u64 = 30 * 86_400_000_000;
const MAX_EXACT: u64 = (1 << 53) - 1;

#[test]
fn a_stored_claim_is_believed_within_its_range_and_not_one_beyond() {
    let server = LuaServer::new();
    let now = now(&server).as_micros();
    let cases = [
        (now, LEASE, IN_PROGRESS),
        (MAX_EXACT, LEASE, IN_PROGRESS),
        (MAX_EXACT + 1, LEASE, CLAIMED),
        (now, MONTH, IN_PROGRESS),
        (now, MONTH + 1, CLAIMED),
        (now - LEASE + 1, LEASE, IN_PROGRESS),
        (now - LEASE, LEASE, CLAIMED),
    ];
    for (at, ttl, found) in cases {
        server.put(KEY, Stored::Text(format!("1 c {at} {ttl} 0 b2 ff").into_bytes()));
        assert_eq!(claim(&server, "a1", "ff").0, found, "at {at} for {ttl}");
    }
}

#[test]
fn a_claim_from_more_than_a_second_ahead_restarts_now() {
    let server = LuaServer::new();
    let now = now(&server).as_micros();
    let stored = format!("1 c {} {LEASE} 0 b2 ff", now + 1_000_000).into_bytes();
    server.put(KEY, Stored::Text(stored.clone()));
    assert_eq!(claim(&server, "a1", "ff"), (IN_PROGRESS, LEASE as i64 + 1_000_000, vec![]));
    assert_eq!(server.get(KEY), Some(stored), "nothing is written");
    server.put(KEY, Stored::Text(format!("1 c {} {LEASE} 0 b2 ff", now + 1_000_001).into_bytes()));
    assert_eq!(claim(&server, "b2", "ff"), (CLAIMED, LEASE as i64, vec![]), "also for its owner");
    assert_eq!(raw(&server), (Some(format!("1 c {now} {LEASE} 0 b2 ff").into_bytes()), Some(LEASE / 1_000)));
}

#[test]
fn every_ttl_is_rounded_up_to_milliseconds_and_is_at_most_a_month() {
    for (lease, stored, millis) in [(0, 0, 1), (1_000, 1_000, 1), (1_500, 1_500, 2), (u64::MAX, MONTH, MONTH / 1_000)] {
        let server = fresh_server();
        let now = now(server).as_micros();
        let reply = run(server, &IDEMPOTENCY_CLAIM, &args!["a1", "ff", lease, 0]);
        assert_eq!((reply.parts()[1].int(), reply.parts()[2].int()), (CLAIMED, stored as i64));
        assert_eq!(raw(server), (Some(format!("1 c {now} {stored} 0 a1 ff").into_bytes()), Some(millis)));
        claim(server, "a1", "ff");
        let renewed = run(server, &IDEMPOTENCY_RENEW, &args!["a1", lease]).ints()[1];
        if lease > 0 {
            assert_eq!((renewed, raw(server).1), (1, Some(millis)));
        }
        run(server, &IDEMPOTENCY_COMPLETE, &args!["a1", "ff", "", lease, "ph2:c", "id"]);
        assert_eq!(raw(server), (Some(b"1 d ff 0 ".to_vec()), Some(millis)));
    }
}

#[test]
fn a_renewed_claim_starts_over_and_keeps_its_request() {
    let server = LuaServer::new();
    claim(&server, "a1", "ff");
    server.clock().advance(SECOND);
    assert!(renew(&server, "a1"));
    let now = now(&server).as_micros();
    assert_eq!(raw(&server), (Some(format!("1 c {now} {LEASE} 0 a1 ff").into_bytes()), Some(LEASE / 1_000)));
}

#[test]
fn a_different_request_is_reported_without_a_lease_and_without_an_answer() {
    let server = LuaServer::new();
    claim(&server, "a1", "ff");
    assert_eq!(claim(&server, "b2", "ee"), (MISMATCH, 0, vec![]));
    complete(&server, "a1", b"done");
    assert_eq!(claim(&server, "b2", "ee"), (MISMATCH, 0, vec![]));
}

#[test]
fn a_claim_from_the_future_does_not_keep_a_different_request_out_for_longer_than_its_lease() {
    let server = LuaServer::new();
    server.put(KEY, Stored::Text(format!("1 c 9007199254740991 {LEASE} 0 a1 ff").into_bytes()));
    assert_eq!(claim(&server, "b2", "ee").0, MISMATCH);
    server.clock().advance(Duration::from_micros(LEASE));
    assert_eq!(claim(&server, "b2", "ee").0, CLAIMED);
}

#[test]
fn the_end_of_a_claim_is_published_only_if_a_request_waits_for_it() {
    let server = LuaServer::new();
    let ends: [fn(&LuaServer) -> bool; 2] = [|server| complete(server, "a1", b"done"), |server| release(server, "a1")];
    for end in ends {
        server.flush();
        claim(&server, "a1", "ff");
        claim(&server, "b2", "ff");
        wait(&server, "c3", "ee");
        assert!(end(&server) && server.take_published().is_empty(), "nothing waits, or only for another request");

        server.flush();
        claim(&server, "a1", "ff");
        let before = raw(&server);
        assert_eq!(wait(&server, "a1", "ff").0, CLAIMED);
        assert_eq!(raw(&server), before, "an owner does not wait for itself");
        server.clock().advance(SECOND);
        assert_eq!(wait(&server, "b2", "ff"), (IN_PROGRESS, LEASE as i64 - 1_000_000, vec![]));
        assert_eq!(server.pttl(KEY), Some((LEASE - 1_000_000) / 1_000), "the lease is not extended");
        let before = raw(&server);
        wait(&server, "b2", "ff");
        assert_eq!(raw(&server), before, "written once");
        assert!(renew(&server, "a1") && end(&server));
        assert_eq!(server.take_published(), [(b"ph2:c".to_vec(), b"request id".to_vec())]);
    }
}

#[test]
fn an_answer_that_is_stored_after_its_claim_expired_is_not_published() {
    let server = LuaServer::new();
    claim(&server, "a1", "ff");
    wait(&server, "b2", "ff");
    server.clock().advance(Duration::from_micros(LEASE));
    assert!(complete(&server, "a1", b"late") && server.take_published().is_empty(), "the waiting request polls");
}

/// Records of a release that stores more: nothing of them is lost or called corrupt.
#[test]
fn fields_that_a_later_release_has_appended_are_kept() {
    let server = LuaServer::new();
    let put = |text: String| server.put(KEY, Stored::Text(text.into_bytes()));
    let at = now(&server).as_micros();
    put(format!("1 c {at} {LEASE} 0 a1 ff 7 x y"));
    assert_eq!(claim(&server, "b2", "ff"), (IN_PROGRESS, LEASE as i64, vec![]));
    assert_eq!(claim(&server, "b2", "ee").0, MISMATCH);
    wait(&server, "b2", "ff");
    assert_eq!(raw(&server).0, Some(format!("1 c {at} {LEASE} 1 a1 ff 7 x y").into_bytes()));
    server.clock().advance(SECOND);
    assert!(renew(&server, "a1"));
    let at = at + 1_000_000;
    assert_eq!(raw(&server).0, Some(format!("1 c {at} {LEASE} 1 a1 ff 7 x y").into_bytes()));
    server.clock().step_back(Duration::from_secs(10));
    claim(&server, "b2", "ff");
    let at = at - 10_000_000;
    assert_eq!(raw(&server).0, Some(format!("1 c {at} {LEASE} 1 a1 ff 7 x y").into_bytes()));
    assert!(complete(&server, "a1", b"done"));

    put("1 d ff 4 done 7 x y".to_owned());
    let before = raw(&server);
    assert_eq!(claim(&server, "b2", "ff"), (COMPLETED, 0, b"done".to_vec()));
    assert_eq!(claim(&server, "b2", "ee").0, MISMATCH);
    assert!(!complete(&server, "b2", b"another") && !release(&server, "b2") && !renew(&server, "b2"));
    assert_eq!(raw(&server), before);
}

#[test]
fn a_record_that_goes_on_without_a_blank_or_is_too_short_is_corrupt() {
    let server = LuaServer::new();
    let at = now(&server).as_micros();
    let claims = [format!("{LEASE} 0 b2 ffx"), format!("{LEASE} 2 b2 ff"), format!("{LEASE} b2 ff")];
    let answers =
        ["5 done", "4 donex", "99999999999999999999999999 done", "4", ""].map(|text| format!("1 d ff {text}"));
    for text in claims.iter().map(|text| format!("1 c {at} {text}")).chain(answers) {
        server.put(KEY, Stored::Text(text.clone().into_bytes()));
        assert_eq!(claim(&server, "a1", "ff").0, CLAIMED, "{text}");
    }
}
