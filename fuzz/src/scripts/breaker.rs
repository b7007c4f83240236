//! A breaker over foreign state: it is not blocked, and it can trip, probe and close again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use phalanx_lua as lua;
use phalanx_lua::Script;
use phalanx_testkit::lua_server::LuaServer;

use super::state::{Start, WHOLE};
use super::{KEY, args, ints};
use crate::input::{Input, Recipe};

const CLOSED: i64 = 1;
const OPEN: i64 = 2;
const HALF_OPEN: i64 = 3;

/// Trips on two failures in a row or half of four calls; breaks of one to four seconds, three probes of which two must
/// succeed, leases of two seconds, a ramp of one second in four steps.
const SPEC: &str = "0.5 2 -1 1000000 10000000 4 1000000 2 4000000 0 3 2 2000000 1000000 4 7";
/// Longer than every break and every lease, and than the standstill of a clock that stepped back.
const LONGEST: Duration = Duration::from_secs(6);

/// The reply of a breaker script.
#[derive(Debug)]
struct BreakerReply {
    phase: i64,
    epoch: i64,
    left: i64,
    overridden: i64,
    tail: Vec<i64>,
}

/// The claim of a replica, as arguments: epoch, phase, time left, escalation, age; of the override the sequence and the
/// value.
#[derive(Clone, Copy, Debug)]
struct Claim([i64; 7]);

fn ask(server: &LuaServer, script: &Script, claim: Claim, more: &[Vec<u8>]) -> BreakerReply {
    let claim = format!("{} 42 -1 - -", claim.0.map(|number| number.to_string()).join(" "));
    let reply = ints(server, script, &[args![SPEC, claim, "ph2:c", "id@7", 0.5], more.to_vec()].concat());
    let (head, rest) = reply.split_at(9);
    let tail = rest[7 * head[8] as usize..].to_vec();
    let reply = BreakerReply { phase: head[1], epoch: head[2], left: head[3], overridden: head[4], tail };
    assert!((CLOSED..=HALF_OPEN).contains(&reply.phase) && reply.epoch >= 1, "{reply:?}");
    assert!((0..=4).contains(&reply.overridden), "{reply:?}");
    assert!((0..=5_000_000).contains(&reply.left), "a break that is longer than the longest: {reply:?}");
    reply
}

const NO_CLAIM: Claim = Claim([0, 1, 0, 0, 0, 0, 0]);

/// A number above all before.
fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn sync(server: &LuaServer, epoch: i64, kind: i64, calls: i64) -> BreakerReply {
    ask(
        server,
        &lua::BREAKER_SYNC,
        NO_CLAIM,
        &args![1, 50_000, 0, "0 0 0 0", 1, next_number(), epoch, kind, calls, 0, 0],
    )
}

fn admit(server: &LuaServer, callers: i64) -> BreakerReply {
    ask(server, &lua::BREAKER_ADMIT, NO_CLAIM, &args![callers, 42, (1_i64 << 53) - 1, 0, 0])
}

fn force(server: &LuaServer, entry: &str, is_new: bool) -> BreakerReply {
    ask(server, &lua::BREAKER_FORCE, NO_CLAIM, &args![entry, u8::from(is_new)])
}

/// Whether the first caller was admitted.
fn admitted(reply: &BreakerReply) -> bool {
    match reply.tail[..] {
        [0, ..] => true,
        [2, _, granted, ..] => granted > 0,
        [3, step, before, ..] => (before + 1) * (step + 1) / 5 > before * (step + 1) / 5,
        _ => false,
    }
}

pub(super) fn run(server: &LuaServer, input: &mut Input<'_>) {
    match input.below(3) {
        0 => drop(sync(server, 1, 0, 3)),
        1 => drop(sync(server, 1, 2, 2)),
        _ => {
            sync(server, 1, 2, 2);
            server.clock().advance(LONGEST);
            admit(server, 2);
        }
    }
    Start::read(input).apply(server, KEY);
    for _ in 0..input.below(8) {
        step(server, input);
    }
    recovers(server);
}

