//! A breaker at exact times and counts: the last call before an edge, and the first one behind it.

use std::time::Duration;

use phalanx_core::breaker::{BreakerSpec, Override, Phase};
use phalanx_core::clock::Time;
use phalanx_lua::{BREAKER_ADMIT, BREAKER_INSPECT, BREAKER_SYNC};
use phalanx_testkit::lua_server::LuaServer;

use crate::breaker_client::*;
use crate::harness::*;

const MICRO: Duration = Duration::from_micros(1);

const CLOSED: i64 = 1;
const OPEN: i64 = 2;
const HALF_OPEN: i64 = 3;

/// Modes of an admission.
const ALL: i64 = 0;
const NONE: i64 = 1;
const LEASES: i64 = 2;
const RAMP: i64 = 3;

/// Kinds of an outcome.
const SUCCESS: u8 = 0;
const SLOW_SUCCESS: u8 = 1;
const FAILURE: u8 = 2;
const SLOW_FAILURE: u8 = 3;

fn with(spec: BreakerSpec) -> Circuit {
    Circuit { spec, ..steady(0) }
}

/// Trips the breaker at epoch 1, lets its first break end and closes it with probes that succeed. Returns the epoch.
fn recover(server: &LuaServer, circuit: &Circuit) -> u64 {
    circuit.sync(server, &[(1, FAILURE, 9, 0)]);
    server.clock().advance(Duration::from_micros(3_000_000));
    let (state, answers) = circuit.admit(server, 2);
    let ends = answers.iter().flatten().map(|ticket| (ticket.epoch, ticket.lease.unwrap(), SUCCESS));
    assert_eq!(state.phase, HALF_OPEN);
    let closed = circuit.settle(server, &ends.collect::<Vec<_>>());
    assert_eq!(closed.phase, CLOSED);
    closed.epoch as u64
}

/// Sends calls of one kind in the epoch. Returns the phase.
fn record(server: &LuaServer, circuit: &Circuit, epoch: u64, kind: u8, calls: u64) -> i64 {
    circuit.sync(server, &[(epoch, kind, calls, 0)]).phase
}

#[test]
fn a_ramp_counts_every_call_of_a_batch_and_starts_over_at_each_step() {
    let server = LuaServer::new();
    let circuit = steady(0);
    recover(&server, &circuit);
    assert_eq!(circuit.admit_reply(&server, 3), [RAMP, 0, 0]);
    assert_eq!(circuit.admit_reply(&server, 2), [RAMP, 0, 3], "three calls asked before");
    server.clock().advance(Duration::from_micros(1_666_666));
    assert_eq!(circuit.admit_reply(&server, 1), [RAMP, 0, 5]);
    server.clock().advance(MICRO);
    assert_eq!(circuit.admit_reply(&server, 1), [RAMP, 1, 0], "a third of five seconds later");
    assert_eq!(circuit.admit_reply(&server, 4), [RAMP, 1, 1]);
    server.clock().advance(Duration::from_micros(3_333_332));
    assert_eq!(circuit.admit_reply(&server, 1), [RAMP, 2, 0]);
    assert_eq!(circuit.inspect(&server).0.ramping, 1);
    server.clock().advance(MICRO);
    assert_eq!(circuit.admit_reply(&server, 1), [ALL, 0, 0], "the ramp ends after five seconds");
    assert_eq!(circuit.inspect(&server).0.ramping, 0);
    let before = raw(&server);
    assert_eq!(circuit.admit_reply(&server, 1), [ALL, 0, 0]);
    assert_eq!(raw(&server), before, "an admission without a ramp writes nothing");
}

#[test]
fn a_ramp_of_a_microsecond_is_a_ramp_and_a_retuned_one_ends_at_once() {
    let server = LuaServer::new();
    let circuit = with(steady(0).spec.ramp(MICRO, 3));
    recover(&server, &circuit);
    assert_eq!(circuit.admit_reply(&server, 1), [RAMP, 0, 0]);
    server.clock().advance(MICRO);
    assert_eq!(circuit.admit_reply(&server, 1), [ALL, 0, 0]);

    server.flush();
    let circuit = steady(0);
    recover(&server, &circuit);
    let steady = with(BreakerSpec { ramp: None, ..circuit.spec.clone() });
    assert_eq!(steady.admit_reply(&server, 1), [ALL, 0, 0]);
    assert_eq!(circuit.admit_reply(&server, 1), [ALL, 0, 0], "a ramp that has ended stays ended");
}

