//! The override of a breaker as an entry: ordered by its sequence, whatever the epoch, and kept after its end.

use std::time::Duration;

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
    for (sequence, overridden) in [("4503599627370494", 1), ("4503599627370496", 0), ("9007199254740991", 0)] {
        server.put(KEY, Stored::Text(text.replace("o 7 ", &format!("o {sequence} ")).into_bytes()));
        assert_eq!(circuit.inspect(&server).0.overridden, overridden, "{sequence}");
        assert_eq!(circuit.force(&server, None).overridden, 0, "{sequence}");
        assert_eq!(circuit.inspect(&server).0.overridden, 0, "{sequence}");
        assert_eq!(circuit.inspect(&server).0.flags, 0, "{sequence}");
    }
}
