//! Arguments that no store sends: a script may fail, but it ends, and no count among its arguments makes it loop for longer
//! than its arguments are long.

use phalanx_lua as lua;
use phalanx_lua::Script;
use phalanx_testkit::lua_server::LuaServer;

use super::{KEY, SECOND_KEY, THIRD_KEY, args};
use crate::input::{Input, Recipe};

const SPEC: &str = "0.5 2 -1 1000000 10000000 4 1000000 2 4000000 0 3 2 2000000 1000000 4 7";

/// Good arguments of every script that has a list or a count among them.
fn good() -> [(&'static Script, Vec<Vec<u8>>); 12] {
    let breaker = |more: Vec<Vec<u8>>| [args![SPEC, "2 2 0 1 0 7 1 42 -1 - -", "ph2:c", "id@7", 0.5], more].concat();
    [
        (&lua::RATE_LIMIT_ACQUIRE, args![1, 100_000, 300_000, 1, 2, 1, 1, 0, 3, 2, 500]),
        (&lua::RATE_LIMIT_REFUND, args![1, 100_000, 300_000, 2, 1, 0, 1, -5]),
        (&lua::RATE_LIMIT_LEASE, args![1, 100_000, 300_000, 2, 2, 28_571, 1, 1, 57_142, 2, 0]),
        (&lua::RATE_LIMIT_RETUNE, args![1, 100_000, 300_000, 2, 100_000, 500_000]),
        (&lua::BREAKER_ADMIT, breaker(args![3, 42, 0, 5, 1])),
        (&lua::BREAKER_SYNC, breaker(args![3, 50_000, 0, "9 1 0 1", 2, 1, 2, 0, 5, 0, 0, 2, 2, 2, 1, 0, 10])),
        (&lua::BREAKER_SETTLE, breaker(args![2, 2, 1, 0, 2, 2, 2])),
        (
            &lua::DIGEST_FLUSH,
            args![1_000_000, "a", ";7 a;", 0, "\0\x05\0\0\0\x01\0\x06\0\0\0\x01", 1_500_000, "\0\x07\0\0\0\x02"],
        ),
        (&lua::BREAKER_FORCE, breaker(args!["8 1 42 5 - -", 1])),
        (&lua::RATE_LIMIT_CHARGE, args![1, 100_000, 300_000, 5, 9]),
        (&lua::SLOTS_SHARE, args![10, 7, 1, 0, 4, 1, 3_000_000]),
        (
            &lua::RATE_LIMIT_ACQUIRE_ALL,
            args![
                1, 100_000, 300_000, 0, 7, 3_000_017, 15_000_085, 2, 1, 100_000, 300_000, 0, 2, 3, 2, 1, 1, 0, 3, 2,
                500, 1, 1, 2, 1, 0
            ],
        ),
    ]
}

pub(super) fn run(server: &LuaServer, input: &mut Input<'_>) {
    for _ in 0..=input.below(3) {
        let (script, mut args) = input.pick(&good());
        for _ in 0..=input.below(3) {
            let index = input.below(args.len());
            match input.below(4) {
                0 => args.truncate(index.max(1)),
                1 => args[index] = input.bytes(64).to_vec(),
                2 => args[index] = spec_with(input.below(16), input.number()).into_bytes(),
                _ => args[index] = input.number().to_string().into_bytes(),
            }
        }
        let keys = [KEY.to_vec(), SECOND_KEY.to_vec(), THIRD_KEY.to_vec()];
        let _ = server.run(script, &keys[..script.keys.min(keys.len())], &args);
        assert!(server.get(KEY).is_none_or(|text| text.len() <= 1 << 20), "{}", script.name);
    }
}

/// The spec with one number replaced.
fn spec_with(index: usize, number: i64) -> String {
    let mut words: Vec<_> = SPEC.split(' ').map(str::to_owned).collect();
    words[index] = number.to_string();
    words.join(" ")
}

pub(super) fn seeds() -> Vec<(String, Vec<u8>)> {
    let count = |name: &str, script: u8, index: u8| {
        let recipe = Recipe::of(&[6, 0, script, 0, index, 3]).number(1 << 40).done();
        (format!("arguments-{name}"), recipe)
    };
    let mut seeds = vec![
        count("acquire-charge", 0, 3),
        count("acquire-groups", 0, 4),
        count("acquire-callers", 0, 5),
        count("refunds", 1, 3),
        count("sync-runs", 4, 5),
        count("settled-probes", 5, 5),
        count("flush-age", 6, 3),
        count("flush-bins", 6, 4),
        count("admitted-callers", 3, 5),
        count("all-groups", 9, 12),
        count("all-callers", 9, 13),
        count("all-limits", 9, 14),
        count("all-bucket", 9, 15),
    ];
    // A spec that allows as many probes as callers ask for.
    let probes = Recipe::of(&[6, 0, 3, 1, 0, 2, 10]).number(1 << 40).bytes(&[5, 3]).number(1 << 40);
    seeds.push(("arguments-probes".to_owned(), probes.done()));
    seeds
}