#[test]
fn rejections_and_overrides_reply_with_their_code() {
    let server = LuaServer::new();
    let circuit = steady(0);
    assert_eq!(circuit.admit_reply(&server, 2), [ALL, 0, 0]);
    circuit.sync(&server, &[(1, FAILURE, 9, 0)]);
    assert_eq!(circuit.admit_reply(&server, 2), [NONE, 1, 0]);
    let overridden = [Override::Open, Override::Closed, Override::Disabled, Override::MetricsOnly];
    for (overridden, reply) in overridden.into_iter().zip([[NONE, 3, 0], [ALL, 0, 0], [ALL, 0, 0], [NONE, 1, 0]]) {
        circuit.force(&server, Some(overridden));
        assert_eq!(circuit.admit_reply(&server, 2), reply, "{overridden:?}");
    }
}

#[test]
fn a_break_ends_and_a_lease_expires_at_the_microsecond() {
    let server = LuaServer::new();
    let circuit = steady(0);
    circuit.sync(&server, &[(1, FAILURE, 9, 0)]);
    server.clock().advance(Duration::from_micros(2_999_999));
    assert_eq!(circuit.admit_reply(&server, 2), [NONE, 1, 0]);
    server.clock().advance(MICRO);
    assert_eq!(circuit.admit_reply(&server, 1), [LEASES, 1, 1]);
    assert_eq!(circuit.admit_reply(&server, 5), [LEASES, 2, 1], "two at a time");
    server.clock().advance(2 * SECOND - MICRO);
    let before = raw(&server);
    assert_eq!(circuit.admit_reply(&server, 1), [LEASES, 3, 0]);
    assert_eq!(circuit.inspect(&server).1[4], 2);
    assert_eq!(raw(&server), before);
    server.clock().advance(MICRO);
    assert_eq!(circuit.inspect(&server).1[4], 0);
    assert_eq!(circuit.admit_reply(&server, 1), [LEASES, 3, 1]);
    assert_eq!(circuit.inspect(&server).1[4], 1);
}

#[test]
fn fewer_probes_than_are_in_flight_grant_none() {
    let server = LuaServer::new();
    let circuit = steady(0);
    circuit.sync(&server, &[(1, FAILURE, 9, 0)]);
    server.clock().advance(Duration::from_micros(3_000_000));
    circuit.admit(&server, 2);
    let before = raw(&server);
    let fewer = with(circuit.spec.clone().probes(1, 2));
    assert_eq!(fewer.admit_reply(&server, 3), [LEASES, 3, 0]);
    assert_eq!(raw(&server), before);
}

#[test]
fn breaks_escalate_until_a_whole_window_has_passed_without_a_trip() {
    for (after, left, escalation) in [(10 * SECOND - MICRO, 5_100_000, 2), (10 * SECOND, 3_000_000, 1)] {
        let server = fresh_server();
        let circuit = steady(0);
        let epoch = recover(server, &circuit);
        server.clock().advance(after);
        let state = circuit.sync(server, &[(epoch, FAILURE, 9, 0)]);
        assert_eq!((state.phase, state.left, state.escalation), (OPEN, left, escalation), "{after:?} after it closed");
    }
}

#[test]
fn escalation_stops_at_a_thousand_and_at_the_longest_break() {
    let server = LuaServer::new();
    let mut circuit = steady(0);
    circuit.claim = Claim { epoch: 6, phase: Phase::HalfOpen, escalation: 1_000, ..NO_CLAIM };
    let (state, answers) = circuit.admit(&server, 1);
    let ticket = answers[0].unwrap();
    assert_eq!((state.epoch, state.escalation), (7, 1_000));
    let state = circuit.settle(&server, &[(ticket.epoch, ticket.lease.unwrap(), FAILURE)]);
    assert_eq!((state.phase, state.escalation, state.left), (OPEN, 1_000, 20_000_000));
}

#[test]
fn a_multiplier_below_one_does_not_shorten_a_break() {
    let server = LuaServer::new();
    let mut circuit = with(BreakerSpec { break_multiplier: 0.5, ..steady(0).spec });
    circuit.claim = Claim { epoch: 6, escalation: 3, ..NO_CLAIM };
    let state = circuit.sync(&server, &[(6, FAILURE, 9, 0)]);
    assert_eq!((state.phase, state.left), (OPEN, 3_000_000));
}

