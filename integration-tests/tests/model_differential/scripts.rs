//! Every shipped script replies the same, byte for byte.

use std::time::Duration;

use phalanx_lua as lua;

use crate::harness::{CHANNEL, NOW, SECOND, Step, ZERO, compare, script};
use crate::one_server::OneServer;

/// Three failures in a row trip for ten seconds, then two probes close; with a ramp.
const SPEC: &str = "0.5 3 -1 -1 10000000 4 10000000 2 60000000 0.25 2 2 5000000 4000000 4 7";

/// A call of a breaker script.
fn breaker(of: &'static lua::Script, after: Duration, more: &[&str]) -> Step {
    let args = [&[SPEC, "0 1 0 0 0", CHANNEL, "id@12", "0.5"][..], more].concat();
    script(of, after, &["ph2:{b}", "ph2:{b}:s", "ph2:{b}:e"][..of.keys], &args)
}

fn bucket(of: &'static lua::Script, after: Duration, more: &[&str]) -> Step {
    let args = [&["3", "1000000", "10000000"][..], more].concat();
    script(of, after, &["ph2:{r}"], &args)
}

fn other(of: &'static lua::Script, after: Duration, keys: &[&str], args: &[&str]) -> Step {
    script(of, after, keys, args)
}

fn buckets() -> Vec<Step> {
    vec![
        bucket(&lua::RATE_LIMIT_PEEK, ZERO, &[]),
        bucket(&lua::RATE_LIMIT_ACQUIRE, ZERO, &["0", "2", "3", "2", "0", "5", "1", "500000"]),
        bucket(&lua::RATE_LIMIT_ACQUIRE, SECOND / 7, &["2", "1", "9", "1", "0"]),
        bucket(&lua::RATE_LIMIT_REFUND, SECOND, &["2", "1", "0", "1", "-5000000"]),
        bucket(&lua::RATE_LIMIT_LEASE, SECOND / 7, &["1", "1", "7000000", "2", "1"]),
        bucket(&lua::RATE_LIMIT_RETUNE, SECOND, &["1", "1000000", "4000000"]),
        bucket(&lua::RATE_LIMIT_PEEK, 2 * SECOND, &[]),
        other(&lua::RATE_LIMIT_CHARGE, 2 * SECOND, &["ph2:{r}", "ph2:{r}:c"], &["1", "1000000", "4000000", "0", "7"]),
        other(&lua::RATE_LIMIT_CHARGE, 3 * SECOND, &["ph2:{r}", "ph2:{r}:c"], &["1", "1000000", "4000000", "0", "9"]),
    ]
}

