//! Several buckets in one script reply like the machine of core (`Bucket::take_all`): every limit is charged, or none
//! (docs/guarantees.md I-32).

use std::time::Duration;

use phalanx_core::clock::Time;
use phalanx_core::rate_limit::{Bucket, BucketPart, Dues, MAX_BACKSTEP, Rate, Take};
use phalanx_core::rejection::Source;
use phalanx_lua::{RATE_LIMIT_ACQUIRE, RATE_LIMIT_ACQUIRE_ALL, RATE_LIMIT_LEASE, RATE_LIMIT_PEEK};
use phalanx_testkit::lua_server::{LuaServer, Stored};
use proptest::prelude::*;

use crate::harness::*;
use crate::rate_limit::{rate_args, rates};

const BUCKETS: usize = 3;

fn key(bucket: usize) -> Vec<u8> {
    format!("ph2:{{t}}:r:{bucket}").into_bytes()
}

/// Of each limit: its bucket, the permits of a caller, and the microseconds that it may wait.
type Limits = Vec<(usize, u32, u64)>;

#[derive(Clone, Debug)]
enum Step {
    /// Groups of callers.
    Acquire(Vec<(u64, Limits)>),
    /// A draw of leased permits from one bucket.
    Lease(usize, u64),
    Clock(i64),
}

fn limits() -> impl Strategy<Value = Limits> {
    let cost = prop_oneof![8 => 0_u32..4, 1 => 0_u32..30, 1 => Just(u32::MAX)];
    let max_wait = prop_oneof![3 => Just(0), 2 => 0_u64..2_000_000, 1 => Just(u64::MAX)];
    let of = |bucket: usize| prop::option::weighted(0.8, (Just(bucket), cost.clone(), max_wait.clone()));
    (of(0), of(1), of(2)).prop_map(|(a, b, c)| [a, b, c].into_iter().flatten().collect())
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => prop::collection::vec((0_u64..4, limits()), 1..4).prop_map(Step::Acquire),
        2 => (0..BUCKETS, 0_u64..8).prop_map(|(bucket, want)| Step::Lease(bucket, want)),
        5 => clock_step().prop_map(Step::Clock),
    ];
    prop::collection::vec(step, 1..40)
}

struct Model {
    buckets: [Option<(Bucket, Time)>; BUCKETS],
    rates: [Rate; BUCKETS],
}

impl Model {
    /// Returns the bucket now; a missing one is full.
    fn load(&self, bucket: usize, now: Time) -> Bucket {
        let rate = self.rates[bucket];
        let (mut loaded, _) = self.buckets[bucket].unwrap_or((Bucket::full(now, rate), now));
        loaded.available(now, rate);
        loaded
    }

    fn acquire(&mut self, now: Time, groups: &[(u64, Limits)]) -> Vec<i64> {
        let before: Vec<_> = (0..BUCKETS).map(|bucket| self.load(bucket, now)).collect();
        let mut buckets = before.clone();
        let mut reply = vec![now.as_micros() as i64];
        for (bucket, rate) in buckets.iter().zip(self.rates) {
            reply.extend([bucket.level(rate).units, 0]);
        }
        for (callers, limits) in groups {
            let (mut granted, mut named) = (0, 0);
            for _ in 0..*callers {
                let mut copies: Vec<_> = limits.iter().map(|(bucket, ..)| buckets[*bucket]).collect();
                let mut parts: Vec<_> = copies
                    .iter_mut()
                    .zip(limits)
                    .map(|(copy, (bucket, cost, max_wait))| BucketPart {
                        bucket: copy,
                        rate: self.rates[*bucket],
                        cost: *cost,
                        max_wait: Duration::from_micros(*max_wait),
                    })
                    .collect();
                let verdict = Bucket::take_all(now, &mut parts).grant(Source::Local, Dues::Same(now));
                for ((bucket, ..), copy) in limits.iter().zip(copies) {
                    buckets[*bucket] = copy;
                }
                match verdict.take {
                    Take::Granted { .. } => {
                        assert_eq!(named, 0, "the first callers of a group are granted");
                        granted += 1;
                    }
                    Take::Rejected { .. } => named = verdict.limit as i64 + 1,
                }
            }
            reply.extend([granted, named]);
        }
        for (bucket, (new, old)) in buckets.into_iter().zip(before).enumerate() {
            if new != old {
                self.store(bucket, new, now);
            }
        }
        reply
    }

