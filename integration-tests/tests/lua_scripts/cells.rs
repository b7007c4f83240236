//! A script that runs on several cells, with the arguments of each behind the numbers of arguments.

use phalanx_lua::{
    BREAKER_INSPECT, BREAKER_SETTLE, BREAKER_SYNC, DIGEST_FLUSH, DIGEST_READ, LOCK_ACQUIRE, LOG_READ, PROBE,
    RATE_LIMIT_ACQUIRE, RATE_LIMIT_REFUND, Script, TALLY_SYNC,
};
use phalanx_testkit::lua_server::{LuaServer, Reply, Stored};

use crate::harness::*;

/// The keys of a cell of this number.
fn keys_of_cell(script: &Script, cell: usize) -> Vec<Vec<u8>> {
    (0..script.keys).map(|key| format!("ph2:{{t}}:{cell}:{key}").into_bytes()).collect()
}

/// Runs a script on cells with these numbers of arguments. Returns the reply of each.
fn run_counted(server: &LuaServer, script: &Script, counts: &[usize], arguments: Vec<Vec<u8>>) -> Vec<Reply> {
    let keys: Vec<_> = (0..counts.len()).flat_map(|cell| keys_of_cell(script, cell)).collect();
    let args = counts.iter().map(|count| count.to_string().into_bytes()).chain(arguments).collect::<Vec<_>>();
    server.run(script, &keys, &args).unwrap().parts().to_vec()
}

/// Runs a script on a cell for each of these lists of arguments.
fn run_cells(server: &LuaServer, script: &Script, cells: &[Vec<Vec<u8>>]) -> Vec<Reply> {
    let counts: Vec<_> = cells.iter().map(Vec::len).collect();
    run_counted(server, script, &counts, cells.concat())
}

const RATE: [u64; 3] = [1, 1_000, 10_000];

fn acquire(groups: &[u64]) -> Vec<Vec<u8>> {
    let mut args = args![RATE[0], RATE[1], RATE[2], 0, groups.len()];
    args.extend(groups.iter().flat_map(|callers| args![callers, 1, 0]));
    args
}

#[test]
fn every_cell_has_its_own_keys_arguments_and_reply() {
    let server = LuaServer::new();
    let cells = [acquire(&[1]), acquire(&[2, 3]), acquire(&[20])];
    let granted = |replies: &[Reply]| replies.iter().map(|reply| reply.ints()[3..].to_vec()).collect::<Vec<_>>();
    assert_eq!(granted(&run_cells(&server, &RATE_LIMIT_ACQUIRE, &cells)), [vec![1], vec![2, 3], vec![10]]);
    assert_eq!(granted(&run_cells(&server, &RATE_LIMIT_ACQUIRE, &cells)), [vec![1], vec![2, 3], vec![0]]);
    assert_eq!(server.keys(), [0, 1, 2].map(|cell| keys_of_cell(&RATE_LIMIT_ACQUIRE, cell)[0].clone()));

    let owners = ["a", "b"].map(|owner| args![owner, 5_000_000, 0]);
    let held = run_cells(&server, &LOCK_ACQUIRE, &owners);
    assert_eq!(held.iter().map(|reply| reply.ints()[1]).collect::<Vec<_>>(), [1, 1], "two keys each");
    for (cell, owner) in [b'a', b'b'].into_iter().enumerate() {
        let [lock, fence] = [0, 1].map(|key| server.get(&keys_of_cell(&LOCK_ACQUIRE, cell)[key]).unwrap());
        assert_eq!(lock.last(), Some(&owner));
        assert_eq!(fence, now(&server).as_micros().to_string().into_bytes());
    }
}

#[test]
fn a_cell_without_arguments_has_none_of_its_neighbours() {
    let server = LuaServer::new();
    let replies = run_counted(&server, &PROBE, &[0, 1], args![5_000_000]);
    assert!(matches!(replies[0], Reply::Bytes(_)), "no TTL: {replies:?}");
    assert_eq!(replies[1].ints().len(), 1);
}