#[test]
fn the_first_failure_that_meets_a_condition_trips() {
    let ratio = |ratio| BreakerSpec::failure_ratio(ratio).min_throughput(1);
    let slow = |ratio| BreakerSpec::slow_call_ratio(ratio, SLOW).min_throughput(1);
    let in_a_row = BreakerSpec::consecutive_failures;
    type Runs = &'static [(u8, u64, i64)];
    let steps: [(BreakerSpec, Runs); 10] = [
        (in_a_row(1), &[(SLOW_SUCCESS, 9, CLOSED), (FAILURE, 1, OPEN)]),
        (in_a_row(5), &[(FAILURE, 4, CLOSED), (SUCCESS, 1, CLOSED), (FAILURE, 4, CLOSED), (FAILURE, 1, OPEN)]),
        (in_a_row(5), &[(SLOW_FAILURE, 4, CLOSED), (SUCCESS, 0, CLOSED), (FAILURE, 0, CLOSED), (FAILURE, 1, OPEN)]),
        (ratio(0.5), &[(FAILURE, 1, OPEN)]),
        (ratio(0.5), &[(SUCCESS, 2, CLOSED), (FAILURE, 1, CLOSED), (FAILURE, 1, OPEN)]),
        (ratio(0.0), &[(SLOW_SUCCESS, 9, CLOSED), (SUCCESS, 9, CLOSED), (FAILURE, 1, OPEN)]),
        (slow(0.5), &[(FAILURE, 1, CLOSED), (SLOW_SUCCESS, 1, OPEN)]),
        (slow(0.5), &[(SUCCESS, 2, CLOSED), (SLOW_SUCCESS, 1, CLOSED), (SLOW_SUCCESS, 1, OPEN)]),
        (slow(0.0), &[(FAILURE, 9, CLOSED), (SUCCESS, 9, CLOSED), (SLOW_SUCCESS, 1, OPEN)]),
        (ratio(0.5).min_throughput(4), &[(FAILURE, 3, CLOSED), (FAILURE, 1, OPEN)]),
    ];
    for (spec, steps) in steps {
        let server = fresh_server();
        server.clock().advance(Duration::from_micros(1_234_567));
        let circuit = with(spec);
        for (kind, calls, phase) in steps {
            assert_eq!(record(server, &circuit, 1, *kind, *calls), *phase, "{kind} {calls} {:?}", circuit.spec);
        }
    }
}

#[test]
fn a_success_never_trips_even_if_failures_wait_behind_an_override() {
    let server = LuaServer::new();
    let circuit = steady(0);
    circuit.force(&server, Some(Override::Closed));
    assert_eq!(record(&server, &circuit, 1, FAILURE, 9), CLOSED);
    circuit.force(&server, None);
    assert_eq!(record(&server, &circuit, 1, SUCCESS, 1), CLOSED);
    assert_eq!(record(&server, &circuit, 1, FAILURE, 1), OPEN);
}

#[test]
fn counts_saturate_where_they_stay_exact() {
    let server = LuaServer::new();
    let circuit = with(BreakerSpec::failure_ratio(1.0).min_throughput(u32::MAX));
    let (most, most_in_a_row) = (1_i64 << 48, i64::from(u32::MAX));
    circuit.force(&server, Some(Override::Closed));
    record(&server, &circuit, 1, SLOW_FAILURE, (1 << 32) - 2);
    assert_eq!(circuit.inspect(&server).1[3], most_in_a_row - 1);
    record(&server, &circuit, 1, SLOW_FAILURE, 2);
    assert_eq!(circuit.inspect(&server).1[3], most_in_a_row);
    record(&server, &circuit, 1, SLOW_FAILURE, (1 << 48) - 1);
    assert_eq!(circuit.inspect(&server).1, [most, most, most, most_in_a_row, 0]);
}

