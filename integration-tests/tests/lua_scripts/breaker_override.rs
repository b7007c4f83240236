//! The override of a breaker as an entry: ordered by its sequence, whatever the epoch, and kept after its end.

use std::time::Duration;

use phalanx_core::clock::Time;
use phalanx_testkit::lua_server::{LuaServer, Reply, Stored};

use crate::breaker_client::*;
use crate::harness::*;

/// The initial time of a server.
const NOW: u64 = 1_700_000_000_000_000;
const WEEK: Duration = Duration::from_secs(7 * 86_400);
const RESTORED: i64 = 4;
const ADOPTED: i64 = 8;

/// A breaker as a replica uses it that claims this entry.
fn claiming(entry: &'static str) -> Circuit {
    Circuit { claim: Claim { entry, ..NO_CLAIM }, ..steady(0) }
}

/// Returns the entry in the reply of a poll, without the time that is left.
fn shown(server: &LuaServer, circuit: &Circuit) -> Option<String> {
    let args = args![spec_text(&circuit.spec, circuit.fingerprint), "0 1 0 0 0 0 0 0 -1 - -", "ph2:news", "id7", 0.0];
    let Reply::Array(parts) = run(server, &phalanx_lua::BREAKER_INSPECT, &args) else { panic!("an array") };
    let Some(Reply::Bytes(entry)) = parts.last() else { return None };
    Some(String::from_utf8(entry.clone()).unwrap())
}

#[test]
fn a_new_entry_goes_above_the_stored_one_and_above_the_clock() {
    let server = LuaServer::new();
    let circuit = steady(0);
    assert_eq!(shown(&server, &circuit), None);
    circuit.force_entry(&server, "5 1 42 -1 ops why", true);
    assert_eq!(shown(&server, &circuit).unwrap(), format!("{NOW} 1 42 -1 ops why"));
    circuit.force_entry(&server, "5 2 41 -1 - -", true);
    assert_eq!(shown(&server, &circuit).unwrap(), format!("{} 2 41 -1 - -", NOW + 1));
    let ahead = NOW + 1_000;
    circuit.force_entry(&server, &format!("{ahead} 1 42 -1 - -"), true);
    assert_eq!(shown(&server, &circuit).unwrap(), format!("{ahead} 1 42 -1 - -"));
    server.clock().step_back(Duration::from_secs(3_600));
    circuit.force_entry(&server, "1 0 42 -1 - -", true);
    assert_eq!(shown(&server, &circuit).unwrap(), format!("{} 0 42 604800000000 - -", ahead + 1));
}

#[test]
fn of_two_claims_the_higher_sequence_counts_and_then_the_higher_author() {
    let server = LuaServer::new();
    let poll = |entry| {
        let state = claiming(entry).sync(&server, &[]);
        (state.overridden, state.flags)
    };
    assert_eq!(poll("7 1 42 -1 - -"), (1, ADOPTED));
    assert_eq!(poll("7 1 42 -1 - -"), (1, 0), "once");
    assert_eq!(poll("6 2 99 -1 - -"), (1, 0));
    assert_eq!(poll("7 2 41 -1 - -"), (1, 0));
    assert_eq!(poll("7 2 43 -1 - -"), (2, ADOPTED));
    assert_eq!(poll("8 0 1 -1 - -"), (0, ADOPTED));
    assert_eq!(poll("7 2 43 -1 - -"), (0, 0), "it was released");
    assert_eq!(server.take_published().len(), 3, "every change, once");
}

#[test]
fn an_override_is_restored_whatever_the_epoch() {
    let server = LuaServer::new();
    let mut circuit = claiming("7 1 42 -1 - -");
    steady(0).sync(&server, &[(1, 2, 9, 0)]);
    let state = circuit.sync(&server, &[]);
    assert_eq!((state.epoch, state.overridden, state.flags), (2, 1, ADOPTED), "a claim without an epoch");
    circuit.claim = Claim { epoch: 9, ..NO_CLAIM };
    let state = circuit.sync(&server, &[]);
    assert_eq!((state.epoch, state.overridden, state.flags), (9, 1, RESTORED), "a claim without an override");
}

