//! Scripts with arguments that no store sends: a count among them bounds no loop, the arguments that are there do.

use std::sync::mpsc;
use std::time::Duration;

use phalanx_lua::{
    BREAKER_SETTLE, BREAKER_SYNC, DIGEST_FLUSH, DIGEST_READ, RATE_LIMIT_ACQUIRE, RATE_LIMIT_LEASE, RATE_LIMIT_REFUND,
    Script, TALLY_SYNC,
};
use phalanx_testkit::lua_server::{LuaServer, Reply, Stored};

use crate::harness::*;

const SPEC: &str = "0.5 2 -1 -1 10000000 4 1000000 2 4000000 0 3 2 2000000 0 0 7";

/// Runs a script on a server of its own; a script that does not end within a minute fails the test.
fn ends(script: &'static Script, args: Vec<Vec<u8>>) -> Result<Reply, String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let server = LuaServer::new();
        server.put(KEY, Stored::Text(b"2 0 1700000000000000 1 100000 300000 0 0 0 0 0 0 0 0 0 0".to_vec()));
        sender.send(server.run(script, &keys_of(script), &args))
    });
    receiver.recv_timeout(Duration::from_secs(60)).unwrap_or_else(|_| panic!("{} does not end", script.name))
}

/// Far more than a script could count to.
const HUGE: u64 = 1 << 52;

#[test]
fn a_count_without_its_arguments_is_no_loop() {
    let breaker = |more: Vec<Vec<u8>>| [args![SPEC, "0 1 0 0 0 0 0 0 -1 - -", "ph2:c", "id@7", 0.5], more].concat();
    let settled = ends(&BREAKER_SETTLE, breaker(args![HUGE, 1, 1, 2])).unwrap();
    assert_eq!(settled.ints()[1], 1, "one failure does not open it");
    ends(&BREAKER_SYNC, breaker(args![1, 50_000, 0, "0 0 0 0", HUGE, 1, 1, 2, 1, 0, 0])).unwrap();
    let granted = ends(&RATE_LIMIT_ACQUIRE, args![1, 100_000, 300_000, 0, HUGE, 2, 0, 0]).unwrap();
    assert_eq!(granted.ints()[3..], [2], "one group is there");
    let refunded = ends(&RATE_LIMIT_REFUND, args![1, 100_000, 300_000, HUGE, 1, 1_700_000_000_000_000_u64]).unwrap();
    assert_eq!(refunded.ints()[1], 100_000);
    let leased = ends(&RATE_LIMIT_LEASE, args![1, 100_000, 300_000, 2, HUGE, 1, 1, 1]).unwrap();
    assert_eq!(leased.ints()[1..4], [0, 0, 0], "one block is there, of no lease");
    let flushed = ends(&DIGEST_FLUSH, args![1_000_000, "a", ";", 0]).unwrap();
    assert_eq!(flushed.parts()[2..], [], "a run without bins is none");
    let added = ends(&TALLY_SYNC, args![1_000_000, 0, 0, 0, HUGE, HUGE, 0, 5, 3]).unwrap();
    assert_eq!(added.ints()[4..], [1_700_000_000, 5, 3], "one addition is there");
    ends(&TALLY_SYNC, args![1_000_000, HUGE, 1, HUGE, 0, HUGE, 1_700_000_000]).unwrap();
}

/// Found by fuzzing: the number of the present slice was infinite, and a loop over slices never ended.
#[test]
fn a_slice_of_no_length_is_no_loop() {
    for slice_len in ["0", "-1", "0.5", "nan", "-inf"] {
        let flushed = ends(&DIGEST_FLUSH, args![slice_len, "a", ";", 0, "\0\u{7}\0\0\0\u{1}"]).unwrap();
        assert_eq!(flushed.parts()[1..].len(), 4, "one slice of a microsecond for a length of {slice_len}");
        assert_eq!(ends(&DIGEST_READ, args![slice_len, ";"]).unwrap().parts().len(), 2, "{slice_len}");
        let added = ends(&TALLY_SYNC, args![slice_len, 0, 0, 0, 1, 0, 0, 5, 3]).unwrap();
        assert_eq!(added.ints()[2..], [1_700_000_000_000_000, 0, 1_700_000_000_000_000, 5, 3], "{slice_len}");
    }
}
