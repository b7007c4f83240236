//! The tally script: equal to the machine of core over any clock steps, its record, corrupt keys, and what is not written.

use std::time::Duration;

use phalanx_core::clock::Time;
use phalanx_core::tally::{Addition, Allowance, Tally};
use phalanx_lua::TALLY_SYNC;
use phalanx_testkit::lua_server::{LuaServer, Stored};
use proptest::prelude::*;

use crate::harness::*;

const SLICE: u64 = 1_000_000;
const WINDOW: Duration = Duration::from_secs(10);
const NOW: u64 = 1_700_000_000_000_000;

/// One call: additions (age, calls, marks) and slices of marks that are put back.
#[derive(Clone, Debug, Default)]
struct Sync {
    want: u64,
    allowance: Allowance,
    additions: Vec<(u64, i64, i64)>,
    put_back: Vec<u64>,
}

/// Returns flags, the present slice, marks granted, and the slices.
fn sync(server: &LuaServer, sync: &Sync) -> (i64, i64, i64, Vec<i64>) {
    let Sync { want, allowance, additions, put_back } = sync;
    let mut args = args![SLICE, want, allowance.per_call, allowance.floor, additions.len(), put_back.len()];
    for (age, calls, marks) in additions {
        args.extend(args![age, calls, marks]);
    }
    args.extend(put_back.iter().flat_map(|slice| args![slice]));
    let reply = run(server, &TALLY_SYNC, &args).ints();
    assert_eq!(reply[0] as u64, now(server).as_micros());
    (reply[1], reply[2], reply[3], reply[4..].to_vec())
}

fn add(server: &LuaServer, calls: i64, marks: i64) -> (i64, i64, i64, Vec<i64>) {
    sync(server, &Sync { additions: vec![(0, calls, marks)], ..Sync::default() })
}

fn read(server: &LuaServer) -> (i64, i64, i64, Vec<i64>) {
    sync(server, &Sync::default())
}

fn put(server: &LuaServer, text: &str) {
    server.put(KEY, Stored::Text(text.as_bytes().to_vec()));
}

/// The record of now, with these calls and marks in the present slice, and what a later release has appended.
fn record(calls: u64, marks: u64, more: &str) -> String {
    let newest = NOW / SLICE;
    let mut words = [0; 20];
    let place = 2 * (newest % 10) as usize;
    (words[place], words[place + 1]) = (calls, marks);
    let words: Vec<_> = words.iter().map(u64::to_string).collect();
    format!("1 {newest} {}{more}", words.join(" "))
}

fn stored(server: &LuaServer) -> String {
    String::from_utf8(server.get(KEY).unwrap()).unwrap()
}

fn any_sync() -> impl Strategy<Value = Sync> {
    let addition = (0_u64..12_000_000, -3_i64..9, -2_i64..5);
    let per_call = prop::sample::select(vec![0.0, 0.1, 1.0 / 3.0, 1.0]);
    (0_u64..4, per_call, 0_u32..9, prop::collection::vec(addition, 0..4), prop::collection::vec(0_u64..12, 0..3))
        .prop_map(|(want, per_call, floor, additions, put_back)| {
            let allowance = Allowance { per_call, floor: floor.into() };
            Sync { want, allowance, additions, put_back }
        })
}

