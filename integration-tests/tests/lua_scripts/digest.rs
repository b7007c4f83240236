//! The latency digest scripts: packed counters in slices of the server's clock.

use std::collections::BTreeMap;
use std::time::Duration;

use phalanx_core::clock::Time;
use phalanx_core::estimate::bins::{BINS, Bins};
use phalanx_core::estimate::digest::Digest;
use phalanx_lua::{DIGEST_FLUSH, DIGEST_READ};
use phalanx_testkit::lua_server::{LuaServer, Reply, Stored};
use proptest::prelude::*;

use crate::harness::*;

const WINDOW: Duration = Duration::from_secs(10);
const SLICE: u64 = 2_000_000;

/// Flushes runs, each with its age and bins. Returns the flags.
fn flush(server: &LuaServer, slice_len: u64, runs: &[(u64, Vec<(u64, u64)>)]) -> i64 {
    let mut args = args![slice_len, runs.len()];
    for (age, bins) in runs {
        args.extend(args![age, bins.len()]);
        args.extend(bins.iter().flat_map(|(bin, count)| args![bin, count]));
    }
    run(server, &DIGEST_FLUSH, &args).ints()[1]
}

/// Returns the non-zero bins of each slice in the window, and the flags.
fn read(server: &LuaServer, slice_len: u64) -> (BTreeMap<u64, BTreeMap<u64, u64>>, i64) {
    let before = raw(server);
    let reply = run(server, &DIGEST_READ, &args![slice_len]);
    assert_eq!(raw(server), before, "a read writes nothing");
    let parts = reply.parts();
    let slots = parts[3..].chunks(2).map(|slot| {
        let bytes = slot[1].bytes();
        assert_eq!(bytes.len(), 4 * BINS);
        let counts = bytes.chunks(4).map(|bin| bin.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)));
        let bins = (0..).zip(counts).filter(|(_, count)| *count > 0).collect();
        (slot[0].int() as u64, bins)
    });
    (slots.collect(), parts[2].int())
}

fn total(server: &LuaServer) -> u64 {
    read(server, SLICE).0.values().flat_map(BTreeMap::values).sum()
}