#[test]
fn an_outcome_counts_in_its_slice_until_that_has_left_the_window() {
    let server = LuaServer::new();
    let circuit = steady(0);
    let ages = [0, 9_000_000, 9_000_001, 10_000_000, u64::MAX >> 12];
    circuit.sync(&server, &ages.map(|age| (1, SUCCESS, 1, age)));
    assert_eq!(circuit.inspect(&server).1[0], 2, "those that are nine slices old, or younger");
    server.clock().advance(SECOND - MICRO);
    assert_eq!(circuit.inspect(&server).1[0], 2);
    server.clock().advance(MICRO);
    assert_eq!(circuit.inspect(&server).1[0], 1, "the older one has left the window");
    server.clock().advance(9 * SECOND - MICRO);
    assert_eq!(circuit.inspect(&server).1[0], 1);
    server.clock().advance(MICRO);
    assert_eq!(circuit.inspect(&server).1[0], 0);
}

#[test]
fn an_outcome_from_the_future_counts_now() {
    let server = LuaServer::new();
    server.clock().advance(Duration::from_micros(999_999));
    let circuit = steady(0);
    circuit.ask(&server, &BREAKER_SYNC, &args![1, 50_000, 0, "0 0 0 0", 1, 1, 1, SUCCESS, 1, -5_000_000, 0]);
    let (state, tail) = circuit.inspect(&server);
    assert_eq!((state.flags, tail[0]), (0, 1));
    server.clock().advance(9 * SECOND);
    assert_eq!(circuit.inspect(&server).1[0], 1);
    server.clock().advance(MICRO);
    assert_eq!(circuit.inspect(&server).1[0], 0);
}

#[test]
fn an_outcome_from_before_the_clock_began_counts_at_its_beginning() {
    let server = LuaServer::new();
    let circuit = with(steady(0).spec.window(Duration::from_micros(10)));
    server.clock().set(Time::from_micros(5));
    circuit.sync(&server, &[(1, SUCCESS, 1, 100)]);
    server.clock().set(Time::from_micros(9));
    assert_eq!(circuit.inspect(&server).1[0], 1);
    server.clock().set(Time::from_micros(10));
    assert_eq!(circuit.inspect(&server).1[0], 0);
}

#[test]
fn the_end_of_a_probe_counts_as_an_outcome_once_the_breaker_has_closed() {
    let server = LuaServer::new();
    server.clock().advance(Duration::from_micros(1_234_567));
    let circuit = with(steady(0).spec.min_throughput(9));
    assert_eq!(circuit.settle(&server, &[(1, 99, SLOW_FAILURE)]).phase, CLOSED);
    assert_eq!(circuit.inspect(&server).1, [1, 1, 1, 1, 0]);
    circuit.settle(&server, &[(1, 99, SUCCESS), (1, 99, SLOW_SUCCESS), (1, 99, FAILURE)]);
    assert_eq!(circuit.inspect(&server).1, [4, 2, 2, 1, 0]);
    let before = raw(&server);
    circuit.settle(&server, &[(1, 99, 4), (1, 99, 5), (1, 99, 6), (2, 99, FAILURE)]);
    circuit.force(&server, Some(Override::Disabled));
    circuit.settle(&server, &[(1, 99, FAILURE)]);
    assert_eq!(circuit.inspect(&server).1, [4, 2, 2, 1, 0]);
    circuit.force(&server, None);
    let (now, before) = (server.get(KEY).unwrap(), before.0.unwrap());
    assert!(now.starts_with(&before) && now[before.len()..].starts_with(b"\no "), "only the release is new");
}

#[test]
fn the_end_of_a_probe_trips_a_breaker_that_has_closed_meanwhile() {
    let server = LuaServer::new();
    let circuit = with(BreakerSpec::consecutive_failures(2));
    assert_eq!(circuit.settle(&server, &[(1, 99, FAILURE)]).phase, CLOSED);
    assert_eq!(circuit.settle(&server, &[(1, 99, FAILURE)]).phase, OPEN);
}

#[test]
fn a_slow_probe_fails_only_if_slow_calls_trip() {
    for (slow_call_ratio, phase) in [(None, HALF_OPEN), (Some(0.0), OPEN), (Some(0.9), OPEN)] {
        let server = fresh_server();
        let circuit = with(BreakerSpec { slow_call_ratio, ..steady(0).spec });
        circuit.sync(server, &[(1, FAILURE, 9, 0)]);
        server.clock().advance(Duration::from_micros(3_000_000));
        circuit.admit(server, 2);
        assert_eq!(circuit.settle(server, &[(3, 1, SLOW_SUCCESS)]).phase, phase, "{slow_call_ratio:?}");
    }
}

