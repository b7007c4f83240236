//! The script of shares: equal to the machine of core over clock steps, its record, corrupt keys, and what is not written.

use phalanx_core::slots::share::LEASE;
use phalanx_core::slots::{MAX_HOLDERS, ShareReply, ShareRequest, SlotTable};
use phalanx_lua::SLOTS_SHARE;
use phalanx_testkit::lua_server::{LuaServer, Stored};
use proptest::prelude::*;

use crate::harness::*;

const NOW: u64 = 1_700_000_000_000_000;
const REPAIRED: i64 = 1;

/// Returns the flag of a repair, and the reply.
fn share(server: &LuaServer, cap: u32, id: u64, request: &ShareRequest) -> (i64, ShareReply) {
    let ShareRequest { number, keep, want, is_asking } = *request;
    let args = args![cap, id, number, keep, want, u8::from(is_asking), LEASE.as_micros()];
    let reply = run(server, &SLOTS_SHARE, &args).ints();
    assert_eq!((reply.len(), reply[0] as u64), (6, now(server).as_micros()));
    let slots = |number: i64| u32::try_from(number).unwrap();
    let decoded = ShareReply {
        held: slots(reply[2]),
        share: slots(reply[3]),
        recorded: slots(reply[4]),
        is_late: reply[1] & 2 != 0,
        total: reply[5] as u64,
    };
    (reply[1] & REPAIRED, decoded)
}

fn ask(server: &LuaServer, cap: u32, id: u64, number: u64, want: u32) -> (i64, ShareReply) {
    share(server, cap, id, &ShareRequest { number, keep: 0, want, is_asking: true })
}

fn put(server: &LuaServer, text: &str) {
    server.put(KEY, Stored::Text(text.as_bytes().to_vec()));
}

fn stored(server: &LuaServer) -> String {
    String::from_utf8(server.get(KEY).unwrap()).unwrap()
}

/// A request of one of four holders: what it keeps is mostly what it was granted.
#[derive(Clone, Debug)]
struct Step {
    clock: i64,
    id: u64,
    keep: Option<u32>,
    want: u32,
    is_asking: bool,
    /// How far its number is behind the next one.
    behind: u64,
}

fn steps(clock: impl Strategy<Value = i64>) -> impl Strategy<Value = Vec<Step>> {
    let keep = prop::option::weighted(0.2, 0_u32..12);
    let behind = prop_oneof![8 => Just(0), 1 => 1_u64..4];
    let step = (clock, 0_u64..4, keep, 0_u32..14, any::<bool>(), behind)
        .prop_map(|(clock, id, keep, want, is_asking, behind)| Step { clock, id, keep, want, is_asking, behind });
    prop::collection::vec(step, 1..80)
}

proptest! {
    #[test]
    fn it_equals_the_machine_of_core(cap in 1_u32..30, steps in steps(clock_step())) {
        let server = fresh_server();
        let (mut machine, mut granted) = (SlotTable::default(), [0; 4]);
        for (number, step) in (10..).zip(steps) {
            move_clock(server, step.clock);
            let Step { id, keep, want, is_asking, behind, .. } = step;
            let keep = keep.unwrap_or(granted[id as usize]);
            let request = ShareRequest { number: number - behind, keep, want, is_asking };
            if server.get(KEY).is_none() {
                machine = SlotTable::default(); // its TTL has passed, and a clock that goes back does not bring it back
            }
            let expected = machine.share(now(server), cap, LEASE, id, &request);
            prop_assert_eq!(share(server, cap, id, &request), (0, expected), "{:?}", request);
            granted[id as usize] = expected.share;
        }
    }

    #[test]
    fn shares_never_exceed_the_cap_beyond_what_is_kept(cap in 1_u32..30, steps in steps(clock_step())) {
        let server = fresh_server();
        for (number, step) in (10..).zip(steps) {
            move_clock(server, step.clock);
            let request = ShareRequest { number, keep: step.keep.unwrap_or(0), want: step.want, is_asking: step.is_asking };
            let (_, reply) = share(server, cap, step.id, &request);
            let others = reply.total - u64::from(reply.held);
            prop_assert!(reply.share == 0 || u64::from(reply.share) + others <= u64::from(cap), "{reply:?}");
            prop_assert!(reply.held == reply.share.max(request.keep));
        }
    }

    #[test]
    fn any_foreign_value_is_no_holder_or_a_plausible_one(stored in foreign(11)) {
        let server = fresh_server();
        server.put(KEY, stored);
        let (flag, reply) = ask(server, 10, 77, 1 << 50, 3);
        prop_assert!(flag == 0 || flag == 1);
        prop_assert!(reply.share <= 10);
        server.clock().advance(SECOND * 11);
        let (flag, reply) = ask(server, 10, 77, (1 << 50) + 1, 3);
        prop_assert_eq!((flag, reply.share), (0, 4), "nothing holds slots for longer than ten seconds");
    }

    #[test]
    fn a_damaged_record_is_repaired_once(at: prop::sample::Index, word in damage()) {
        let server = fresh_server();
        ask(server, 10, 1, 1, 4);
        ask(server, 10, 2, 1, 4);
        server.put(KEY, damaged(&server.get(KEY).unwrap(), at, &word));
        let (flag, reply) = ask(server, 10, 3, 1, 2);
        prop_assert!(flag == 0 || reply.total == 3, "{reply:?}");
        prop_assert_eq!(ask(server, 10, 3, 1, 2).0, 0);
    }
}