fn sums(server: &LuaServer) -> Bins {
    let mut sums = Bins::EMPTY;
    for slice in read(server, SLICE).0.values() {
        slice.iter().for_each(|(bin, count)| sums.count_in(*bin as usize, *count as u32));
    }
    sums
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]

    /// Compares a digest of flushed replicas with a local one that observed every sample.
    #[test]
    fn a_shared_digest_equals_a_local_one_with_all_samples(
        steps in prop::collection::vec((0_u64..3_000_000, prop::collection::vec(1_u64..3_600_000_000, 0..6)), 1..40),
    ) {
        let server = fresh_server();
        let (all, scratch) = (Digest::new(WINDOW), || Digest::new(WINDOW));
        for (step, latencies) in steps {
            server.clock().advance(Duration::from_micros(step));
            let (now, own) = (now(server), scratch());
            for latency in latencies {
                all.observe(now, Duration::from_micros(latency));
                own.observe(now, Duration::from_micros(latency));
            }
            let runs: Vec<_> = own.slices(now).map(|(slice, bins)| {
                let age = now.as_micros() - (slice * SLICE).max(1).min(now.as_micros());
                (age, bins.counts().map(|(bin, count)| (bin as u64, u64::from(count))).collect::<Vec<_>>())
            }).collect();
            prop_assert_eq!(flush(server, SLICE, &runs), 0);
            prop_assert_eq!(total(server), all.count(now));
            for quantile in [0.5, 0.9, 0.99] {
                prop_assert_eq!(sums(server).quantile(quantile), all.quantile(now, quantile));
            }
        }
    }

    /// With late runs and any clock, every count appears once and in its own slice.
    #[test]
    fn late_runs_count_in_their_slices(
        steps in prop::collection::vec((clock_step(), prop::collection::vec((0_u64..14_000_000, 0_u64..BINS as u64 + 10), 1..4)), 1..40),
    ) {
        let server = fresh_server();
        let mut expected: BTreeMap<u64, u64> = BTreeMap::new();
        for (by, runs) in steps {
            move_clock(server, by);
            let now = now(server).as_micros();
            if server.get(KEY).is_none() {
                expected.clear();
            }
            // If the newest slice is in the future, nothing is returned, and the next flush starts over.
            let newest = |expected: &BTreeMap<u64, u64>| expected.keys().max().copied().unwrap_or(0);
            let ahead = newest(&expected) * SLICE > now + 1_000_000;
            let present = if ahead { now / SLICE } else { newest(&expected).max(now / SLICE) };
            let counts = |(age, bin): &&(u64, u64)| (now - age) / SLICE + 5 > present && *bin < BINS as u64;
            let counted: Vec<_> = runs.iter().filter(counts).map(|(age, _)| (now - age) / SLICE).collect();
            if ahead && !counted.is_empty() {
                expected.clear();
            }
            for slice in &counted {
                // It replaces the slice that used the same slot.
                expected.retain(|other, _| other % 5 != slice % 5 || other == slice);
                *expected.entry(*slice).or_default() += 3;
            }
            let runs: Vec<_> = runs.into_iter().map(|(age, bin)| (age, vec![(bin, 3)])).collect();
            prop_assert_eq!(flush(server, SLICE, &runs), 0);
            let shown = read(server, SLICE).0.into_iter().map(|(slice, bins)| (slice, bins.values().sum()));
            let inside = |slice: u64| slice + 5 > present && (!ahead || !counted.is_empty());
            let inside = expected.iter().filter(|(slice, _)| inside(**slice)).map(|(slice, count)| (*slice, *count));
            prop_assert_eq!(shown.collect::<BTreeMap<u64, u64>>(), inside.collect());
        }
    }

    #[test]
    fn any_bytes_are_an_empty_digest_and_are_repaired(bytes in foreign(6)) {
        let server = fresh_server();
        server.put(KEY, bytes);
        let (slots, flags) = read(server, SLICE);
        prop_assert!(slots.is_empty());
        prop_assert_eq!(flush(server, SLICE, &[(0, vec![(7, 1)])]), flags);
        prop_assert_eq!((total(server), read(server, SLICE).1), (1, 0));
        prop_assert_eq!(raw(server).1, Some(14_000));
    }
}

#[test]
fn counters_saturate_and_unknown_bins_are_ignored() {
    let server = LuaServer::new();
    let most = u64::from(u32::MAX);
    flush(&server, SLICE, &[(0, vec![(1_103, most), (1_103, 7), (3, u64::MAX), (1_104, 1), (4_000_000, 1), (5, 0)])]);
    let slots = read(&server, SLICE).0;
    assert_eq!(slots.into_values().collect::<Vec<_>>(), [BTreeMap::from([(3, most), (1_103, most)])]);
    assert!(server.get(KEY).unwrap().len() <= 128 + 5 * 4 * BINS);
}

#[test]
fn a_digest_that_another_client_appended_to_is_replaced() {
    let server = LuaServer::new();
    flush(&server, SLICE, &[(0, vec![(7, 1)])]);
    let mut text = server.get(KEY).unwrap();
    text.resize(65_536, 0);
    server.put(KEY, Stored::Text(text.clone()));
    assert_eq!((total(&server), read(&server, SLICE).1), (1, 0), "a later release may store more");
    text.push(0);
    server.put(KEY, Stored::Text(text));
    assert_eq!(read(&server, SLICE), (BTreeMap::new(), 1));
    assert_eq!(flush(&server, SLICE, &[(0, vec![(7, 1)])]), 1);
    assert_eq!((total(&server), read(&server, SLICE).1), (1, 0));
    assert!(server.get(KEY).unwrap().len() < 10_000, "the rest is gone");
}

#[test]
fn another_slice_length_starts_over_and_the_header_is_readable() {
    let server = LuaServer::new();
    flush(&server, SLICE, &[(0, vec![(7, 1)])]);
    let text = server.get(KEY).unwrap();
    assert!(text.starts_with(b"ph1 0000000002000000"));
    assert_eq!(text[100..128], [b' '; 28]);
    assert_eq!(read(&server, 2 * SLICE), (BTreeMap::new(), 2));
    assert_eq!(flush(&server, 2 * SLICE, &[(0, vec![(7, 1)])]), 2);
    assert_eq!(read(&server, 2 * SLICE).0.len(), 1);
    server.put(KEY, Stored::Text(text[..127].to_vec()));
    assert_eq!(read(&server, SLICE).1, 1);
}

