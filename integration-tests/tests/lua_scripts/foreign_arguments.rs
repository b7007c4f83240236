//! Scripts with arguments that no store sends: a count among them bounds no loop, the arguments that are there do.

use std::sync::mpsc;
use std::time::Duration;

use phalanx_lua::{BREAKER_SETTLE, BREAKER_SYNC, DIGEST_FLUSH, RATE_LIMIT_ACQUIRE, RATE_LIMIT_REFUND, Script};
use phalanx_testkit::lua_server::{LuaServer, Reply, Stored};

use crate::harness::*;

const SPEC: &str = "0.5 2 -1 -1 10000000 4 1000000 2 4000000 0 3 2 2000000 0 0 7";

/// Runs a script on a server of its own; a script that does not end within a minute fails the test.
fn ends(script: &'static Script, args: Vec<Vec<u8>>) -> Result<Reply, String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let server = LuaServer::new();
        server.put(KEY, Stored::Text(b"2 0 1700000000000000 1 100000 300000 0 0 0 0 0 0 0 0 0 0".to_vec()));
        sender.send(server.run(script, &[KEY.to_vec()], &args))
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
    ends(&BREAKER_SYNC, breaker(args![HUGE, 1, 2, 1, 0])).unwrap();
    let granted = ends(&RATE_LIMIT_ACQUIRE, args![1, 100_000, 300_000, 0, HUGE, 2, 0, 0]).unwrap();
    assert_eq!(granted.ints()[3..], [2], "one group is there");
    let refunded = ends(&RATE_LIMIT_REFUND, args![1, 100_000, 300_000, HUGE, 1, 1_700_000_000_000_000_u64]).unwrap();
    assert_eq!(refunded.ints()[1], 100_000);
    for args in [args![1_000_000, HUGE, 0, 1, 5, 3], args![1_000_000, 1, 0, HUGE, 5, 3]] {
        ends(&DIGEST_FLUSH, args).unwrap();
    }
}

#[test]
fn a_number_of_bins_below_zero_does_not_read_the_same_run_for_ever() {
    for bins in [-1, -2, -3] {
        ends(&DIGEST_FLUSH, args![1_000_000, HUGE, 0, bins, 5, 3]).unwrap();
    }
}