fn step(server: &LuaServer, input: &mut Input<'_>) {
    let (a, b) = (input.number(), input.number());
    match input.below(7) {
        0 => drop(sync(server, a, b.rem_euclid(6), i64::from(input.byte()))),
        1 => drop(admit(server, 1 + a.rem_euclid(5))),
        2 => drop(ask(server, &lua::BREAKER_SETTLE, NO_CLAIM, &args![1, a, b, input.below(7)])),
        3 => drop(force(server, &format!("{b} {} 42 {} - -", a.rem_euclid(6), b >> 1), a & 8 == 0)),
        4 => drop(ask(server, &lua::BREAKER_RESET, NO_CLAIM, &[])),
        5 => server.clock().advance(Duration::from_micros(a.unsigned_abs() % 10_000_000)),
        _ => {
            let claim =
                Claim([a & i64::MAX, 1 + b.rem_euclid(3), b & ((1 << 52) - 1), b & 0xffff, a >> 1, b, a.rem_euclid(6)]);
            ask(server, &lua::BREAKER_INSPECT, claim, &[]);
            ask(server, &lua::BREAKER_SYNC, claim, &args![1, 50_000, 0, "0 0 0 0", 0]);
        }
    }
}

/// `I-8`: after the longest break or lease a call is admitted; and with successes the breaker closes.
fn recovers(server: &LuaServer) {
    // An override stays until it is released.
    force(server, "0 0 42 -1 - -", true);
    admit(server, 1);
    for _ in 0..4 {
        server.clock().advance(LONGEST);
        let reply = admit(server, 1);
        assert!(reply.phase == CLOSED || admitted(&reply), "blocked: {reply:?}");
        if reply.phase == CLOSED {
            break;
        }
        let settled = ask(server, &lua::BREAKER_SETTLE, NO_CLAIM, &args![1, reply.epoch, reply.tail[1], 0]);
        assert!(settled.phase != OPEN, "{settled:?}");
    }
    let closed = ask(server, &lua::BREAKER_INSPECT, NO_CLAIM, &[]);
    assert_eq!(closed.phase, CLOSED, "two successful probes close it");
    // And it trips again.
    assert_eq!(sync(server, closed.epoch, 2, 2).phase, OPEN);
}

pub(super) fn seeds() -> Vec<(String, Vec<u8>)> {
    let zeros = "0 ".repeat(30);
    let text = |head: &str, tail: &str| format!("2 {head}\nw 1000000 1700000003 {zeros}\n{tail}");
    let now = "1700000003456789";
    let head = |phase: u8, epoch: &str, next_lease: &str| {
        format!("{now} {phase} {epoch} {now} {now} 0 0 0 0 0 {next_lease} -1 0 7")
    };
    let last = "9007199254740991";
    let texts = [
        ("good", text(&head(1, "1", "1"), "")),
        ("last-epoch", text(&head(2, last, "1"), "")),
        ("last-epoch-half-open", text(&head(3, last, "1"), "")),
        ("last-lease", text(&head(3, "4", last), "")),
        ("last-lease-open", text(&head(2, "4", "9007199254740990"), "")),
        ("foreign-lease", text(&head(3, "4", "9"), &format!("l 8 {last} {last}"))),
        ("many-leases", text(&head(3, "4", "9"), &"l 1 1700000009456789 1\n".repeat(4))),
        ("future", text(&format!("{last} 2 5 {last} {last} 1000 0 {last} {last} 0 1 -1 0 7"), "")),
        ("ramp", text(&format!("{now} 1 5 {now} {now} 0 0 0 0 0 1 4294967295 {last} 7"), "")),
        ("override", text(&head(3, "5", "1"), "o 7 4 42 0 - -")),
        ("last-override", text(&head(3, "5", "1"), "o 4503599627370496 1 42 9007199254740991 % %")),
        ("later-release", text(&head(3, "5", "9"), "l 1 1700000009456789 1 7\nr 1 words\no 7 9 42 5 - - words")),
        ("cut-off", text(&head(3, "4", "9"), "l 1 1")),
        ("minus", text(&head(3, "-", "--"), "l - - -")),
    ];
    let seed = |(name, text): (&str, String)| {
        let start = Recipe::of(&[1, 0, WHOLE]).number(0).text(&text);
        // Three callers at once, twice: leases are granted in a loop.
        let steps = start.bytes(&[2]).numbers(&[2, 0]).bytes(&[1]).numbers(&[2, 0]).bytes(&[1]);
        (format!("breaker-{name}"), steps.done())
    };
    let mut seeds: Vec<_> = texts.into_iter().map(seed).collect();
    let claim = Recipe::of(&[1, 0, 3]).number(0).bytes(&[2]).numbers(&[(1 << 53) - 1, 1]).bytes(&[6]);
    seeds.push(("breaker-claim-last-epoch".to_owned(), claim.clone().numbers(&[0, 0]).bytes(&[1]).done()));
    let claim = Recipe::of(&[1, 0, 3]).number(0).bytes(&[1]).numbers(&[i64::MAX, 1]).bytes(&[6]);
    seeds.push(("breaker-claim-beyond".to_owned(), claim.done()));
    seeds
}