#[test]
fn an_empty_flush_writes_nothing_and_a_full_one_fits() {
    let server = LuaServer::new();
    flush(&server, SLICE, &[(0, vec![]), (60_000_000, vec![(1, 1)])]);
    assert!(server.keys().is_empty());
    let all: Vec<_> = (0..BINS as u64).map(|bin| (bin, bin + 1)).collect();
    flush(&server, SLICE, &[(0, all.clone()), (SLICE, all.clone()), (2 * SLICE, all)]);
    assert_eq!(total(&server), 3 * 1_104 * 1_105 / 2);
}

/// Replaces the beginning of the stored digest.
fn put_header(server: &LuaServer, header: &str) {
    let mut text = server.get(KEY).unwrap();
    text.splice(..128, header.bytes());
    server.put(KEY, Stored::Text(text));
}

#[test]
fn a_header_that_no_script_writes_is_an_empty_digest() {
    let slice = 1_700_000_000_000_000 / SLICE;
    let digits = |slices: [u64; 5]| slices.map(|slice| format!("{slice:016}")).concat();
    let (length, blanks) = ("0000000002000000", " ".repeat(28));
    let slices = digits([slice, 0, 0, 0, 0]);
    let headers = [
        (format!("ph1 {length}{slices}{blanks}"), 0),
        (format!("ph2 {length}{slices}{blanks}"), 1),
        (format!("ph1 {length}{}{blanks} ", &slices[1..]), 1),
        (format!("ph1 {length}{slices}0{}", &blanks[1..]), 1),
        (format!("ph1 {length}{}x{blanks}", &slices[1..]), 1),
        (format!("ph1 {length}{slices}{}x", &blanks[1..]), 1),
        (format!("ph1 {length}{}{blanks}", digits([slice, slice, 0, 0, 0])), 1),
        (format!("ph1 {length}{}{blanks}", digits([slice, 0, 0, 0, slice + 3])), 1),
        (format!("ph1 {length}{}{blanks}", digits([slice, slice - 4, slice - 3, slice - 2, slice - 1])), 0),
        (format!("ph1 0000000002000001{slices}{blanks}"), 2),
    ];
    for (header, flags) in headers {
        let server = fresh_server();
        flush(server, SLICE, &[(0, vec![(7, 1)])]);
        put_header(server, &header);
        assert_eq!(read(server, SLICE).1, flags, "{header}");
    }
}

#[test]
fn slices_of_a_microsecond_and_of_thirty_years_are_counted() {
    for (slice_len, ttl) in [(1, 1_000), (2_000_001, 14_001), (1_000_000_000_000_001, 7_000_000_000_001)] {
        let server = fresh_server();
        let now = now(server).as_micros();
        assert_eq!(flush(server, slice_len, &[(0, vec![(7, 1)])]), 0);
        let (slices, flags) = read(server, slice_len);
        assert_eq!((slices.get(&(now / slice_len)), flags), (Some(&BTreeMap::from([(7, 1)])), 0));
        assert_eq!(raw(server).1, Some(ttl));
        assert_eq!(read(server, slice_len + 1).1, 2);
    }
}

#[test]
fn a_clock_that_steps_back_by_a_second_keeps_the_digest_and_by_more_hides_it() {
    let server = LuaServer::new();
    flush(&server, SLICE, &[(0, vec![(7, 1)])]);
    server.clock().step_back(SECOND);
    assert_eq!(total(&server), 1);
    server.clock().step_back(Duration::from_micros(1));
    assert_eq!((total(&server), read(&server, SLICE).1), (0, 0));
}

