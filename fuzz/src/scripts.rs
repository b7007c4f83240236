//! The Lua scripts over foreign state: whatever a key holds, no script fails (`I-27` of `docs/guarantees.md`), no breaker, lock
//! or request is blocked for ever (`I-8`), what a script writes has a TTL (`I-19`), and numbers in a reply are exact.
//! Foreign arguments may be an error, but never a long loop.

mod arguments;
mod breaker;
mod state;

use std::time::Duration;

use phalanx_core::clock::Time;
use phalanx_lua as lua;
use phalanx_lua::Script;
use phalanx_testkit::lua_server::{LuaServer, Reply, Stored};

use self::state::Start;
use crate::input::{Input, Recipe, SERVER_NOW, random};

const KEY: &[u8] = b"ph2:{t}";
const SECOND_KEY: &[u8] = b"ph2:{t}:2";
const THIRD_KEY: &[u8] = b"ph2:{t}:3";
const SECOND: Duration = Duration::from_secs(1);
/// 30 days: the longest lease of a lock or a request.
const MAX_TTL: Duration = Duration::from_secs(30 * 24 * 3_600);

/// Formats arguments of any type with `Display`.
macro_rules! args {
    ($($arg:expr),* $(,)?) => { Vec::from([$(($arg).to_string().into_bytes()),*]) };
}
use args;

/// Returns this thread's server, empty. Shared by all inputs, because compiling the scripts takes most of the time.
fn fresh_server() -> &'static LuaServer {
    thread_local! {
        static SERVER: &'static LuaServer = Box::leak(Box::new(LuaServer::new()));
    }
    let server = SERVER.with(|server| *server);
    server.flush();
    server.take_published();
    server.clock().set(Time::from_micros(SERVER_NOW as u64));
    server
}

/// Runs one input: the first byte selects the scripts.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let server = fresh_server();
    match input.below(8) {
        0 => bucket(server, &mut input),
        1 => breaker::run(server, &mut input),
        2 => digest(server, &mut input),
        3 => lock(server, &mut input),
        4 => request(server, &mut input),
        5 => members(server, &mut input),
        6 => arguments::run(server, &mut input),
        _ => slots(server, &mut input),
    }
    assert!(server.keys().len() <= 3, "a script writes only its own keys");
}

/// Runs a script; a script error fails the target.
fn call(server: &LuaServer, script: &Script, args: &[Vec<u8>]) -> Reply {
    let keys = [KEY.to_vec(), SECOND_KEY.to_vec(), THIRD_KEY.to_vec()];
    let before = [KEY, SECOND_KEY, THIRD_KEY].map(|key| server.get(key));
    let reply =
        server.run(script, &keys[..script.keys], args).unwrap_or_else(|error| panic!("{}: {error}", script.name));
    for (key, before) in [KEY, SECOND_KEY, THIRD_KEY].into_iter().zip(before) {
        let written = server.get(key).is_some() && server.get(key) != before;
        assert!(!written || server.pttl(key).is_some(), "{} wrote {} without a TTL", script.name, key.escape_ascii());
    }
    check_numbers(script, &reply);
    reply
}

/// Numbers above 2^53 are not exact in Lua, and wrap around in a reply.
fn check_numbers(script: &Script, reply: &Reply) {
    match reply {
        Reply::Int(number) => assert!(number.unsigned_abs() <= 1 << 53, "{} replies {number}", script.name),
        Reply::Array(parts) => parts.iter().for_each(|part| check_numbers(script, part)),
        Reply::Nil | Reply::Bytes(_) => {}
    }
}

/// Returns the integers of a reply, before the first part that is a text.
fn ints(server: &LuaServer, script: &Script, args: &[Vec<u8>]) -> Vec<i64> {
    match call(server, script, args) {
        Reply::Array(parts) => {
            parts.iter().map_while(|part| if let Reply::Int(int) = part { Some(*int) } else { None }).collect()
        }
        other => other.ints(),
    }
}

