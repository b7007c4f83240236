//! The latency digest scripts: non-empty bins in slices of the server's clock, of which a reader gets what it lacks.

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
/// The slice of the initial time of a server.
const FIRST: u64 = 1_700_000_000_000_000 / SLICE;
/// What a digest may have in all, with what a later release adds.
const MAX_SIZE: usize = 131_072;

type Counts = BTreeMap<u64, u64>;

/// Encodes bins as the scripts take them.
fn pack(bins: &[(u64, u64)]) -> Vec<u8> {
    let bytes = |(bin, count): &(u64, u64)| {
        [&u16::try_from(*bin).unwrap().to_be_bytes()[..], &u32::try_from(*count).unwrap().to_be_bytes()].concat()
    };
    bins.iter().flat_map(bytes).collect()
}

fn unpack(bytes: &[u8]) -> Counts {
    let number = |bytes: &[u8]| bytes.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    let bins = bytes.chunks(6).map(|bin| (number(&bin[..2]), number(&bin[2..])));
    let counts: Counts = bins.clone().collect();
    assert_eq!(counts.len(), bins.clone().count(), "each bin is there once");
    assert!(bins.clone().all(|(_, count)| count > 0), "only bins with latencies are there: {counts:?}");
    counts
}

/// Flushes runs of packed bins, each with its age, under a name, for a caller that has these slices.
fn flush_as(server: &LuaServer, slice_len: u64, name: &str, known: &str, runs: &[(i64, Vec<u8>)]) -> Reply {
    let mut args = args![slice_len, name, known];
    args.extend(runs.iter().flat_map(|(age, bins)| [age.to_string().into_bytes(), bins.clone()]));
    run(server, &DIGEST_FLUSH, &args)
}

/// Flushes runs, each with its age and bins, for a caller that has nothing. Returns the flags.
fn flush(server: &LuaServer, slice_len: u64, runs: &[(u64, Vec<(u64, u64)>)]) -> i64 {
    let runs: Vec<_> = runs.iter().map(|(age, bins)| (*age as i64, pack(bins))).collect();
    // A name of its own: the record, the time and the runs are not always different.
    thread_local!(static FLUSHES: std::cell::Cell<u64> = const { std::cell::Cell::new(0) });
    let number = FLUSHES.replace(FLUSHES.get() + 1);
    flush_as(server, slice_len, &format!("f{number}"), ";", &runs).parts()[1].int()
}

/// Returns the slices of a reply: number, flush and bins.
fn slices_of(reply: &Reply) -> Vec<(u64, String, Vec<u8>)> {
    let parts = reply.parts()[2..].chunks(3);
    let slice = |part: &[Reply]| {
        let flush = String::from_utf8(part[1].bytes().to_vec()).unwrap();
        (part[0].int() as u64, flush, part[2].bytes().to_vec())
    };
    parts.map(slice).collect()
}

/// Reads as a caller that has these slices.
fn read_as(server: &LuaServer, slice_len: u64, known: &str) -> Reply {
    let before = raw(server);
    let reply = run(server, &DIGEST_READ, &args![slice_len, known]);
    assert_eq!(raw(server), before, "a read writes nothing");
    assert!(slices_of(&reply).is_sorted_by_key(|(slice, ..)| *slice));
    reply
}

