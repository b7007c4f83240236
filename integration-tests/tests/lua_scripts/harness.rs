//! Test harness of the script tests: a server with one key, random clock steps, and corrupt values.

use std::time::Duration;

use phalanx_core::clock::Time;
use phalanx_lua::Script;
use phalanx_testkit::lua_server::{LuaServer, Reply, Stored};
use proptest::prelude::*;

pub(crate) const KEY: &[u8] = b"ph2:{t}";
pub(crate) const LOG: &[u8] = b"ph2:{t}:s";
pub(crate) const EVIDENCE: &[u8] = b"ph2:{t}:e";

/// The keys of a script.
pub(crate) fn keys_of(script: &Script) -> Vec<Vec<u8>> {
    [KEY, LOG, EVIDENCE].iter().take(script.keys).map(|key| key.to_vec()).collect()
}
pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// Returns this thread's server, empty and at its initial time. Shared, because compiling the scripts for every case is slow.
pub(crate) fn fresh_server() -> &'static LuaServer {
    thread_local! {
        static SERVER: &'static LuaServer = Box::leak(Box::new(LuaServer::new()));
    }
    let server = SERVER.with(|server| *server);
    server.flush();
    server.clock().set(Time::from_micros(1_700_000_000_000_000));
    server
}

/// Formats arguments of any type with `Display`.
macro_rules! args {
    ($($arg:expr),* $(,)?) => { Vec::from([$(($arg).to_string().into_bytes()),*]) };
}
pub(crate) use args;

/// Runs a script on the one key; an error fails the test.
pub(crate) fn run(server: &LuaServer, script: &Script, args: &[Vec<u8>]) -> Reply {
    server.run(script, &keys_of(script), args).unwrap_or_else(|error| panic!("{}: {error}", script.name))
}

/// Returns whether the second field of a reply is 1. Panics if it is neither 1 nor 0.
pub(crate) fn is_done(reply: &Reply) -> bool {
    match reply.ints()[1] {
        0 => false,
        1 => true,
        other => panic!("neither 0 nor 1: {other}"),
    }
}

pub(crate) fn now(server: &LuaServer) -> Time {
    server.clock().now()
}

pub(crate) fn micros(duration: Duration) -> u64 {
    duration.as_micros() as u64
}

/// Moves the clock by this number of microseconds, forward or back.
pub(crate) fn move_clock(server: &LuaServer, by: i64) {
    let step = Duration::from_micros(by.unsigned_abs());
    if by < 0 { server.clock().step_back(step) } else { server.clock().advance(step) }
}

/// Clock steps: mostly forward, sometimes slightly back, far back, or a leap forward.
pub(crate) fn clock_step() -> impl Strategy<Value = i64> {
    prop_oneof![
        10 => 0_i64..2_000_000,
        4 => 0_i64..40_000_000,
        2 => -1_000_001_i64..0,
        1 => -4_000_000_i64..0,
        1 => -4_000_000_000_i64..0,
        1 => 0_i64..90_000_000_000,
    ]
}

/// Returns value and TTL of the key: equal before and after means that nothing was written.
pub(crate) fn raw(server: &LuaServer) -> (Option<Vec<u8>>, Option<u64>) {
    (server.get(KEY), server.pttl(KEY))
}

/// Numbers that are invalid or unlikely in a field.
fn odd_number() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => (0_i64..20).prop_map(|n| n.to_string()),
        3 => (-3_i64..0).prop_map(|n| n.to_string()),
        4 => (1_699_999_000_000_000_i64..1_700_001_000_000_000).prop_map(|n| n.to_string()),
        1 => any::<i64>().prop_map(|n| n.to_string()),
        1 => prop::sample::select(vec![
            "nan", "inf", "-inf", "1e308", "-1e308", "9e18", "9223372036854775807", "9007199254740993", "0x10", "1.5",
            "-", "", "00000000000000000000000000000000000001", "4503599627370496", "-4503599627370496",
        ]).prop_map(str::to_owned),
    ]
}

/// Values that another client or a fault may leave under a key that should hold `fields` numbers.
pub(crate) fn foreign(fields: usize) -> impl Strategy<Value = Stored> {
    let fields = fields.saturating_sub(2)..fields + 8;
    let numbers = prop::collection::vec(odd_number(), fields).prop_map(|words| format!("1 {}", words.join(" ")));
    prop_oneof![
        1 => Just(Stored::Foreign),
        1 => Just(Stored::Sorted([(b"a".to_vec(), 1.0)].into())),
        2 => prop::collection::vec(any::<u8>(), 0..200).prop_map(Stored::Text),
        8 => numbers.prop_map(|text| Stored::Text(text.into_bytes())),
    ]
}

/// Returns a valid text, cut off or with one field replaced.
pub(crate) fn damaged(text: &[u8], at: prop::sample::Index, word: &Option<String>) -> Stored {
    let Some(word) = word else { return Stored::Text(text[..at.index(text.len())].to_vec()) };
    let text = String::from_utf8_lossy(text);
    let mut words: Vec<_> = text.split(' ').collect();
    let place = at.index(words.len());
    words[place] = word;
    Stored::Text(words.join(" ").into_bytes())
}

/// The field that [`damaged`] inserts, or none to cut the text off.
pub(crate) fn damage() -> impl Strategy<Value = Option<String>> {
    prop_oneof![1 => Just(None), 4 => odd_number().prop_map(Some)]
}