#[test]
fn a_probe_without_an_outcome_frees_its_lease() {
    let server = LuaServer::new();
    let circuit = steady(0);
    circuit.sync(&server, &[(1, FAILURE, 9, 0)]);
    server.clock().advance(Duration::from_micros(3_000_000));
    circuit.admit(&server, 2);
    assert_eq!(circuit.settle(&server, &[(3, 2, 6)]).phase, HALF_OPEN);
    assert_eq!(circuit.inspect(&server).1[4], 1);
    assert_eq!(circuit.admit_reply(&server, 5), [LEASES, 3, 1]);
}

/// Asks for the admission of one call by this owner, who has received leases up to `received` and decided calls of the
/// ramp on its own. Returns mode, a, b and c.
fn admit_of(server: &LuaServer, circuit: &Circuit, owner: u64, received: u64, ramp: [u64; 2]) -> Vec<i64> {
    circuit.ask(server, &BREAKER_ADMIT, &args![1, owner, received, ramp[0], ramp[1]]).1
}

#[test]
fn a_lease_that_its_owner_has_not_received_is_free_again_for_that_owner() {
    let server = LuaServer::new();
    let circuit = steady(0);
    circuit.sync(&server, &[(1, FAILURE, 9, 0)]);
    server.clock().advance(Duration::from_micros(3_000_000));
    let ask = |owner, received| admit_of(&server, &circuit, owner, received, [0, 0]);
    assert_eq!(ask(42, 0)[..3], [LEASES, 1, 1]);
    assert_eq!(ask(42, 1)[..3], [LEASES, 2, 1], "its reply is lost");
    assert_eq!(ask(41, 0)[..3], [LEASES, 3, 0], "it is not free for others");
    assert_eq!(ask(42, 1)[..3], [LEASES, 3, 1]);
    assert_eq!(ask(42, 3)[..3], [LEASES, 4, 0], "all were received");
    assert_eq!(circuit.inspect(&server).1[4], 2);
    assert_eq!(circuit.settle(&server, &[(3, 2, FAILURE)]).phase, HALF_OPEN, "the lost lease counts no more");
}

#[test]
fn a_rejection_for_want_of_a_probe_says_when_the_first_lease_ends() {
    let server = LuaServer::new();
    let circuit = steady(0);
    circuit.sync(&server, &[(1, FAILURE, 9, 0)]);
    server.clock().advance(Duration::from_micros(3_000_000));
    let ask = || admit_of(&server, &circuit, 42, EVERY_LEASE, [0, 0]);
    assert_eq!(ask(), [LEASES, 1, 1, 2_000_000]);
    server.clock().advance(SECOND);
    assert_eq!(ask(), [LEASES, 2, 1, 1_000_000]);
    server.clock().advance(MICRO);
    assert_eq!(ask(), [LEASES, 3, 0, 999_999]);
}

#[test]
fn a_ramp_counts_the_calls_that_replicas_decided_in_its_step() {
    let server = LuaServer::new();
    let circuit = steady(0);
    recover(&server, &circuit);
    let ask = |decided, step| admit_of(&server, &circuit, 42, 0, [decided, step]);
    assert_eq!(ask(0, 0), [RAMP, 0, 0, -1]);
    assert_eq!(ask(4, 0), [RAMP, 0, 5, -1]);
    server.clock().advance(Duration::from_micros(1_666_667));
    assert_eq!(ask(7, 0), [RAMP, 1, 0, -1], "those of another step do not count");
}

/// Both windows see every outcome, so a fleet that uses two lengths trips like one that uses one.
#[test]
fn outcomes_count_in_the_windows_of_two_lengths() {
    let server = LuaServer::new();
    let short = with(BreakerSpec::failure_ratio(0.5).min_throughput(10));
    let long = Circuit { fingerprint: 1, ..with(short.spec.clone().window(20 * SECOND)) };
    for _ in 0..4 {
        assert_eq!(record(&server, &short, 1, FAILURE, 1), CLOSED);
        server.clock().advance(SECOND);
        assert_eq!(record(&server, &long, 1, FAILURE, 1), CLOSED);
        server.clock().advance(SECOND);
    }
    assert_eq!((short.inspect(&server).1[1], long.inspect(&server).1[1]), (8, 8));
    server.clock().advance(4 * SECOND);
    // The failure at 3 s counts in the short window at the beginning of its long slice, at 2 s.
    assert_eq!((short.inspect(&server).1[1], long.inspect(&server).1[1]), (4, 8));
    record(&server, &short, 1, FAILURE, 1);
    assert_eq!(record(&server, &long, 1, FAILURE, 1), OPEN);
}

