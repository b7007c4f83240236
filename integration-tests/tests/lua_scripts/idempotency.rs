//! Requests that must not happen twice.

use std::time::Duration;

use phalanx_integration_tests::lua_server::{LuaServer, Stored};
use phalanx_lua::{IDEMPOTENCY_CLAIM, IDEMPOTENCY_COMPLETE, IDEMPOTENCY_RELEASE, IDEMPOTENCY_RENEW};
use proptest::prelude::*;

use crate::harness::*;

const LEASE: u64 = 5_000_000;
const TTL: u64 = 86_400_000_000;
/// The owner's, somebody else's, an answer, and another request.
const OWN: i64 = 1;
const OTHERS: i64 = 0;
const ANSWERED: i64 = 2;
const MISMATCH: i64 = 3;

fn claim(server: &LuaServer, owner: &str, fingerprint: &str) -> (i64, i64, Vec<u8>) {
    let reply = run(server, &IDEMPOTENCY_CLAIM, &args![owner, fingerprint, LEASE]);
    let parts = reply.parts();
    (parts[1].int(), parts[2].int(), parts[3].bytes().to_vec())
}

fn renew(server: &LuaServer, owner: &str) -> bool {
    run(server, &IDEMPOTENCY_RENEW, &args![owner, LEASE]).ints()[1] == 1
}

fn complete(server: &LuaServer, owner: &str, answer: &[u8]) -> bool {
    let mut args = args![owner, "ff", "", TTL];
    args[2] = answer.to_vec();
    run(server, &IDEMPOTENCY_COMPLETE, &args).ints()[1] == 1
}

fn release(server: &LuaServer, owner: &str) -> bool {
    run(server, &IDEMPOTENCY_RELEASE, &args![owner]).ints()[1] == 1
}

#[test]
fn one_claims_it_and_the_others_see_it_run_until_it_is_answered() {
    let server = LuaServer::new();
    assert_eq!(claim(&server, "a1", "ff"), (OWN, LEASE as i64, vec![]));
    server.clock().advance(SECOND);
    let before = raw(&server);
    assert_eq!(claim(&server, "b2", "ff"), (OTHERS, LEASE as i64 - 1_000_000, vec![]));
    assert_eq!(claim(&server, "a1", "ff").0, OWN, "asked again, it is still his");
    assert_eq!(claim(&server, "b2", "ee").0, MISMATCH);
    assert!(!renew(&server, "b2") && !release(&server, "b2") && !complete(&server, "b2", b"no"));
    assert_eq!(raw(&server), before, "rejections write nothing");
    assert!(renew(&server, "a1"));
    let answer = b"any \0 bytes \xff\n";
    assert!(complete(&server, "a1", answer));
    assert_eq!(server.pttl(KEY), Some(TTL / 1_000));
    let before = raw(&server);
    assert_eq!(claim(&server, "b2", "ff"), (ANSWERED, 0, answer.to_vec()));
    assert_eq!(claim(&server, "b2", "ee").0, MISMATCH);
    assert!(!renew(&server, "a1") && !release(&server, "a1") && !complete(&server, "a1", b"another"));
    assert_eq!(raw(&server), before, "an answer is the last word");
}

#[test]
fn a_claim_of_the_dead_runs_out_and_what_is_given_back_can_be_taken() {
    let server = LuaServer::new();
    claim(&server, "a1", "ff");
    assert!(release(&server, "a1") && server.get(KEY).is_none());
    claim(&server, "b2", "ff");
    server.clock().advance(Duration::from_micros(LEASE));
    assert!(!renew(&server, "b2") && !release(&server, "b2"));
    assert_eq!(claim(&server, "c3", "ee").0, OWN, "also for another request");
    assert!(!complete(&server, "b2", b"late"), "somebody else works on it");
}

#[test]
fn who_lost_his_claim_to_nobody_still_has_his_answer_kept() {
    let server = LuaServer::new();
    claim(&server, "a1", "ff");
    server.clock().advance(Duration::from_micros(LEASE));
    assert!(complete(&server, "a1", b"late"));
    assert_eq!(claim(&server, "b2", "ff"), (ANSWERED, 0, b"late".to_vec()));
}

#[test]
fn a_clock_that_steps_back_prolongs_a_claim_by_one_lease_at_most() {
    let server = LuaServer::new();
    claim(&server, "a1", "ff");
    server.clock().step_back(Duration::from_secs(3_600));
    assert_eq!(claim(&server, "b2", "ff"), (OTHERS, LEASE as i64, vec![]));
    server.clock().advance(Duration::from_micros(LEASE));
    assert_eq!(claim(&server, "b2", "ff").0, OWN);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// At any time there is one owner at most, whatever the clock does and whatever lies under the key.
    #[test]
    fn two_never_own_it_at_once(
        steps in prop::collection::vec((clock_step(), 0_u8..3, 0_u8..4, prop::option::weighted(0.1, foreign(4))), 1..40),
    ) {
        let server = fresh_server();
        for (by, owner, deed, bytes) in steps {
            walk(server, by);
            if let Some(bytes) = bytes {
                server.put(KEY, match bytes { Stored::Text(text) => Stored::Text([b"x", &*text].concat()), other => other });
            }
            let owner = format!("a{owner}");
            let found = claim(server, &owner, "ff").0;
            prop_assert!([OWN, OTHERS, ANSWERED].contains(&found));
            prop_assert!(server.pttl(KEY).is_some());
            for other in ["a0", "a1", "a2"].into_iter().filter(|other| *other != owner) {
                prop_assert!(found != OWN || !renew(server, other));
            }
            match deed {
                0 => prop_assert_eq!(release(server, &owner), found == OWN),
                1 => prop_assert_eq!(complete(server, &owner, b"done"), found == OWN),
                2 => prop_assert_eq!(renew(server, &owner), found == OWN),
                _ => {}
            }
        }
    }
}