#[test]
fn a_release_is_kept_for_a_week_and_an_override_for_a_week_after_its_end() {
    for (entry, lasts) in [("7 0 42 -1 - -", Duration::ZERO), ("7 1 42 5000000 - -", 5 * SECOND)] {
        let server = fresh_server();
        let circuit = steady(0);
        circuit.force_entry(server, entry, false);
        server.clock().advance(lasts);
        assert_eq!(circuit.inspect(server).0.overridden, 0, "{entry}");
        server.clock().advance(WEEK - Duration::from_millis(1));
        assert!(shown(server, &circuit).is_some(), "{entry}");
        assert_eq!(claiming("6 1 42 -1 - -").sync(server, &[]).overridden, 0, "an older one stays released: {entry}");
        server.clock().advance(Duration::from_millis(1));
        assert_eq!(shown(server, &circuit), None, "{entry}");
    }
}

#[test]
fn of_two_ends_of_one_entry_the_earlier_one_counts() {
    let server = LuaServer::new();
    let left = |entry| {
        claiming(entry).sync(&server, &[]);
        shown(&server, &steady(0)).unwrap()
    };
    assert_eq!(left("7 1 42 -1 - -"), "7 1 42 -1 - -");
    assert_eq!(left("7 1 42 60000000 - -"), "7 1 42 60000000 - -");
    assert_eq!(left("7 1 42 -1 - -"), "7 1 42 60000000 - -");
    assert_eq!(left("7 1 42 90000000 - -"), "7 1 42 60000000 - -");
    let before = raw(&server);
    assert_eq!(left("7 1 42 59000000 - -"), "7 1 42 60000000 - -", "the way to Redis takes a moment");
    assert_eq!(raw(&server), before);
    assert_eq!(left("7 1 42 58999999 - -"), "7 1 42 58999999 - -");
    server.clock().advance(Duration::from_micros(58_999_999));
    assert_eq!(claiming("7 1 42 90000000 - -").sync(&server, &[]).overridden, 0, "it has ended");
}

#[test]
fn entries_that_no_replica_makes_are_ignored() {
    let server = LuaServer::new();
    for entry in ["0 1 42 -1 - -", "4503599627370496 1 42 -1 - -", "7 -1 42 -1 - -", "nan 1 42 -1 - -"] {
        let state = claiming(entry).sync(&server, &[]);
        assert_eq!((state.overridden, state.flags), (0, 0), "{entry}");
    }
    let state = claiming("7 9 42 -1 - -").sync(&server, &[]);
    assert_eq!((state.overridden, state.flags), (0, ADOPTED), "of a later release: kept, and not applied");
    assert_eq!(shown(&server, &steady(0)).unwrap(), "7 9 42 -1 - -");
}

#[test]
fn a_stored_sequence_that_no_entry_could_follow_blocks_no_override() {
    let server = LuaServer::new();
    let circuit = steady(0);
    circuit.force_entry(&server, "7 1 42 -1 - -", false);
    let text = String::from_utf8(server.get(KEY).unwrap()).unwrap();
    // Sequences follow the clock: one that is more than a day ahead is foreign.
    let ahead = [("1700086400000000", 1), ("1700172799999999", 1), ("1700172800000000", 0)];
    let highest = [("4503599627370494", 0), ("4503599627370496", 0), ("9007199254740991", 0)];
    for (sequence, overridden) in [&ahead[..], &highest].concat() {
        server.put(KEY, Stored::Text(text.replace("o 7 ", &format!("o {sequence} ")).into_bytes()));
        assert_eq!(circuit.inspect(&server).0.overridden, overridden, "{sequence}");
        assert_eq!(circuit.force(&server, None).overridden, 0, "{sequence}");
        assert_eq!(circuit.inspect(&server).0.overridden, 0, "{sequence}");
        assert_eq!(circuit.inspect(&server).0.flags, 0, "{sequence}");
    }
}

#[test]
fn sequences_begin_at_one_and_end_at_the_last_one_that_is_exact() {
    let server = LuaServer::new();
    let circuit = steady(0);
    server.clock().set(Time::from_micros(0));
    circuit.force_entry(&server, "0 1 42 -1 - -", true);
    assert_eq!(shown(&server, &circuit).unwrap(), "1 1 42 -1 - -");
    server.flush();
    server.clock().set(Time::from_micros(1 << 52));
    circuit.force_entry(&server, "0 1 42 -1 - -", true);
    assert_eq!(shown(&server, &circuit).unwrap(), "4503599627370495 1 42 -1 - -");
}