/// A bucket of three permits, refilled at ten a second: units are microseconds.
fn bucket(server: &LuaServer, input: &mut Input<'_>) {
    const CAPACITY: i64 = 300_000;
    let rate = || args![1, 100_000, CAPACITY];
    let acquire = |charge: i64, groups: &[[i64; 3]]| {
        let groups_args = groups.iter().flat_map(|group| args![group[0], group[1], group[2]]);
        ints(server, &lua::RATE_LIMIT_ACQUIRE, &[rate(), args![charge, groups.len()], groups_args.collect()].concat())
    };
    acquire(0, &[[2, 1, 500_000]]);
    Start::read(input).apply(server, KEY);
    let peeked = ints(server, &lua::RATE_LIMIT_PEEK, &rate());
    assert!((-(1 << 52)..=CAPACITY).contains(&peeked[1]), "{peeked:?}");
    let mut granted = 0;
    for _ in 0..input.below(6) {
        let (cost, wait) = (input.number() & 0x7fff_ffff, input.number() & ((1 << 52) - 1));
        match input.below(5) {
            4 => {
                let lease = [rate(), args![cost, 1, wait, cost % 7, 0]].concat();
                let reply = ints(server, &lua::RATE_LIMIT_LEASE, &lease);
                assert!(reply[1] <= CAPACITY && (0..=3).contains(&reply[3]), "{reply:?}");
                granted += reply[3];
            }
            0 => {
                let refund = [rate(), args![1, cost, wait]].concat();
                assert!(ints(server, &lua::RATE_LIMIT_REFUND, &refund)[1] <= CAPACITY);
                granted = 0;
            }
            1 => {
                let new = [cost % 1_000 + 1, wait % 1_000_000 + 1, (wait % 1_000_000 + 1) * 7];
                let args = [rate(), args![new[0], new[1], new[2]]].concat();
                assert!(ints(server, &lua::RATE_LIMIT_RETUNE, &args)[1] <= new[2]);
                granted = 0;
            }
            _ => {
                let reply = acquire(wait % 3 * cost, &[[9, 1, 0], [i64::from(input.byte()), cost, wait]]);
                assert!(reply[1] <= CAPACITY && (0..=9).contains(&reply[3]), "{reply:?}");
                granted += reply[3];
            }
        }
        assert!(granted <= 3, "time stands still: {granted} of 3 permits");
    }
    // A bucket that cannot be read is empty until an acquire repairs it. After the time of the deepest debt it is full, by
    // level or by having expired.
    acquire(0, &[[1, 1, 0]]);
    let [gain, price, capacity] = stored_rate(server).unwrap_or([1, 100_000, CAPACITY]);
    // A foreign rate may take longer than the clock can count.
    if capacity / gain > 1 << 50 {
        return;
    }
    server.clock().advance(Duration::from_micros((1 << 52) + (capacity / gain) as u64) + 2 * SECOND);
    if [gain, price, capacity] == [1, 100_000, CAPACITY] {
        assert_eq!(ints(server, &lua::RATE_LIMIT_PEEK, &rate())[1], CAPACITY);
    }
    // One that is stored by another rate keeps it until the first grant.
    assert_eq!(acquire(0, &[[1, 1, 0]])[3], 1);
    server.clock().advance(Duration::from_micros(CAPACITY as u64) + 2 * SECOND);
    assert_eq!(ints(server, &lua::RATE_LIMIT_PEEK, &rate())[1], CAPACITY);
    assert_eq!(acquire(0, &[[9, 1, 0]])[3], 3);
}

/// Gain, price and capacity of the stored bucket; the gain is at least 1.
fn stored_rate(server: &LuaServer) -> Option<[i64; 3]> {
    let text = server.get(KEY)?;
    let words: Vec<i64> =
        std::str::from_utf8(&text).ok()?.split(' ').skip(3).map_while(|word| word.parse().ok()).collect();
    words.get(..3)?.try_into().ok().map(|[gain, price, capacity]: [i64; 3]| [gain.max(1), price, capacity])
}