#[test]
fn the_record_names_each_holder_and_lives_until_the_last_one_ends_and_a_second() {
    let server = LuaServer::new();
    ask(&server, 10, 7, 3, 4);
    server.clock().advance(SECOND);
    ask(&server, 10, 8, 1, 9);
    let ends = NOW + 3_000_000;
    assert_eq!(stored(&server), format!("1 2 7 5 4 3 {ends} 8 5 9 1 {}", ends + 1_000_000));
    assert_eq!(server.pttl(KEY), Some(4_000));
    assert_eq!(ask(&server, 10, 9, 1, 1).1.share, 0);
    assert!(
        stored(&server).ends_with(&format!(" 9 0 1 1 {}", ends - 1_000_000)),
        "remembered for a third of the lease"
    );
}

#[test]
fn the_record_is_gone_with_the_last_holder_unless_a_later_release_has_added_something() {
    let server = LuaServer::new();
    let back = |number| ShareRequest { number, keep: 0, want: 0, is_asking: false };
    ask(&server, 10, 7, 1, 4);
    share(&server, 10, 7, &back(2));
    assert_eq!(raw(&server), (None, None));
    share(&server, 10, 7, &back(3));
    assert_eq!(raw(&server), (None, None), "nothing is written for nothing");
    for more in [" 17 3", "\nl 1 2\nz of another line"] {
        put(&server, &format!("1 0{more}"));
        assert_eq!(ask(&server, 10, 7, 4, 4).0, 0, "{more:?} is not corrupt");
        assert_eq!(stored(&server), format!("1 1 7 5 4 4 {}{more}", NOW + 3_000_000));
        share(&server, 10, 7, &back(5));
        assert_eq!((stored(&server), server.pttl(KEY)), (format!("1 0{more}"), Some(1_000)));
    }
    for (length, kept) in [(4_096, true), (4_097, false)] {
        let more = format!(" {}", "9".repeat(length - 1));
        put(&server, &format!("1 0{more}"));
        ask(&server, 10, 7, 6, 4);
        let more = if kept { more.as_str() } else { "" };
        assert_eq!(stored(&server), format!("1 1 7 5 4 6 {}{more}", NOW + 3_000_000), "{length} bytes");
    }
}

#[test]
fn a_text_that_no_release_has_written_is_repaired() {
    let server = LuaServer::new();
    let until = NOW + 1_000_000;
    let glued = format!("1 1 7 5 4 1 {until}x");
    let too_many = format!("1 257{}", format!(" 7 5 4 1 {until}").repeat(257));
    let too_much = format!("1 1 7 1000000001 4 1 {until}");
    let inexact = format!("1 1 9007199254740993 5 4 1 {until}");
    for text in ["", "1", "2 0", "1 1 2 3", "1 -1", &glued, &too_many, &too_much, &inexact, &"1 ".repeat(20_000)] {
        put(&server, text);
        let (flag, reply) = ask(&server, 10, 7, 1, 3);
        assert_eq!((flag, reply.share, reply.total), (REPAIRED, 4, 4), "{text:.40}");
        assert_eq!(ask(&server, 10, 7, 1, 3).0, 0);
    }
    server.put(KEY, Stored::Foreign);
    assert_eq!(ask(&server, 10, 7, 2, 3).0, REPAIRED);
}

#[test]
fn a_repeated_and_a_late_request_write_nothing() {
    let server = LuaServer::new();
    ask(&server, 10, 7, 5, 4);
    server.clock().advance(SECOND);
    let before = raw(&server);
    let again = ask(&server, 10, 7, 5, 9).1;
    assert_eq!((again.held, again.share, again.is_late), (5, 5, false));
    let late = ask(&server, 10, 7, 4, 9).1;
    assert_eq!((late.held, late.is_late), (5, true));
    assert_eq!(raw(&server), before);
}

#[test]
fn two_hundred_and_fifty_six_holders_fit_and_a_further_one_gets_nothing() {
    let server = LuaServer::new();
    let biggest = (1 << 53) - 1;
    for id in 0..MAX_HOLDERS as u64 {
        let wanted = ShareRequest { number: biggest, keep: 1_000_000, want: 1_000_000, is_asking: true };
        assert_eq!(share(&server, 1_000_000, biggest - id, &wanted).1.held, 1_000_000);
    }
    assert!(stored(&server).len() <= 32_768, "{}", stored(&server).len());
    let before = raw(&server);
    assert_eq!(
        ask(&server, 1_000_000, 1, 1, 1),
        (0, ShareReply { held: 0, share: 0, recorded: 0, is_late: false, total: 256_000_000 })
    );
    assert_eq!(raw(&server), before, "and is not written");
}