#[test]
fn a_window_of_a_third_length_takes_the_place_of_the_one_that_was_not_used() {
    let server = LuaServer::new();
    let circuit = |number: u32| Circuit {
        fingerprint: number as usize,
        ..with(BreakerSpec::failure_ratio(0.5).window(number * 10 * SECOND))
    };
    for number in [1, 2, 3] {
        record(&server, &circuit(number), 1, FAILURE, 1);
    }
    let text = String::from_utf8(server.get(KEY).unwrap()).unwrap();
    let windows: Vec<_> =
        text.lines().filter(|line| line.starts_with('w')).map(|line| line.split(' ').nth(1)).collect();
    assert_eq!(windows, [Some("3000000"), Some("2000000")]);
    assert_eq!([1, 2, 3].map(|number| circuit(number).inspect(&server).1[1]), [3, 3, 3]);
}

#[test]
fn an_observation_a_window_after_the_last_one_begins_a_new_period() {
    let server = LuaServer::new();
    let circuit = with(BreakerSpec::latency(0.9, SLOW, 12 * SECOND));
    let observe = || circuit.sync(&server, &[(1, 5, 1, 0)]).phase;
    assert_eq!(observe(), CLOSED);
    server.clock().advance(10 * SECOND + MICRO);
    assert_eq!(observe(), CLOSED);
    server.clock().advance(10 * SECOND);
    assert_eq!(observe(), CLOSED);
    server.clock().advance(2 * SECOND);
    assert_eq!(observe(), OPEN);
}

#[test]
fn a_restored_breaker_is_as_old_as_the_claim_says() {
    for (age, escalation) in [(10 * SECOND - MICRO, 4), (10 * SECOND, 1)] {
        let server = fresh_server();
        let mut circuit = steady(0);
        circuit.claim = Claim { epoch: 6, age, escalation: 3, ..NO_CLAIM };
        assert_eq!(circuit.sync(server, &[(6, FAILURE, 9, 0)]).escalation, escalation, "closed for {age:?}");
    }
}

#[test]
fn only_a_breaker_that_leases_probes_says_when_one_ends() {
    let server = LuaServer::new();
    let circuit = steady(0);
    let ask = || admit_of(&server, &circuit, 42, EVERY_LEASE, [0, 0]);
    assert_eq!(ask(), [ALL, 0, 0, -1]);
    let epoch = recover(&server, &circuit);
    assert_eq!(ask(), [RAMP, 0, 0, -1]);
    server.clock().advance(5 * SECOND);
    assert_eq!(ask(), [ALL, 0, 0, -1], "the ramp ends");
    circuit.sync(&server, &[(epoch, FAILURE, 9, 0)]);
    assert_eq!(ask(), [NONE, 1, 0, -1]);
    for (overridden, reply) in OVERRIDES.into_iter().zip([[NONE, 1], [NONE, 3], [ALL, 0], [ALL, 0], [NONE, 1]]) {
        circuit.force(&server, overridden);
        assert_eq!(ask(), [reply[0], reply[1], 0, -1], "{overridden:?}");
    }
    circuit.force(&server, None);
    server.clock().advance(30 * SECOND);
    let none = circuit.ask(&server, &BREAKER_ADMIT, &args![0, 42, EVERY_LEASE, 0, 0]).1;
    assert_eq!(none[..2], [LEASES, 3]);
    assert_eq!(none[2..], [0, -1], "no lease is held");
}

#[test]
fn without_a_latency_condition_a_quantile_changes_nothing() {
    let server = LuaServer::new();
    let circuit = steady(0);
    circuit.sync(&server, &[(1, SUCCESS, 1, 0)]);
    let before = raw(&server);
    assert_eq!(circuit.sync(&server, &[(1, 5, 1, 0)]).phase, CLOSED);
    assert_eq!(raw(&server), before);
}