/// A digest with slices of one second.
fn digest(server: &LuaServer, input: &mut Input<'_>) {
    let flush = |age: i64, bins: &[u8]| {
        let args = [args![1_000_000, "f", ";", age], vec![bins.to_vec()]].concat();
        call(server, &lua::DIGEST_FLUSH, &args)
    };
    let bin = |bin: i64| [&(bin as u16).to_be_bytes()[..], &[0, 0, 0, 3]].concat();
    flush(0, &bin(5));
    flush(1_500_000, &bin(1_103));
    Start::read(input).apply(server, KEY);
    for _ in 0..input.below(4) {
        let age = input.number().max(0);
        if input.flag() {
            flush(age, &bin(input.number()))
        } else {
            flush(age, input.bytes(64))
        };
    }
    let flushed = flush(0, &bin(7));
    assert!(flushed.parts().len() <= 2 + 5 * 3 && flushed.parts().len() % 3 == 2, "{} parts", flushed.parts().len());
    let slices = flushed.parts()[2..].chunks(3);
    assert!(slices.clone().all(|slice| slice[2].bytes().len() <= 6_624 && slice[2].bytes().len() % 6 == 0));
    let counted = |bin: &[u8]| bin[..2] == [0, 7] && bin[2..].iter().any(|byte| *byte > 0);
    let mut counts = slices.clone().flat_map(|slice| slice[2].bytes().chunks(6));
    assert!(counts.any(counted), "the latencies just flushed are counted");
    // A caller that has all of it gets none of it.
    let name = |slice: &[Reply]| format!("{} {};", slice[0].int(), String::from_utf8_lossy(slice[1].bytes()));
    let known: String = slices.map(name).collect();
    let reply = call(server, &lua::DIGEST_READ, &args![1_000_000, format!(";{known}")]);
    assert!(reply.parts()[2..].chunks(3).all(|slice| slice[2].bytes().is_empty()), "{reply:?}");
    assert_eq!(reply.parts().len(), flushed.parts().len());
}

/// A lock and its last fence.
fn lock(server: &LuaServer, input: &mut Input<'_>) {
    let acquire = |owner: &str| ints(server, &lua::LOCK_ACQUIRE, &args![owner, 1_000_000, 0]);
    let renew = |owner: &str, fence: i64| ints(server, &lua::LOCK_RENEW, &args![owner, fence, 1_000_000])[1];
    acquire("first");
    Start::read(input).apply(server, KEY);
    Start::read(input).apply(server, SECOND_KEY);
    let taken = acquire("a");
    if taken[1] == 0 {
        assert!(taken[3] <= (MAX_TTL + SECOND).as_micros() as i64, "blocked for {} us", taken[3]);
        server.clock().advance(Duration::from_micros(taken[3] as u64));
    }
    let [_, 1, fence, _] = acquire("a")[..] else { panic!("not held after the lease") };
    let other = acquire("b");
    assert_eq!((other[1], other[2]), (0, fence), "one holder at a time");
    assert_eq!(renew("b", fence), 0);
    assert_eq!(renew("a", fence), 1);
    server.clock().advance(SECOND);
    assert_eq!(renew("a", fence), 0, "expired");
    let [_, 1, next, _] = acquire("b")[..] else { panic!("not held after the lease") };
    // Only a foreign fence can be the last that is exact; the next one starts over at the clock.
    assert!(next > fence || fence >= (1 << 53) - 2, "fences grow: {next} after {fence}");
    if input.flag() {
        let args = args!["b", next, 1_000_000, "ph2:c", "id"];
        assert_eq!(ints(server, &lua::LOCK_COMPLETE, &args)[1], 1);
    } else {
        assert_eq!(ints(server, &lua::LOCK_RELEASE, &args!["b", next, "ph2:c", "id"])[1], 1);
    }
    // The mark, and whatever else the second key holds now.
    Start::read(input).apply(server, SECOND_KEY);
    let completed = server.run(&lua::LOCK_COMPLETED, &[SECOND_KEY.to_vec()], &[]).expect("no error").ints();
    assert!((0..1 << 53).contains(&completed[1]), "{completed:?}");
}