proptest! {
    #[test]
    fn it_equals_the_machine_of_core(steps in prop::collection::vec((0_i64..4_000_000, any_sync()), 1..60)) {
        let server = fresh_server();
        let mut machine = Tally::new(WINDOW);
        for (step, mut call) in steps {
            move_clock(server, step);
            let at = now(server);
            let present = at.as_micros() / SLICE;
            call.put_back.iter_mut().for_each(|age| *age = present + 1 - *age); // also one of the future
            for (age, calls, marks) in &call.additions {
                let at_age = Time::from_micros(at.as_micros() - age);
                machine.add(at, Addition { at: at_age, calls: *calls, marks: *marks });
            }
            call.put_back.iter().for_each(|slice| machine.put_back(at, *slice, 1));
            let (granted, slice) = machine.withdraw(at, call.want, call.allowance);
            let slices = machine.slices(at).filter(|(_, counts)| counts.calls + counts.marks > 0);
            let slices = slices.flat_map(|(slice, counts)| [slice, counts.calls, counts.marks].map(|n| n as i64)).collect();
            prop_assert_eq!(sync(server, &call), (0, slice as i64, granted as i64, slices));
        }
    }

    #[test]
    fn no_clock_step_grants_more_than_the_allowance_of_what_is_there(
        steps in prop::collection::vec((clock_step(), any_sync()), 1..60),
    ) {
        let server = fresh_server();
        for (step, call) in steps {
            move_clock(server, step);
            let (flags, _, granted, slices) = sync(server, &call);
            let (calls, marks) = slices.chunks(3).fold((0, 0), |sum, slice| (sum.0 + slice[1], sum.1 + slice[2]));
            let allowed = call.allowance.per_call * calls as f64 + call.allowance.floor;
            prop_assert_eq!(flags, 0);
            prop_assert!(granted == 0 || marks as f64 <= allowed, "{} marks of {}", marks, allowed);
        }
    }

    #[test]
    fn any_foreign_value_is_an_empty_tally_or_a_plausible_one(stored in foreign(22)) {
        let server = fresh_server();
        server.put(KEY, stored);
        let (flags, slice, _, slices) = add(server, 5, 1);
        prop_assert!(flags == 0 || flags == 1);
        prop_assert_eq!(slice as u64, NOW / SLICE);
        prop_assert!(slices.chunks(3).all(|slice| slice[1] >= 0 && slice[2] >= 0 && slice[0] <= (NOW / SLICE) as i64));
        let (flags, _, _, again) = read(server);
        prop_assert_eq!((flags, again), (0, slices), "it was overwritten");
    }

    #[test]
    fn a_damaged_record_is_repaired_once(at: prop::sample::Index, word in damage()) {
        let server = fresh_server();
        add(server, 7, 2);
        server.put(KEY, damaged(&server.get(KEY).unwrap(), at, &word));
        let (flags, _, _, slices) = add(server, 1, 0);
        prop_assert!(flags == 0 || slices == [(NOW / SLICE) as i64, 1, 0], "{:?}", slices);
        prop_assert_eq!(read(server), (0, (NOW / SLICE) as i64, 0, slices));
    }
}

#[test]
fn the_record_has_the_newest_slice_and_ten_pairs_and_lives_for_eleven_slices_and_a_second() {
    let server = LuaServer::new();
    add(&server, 7, 2);
    assert_eq!(stored(&server), record(7, 2, ""));
    assert_eq!(server.pttl(KEY), Some(12_000));
}

#[test]
fn what_a_later_release_appends_is_kept() {
    let server = LuaServer::new();
    for more in [" 17 3", " x", "\nl 1 2\nz of another line"] {
        put(&server, &record(7, 2, more));
        assert_eq!(add(&server, 1, 1).0, 0, "{more:?} is not corrupt");
        assert_eq!(stored(&server), record(8, 3, more));
    }
    put(&server, &record(7, 2, &format!(" {}", "9".repeat(5_000))));
    assert_eq!(add(&server, 1, 1).0, 0);
    assert_eq!(stored(&server), record(8, 3, ""), "not any amount of it");
}

#[test]
fn a_text_that_no_release_has_written_is_repaired() {
    let newest = NOW / SLICE;
    let server = LuaServer::new();
    let too_much = format!("1 {newest} {} 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0", 1_u64 << 49);
    let glued = record(7, 2, "x");
    let negative = record(7, 2, "").replace(" 7 2", " 7 -2");
    for text in ["", "1", "2 0 0", "1 5 1 2 3", &too_much, &glued, &negative, &"1 ".repeat(9_000)] {
        put(&server, text);
        assert_eq!(add(&server, 3, 0), (1, newest as i64, 0, vec![newest as i64, 3, 0]), "{text:.40}");
        assert_eq!(stored(&server), record(3, 0, ""));
    }
    server.put(KEY, Stored::Foreign);
    assert_eq!(read(&server).0, 1);
    assert_eq!(read(&server).0, 0, "also by a read, so that it is reported once");
}

#[test]
fn a_read_and_a_rejection_write_nothing() {
    let server = LuaServer::new();
    read(&server);
    assert_eq!(raw(&server), (None, None));
    add(&server, 9, 1);
    server.clock().advance(SECOND);
    let before = raw(&server);
    let refused = Sync {
        want: 5,
        allowance: Allowance { per_call: 0.1, floor: 1.0 },
        additions: vec![(20_000_000, 5, 5), (0, 0, 0)],
        put_back: vec![1, NOW / SLICE + 1, NOW / SLICE + 5],
    };
    assert_eq!(sync(&server, &refused).2, 0);
    assert_eq!(raw(&server), before, "nothing, old additions, and slices without marks change nothing");
}