    fn store(&mut self, bucket: usize, new: Bucket, now: Time) {
        let at = self.buckets[bucket]
            .map_or(now, |(_, at)| if now >= at || at.since(now) > MAX_BACKSTEP { now } else { at });
        self.buckets[bucket] = Some((new, at));
    }
}

fn args_of(rates: &[Rate], groups: &[(u64, Limits)]) -> Vec<Vec<u8>> {
    let mut args: Vec<_> = rates.iter().flat_map(|rate| [rate_args(*rate), args![0]].concat()).collect();
    args.extend(args![groups.len()]);
    for (callers, limits) in groups {
        args.extend(args![callers, limits.len()]);
        for (bucket, cost, max_wait) in limits {
            args.extend(args![bucket + 1, cost, max_wait]);
        }
    }
    args
}

fn all_keys() -> Vec<Vec<u8>> {
    (0..BUCKETS).map(key).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn the_script_decides_about_several_buckets_exactly_as_the_machine(
        chosen in [0..rates().len(), 0..rates().len(), 0..rates().len()], steps in steps(),
    ) {
        let rates = chosen.map(|index| rates()[index]);
        let server = LuaServer::new();
        let mut model = Model { buckets: [None; BUCKETS], rates };
        for step in steps {
            let now = server.clock().now();
            match step {
                // The machine steps back with the clock at once; a script stores that with the next write.
                Step::Clock(micros) if micros < 0 => {}
                Step::Clock(micros) => server.clock().advance(Duration::from_micros(micros.unsigned_abs())),
                Step::Lease(bucket, want) => {
                    let mut args = rate_args(rates[bucket]);
                    args.extend(args![want, 0]);
                    let reply = server.run(&RATE_LIMIT_LEASE, &[key(bucket)], &args).unwrap();
                    let mut loaded = model.load(bucket, now);
                    let drawn = loaded.draw(now, rates[bucket], want);
                    prop_assert_eq!(reply.ints()[3], drawn.permits as i64);
                    if drawn.permits > 0 {
                        model.store(bucket, loaded, now);
                    }
                }
                Step::Acquire(groups) => {
                    let written = all_keys().map_values(&server);
                    let reply = server.run(&RATE_LIMIT_ACQUIRE_ALL, &all_keys(), &args_of(&rates, &groups)).unwrap();
                    let expected = model.acquire(now, &groups);
                    prop_assert_eq!(reply.ints(), expected.clone());
                    let granted = expected[1 + 2 * BUCKETS..].chunks(2).any(|reply| reply[0] > 0);
                    let large = groups.iter().flat_map(|(_, limits)| limits).any(|(_, cost, _)| *cost > 0);
                    if !granted && !large {
                        prop_assert_eq!(written, all_keys().map_values(&server), "a rejection writes nothing");
                    }
                }
            }
        }
    }
}

trait Values {
    fn map_values(&self, server: &LuaServer) -> Vec<Option<String>>;
}

impl Values for Vec<Vec<u8>> {
    fn map_values(&self, server: &LuaServer) -> Vec<Option<String>> {
        self.iter().map(|key| server.get(key).map(|text| String::from_utf8_lossy(&text).into_owned())).collect()
    }
}

/// Ten a second, and three at once.
const TEN: Rate = Rate { gain: 1, price: 100_000, capacity: 300_000 };

fn permits(server: &LuaServer, bucket: usize) -> i64 {
    server.run(&RATE_LIMIT_PEEK, &[key(bucket)], &rate_args(TEN)).unwrap().ints()[1] / 100_000
}