/// An idempotency key.
fn request(server: &LuaServer, input: &mut Input<'_>) {
    let claim = |owner: &str| call(server, &lua::IDEMPOTENCY_CLAIM, &args![owner, "f0", 1_000_000, 0]);
    let flag = |script: &Script, args: &[Vec<u8>]| ints(server, script, args)[1];
    claim("aa");
    if input.flag() {
        flag(&lua::IDEMPOTENCY_COMPLETE, &args!["aa", "f0", "answer", 5_000_000, "ph2:c", "id"]);
    }
    Start::read(input).apply(server, KEY);
    let first = claim("bb");
    let [_, state, left, answer] = first.parts() else { panic!("{first:?}") };
    match state.int() {
        // Another owner's: free when its lease has expired.
        0 => {
            assert!(left.int() <= (MAX_TTL + SECOND).as_micros() as i64, "blocked for {} us", left.int());
            server.clock().advance(Duration::from_micros(left.int() as u64));
            assert_eq!(claim("bb").parts()[1].int(), 1);
        }
        2 => return assert_eq!(claim("cc").parts()[3], *answer, "an answer stays"),
        // A different request: no owner but its own changes it, until its lease has expired.
        3 => {
            assert_eq!(flag(&lua::IDEMPOTENCY_RENEW, &args!["bb", 1_000_000]), 0);
            assert_eq!(flag(&lua::IDEMPOTENCY_RELEASE, &args!["bb", "ph2:c", "id"]), 0);
            server.clock().advance(MAX_TTL + SECOND);
            let text = server.get(KEY).unwrap_or_default();
            return assert!(claim("bb").parts()[1].int() == 1 || text.starts_with(b"1 d "), "blocked for ever");
        }
        mine => assert_eq!(mine, 1),
    }
    assert_eq!(claim("cc").parts()[1].int(), 0, "one owner at a time");
    assert_eq!(flag(&lua::IDEMPOTENCY_RENEW, &args!["bb", 1_000_000]), 1);
    assert_eq!(flag(&lua::IDEMPOTENCY_COMPLETE, &args!["cc", "f0", "late", 1_000_000, "ph2:c", "id"]), 0);
    assert_eq!(flag(&lua::IDEMPOTENCY_COMPLETE, &args!["bb", "f0", "done", 1_000_000, "ph2:c", "id"]), 1);
    assert_eq!(claim("cc").parts()[3].bytes(), b"done");
}

/// The live replicas and the generation.
fn members(server: &LuaServer, input: &mut Input<'_>) {
    let heartbeat = |id: u64| call(server, &lua::MEMBERSHIP_HEARTBEAT, &args![id, 3_500_000, "token", id * 10]);
    heartbeat(1);
    Start::read(input).apply(server, KEY);
    Start::read(input).apply(server, SECOND_KEY);
    let reply = heartbeat(2);
    assert!(reply.parts()[1].int() >= 1 && (1..=128).contains(&reply.parts()[2].bytes().len()), "{reply:?}");
    assert_eq!(heartbeat(2).parts()[2], reply.parts()[2], "the generation stays");
    server.clock().advance(Duration::from_secs(601));
    assert_eq!(heartbeat(2).parts()[1].int(), 1, "no foreign member lives longer than ten minutes");
    assert_eq!(ints(server, &lua::MEMBERSHIP_LEAVE, &args![2])[1], 0);
    server.put(KEY, Stored::Foreign);
    assert_eq!(ints(server, &lua::MEMBERSHIP_LEAVE, &args![2])[1], 0);
}

/// The shares of ten slots.
fn slots(server: &LuaServer, input: &mut Input<'_>) {
    const CAP: i64 = 10;
    let share = |id: i64, number: i64, keep: i64, want: i64, asks: u8| {
        let reply = ints(server, &lua::SLOTS_SHARE, &args![CAP, id, number, keep, want, asks, 3_000_000]);
        let [_, _, held, share, _, total] = reply[..] else { panic!("{reply:?}") };
        assert!(share >= 0 && held >= share && total >= held, "{reply:?}");
        (held, share, total)
    };
    share(7, 1, 0, 4, 1);
    Start::read(input).apply(server, KEY);
    for number in 2..8 {
        let (keep, want) = (input.number() & 0xffff, input.number() & 0xffff);
        let (held, granted, total) = share(1 << 52, number, keep, want, input.below(2) as u8);
        assert!(held >= keep && (granted == 0 || granted + total - held <= CAP), "{granted} beside {}", total - held);
    }
    share(9, 1, 0, 5, 1);
    server.clock().advance(11 * SECOND);
    assert_eq!(share(9, 2, 0, 5, 1).1, 5, "nothing is held for longer than ten seconds");
}