#[test]
fn a_cell_that_fails_returns_its_error_and_leaves_the_others_alone() {
    let server = LuaServer::new();
    let mut broken = acquire(&[1]);
    broken[1] = b"none".to_vec();
    let replies = run_cells(&server, &RATE_LIMIT_ACQUIRE, &[acquire(&[1]), broken, acquire(&[2])]);
    assert_eq!((&replies[0].ints()[3..], &replies[2].ints()[3..]), (&[1][..], &[2][..]));
    let error = String::from_utf8_lossy(replies[1].bytes()).into_owned();
    assert!(error.contains("none") || error.contains("arithmetic"), "{error}");
}

#[test]
fn a_cell_whose_command_fails_returns_its_error_and_leaves_the_others_alone() {
    let server = LuaServer::new();
    let replies = run_cells(&server, &PROBE, &[args![5_000_000], args!["1e300"], args![5_000_000]]);
    let error = String::from_utf8_lossy(replies[1].bytes()).into_owned();
    assert!(error.contains("integer") || error.contains("expire"), "{error}");
    assert_eq!([&replies[0], &replies[2]].map(|reply| reply.ints().len()), [1, 1]);
}

#[test]
fn a_number_of_arguments_that_are_not_there_is_no_loop() {
    let server = LuaServer::new();
    let arguments = [acquire(&[1]), acquire(&[2])].concat();
    let replies = run_counted(&server, &RATE_LIMIT_ACQUIRE, &[8, 1 << 52], arguments);
    assert_eq!(replies.iter().map(|reply| reply.ints()[3]).collect::<Vec<_>>(), [1, 2]);
}

const SPEC: &str = "0.5 0 -1 -1 10000000 4 1000000 2 4000000 0 3 2 2000000 0 0 7";

fn breaker(more: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    [args![SPEC, "0 1 0 0 0 0 0 0 -1 - -", "ph2:c", "id@7", 0.5], more].concat()
}

/// Arguments that are cut short are left out, and the last ones that are whole are not.
#[test]
fn the_last_group_of_each_cell_counts_and_a_part_of_one_does_not() {
    let server = LuaServer::new();
    let twice = |whole: Vec<Vec<u8>>| {
        let short = whole[..whole.len() - 1].to_vec();
        [whole.clone(), short, whole]
    };

    let granted = run_cells(&server, &RATE_LIMIT_ACQUIRE, &twice(acquire(&[1, 2])));
    assert_eq!(
        granted.iter().map(|reply| reply.ints()[3..].to_vec()).collect::<Vec<_>>(),
        [vec![1, 2], vec![1], vec![1, 2]]
    );
    let level = |server: &LuaServer, cell: usize| {
        let text = String::from_utf8(server.get(&keys_of_cell(&RATE_LIMIT_ACQUIRE, cell)[0]).unwrap()).unwrap();
        text.split(' ').nth(1).unwrap().parse::<u64>().unwrap()
    };
    assert_eq!([0, 1, 2].map(|cell| level(&server, cell)), [7_000, 9_000, 7_000]);
    let due = now(&server).as_micros();
    run_cells(&server, &RATE_LIMIT_REFUND, &twice(args![RATE[0], RATE[1], RATE[2], 2, 1, due, 1, due]));
    assert_eq!([0, 1, 2].map(|cell| level(&server, cell)), [9_000, 10_000, 9_000]);

    server.flush();
    let calls = |script: &'static Script, more: Vec<Vec<u8>>| {
        server.flush();
        run_cells(&server, script, &twice(breaker(more)));
        let cell = |cell: usize| {
            let keys = &keys_of_cell(script, cell)[..BREAKER_INSPECT.keys];
            server.run(&BREAKER_INSPECT, keys, &breaker(Vec::new())).unwrap().ints()[9]
        };
        [0, 1, 2].map(cell)
    };
    assert_eq!(calls(&BREAKER_SETTLE, args![2, 1, 1, 0, 1, 2, 0]), [2, 1, 2]);
    assert_eq!(calls(&BREAKER_SYNC, args![1, 50_000, 0, "0 0 0 0", 2, 1, 1, 0, 1, 0, 0, 1, 1, 0, 1, 0, 0]), [2, 1, 2]);

    server.flush();
    let bin = vec![0, 7, 0, 0, 0, 1];
    let mut run = args![1_000_000, "a", ";", 0, "", 0, ""];
    (run[4], run[6]) = (bin.clone(), bin);
    run_cells(&server, &DIGEST_FLUSH, &twice(run));
    let counts = [0, 1, 2].map(|cell| {
        let keys = keys_of_cell(&DIGEST_FLUSH, cell);
        server.run(&DIGEST_READ, &keys, &args![1_000_000, ";"]).unwrap().parts()[4].bytes()[5]
    });
    assert_eq!(counts, [2, 1, 2]);

    let added = run_cells(&server, &TALLY_SYNC, &twice(args![1_000_000, 0, 0, 0, 2, 0, 0, 3, 1, 0, 4, 1]));
    assert_eq!(added.iter().map(|reply| reply.ints()[5]).collect::<Vec<_>>(), [7, 3, 7]);
    let slice = now(&server).as_micros() / 1_000_000;
    let put_back = run_cells(&server, &TALLY_SYNC, &twice(args![1_000_000, 0, 0, 0, 0, 2, slice, slice]));
    assert_eq!(put_back.iter().map(|reply| reply.ints()[6]).collect::<Vec<_>>(), [0, 0, 0]);
}