fn take(server: &LuaServer, groups: &[(u64, Limits)]) -> Vec<i64> {
    let reply = server.run(&RATE_LIMIT_ACQUIRE_ALL, &all_keys(), &args_of(&[TEN; BUCKETS], groups)).unwrap();
    reply.ints()[1 + 2 * BUCKETS..].to_vec()
}

#[test]
fn callers_of_other_limits_are_served_behind_one_that_is_rejected() {
    let server = LuaServer::new();
    let groups = [(2, vec![(0, 1, 0), (1, 2, 0)]), (1, vec![(1, 2, 0), (2, 1, 0)]), (1, vec![(0, 1, 0), (2, 1, 0)])];
    assert_eq!(take(&server, &groups), [1, 2, 0, 1, 1, 0], "the second bucket has room for one caller");
    assert_eq!([0, 1, 2].map(|bucket| permits(&server, bucket)), [1, 1, 2]);
}

#[test]
fn a_rejection_writes_no_key() {
    let server = LuaServer::new();
    take(&server, &[(1, vec![(1, 3, 0)])]);
    assert_eq!(take(&server, &[(5, vec![(0, 1, 0), (1, 1, 0), (2, 1, 0)])]), [0, 2]);
    assert!(server.get(&key(0)).is_none() && server.get(&key(2)).is_none());
}

#[test]
fn permits_that_were_granted_without_redis_are_charged_first_to_their_own_bucket() {
    let server = LuaServer::new();
    let mut args = args_of(&[TEN; BUCKETS], &[(1, vec![(0, 1, 0), (1, 1, 0)])]);
    args[3] = b"2".to_vec();
    let reply = server.run(&RATE_LIMIT_ACQUIRE_ALL, &all_keys(), &args).unwrap();
    assert_eq!(reply.ints()[1..], [100_000, 0, 300_000, 0, 300_000, 0, 1, 0]);
    assert_eq!([0, 1, 2].map(|bucket| permits(&server, bucket)), [0, 2, 3]);
}

#[test]
fn a_corrupt_bucket_is_empty_and_leaves_the_others_alone() {
    let server = LuaServer::new();
    server.put(&key(1), Stored::Text(b"nonsense".to_vec()));
    let reply = server
        .run(&RATE_LIMIT_ACQUIRE_ALL, &all_keys(), &args_of(&[TEN; BUCKETS], &[(1, vec![(0, 1, 0), (1, 1, 0)])]))
        .unwrap();
    assert_eq!(reply.ints()[1..], [300_000, 0, 0, 1, 300_000, 0, 0, 2], "the second limit rejects, and is repaired");
    assert!(server.get(&key(0)).is_none());
}

#[test]
fn the_single_script_and_the_one_of_several_buckets_share_a_bucket() {
    let server = LuaServer::new();
    let mut args = rate_args(TEN);
    args.extend(args![0, 1, 2, 1, 0]);
    assert_eq!(server.run(&RATE_LIMIT_ACQUIRE, &[key(0)], &args).unwrap().ints()[3..], [2]);
    assert_eq!(take(&server, &[(2, vec![(0, 1, 0), (2, 1, 0)])]), [1, 1]);
    assert_eq!([0, 1, 2].map(|bucket| permits(&server, bucket)), [0, 3, 2]);
}

#[test]
fn a_count_without_its_arguments_is_no_loop() {
    let server = LuaServer::new();
    let huge = 1_u64 << 52;
    for tail in [args![huge, 2, 1, 1, 1, 0], args![1, 2, huge, 1, 1, 0], args![huge, 1, -1, 1, 1, 0], args![huge, 1, 0]]
    {
        let args = [rate_args(TEN), args![0], tail].concat();
        let reply = server.run(&RATE_LIMIT_ACQUIRE_ALL, &[key(0)], &args).unwrap();
        assert!(reply.ints().len() <= 5, "{reply:?}");
    }
}