#[test]
fn a_quantile_counts_from_its_first_observation_even_if_the_clock_has_just_begun() {
    let server = LuaServer::new();
    let micros = Duration::from_micros;
    let circuit = with(BreakerSpec::latency(0.9, SLOW, micros(5)).window(micros(10)));
    let observe = |at| {
        server.clock().set(Time::from_micros(at));
        circuit.sync(&server, &[(1, 5, 1, 0)]).phase
    };
    assert_eq!([observe(1), observe(5), observe(6)], [CLOSED, CLOSED, OPEN], "in a row since the first microsecond");
    server.flush();
    assert_eq!([observe(6), observe(10), observe(11)], [CLOSED, CLOSED, OPEN]);
}

/// The line of the evidence that a breaker keeps: when its failures in a row began, the last one, whether a success has
/// followed, the call, how many were asked, and until when.
fn evidence_of(server: &LuaServer) -> Vec<u64> {
    let text = String::from_utf8(server.get(KEY).unwrap()).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("e ")).unwrap_or_default();
    line.split_terminator(' ').map(|field| field.parse().unwrap()).collect()
}

#[test]
fn failures_in_a_row_begin_with_the_first_of_their_run() {
    let now = 1_700_000_000_000_000;
    for (age, span, since, last) in
        [(0, 0, now, now), (0, -7, now, now), (5, 0, now - 5, now - 5), (5, 3, now - 8, now - 5)]
    {
        let server = fresh_server();
        let circuit = with(steady(0).spec.min_throughput(100));
        circuit.ask(server, &BREAKER_SYNC, &args![1, 50_000, 0, "0 0 0 0", 1, 1, 1, FAILURE, 2, age, span]);
        assert_eq!(evidence_of(server), [since, last, 0, 0, 0, 0], "{age} {span}");
        circuit.ask(server, &BREAKER_SYNC, &args![1, 50_000, 0, "0 0 0 0", 1, 2, 1, FAILURE, 1, 2, 0]);
        assert_eq!(evidence_of(server), [since, last.max(now - 2), 0, 0, 0, 0], "{age} {span}");
    }
    let server = fresh_server();
    let circuit = with(steady(0).spec.min_throughput(100));
    circuit.settle(server, &[(1, 99, FAILURE)]);
    assert_eq!(evidence_of(server), [now, now, 0, 0, 0, 0], "a probe of a closed breaker ends now");
}

#[test]
fn observations_of_all_replicas_are_one_period_and_are_stored_once_a_slice() {
    let server = LuaServer::new();
    let circuit = Circuit { jitter: 0.5, ..with(BreakerSpec::latency(0.9, SLOW, 12 * SECOND)) };
    let sync = |replica, runs: &[u8]| {
        let mut args = args![1, 50_000, 0, "0 0 0 0", runs.len()];
        args.extend(runs.iter().flat_map(|kind| args![next_number(), 1, kind, 1, 0, 0]));
        circuit.ask_as(&server, replica, &BREAKER_SYNC, &args);
        let text = String::from_utf8(server.get(KEY).unwrap()).unwrap();
        text.split(' ').skip(8).take(2).map(|word| word.parse::<u64>().unwrap()).collect::<Vec<_>>()
    };
    let now = now(&server).as_micros();
    assert_eq!(sync(1, &[5]), [now, now]);
    server.clock().advance(SECOND - MICRO);
    let before = raw(&server).0;
    assert_eq!(sync(1, &[5]), [now, now]);
    assert_eq!(raw(&server).0, before, "an observation within a slice is not written");
    server.clock().advance(MICRO);
    assert_eq!(sync(1, &[5]), [now, now + 1_000_000]);
    assert_eq!(sync(2, &[5]), [now, now + 1_000_000], "the first one of another replica");
    assert_eq!(sync(1, &[4]), [0, 0]);
}

#[test]
fn a_break_is_lengthened_by_its_jitter_and_rounded_down() {
    for (jitter, left) in [(0.0, 3_000_001), (0.5, 3_450_001), (0.9, 3_810_001), (1.0, 3_900_001)] {
        let server = fresh_server();
        let circuit = Circuit { jitter, ..with(steady(0).spec.break_for(Duration::from_micros(3_000_001))) };
        assert_eq!(circuit.sync(server, &[(1, FAILURE, 9, 0)]).left, left, "{jitter}");
    }
}