/// A foreign value may be of any size; Redis copies what a script reads of it.
#[test]
fn a_value_is_told_from_one_that_is_longer_and_an_empty_one_from_none() {
    let server = LuaServer::new();
    let slice_len = 1_000_000;
    let flags = |server: &LuaServer| run(server, &TALLY_SYNC, &args![slice_len, 0, 0, 0, 0, 0]).ints()[1];
    assert_eq!(flags(&server), 0, "none");
    for (text, expected) in [(String::new(), 1), (format!("1 0{}", " 0".repeat(20)), 0)] {
        server.put(KEY, Stored::Text(text.clone().into_bytes()));
        assert_eq!(flags(&server), expected, "{text:?}");
    }
    let longest = format!("1 0{} {}", " 0".repeat(20), "x".repeat(8_192 - 44));
    for (text, expected) in [(longest.clone(), 0), (longest + "x", 1)] {
        assert_eq!(text.len(), 8_192 + expected as usize);
        server.put(KEY, Stored::Text(text.into_bytes()));
        assert_eq!(flags(&server), expected);
    }
}

#[test]
fn a_log_is_read_up_to_its_last_byte() {
    let server = LuaServer::new();
    let head = "1700000000000000 id 0\n";
    let mut text = head.repeat(200);
    text.truncate(4_096);
    server.put(KEY, Stored::Text(format!("{text}tail").into_bytes()));
    let reply = server.run(&LOG_READ, &[KEY.to_vec()], &args![1]).unwrap();
    assert_eq!(reply.parts()[2].bytes(), text.as_bytes());
}

#[test]
fn a_log_that_is_missing_empty_or_foreign_has_no_changes() {
    let server = LuaServer::new();
    let read = |known: u64| server.run(&LOG_READ, &[KEY.to_vec()], &args![known]).unwrap().ints();
    let nothing = vec![now(&server).as_micros() as i64, 0];
    assert_eq!(read(5), nothing);
    for stored in [Stored::Text(Vec::new()), Stored::Text(b"x 1".to_vec()), Stored::Foreign] {
        server.put(KEY, stored);
        assert_eq!(read(5), nothing);
    }
    server.put(KEY, Stored::Text(b"1 id 0\n".to_vec()));
    assert_eq!(server.run(&LOG_READ, &[KEY.to_vec()], &args![5]).unwrap().parts()[2].bytes(), b"1 id 0\n");
}