/// Returns the bins of each slice in the window, and the flags.
fn read(server: &LuaServer, slice_len: u64) -> (BTreeMap<u64, Counts>, i64) {
    let reply = read_as(server, slice_len, ";");
    let slices = slices_of(&reply).into_iter().map(|(slice, _, bins)| (slice, unpack(&bins)));
    (slices.collect(), reply.parts()[1].int())
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

/// A replica that gets only the slices that it lacks.
#[derive(Default)]
struct Reader(Vec<(u64, String, Vec<u8>)>);

impl Reader {
    fn known(&self) -> String {
        let names: String = self.0.iter().map(|(slice, flush, _)| format!("{slice} {flush};")).collect();
        format!(";{names}")
    }

    /// Takes over a reply. Returns the number of slices that it had bins for.
    fn apply(&mut self, reply: &Reply) -> usize {
        let mut slices = slices_of(reply);
        let mut sent = 0;
        for (slice, flush, bins) in &mut slices {
            if bins.is_empty() {
                let held = self.0.iter().find(|held| (&held.0, &held.1) == (slice, flush));
                *bins = held.unwrap_or_else(|| panic!("{slice} {flush} is left out and not held")).2.clone();
            } else {
                sent += 1;
            }
        }
        self.0 = slices;
        sent
    }
}

/// What happens to a digest between two reads.
#[derive(Clone, Debug)]
enum Event {
    Clock(i64),
    /// A flush of another replica.
    Flush(Vec<(u64, u64)>),
    Lost,
    Foreign(Stored),
    /// A failover to a server that lost the latest writes.
    Former,
    OtherWindow,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => clock_step().prop_map(Event::Clock),
        6 => prop::collection::vec((0_u64..12_000_000, 0_u64..4), 1..3).prop_map(Event::Flush),
        1 => Just(Event::Lost),
        1 => foreign(4).prop_map(Event::Foreign),
        1 => Just(Event::Former),
        1 => Just(Event::OtherWindow),
    ]
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
        let mut stored: BTreeMap<u64, u64> = BTreeMap::new();
        for (by, runs) in steps {
            move_clock(server, by);
            let now = now(server).as_micros();
            if server.get(KEY).is_none() {
                stored.clear();
            }
            // Slices from the future do not count, and the next flush that adds something drops them.
            let lives = |slice: u64| slice * SLICE <= now + 1_000_000;
            let newest = stored.keys().copied().filter(|slice| lives(*slice)).max().unwrap_or(0).max(now / SLICE);
            let counts = |(age, bin): &&(u64, u64)| (now - age) / SLICE + 5 > newest && *bin < BINS as u64;
            let counted: Vec<_> = runs.iter().filter(counts).map(|(age, _)| (now - age) / SLICE).collect();
            if !counted.is_empty() {
                stored.retain(|slice, _| lives(*slice) && slice + 5 > newest);
            }
            counted.iter().for_each(|slice| *stored.entry(*slice).or_default() += 3);
            let runs: Vec<_> = runs.into_iter().map(|(age, bin)| (age, vec![(bin, 3)])).collect();
            prop_assert_eq!(flush(server, SLICE, &runs), 0);
            let shown = read(server, SLICE).0.into_iter().map(|(slice, bins)| (slice, bins.values().sum()));
            let inside = stored.iter().filter(|(slice, _)| lives(**slice) && **slice + 5 > newest);
            let inside = inside.map(|(slice, count)| (*slice, *count));
            prop_assert_eq!(shown.collect::<BTreeMap<u64, u64>>(), inside.collect());
        }
    }

    /// Over anything that can happen to the stored digest, a reader that gets only what it lacks has what a full read
    /// returns.
    #[test]
    fn a_reader_that_gets_only_what_it_lacks_has_everything(
        steps in prop::collection::vec((prop::collection::vec(event(), 0..4), prop::option::of(0_u64..3)), 1..40),
    ) {
        let server = fresh_server();
        let (mut reader, mut former, mut flushes) = (Reader::default(), None, 0);
        for (events, own) in steps {
            for event in events {
                match event {
                    Event::Clock(by) => move_clock(server, by),
                    Event::Flush(runs) => {
                        former = server.get(KEY);
                        let runs: Vec<_> = runs.into_iter().map(|(age, bin)| (age, vec![(bin, 1)])).collect();
                        flush(server, SLICE, &runs);
                    }
                    Event::Lost => server.flush(),
                    Event::Foreign(value) => server.put(KEY, value),
                    Event::Former => former.iter().for_each(|text| server.put(KEY, Stored::Text(text.clone()))),
                    Event::OtherWindow => _ = flush(server, SLICE + 7, &[(0, vec![(1, 1)])]),
                }
            }
            let reply = match own {
                Some(bin) => {
                    flushes += 1;
                    flush_as(server, SLICE, &format!("own{flushes}"), &reader.known(), &[(0, pack(&[(bin, 1)]))])
                }
                None => read_as(server, SLICE, &reader.known()),
            };
            reader.apply(&reply);
            let full = read_as(server, SLICE, ";");
            prop_assert_eq!(&reader.0, &slices_of(&full));
            prop_assert_eq!(reader.apply(&read_as(server, SLICE, &reader.known())), 0, "nothing has changed");
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

    /// Whatever has become of a digest, the next flush counts.
    #[test]
    fn a_damaged_digest_is_read_or_replaced(at in any::<prop::sample::Index>(), byte in prop::option::of(any::<u8>())) {
        let server = fresh_server();
        flush(server, SLICE, &[(0, vec![(7, 1), (300, 70_000)]), (SLICE, vec![(8, 2)])]);
        flush(server, SLICE + 1, &[(0, vec![(9, 1)])]);
        let mut text = server.get(KEY).unwrap();
        match byte {
            Some(byte) => *at.get_mut(&mut text) = byte,
            None => text.truncate(at.index(text.len())),
        }
        server.put(KEY, Stored::Text(text));
        flush(server, SLICE, &[(0, vec![(5, 1)])]);
        let reply = read_as(server, SLICE, ";");
        prop_assert_eq!(reply.parts()[1].int(), 0);
        let now = slices_of(&reply).into_iter().find(|(slice, ..)| *slice == FIRST).unwrap().2;
        prop_assert!(now.chunks(6).any(|bin| bin[..2] == [0, 5] && bin[2..].iter().any(|byte| *byte > 0)));
    }
}

#[test]
fn a_reply_has_the_bins_of_the_slices_that_the_caller_lacks() {
    let server = LuaServer::new();
    let mut reader = Reader::default();
    flush_as(&server, SLICE, "a", ";", &[(0, pack(&[(7, 1)])), (SLICE as i64, pack(&[(8, 1)]))]);
    assert_eq!(reader.apply(&read_as(&server, SLICE, &reader.known())), 2);
    assert_eq!(reader.known(), format!(";{} a;{FIRST} a;", FIRST - 1));
    assert_eq!(reader.apply(&read_as(&server, SLICE, &reader.known())), 0);
    let changed = flush_as(&server, SLICE, "b", &reader.known(), &[(0, pack(&[(7, 1)]))]);
    let bins = |counts: &[(u64, u64)]| Reply::Bytes(pack(counts));
    let name = |text: &str| Reply::Bytes(text.as_bytes().to_vec());
    let [earlier, first] = [FIRST - 1, FIRST].map(|slice| Reply::Int(slice as i64));
    assert_eq!(changed.parts()[1..], [Reply::Int(0), earlier, name("a"), bins(&[]), first, name("b"), bins(&[(7, 2)])]);
    assert_eq!(reader.apply(&changed), 1);
    // A flush that adds nothing returns what a read returns.
    assert_eq!(reader.apply(&flush_as(&server, SLICE, "c", &reader.known(), &[(0, pack(&[(7, 0)]))])), 0);
    // Names that only look alike.
    for known in [format!(";{FIRST} ab;"), format!(";{FIRST} xb;"), format!("{FIRST} b"), format!(";1{FIRST} b;")] {
        let sent: Vec<_> = slices_of(&read_as(&server, SLICE, &known)).into_iter().map(|slice| slice.2).collect();
        assert_eq!(sent, [pack(&[(8, 1)]), pack(&[(7, 2)])], "{known}");
    }
    let sent = slices_of(&read_as(&server, SLICE, &format!(";x;{FIRST} b;y;"))).pop().unwrap();
    assert_eq!(sent.2, b"");
}

#[test]
fn a_name_that_is_none_is_replaced() {
    let server = LuaServer::new();
    for name in ["a b", "", "a\n", "ä"] {
        flush_as(&server, SLICE, name, ";", &[(0, pack(&[(7, 1)]))]);
        assert_eq!(slices_of(&read_as(&server, SLICE, ";"))[0].1, "0");
    }
    assert_eq!(total(&server), 4);
}

#[test]
fn a_reply_is_as_long_as_the_bins_in_it_and_at_most_five_full_slices() {
    let server = LuaServer::new();
    let size = |server: &LuaServer| -> usize {
        slices_of(&read_as(server, SLICE, ";")).iter().map(|(_, flush, bins)| flush.len() + bins.len()).sum()
    };
    let runs = |bins: u64| -> Vec<_> {
        (0..5).map(|slice| ((slice * SLICE) as i64, pack(&(0..bins).map(|bin| (bin, 1)).collect::<Vec<_>>()))).collect()
    };
    flush_as(&server, SLICE, "0123456789abcdef", ";", &runs(50));
    assert_eq!(size(&server), 5 * (16 + 50 * 6));
    assert!(server.get(KEY).unwrap().len() < 1_800);
    flush_as(&server, SLICE, "0123456789abcdef", ";", &runs(BINS as u64));
    assert_eq!(size(&server), 5 * (16 + BINS * 6));
    assert!(server.get(KEY).unwrap().len() <= 33_400);
}

#[test]
fn counters_saturate_and_unknown_bins_are_ignored() {
    let server = LuaServer::new();
    let most = u64::from(u32::MAX);
    flush(&server, SLICE, &[(0, vec![(1_103, most), (1_103, 7), (3, most - 1), (1_104, 1), (65_535, 1), (5, 0)])]);
    flush(&server, SLICE, &[(0, vec![(3, 1), (4, most - 255), (6, 0x00FE_FFFF)])]);
    flush(&server, SLICE, &[(0, vec![(3, 1), (4, 256), (6, 1)])]);
    let slots = read(&server, SLICE).0;
    let counts = BTreeMap::from([(3, most), (4, most), (6, 0x00FF_0000), (1_103, most)]);
    assert_eq!(slots.into_values().collect::<Vec<_>>(), [counts]);
}

/// Appends an entry of a later release, so that this many bytes are stored.
fn pad_to(server: &LuaServer, size: usize) {
    let mut text = server.get(KEY).unwrap();
    let rest = size - text.len() - "x 100000 7\n".len();
    text.extend(format!("x {rest:06} 7\n").bytes());
    text.resize(size, 0);
    server.put(KEY, Stored::Text(text));
}

#[test]
fn a_digest_that_another_client_appended_to_is_replaced() {
    let server = LuaServer::new();
    flush(&server, SLICE, &[(0, vec![(7, 1)])]);
    let small = server.get(KEY).unwrap();
    pad_to(&server, MAX_SIZE);
    assert_eq!((total(&server), read(&server, SLICE).1), (1, 0), "a later release may store more");
    server.put(KEY, Stored::Text(small.clone()));
    pad_to(&server, MAX_SIZE + 1);
    let too_long = server.get(KEY).unwrap();
    let mut garbage = small.clone();
    garbage.extend(b"garbage");
    for text in [too_long, garbage] {
        server.put(KEY, Stored::Text(text));
        assert_eq!(read(&server, SLICE), (BTreeMap::new(), 1));
        assert_eq!(flush(&server, SLICE, &[(0, vec![(7, 1)])]), 1);
        assert_eq!((total(&server), read(&server, SLICE).1), (1, 0));
        assert_eq!(server.get(KEY).unwrap().len(), small.len(), "the rest is gone");
    }
}

#[test]
fn what_a_later_release_has_added_is_kept() {
    let server = LuaServer::new();
    let [earlier, first, last] = [FIRST - 4, FIRST - 1, FIRST].map(|slice| slice.to_string());
    let bins = |counts: &[(u64, u64)]| pack(counts);
    let entry = |head: String, bytes: &[u8]| [head.as_bytes(), b"\n", bytes].concat();
    let stored = [
        b"2 7 words\n".to_vec(),
        entry(format!("s 6 {SLICE} {earlier} aa 1 2"), &bins(&[(3, 4)])),
        entry("x 5 3".to_owned(), b"s 1\n2"),
        entry(format!("s 12 {SLICE} {first} bb more"), &bins(&[(5, 1), (6, 1)])),
        entry("y 0".to_owned(), b""),
    ];
    server.put(KEY, Stored::Text(stored.concat()));
    let counts = BTreeMap::from([(FIRST - 4, Counts::from([(3, 4)])), (FIRST - 1, Counts::from([(5, 1), (6, 1)]))]);
    assert_eq!(read(&server, SLICE), (counts, 0));
    flush_as(&server, SLICE, "cc", ";", &[(0, bins(&[(7, 1)])), (SLICE as i64, bins(&[(6, 1)]))]);
    let written = [
        b"2 7 words\n".to_vec(),
        entry(format!("s 6 {SLICE} {earlier} aa 1 2"), &bins(&[(3, 4)])),
        entry(format!("s 12 {SLICE} {first} cc more"), &bins(&[(5, 1), (6, 2)])),
        entry(format!("s 6 {SLICE} {last} cc"), &bins(&[(7, 1)])),
        entry("x 5 3".to_owned(), b"s 1\n2"),
        entry("y 0".to_owned(), b""),
    ];
    let text = server.get(KEY).unwrap();
    assert_eq!(String::from_utf8_lossy(&text), String::from_utf8_lossy(&written.concat()));
    assert_eq!(text, written.concat());
}

#[test]
fn a_digest_may_have_thirty_two_entries() {
    let server = LuaServer::new();
    for (entries, flags) in [(31, 0), (32, 1)] {
        flush(&server, SLICE, &[(0, vec![(7, 1)])]);
        let mut text = server.get(KEY).unwrap();
        text.extend(b"z 0\n".repeat(entries));
        server.put(KEY, Stored::Text(text));
        assert_eq!((total(&server), read(&server, SLICE).1), (1 - flags as u64, flags));
        server.flush();
    }
}

#[test]
fn windows_of_two_lengths_do_not_disturb_each_other() {
    let server = LuaServer::new();
    let (short, long) = (SLICE, 10 * SLICE);
    for _ in 0..3 {
        flush(&server, short, &[(0, vec![(7, 1)])]);
        flush(&server, long, &[(0, vec![(8, 1)])]);
    }
    let both =
        |server: &LuaServer| [short, long].map(|length| read(server, length).0.into_values().collect::<Vec<_>>());
    assert_eq!(both(&server), [[BTreeMap::from([(7, 3)])], [BTreeMap::from([(8, 3)])]]);
    flush(&server, short, &[(0, vec![(7, 1)])]);
    assert_eq!(raw(&server).1, Some(140_000), "for seven slices of the longer window");
    // A slice of another length is kept until it leaves its own window, and its key with it.
    server.clock().advance(Duration::from_micros(5 * long - 1));
    flush(&server, short, &[(0, vec![(7, 1)])]);
    assert_eq!(both(&server), [[BTreeMap::from([(7, 1)])], [BTreeMap::from([(8, 3)])]]);
    server.clock().advance(Duration::from_micros(1));
    flush(&server, short, &[(0, vec![(7, 1)])]);
    assert_eq!(raw(&server).1, Some(14_000));
    assert!(!String::from_utf8_lossy(&server.get(KEY).unwrap()).contains("20000000 "));
}

#[test]
fn slices_of_other_lengths_are_five_and_none_is_from_the_future() {
    let server = LuaServer::new();
    let five = |length: u64| (0..5).map(|slice| (slice * length, vec![(7, 1)])).collect::<Vec<_>>();
    let lengths = [SLICE, SLICE + 1, SLICE + 2];
    lengths.iter().for_each(|length| _ = flush(&server, *length, &five(*length)));
    assert_eq!(lengths.map(|length| read(&server, length).0.len()), [0, 5, 5], "the last that were in use");
    server.clock().step_back(Duration::from_micros(SLICE));
    flush(&server, SLICE, &[(0, vec![(7, 1)])]);
    let text = String::from_utf8_lossy(&server.get(KEY).unwrap()).into_owned();
    assert_eq!(text.matches(&format!("s 6 {} ", SLICE + 2)).count(), 4, "{text}");
    // Lengths that no script writes.
    for length in ["0", "9007199254740992", &"9".repeat(400)] {
        server.put(KEY, Stored::Text([format!("2\ns 6 {length} 0 a\n").as_bytes(), &pack(&[(7, 1)])].concat()));
        assert_eq!(flush(&server, SLICE, &[(0, vec![(7, 1)])]), 0);
        assert_eq!(raw(&server).1, Some(14_000));
        assert_eq!(String::from_utf8_lossy(&server.get(KEY).unwrap()).matches("\ns ").count(), 1, "{length}");
    }
    server.put(KEY, Stored::Text([&b"2\ns 6 9007199254740991 0 a\n"[..], &pack(&[(7, 1)])].concat()));
    flush(&server, SLICE, &[(0, vec![(7, 1)])]);
    assert_eq!(raw(&server).1, Some(63_050_394_783_187));
}

#[test]
fn an_empty_flush_writes_nothing_and_a_full_one_fits() {
    let server = LuaServer::new();
    flush(&server, SLICE, &[(0, vec![]), (5 * SLICE, vec![(1, 1)]), (60_000_000, vec![(1, 1)])]);
    assert!(server.keys().is_empty());
    let all: Vec<_> = (0..BINS as u64).map(|bin| (bin, bin + 1)).collect();
    flush(&server, SLICE, &[(0, all.clone()), (SLICE, all.clone()), (2 * SLICE, all.clone())]);
    assert_eq!(total(&server), 3 * 1_104 * 1_105 / 2);
    flush(&server, SLICE, &[(0, all.clone()), (SLICE, all)]);
    assert_eq!(total(&server), 5 * 1_104 * 1_105 / 2);
}

#[test]
fn a_record_that_no_script_writes_is_an_empty_digest() {
    let entry = |head: &str, size: usize| [head.as_bytes(), b"\n", &vec![0; size]].concat();
    let slice = |size: usize| entry(&format!("2\ns {size} {SLICE} {FIRST} a"), size);
    let records = [
        (slice(0), 0),
        (slice(6), 0),
        (slice(6 * BINS), 0),
        (slice(6 * BINS + 6), 1),
        (slice(7), 1),
        (entry(&format!("2\ns 7 {SLICE} {FIRST} a"), 6), 1),
        (entry("2\nx 0", 0), 0),
        (entry("2\nx 7", 7), 0),
        (entry("2\nx 7", 6), 1),
        (entry("2\nx", 0), 1),
        (entry("2\n", 0), 1),
        (entry("2\nxx 0", 0), 1),
        (entry("2\ns 0", 0), 1),
        (entry(&format!("2\ns 6 {SLICE} {FIRST}"), 6), 1),
        (entry(&format!("2\ns 6 {SLICE} {FIRST} -"), 6), 1),
        (entry(&format!("2\ns 6 {SLICE} -1 a"), 6), 1),
        (b"2".to_vec(), 1),
        (b"2 x\n".to_vec(), 0),
        (b"2\n".to_vec(), 0),
        (b"21\n".to_vec(), 1),
        (b"3\n".to_vec(), 1),
        (b"ph1 0000000002000000".to_vec(), 1),
        (Vec::new(), 1),
    ];
    for (record, flags) in records {
        let server = fresh_server();
        let text = String::from_utf8_lossy(&record[..record.len().min(60)]).into_owned();
        server.put(KEY, Stored::Text(record));
        let reply = read_as(server, SLICE, ";");
        assert_eq!(reply.parts()[1], Reply::Int(flags), "{text:?}");
        assert!(slices_of(&reply).iter().all(|(.., bins)| !bins.is_empty()), "a slice without bins is none: {text:?}");
    }
}

#[test]
fn bins_that_another_client_has_written_twice_leave_the_script_alive() {
    let server = LuaServer::new();
    let head = format!("2\ns {} {SLICE} {FIRST} a\n", 6 * BINS);
    server.put(KEY, Stored::Text([head.as_bytes(), &pack(&vec![(9, 1); BINS])].concat()));
    let all: Vec<_> = (0..BINS as u64).map(|bin| (bin, 1)).collect();
    for _ in 0..3 {
        assert_eq!(flush(&server, SLICE, &[(0, all.clone())]), 0);
    }
    let bins = slices_of(&read_as(&server, SLICE, ";")).pop().unwrap().2;
    assert_eq!(bins, [pack(&vec![(9, 1); BINS - 1]), pack(&[(9, 4)])].concat());
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
        assert_eq!(read(server, slice_len + 1), (BTreeMap::new(), 0));
    }
}