#[test]
fn a_breaker_without_a_ramp_admits_all_when_it_closes() {
    let server = LuaServer::new();
    let circuit = with(BreakerSpec { ramp: None, ..steady(0).spec });
    recover(&server, &circuit);
    assert_eq!(circuit.inspect(&server).0.ramping, 0);
    let text = String::from_utf8(server.get(KEY).unwrap()).unwrap();
    assert_eq!(text.split_whitespace().nth(12), Some("-1"), "{text}");
    assert_eq!(circuit.admit_reply(&server, 1), [ALL, 0, 0]);
}

#[test]
fn slow_calls_and_failures_leave_the_window_with_their_slice() {
    let server = LuaServer::new();
    let circuit = with(steady(0).spec.min_throughput(100));
    circuit.sync(&server, &[(1, SLOW_FAILURE, 3, 0)]);
    server.clock().advance(9 * SECOND);
    circuit.sync(&server, &[(1, SLOW_SUCCESS, 2, 0)]);
    assert_eq!(circuit.inspect(&server).1[..3], [5, 3, 5]);
    server.clock().advance(SECOND);
    assert_eq!(circuit.inspect(&server).1[..3], [2, 0, 2]);
    circuit.sync(&server, &[(1, SUCCESS, 1, 0)]);
    server.clock().advance(9 * SECOND);
    assert_eq!(circuit.inspect(&server).1[..3], [1, 0, 0]);
}

#[test]
fn fields_that_a_claim_lacks_or_that_are_no_numbers_are_zero() {
    let server = LuaServer::new();
    let spec = spec_text(&steady(0).spec, 0);
    for (claim, [phase, epoch, flags]) in
        [("", [1, 1, 0]), ("x", [1, 1, 0]), ("6 2", [2, 6, 4]), ("6 2 x x x", [2, 6, 4]), ("6 1 0 0", [1, 6, 4])]
    {
        let reply = leading_ints(&run(&server, &BREAKER_INSPECT, &args![spec, claim, "ph2:news", "id7", 0]));
        let now = now(&server).as_micros() as i64;
        assert_eq!(reply[..9], [now, phase, epoch, 0, 0, 0, 0, flags, 0], "{claim:?}");
    }
}

#[test]
fn a_window_of_another_length_takes_over_every_count() {
    for began in [0, 1_700_000_000_000_000] {
        let server = LuaServer::new();
        server.clock().set(Time::from_micros(began));
        let spec = steady(0).spec.min_throughput(100);
        let circuit = with(spec.clone());
        circuit.sync(&server, &[(1, SLOW_FAILURE, 2, 0), (1, FAILURE, 1, 0), (1, SUCCESS, 4, 0)]);
        server.clock().advance(9 * SECOND);
        circuit.sync(&server, &[(1, SLOW_SUCCESS, 1, 0)]);
        let longer = Circuit { fingerprint: 1, ..with(spec.window(40 * SECOND)) };
        assert_eq!(longer.inspect(&server).1[..3], [8, 3, 3], "began at {began}");
    }
}

#[test]
fn a_claim_of_the_first_epoch_restores_a_breaker_that_is_lost() {
    let server = LuaServer::new();
    let mut circuit = steady(0);
    circuit.claim = Claim { epoch: 1, phase: Phase::Open, left: SECOND, ..NO_CLAIM };
    let state = circuit.sync(&server, &[]);
    assert_eq!((state.phase, state.epoch, state.left, state.flags), (OPEN, 1, 1_000_000, 4));
}

#[test]
fn failures_in_a_row_are_stored_until_a_success_ends_them() {
    let server = LuaServer::new();
    server.clock().set(Time::from_micros(1));
    let circuit = with(steady(0).spec.min_throughput(100));
    circuit.sync(&server, &[(1, FAILURE, 2, 0)]);
    assert_eq!(evidence_of(&server), [1, 1, 0, 0, 0, 0]);
    circuit.sync(&server, &[(1, SUCCESS, 1, 0)]);
    assert_eq!(evidence_of(&server), [0; 0], "the line is gone");
    let text = String::from_utf8(server.get(KEY).unwrap()).unwrap();
    assert_eq!(text.split(' ').nth(7), Some("0"), "{text}");
}