fn several_limits_and_slots() -> Vec<Step> {
    let keys = &["ph2:{r}:1", "ph2:{r}:2"];
    let rates = ["3", "1000000", "10000000", "0", "1", "1000000", "4000000", "2"];
    let groups = |groups: &[&'static str]| [&rates[..], groups].concat();
    // Three callers of both limits, then one of the second that waits.
    let both = groups(&["2", "3", "2", "1", "2", "0", "2", "1", "0", "1", "1", "2", "1", "500000"]);
    let slots = |after, args: &[&str]| other(&lua::SLOTS_SHARE, after, &["ph2:{s}"], args);
    vec![
        other(&lua::RATE_LIMIT_ACQUIRE_ALL, ZERO, keys, &both),
        other(&lua::RATE_LIMIT_ACQUIRE_ALL, SECOND / 7, keys, &both),
        slots(ZERO, &["10", "7", "1", "0", "4", "1", "3000000"]),
        slots(SECOND, &["10", "8", "1", "0", "9", "1", "3000000"]),
        slots(2 * SECOND, &["10", "7", "2", "4", "2", "0", "3000000"]),
        slots(6 * SECOND, &["10", "8", "2", "0", "0", "0", "3000000"]),
    ]
}

fn breakers() -> Vec<Step> {
    vec![
        breaker(&lua::BREAKER_ADMIT, ZERO, &["3", "12"]),
        breaker(
            &lua::BREAKER_SYNC,
            ZERO,
            &["1", "50000", "0", "2 1 0 1", "2", "7", "1", "0", "2", "0", "0", "7", "1", "2", "1", "1000", "0"],
        ),
        breaker(&lua::BREAKER_INSPECT, SECOND, &[]),
        other(&lua::LOG_READ, SECOND, &["ph2:{b}:s"], &["0"]),
        other(&lua::BREAKER_ABSTAIN, SECOND, &["ph2:{b}:e"], &["13", "7"]),
        other(&lua::LOG_HEADS, SECOND, &["ph2:{b}:s"], &[]),
        breaker(&lua::BREAKER_SYNC, SECOND, &["3", "50000", "0", "5 4 0 4", "1", "8", "1", "2", "1", "0", "10"]),
        breaker(&lua::BREAKER_SYNC, SECOND, &["1", "50000", "0", "5 4 0 4", "1", "9", "1", "2", "3", "0", "10"]),
        breaker(&lua::BREAKER_ADMIT, 2 * SECOND, &["1", "12"]),
        breaker(&lua::BREAKER_ADMIT, 13 * SECOND, &["3", "12"]),
        breaker(&lua::BREAKER_SETTLE, 14 * SECOND, &["2", "3", "1", "0", "3", "2", "0"]),
        breaker(&lua::BREAKER_ADMIT, 15 * SECOND, &["5", "12"]),
        breaker(&lua::BREAKER_FORCE, 15 * SECOND, &["0 1 7 60000000 me incident", "1"]),
        breaker(&lua::BREAKER_ADMIT, 16 * SECOND, &["1", "12"]),
        breaker(&lua::BREAKER_FORCE, 16 * SECOND, &["0 0 7 -1 me over", "1"]),
        breaker(&lua::BREAKER_RESET, 17 * SECOND, &[]),
        breaker(&lua::BREAKER_INSPECT, 18 * SECOND, &[]),
    ]
}

fn digests() -> Vec<Step> {
    let (key, slice) = (&["ph2:{d}"], &b"2000000"[..]);
    vec![
        script(&lua::DIGEST_READ, ZERO, key, &[slice, b";"]),
        script(&lua::DIGEST_FLUSH, ZERO, key, &[slice, b"a", b";", b"0", b"\0\x07\0\0\0\x03\x04\x4f\xff\xff\xff\xff"]),
        script(
            &lua::DIGEST_FLUSH,
            3 * SECOND,
            key,
            &[slice, b"b", b";850000000 a;", b"0", b"\0\x08\0\0\0\x01", b"1000000", b"\0\x07\0\0\0\x02"],
        ),
        script(&lua::DIGEST_READ, 3 * SECOND, key, &[slice, b";850000001 b;"]),
    ]
}

fn tallies() -> Vec<Step> {
    let slice = "1000000";
    vec![
        other(&lua::TALLY_SYNC, ZERO, &["ph2:{t}"], &[slice, "2", "0.2", "1.0", "1", "0", "0", "7", "0"]),
        other(
            &lua::TALLY_SYNC,
            SECOND,
            &["ph2:{t}"],
            &[slice, "3", "0.2", "1.0", "2", "1", "500000", "40", "1", "0", "-1", "0", "1"],
        ),
        other(&lua::TALLY_SYNC, 2 * SECOND, &["ph2:{t}"], &[slice, "0", "0", "0", "0", "0"]),
    ]
}

fn members_and_locks() -> Vec<Step> {
    let fence = NOW.as_micros().to_string();
    let (members, locks) = (&["ph2:{m}", "ph2:{m}:g"], &["ph2:{l}", "ph2:{l}:f"]);
    let (lock, mark) = (&["ph2:{l}"], &["ph2:{l}:d:1"]);
    vec![
        other(&lua::MEMBERSHIP_HEARTBEAT, ZERO, members, &["1", "3500000", "first", "0"]),
        other(&lua::MEMBERSHIP_HEARTBEAT, SECOND, members, &["2", "3500000", "second", "3"]),
        other(&lua::MEMBERSHIP_HEARTBEAT, 4 * SECOND, members, &["2", "3500000", "third", "2"]),
        other(&lua::MEMBERSHIP_LEAVE, 4 * SECOND, &["ph2:{m}"], &["2"]),
        other(&lua::LOCK_ACQUIRE, ZERO, locks, &["me", "9000000", "0"]),
        other(&lua::LOCK_ACQUIRE, SECOND, locks, &["other", "9000000", "0"]),
        other(&lua::LOCK_RENEW, SECOND, lock, &["me", &fence, "9000000"]),
        other(&lua::LOCK_RELEASE, SECOND, lock, &["other", &fence, CHANNEL, "l"]),
        other(&lua::LOCK_COMPLETE, SECOND, &[lock[0], mark[0]], &["me", &fence, "60000000", CHANNEL, "l"]),
        other(&lua::LOCK_COMPLETED, 2 * SECOND, mark, &[]),
        other(&lua::LOCK_ACQUIRE, 2 * SECOND, locks, &["other", "9000000", "0"]),
    ]
}

fn requests() -> Vec<Step> {
    let key = &["ph2:{i}"];
    vec![
        other(&lua::IDEMPOTENCY_CLAIM, ZERO, key, &["0a", "ff", "5000000", "0"]),
        other(&lua::IDEMPOTENCY_CLAIM, SECOND, key, &["0b", "ff", "5000000", "1"]),
        other(&lua::IDEMPOTENCY_RENEW, SECOND, key, &["0a", "5000000"]),
        other(&lua::IDEMPOTENCY_RELEASE, SECOND, key, &["0b", CHANNEL, "r"]),
        script(
            &lua::IDEMPOTENCY_COMPLETE,
            SECOND,
            key,
            &[&b"0a"[..], b"ff", b"\x00\xffanswer", b"5000000", CHANNEL.as_bytes(), b"r"],
        ),
        other(&lua::IDEMPOTENCY_CLAIM, 2 * SECOND, key, &["0b", "ff", "5000000", "1"]),
        other(&lua::IDEMPOTENCY_CLAIM, 2 * SECOND, key, &["0b", "ee", "5000000", "0"]),
        other(&lua::PROBE, 2 * SECOND, &["ph2:{p}"], &["60000000"]),
    ]
}

#[test]
fn every_shipped_script_replies_the_same_byte_for_byte_and_pushes_the_same() {
    let seen = compare::<OneServer>(async |server, log| {
        let redis = log.connected(&server.redis()).await;
        let mut subscription = log.subscribed(&server.redis()).await;
        for steps in
            [buckets(), several_limits_and_slots(), breakers(), digests(), tallies(), members_and_locks(), requests()]
        {
            for step in &steps {
                log.run(&redis, std::slice::from_ref(step)).await;
            }
        }
        server.publish("end").await;
        log.receive_until_last(&mut subscription, "end").await;
    });
    for script in lua::ALL {
        assert!(seen.iter().any(|step| step.starts_with(&format!("{} of ", script.name))), "{} is played", script.name);
    }
    assert!(seen.iter().all(|step| !step.contains("failed")), "{seen:#?}");
    // A call for evidence, closed, open, half-open and closed again, an override set and released, a reset, a completed lock, an awaited answer,
    // and the end.
    let pushed = seen.iter().filter(|step| step.starts_with("receive: ")).count();
    assert_eq!(pushed, 10, "{seen:#?}");
}