#[test]
fn a_clock_that_steps_back_by_a_second_keeps_a_slice_and_by_more_hides_it() {
    let server = LuaServer::new();
    flush(&server, SLICE, &[(0, vec![(7, 1)]), (SLICE, vec![(7, 2)])]);
    server.clock().step_back(SECOND);
    assert_eq!(total(&server), 3);
    server.clock().step_back(Duration::from_micros(1));
    assert_eq!((total(&server), read(&server, SLICE).1), (2, 0), "the slice before it is not from the future");
    flush(&server, SLICE, &[(0, vec![(7, 4)])]);
    assert_eq!(read(&server, SLICE).0, BTreeMap::from([(FIRST - 1, BTreeMap::from([(7, 6)]))]));
    server.clock().advance(SECOND);
    assert_eq!(total(&server), 6, "the flush dropped it");
}

#[test]
fn latencies_count_in_the_slice_of_their_time_and_those_from_the_future_now() {
    let server = LuaServer::new();
    flush(&server, SLICE, &[(0, vec![(7, 1)])]);
    server.clock().advance(Duration::from_micros(SLICE - 1));
    flush_as(&server, SLICE, "a", ";", &[(-5_000_000, pack(&[(7, 1)]))]);
    assert_eq!(read(&server, SLICE).0, BTreeMap::from([(FIRST, BTreeMap::from([(7, 2)]))]));
    flush(&server, SLICE, &[(SLICE, vec![(7, 1)])]);
    assert_eq!(read(&server, SLICE).0.keys().copied().collect::<Vec<_>>(), [FIRST - 1, FIRST]);
}