#[test]
fn latencies_count_in_the_slice_of_their_time_and_those_from_the_future_now() {
    let server = LuaServer::new();
    let slice = now(&server).as_micros() / SLICE;
    flush(&server, SLICE, &[(0, vec![(7, 1)])]);
    server.clock().advance(Duration::from_micros(SLICE - 1));
    run(&server, &DIGEST_FLUSH, &args![SLICE, 1, -5_000_000, 1, 7, 1]);
    assert_eq!(read(&server, SLICE).0, BTreeMap::from([(slice, BTreeMap::from([(7, 2)]))]));
    flush(&server, SLICE, &[(SLICE, vec![(7, 1)])]);
    assert_eq!(read(&server, SLICE).0.keys().copied().collect::<Vec<_>>(), [slice - 1, slice]);
}

#[test]
fn a_slice_that_reuses_a_slot_starts_with_zeros_and_renews_the_ttl() {
    let server = LuaServer::new();
    let all: Vec<_> = (0..BINS as u64).map(|bin| (bin, 1)).collect();
    // The older slice is in the first slot, the newer one in the second.
    server.clock().advance(Duration::from_micros(SLICE));
    flush(&server, SLICE, &[(0, all.clone()), (SLICE, all)]);
    server.clock().advance(Duration::from_micros(5 * SLICE - 1));
    assert_eq!(read(&server, SLICE).0.len(), 1, "the older slice has left the window");
    server.clock().advance(Duration::from_micros(1));
    assert_eq!(read(&server, SLICE).0.len(), 0, "and the newer one after five slices");
    server.clock().step_back(Duration::from_micros(SLICE));
    flush(&server, SLICE, &[(0, vec![(0, 1)])]);
    let slices: Vec<_> = read(&server, SLICE).0.into_values().map(|bins| bins.values().sum::<u64>()).collect();
    assert_eq!(slices, [BINS as u64, 1], "a new slice leaves its neighbours alone");
    assert_eq!(raw(&server).1, Some(14_000));
    flush(&server, SLICE, &[(5 * SLICE, vec![(0, 1)])]);
    assert_eq!(total(&server), BINS as u64 + 1, "a latency of five slices ago is dropped");
}

#[test]
fn a_run_adds_to_known_bins_only_and_to_no_more_than_there_are() {
    let server = LuaServer::new();
    flush(&server, SLICE, &[(0, vec![(5, 0), (1_104, 1)])]);
    run(&server, &DIGEST_FLUSH, &args![SLICE, 1, 0, 1, -1, 1]);
    assert!(server.keys().is_empty(), "nothing to add, nothing to write");
    flush(&server, SLICE, &[(0, vec![(7, 1); BINS + 1])]);
    assert_eq!(total(&server), BINS as u64);
}

#[test]
fn every_run_adds_its_own_bins_and_no_others() {
    let server = fresh_server();
    // Ages below the number of bins could be read as bins.
    flush(server, SLICE, &[(0, vec![(1, 1)]), (3, vec![(2, 5)]), (4, Vec::new()), (5, vec![(7, 2)])]);
    let bins: BTreeMap<u64, u64> = read(server, SLICE).0.into_values().flatten().collect();
    assert_eq!(bins, BTreeMap::from([(1, 1), (2, 5), (7, 2)]));
}

#[test]
fn a_digest_works_from_the_beginning_of_the_clock() {
    let server = LuaServer::new();
    let reply = |slice_len: u64| run(&server, &DIGEST_READ, &args![slice_len]).parts()[..3].to_vec();
    server.clock().set(Time::from_micros(0));
    assert_eq!(reply(SLICE), [Reply::Int(0), Reply::Int(0), Reply::Int(0)], "now, slice, flags");
    flush(&server, SLICE, &[(0, vec![(7, 1)])]);
    assert_eq!(reply(SLICE), [Reply::Int(0), Reply::Int(0), Reply::Int(0)]);
    assert_eq!(read(&server, SLICE).0, BTreeMap::from([(0, BTreeMap::from([(7, 1)]))]));

    server.flush();
    server.clock().set(Time::from_micros(3));
    flush(&server, 1, &[(100, vec![(7, 1)])]);
    assert_eq!(read(&server, 1).0, BTreeMap::from([(0, BTreeMap::from([(7, 1)]))]));
    server.clock().set(Time::from_micros(4));
    assert_eq!(read(&server, 1).0.len(), 1);
    server.clock().set(Time::from_micros(5));
    assert_eq!(read(&server, 1).0.len(), 0);
}