/// Returns the inputs that the corpus starts with.
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    let whole = |script: u8, before: &[u8], text: &str| {
        Recipe::of(&[script]).bytes(before).bytes(&[state::WHOLE]).number(0).text(text).done()
    };
    let texts: [(&str, u8, &[u8], &str); 24] = [
        ("bucket-leased", 0, &[], "2 0 1700000003456789 1 100000 300000 1 0 2 0 0 0 0 0 0 0"),
        (
            "bucket-left",
            0,
            &[],
            "2 -900000 1700000003456789 1 100000 300000 0 0 0 0 0 0 0 0 100000 300000 next release",
        ),
        ("bucket-tail", 0, &[], "2 0 1700000003456789 1 100000 300000 9007199254740992 1e9"),
        ("bucket-good", 0, &[], "2 100000 1700000003456789 1 100000 300000 0 0 0 0 0 0 0 0 0 0"),
        ("bucket-future", 0, &[], "2 -4503599627370496 9007199254740992 1 100000 300000 0 0 0 0 0 0 0 0 0 0"),
        ("bucket-other-rate", 0, &[], "2 -4503599627370496 0 9007199254740992 1 4503599627370496 0 0 0 0 0 0 0 0 0 0"),
        ("bucket-zero-price", 0, &[], "2 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0"),
        ("digest-future", 2, &[], "2\ns 6 1000000 9007199254740991 f\n\0\x05\0\0\0\x03"),
        ("digest-next-release", 2, &[], "2 7 words\ns 6 1000000 1700000003 f 7\n\0\x05\0\0\0\x03n 3 words\nabc"),
        ("digest-twice", 2, &[], "2\ns 12 1000000 1700000003 f\n\0\x07\0\0\0\0\0\x07\0\0\0\0"),
        ("digest-no-length", 2, &[], "2\ns 0 0 0 f\ns 6 9007199254740991 0 f\n\0\x05\0\0\0\x03"),
        ("digest-endless", 2, &[], "2\ns 9007199254740991 1000000 1700000003 f\n"),
        ("lock-last-fence", 3, &[], "1 9007199254740990 1 1 x"),
        ("lock-future", 3, &[], "1 5 9007199254740991 2592000000000 x"),
        ("lock-owner", 3, &[], "1 5 1700000003456789 2592000000000 a\0b c"),
        ("request-future", 4, &[0], "1 c 9007199254740991 2592000000000 aa f0"),
        ("request-other-future", 4, &[0], "1 c 9007199254740991 2592000000000 aa f1"),
        ("request-answered", 4, &[0], "1 d f0 "),
        ("request-other-answered", 4, &[0], "1 d f1 x"),
        ("members-text", 5, &[], "text"),
        ("slots-future", 7, &[], "1 1 8 10 10 1 9007199254740991"),
        ("slots-next-release", 7, &[], "1 1 8 10 10 1 1700000005000000 17\nx 1 2"),
        ("slots-own-future", 7, &[], "1 1 4503599627370496 3 9 9007199254740991 1700000005000000"),
        ("bucket-long", 0, &[], "2 99999999999999999999999999999999999999 1 1 1 1 0 0 0 0 0 0 0 0 0 0"),
    ];
    let mut seeds: Vec<_> =
        texts.into_iter().map(|(name, script, before, text)| (name.to_owned(), whole(script, before, text))).collect();
    seeds.extend(breaker::seeds());
    seeds.extend(arguments::seeds());
    for script in 0..8 {
        seeds.extend(random(&[script], 4, 48));
    }
    seeds
}