#[test]
fn a_slice_that_has_left_the_window_is_dropped_and_a_flush_renews_the_ttl() {
    let server = LuaServer::new();
    let all: Vec<_> = (0..BINS as u64).map(|bin| (bin, 1)).collect();
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
    assert!(server.get(KEY).unwrap().len() < 2 * 6 * BINS, "the older slice is not stored any more");
    flush(&server, SLICE, &[(5 * SLICE, vec![(0, 1)])]);
    assert_eq!(total(&server), BINS as u64 + 1, "a latency of five slices ago is dropped");
}

#[test]
fn a_run_adds_to_known_bins_only_and_to_no_more_than_there_are() {
    let server = LuaServer::new();
    flush(&server, SLICE, &[(0, vec![(5, 0), (1_104, 1)])]);
    flush_as(&server, SLICE, "a", ";", &[(0, vec![0, 5, 0, 0, 1])]);
    assert!(server.keys().is_empty(), "nothing to add, nothing to write");
    flush(&server, SLICE, &[(0, vec![(7, 1); BINS + 1])]);
    assert_eq!(total(&server), BINS as u64);
    flush_as(&server, SLICE, "b", ";", &[(0, [&pack(&[(8, 1)])[..], &[0, 9, 0, 0, 1]].concat())]);
    assert_eq!(total(&server), BINS as u64 + 1, "a part of a bin is none");
}