#[test]
fn counts_from_the_future_are_dropped_and_a_small_step_back_drops_nothing() {
    let server = LuaServer::new();
    add(&server, 4, 0);
    server.clock().step_back(Duration::from_micros(1));
    let newest = (NOW / SLICE) as i64;
    assert_eq!(
        add(&server, 1, 0),
        (0, newest, 0, vec![newest - 1, 1, 0, newest, 4, 0]),
        "the window does not move back"
    );
    server.clock().step_back(Duration::from_secs(1));
    assert!(read(&server).3.is_empty());
}

#[test]
fn the_first_window_of_a_clock_is_empty_and_counts() {
    let server = LuaServer::new();
    server.clock().set(Time::from_micros(0));
    assert_eq!(read(&server), (0, 0, 0, vec![]));
    assert_eq!(add(&server, 3, 1), (0, 0, 0, vec![0, 3, 1]));
    assert_eq!(stored(&server), format!("1 0 3 1{}", " 0".repeat(18)));
}

/// Adds two calls of this age in slices of this length. Returns the slices.
fn add_aged(server: &LuaServer, slice_len: u64, age: i64) -> Vec<i64> {
    run(server, &TALLY_SYNC, &args![slice_len, 0, 0, 0, 1, 0, age, 2, 0]).ints()[4..].to_vec()
}

#[test]
fn calls_from_before_the_clock_count_in_its_first_slice_and_those_from_the_future_now() {
    let server = LuaServer::new();
    server.clock().set(Time::from_micros(3));
    assert_eq!(add_aged(&server, 1, 100), [0, 2, 0]);
    server.flush();
    server.clock().set(Time::from_micros(SLICE - 1));
    assert_eq!(add_aged(&server, SLICE, -1), [0, 2, 0]);
    assert_eq!(add_aged(&server, SLICE, -20_000_000), [0, 4, 0]);
}

#[test]
fn the_ttl_is_rounded_up_to_milliseconds() {
    for (slice_len, millis) in [(1, 1_001), (90, 1_001), (91, 1_002), (1_000, 1_011)] {
        let server = fresh_server();
        add_aged(server, slice_len, 0);
        assert_eq!(server.pttl(KEY), Some(millis), "slices of {slice_len} µs");
    }
}

#[test]
fn counts_leave_the_window_with_their_slice() {
    let server = LuaServer::new();
    let newest = (NOW / SLICE) as i64;
    add(&server, 7, 2);
    server.clock().advance(9 * SECOND);
    assert_eq!(read(&server).3, [newest, 7, 2]);
    server.clock().advance(SECOND);
    assert!(read(&server).3.is_empty());
    assert_eq!(add(&server, 1, 0).3, [newest + 10, 1, 0], "the place of the slice that has left is empty");
}

#[test]
fn counts_stop_and_are_believed_where_they_stay_exact() {
    let server = LuaServer::new();
    let (newest, most) = ((NOW / SLICE) as i64, 1_i64 << 48);
    put(&server, &record(most as u64 - 1, 0, ""));
    assert_eq!(add(&server, 5, 0), (0, newest, 0, vec![newest, most, 0]));
    assert_eq!(add(&server, 0, 0), (0, newest, 0, vec![newest, most, 0]));
    put(&server, &record(most as u64 + 1, 0, ""));
    assert_eq!(read(&server), (1, newest, 0, vec![]));
}

#[test]
fn a_later_release_may_append_4_096_bytes() {
    let server = LuaServer::new();
    for (length, kept) in [(4_096, true), (4_097, false)] {
        let more = format!(" {}", "9".repeat(length - 1));
        put(&server, &record(7, 2, &more));
        add(&server, 1, 1);
        assert_eq!(stored(&server), record(8, 3, if kept { &more } else { "" }), "{length} bytes");
    }
}

#[test]
fn a_clock_that_steps_back_by_a_second_keeps_the_window_and_by_more_drops_it() {
    let server = LuaServer::new();
    add(&server, 4, 0);
    server.clock().step_back(SECOND);
    assert_eq!(read(&server).3, [(NOW / SLICE) as i64, 4, 0]);
    server.clock().step_back(Duration::from_micros(1));
    assert!(read(&server).3.is_empty());
}