/// Returns whether a claim of this entry is adopted.
fn is_adopted(server: &LuaServer, entry: String) -> bool {
    match claiming(entry.leak()).sync(server, &[]).flags {
        0 => false,
        ADOPTED => true,
        flags => panic!("flags {flags}"),
    }
}

#[test]
fn a_claim_is_believed_within_its_range_and_not_one_beyond() {
    let day = 86_400_000_000;
    let word = |length| "x".repeat(length);
    let cases = [
        ("1 1 42 -1 - -".to_owned(), true),
        (format!("{} 1 42 -1 - -", NOW + day), true),
        (format!("{} 1 42 -1 - -", NOW + day + 1), false),
        ("7 4294967295 42 -1 - -".to_owned(), true),
        ("7 4294967296 42 -1 - -".to_owned(), false),
        ("7 1 0 -1 - -".to_owned(), true),
        ("7 1 -1 -1 - -".to_owned(), false),
        ("7 1 9007199254740991 -1 - -".to_owned(), true),
        ("7 1 9007199254740992 -1 - -".to_owned(), false),
        (format!("7 1 42 -1 {} {}", word(1_024), word(1_024)), true),
        (format!("7 1 42 -1 {} -", word(1_025)), false),
        (format!("7 1 42 -1 - {}", word(1_025)), false),
    ];
    for (entry, adopted) in cases {
        assert_eq!(is_adopted(fresh_server(), entry.clone()), adopted, "{entry:.40}");
    }
    for (sequence, adopted) in [((1_u64 << 52) - 1, true), (1 << 52, false)] {
        let server = fresh_server();
        server.clock().set(Time::from_micros(1 << 52));
        assert_eq!(is_adopted(server, format!("{sequence} 1 42 -1 - -")), adopted, "{sequence}");
    }
}

#[test]
fn an_override_whose_time_is_over_when_it_is_claimed_is_not_in_force() {
    let server = fresh_server();
    assert_eq!(claiming("7 1 42 0 - -").sync(server, &[]).overridden, 0);
    assert_eq!(shown(server, &steady(0)).unwrap(), "7 1 42 0 - -", "it is kept, so that none brings it back");
    assert_eq!(claiming("7 1 42 -1 - -").sync(server, &[]).overridden, 0);
    server.flush();
    claiming("7 0 42 0 - -").sync(server, &[]);
    assert_eq!(shown(server, &steady(0)), None, "a release that is over is forgotten");
}

#[test]
fn a_breaker_is_kept_until_its_release_ends_rounded_up_to_milliseconds() {
    let server = fresh_server();
    steady(0).force_entry(server, "7 0 42 700000001 - -", false);
    assert_eq!(raw(server).1, Some(700_001));
}

#[test]
fn an_entry_ends_at_its_microsecond_also_at_the_first_of_the_clock() {
    let server = fresh_server();
    let circuit = steady(0);
    circuit.force_entry(server, "7 0 42 -1 - -", false);
    let text = String::from_utf8(server.get(KEY).unwrap()).unwrap();
    let week = WEEK.as_micros() as u64;
    let entries = [
        (format!("0 42 {NOW}"), false),
        (format!("0 42 {}", NOW + 1), true),
        (format!("1 42 {}", NOW - week), false),
        (format!("1 42 {}", NOW - week + 1), true),
        ("0 42 1".to_owned(), false),
        ("1 42 1".to_owned(), false),
    ];
    for (entry, kept) in entries {
        let line = format!("o 7 {entry} - -");
        let (head, _) = text.split_once("\no ").unwrap();
        server.put(KEY, Stored::Text(format!("{head}\n{line}").into_bytes()));
        assert_eq!(shown(server, &circuit).is_some(), kept, "{line}");
    }
    server.flush();
    server.clock().set(Time::from_micros(0));
    circuit.force_entry(server, "7 1 42 1 - -", false);
    server.clock().set(Time::from_micros(5));
    let state = claiming("7 1 42 90000000 - -").sync(server, &[]);
    assert_eq!((state.overridden, state.flags), (0, 0), "it has ended at 1 µs");
    assert_eq!(shown(server, &circuit).unwrap(), "7 1 42 0 - -", "none of its time is left");
}
