//! Charges: each permit of a request once, in whatever order requests run, and a debt that the record keeps.

use phalanx_lua::{RATE_LIMIT_ACQUIRE, RATE_LIMIT_CHARGE, RATE_LIMIT_LEASE, RATE_LIMIT_PEEK, RATE_LIMIT_REFUND};
use phalanx_testkit::lua_server::{LuaServer, Stored};

use crate::harness::*;

/// Ten permits a second, ten at once: units are microseconds.
fn rate_args() -> Vec<Vec<u8>> {
    args![1, 100_000, 1_000_000]
}

/// Runs a request of a replica that knows `arrived` permits to be charged and has charged `requested`. Returns the level.
fn charge(server: &LuaServer, arrived: u64, requested: u64) -> i64 {
    run(server, &RATE_LIMIT_CHARGE, &[rate_args(), args![arrived, requested]].concat()).ints()[1]
}

fn level(server: &LuaServer) -> i64 {
    run(server, &RATE_LIMIT_PEEK, &rate_args()).ints()[1]
}

/// The numbers of the tail.
fn tail(server: &LuaServer) -> Vec<u64> {
    let text = String::from_utf8(server.get(KEY).unwrap()).unwrap();
    text.split(' ').skip(6).map(|number| number.parse().unwrap()).collect()
}

#[test]
fn a_request_that_is_repeated_or_runs_late_charges_nothing_twice() {
    let server = fresh_server();
    assert_eq!(charge(server, 0, 3), 700_000);
    assert_eq!(charge(server, 0, 3), 700_000, "its reply was lost");
    assert_eq!(charge(server, 0, 5), 500_000, "with two more");
    assert_eq!(charge(server, 0, 4), 500_000, "an earlier one that runs late");
    assert_eq!(charge(server, 5, 6), 400_000);
    assert_eq!(server.get(LOG), Some(b"6".to_vec()));
    let ttl = server.pttl(LOG).unwrap();
    assert_eq!(ttl, 600_000);
}

#[test]
fn a_server_that_has_forgotten_a_replica_charges_only_what_is_not_known_to_have_arrived() {
    let server = fresh_server();
    charge(server, 0, 5);
    server.flush();
    assert_eq!(charge(server, 5, 7), 800_000);
    for corrupt in ["", "x", "-4", "12345678901234567890", "4 5"] {
        server.put(LOG, Stored::Text(corrupt.as_bytes().to_vec()));
        let before = level(server);
        assert_eq!(charge(server, 7, 8), before - 100_000, "{corrupt:?}");
    }
}

#[test]
fn a_debt_is_in_the_record_until_it_is_paid_off_or_a_caller_waits_behind_it() {
    let server = fresh_server();
    assert_eq!(charge(server, 0, 8), 200_000);
    assert_eq!(tail(server).len(), 12, "nothing is missing");
    assert_eq!(charge(server, 8, 13), -300_000);
    assert_eq!(tail(server)[12], 300_000);
    server.clock().advance(SECOND / 10);
    let refund = [rate_args(), args![1, 1, now(server).as_micros()]].concat();
    assert_eq!(run(server, &RATE_LIMIT_REFUND, &refund).ints()[1], -100_000);
    assert_eq!(tail(server)[12], 100_000);
    let waits = [rate_args(), args![0, 1, 1, 1, 1_000_000]].concat();
    assert_eq!(run(server, &RATE_LIMIT_ACQUIRE, &waits).ints()[3], 1);
    assert_eq!(tail(server).len(), 12, "it is a part of the caller's time");
    assert_eq!(run(server, &RATE_LIMIT_REFUND, &refund).ints()[1], -200_000);
}

#[test]
fn permits_that_were_granted_without_the_bucket_are_a_debt_too() {
    let server = fresh_server();
    let charged = [rate_args(), args![15, 1, 1, 1, 0]].concat();
    assert_eq!(run(server, &RATE_LIMIT_ACQUIRE, &charged).ints()[1..], [0, 0, 0], "as many as the bucket holds");
    assert_eq!(run(server, &RATE_LIMIT_ACQUIRE, &charged).ints()[1..], [-1_000_000, 0, 0]);
    assert_eq!(tail(server)[12], 1_000_000);
    let drawn = [rate_args(), args![5, 0]].concat();
    assert_eq!(run(server, &RATE_LIMIT_LEASE, &drawn).ints()[3], 0, "a debt leases nothing");
}

#[test]
fn a_bucket_is_kept_until_its_debt_is_paid_off_and_it_is_full() {
    let server = fresh_server();
    charge(server, 0, 1_000);
    assert!(server.pttl(KEY).unwrap() >= 200_000, "a hundred seconds, twice");
    server.clock().advance(99 * SECOND);
    assert_eq!(level(server), 0);
    server.clock().advance(SECOND);
    assert_eq!(level(server), 1_000_000);
}

#[test]
fn what_a_later_release_has_appended_stays_behind_the_debt() {
    let server = fresh_server();
    let record = format!("2 0 {} 1 100000 1000000 0 0 0 0 0 0 0 0 0 0 0 0 0 7 words", now(server).as_micros());
    server.put(KEY, Stored::Text(record.into_bytes()));
    charge(server, 0, 2);
    let text = String::from_utf8(server.get(KEY).unwrap()).unwrap();
    assert!(text.ends_with(" 0 0 200000 7 words"), "{text}");
    server.clock().advance(SECOND);
    charge(server, 2, 3);
    let text = String::from_utf8(server.get(KEY).unwrap()).unwrap();
    assert!(text.ends_with(" 0 0 0 7 words"), "{text}");
}