#[test]
fn every_byte_of_a_count_says_that_there_is_one() {
    let server = LuaServer::new();
    let counts = [(1, 1), (2, 1 << 8), (3, 1 << 16), (4, 1 << 24)];
    flush(&server, SLICE, &[(0, counts.to_vec())]);
    flush(&server, SLICE, &[(0, counts.to_vec())]);
    let doubled = counts.map(|(bin, count)| (bin, 2 * count));
    assert_eq!(read(&server, SLICE).0[&FIRST], Counts::from(doubled));
}

#[test]
fn every_run_adds_its_own_bins_and_no_others() {
    let server = fresh_server();
    flush(server, SLICE, &[(0, vec![(1, 1)]), (3, vec![(2, 5)]), (4, Vec::new()), (5, vec![(7, 2)])]);
    let bins: Counts = read(server, SLICE).0.into_values().flatten().collect();
    assert_eq!(bins, BTreeMap::from([(1, 1), (2, 5), (7, 2)]));
}

#[test]
fn the_window_begins_with_the_beginning_of_the_clock() {
    let server = LuaServer::new();
    let reply = |slice_len: u64| run(&server, &DIGEST_READ, &args![slice_len, ";"]).parts()[..2].to_vec();
    server.clock().set(Time::from_micros(0));
    assert_eq!(reply(SLICE), [Reply::Int(0), Reply::Int(0)], "now, flags");
    flush(&server, SLICE, &[(0, vec![(7, 1)])]);
    assert_eq!(reply(SLICE), [Reply::Int(0), Reply::Int(0)]);
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
