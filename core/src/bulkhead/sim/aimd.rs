//! Replicas with an AIMD limit each on one bottleneck, with unequal starts and late joiners.
//!
//! The threshold is twice the service time, so the capacity is two calls in flight for each server: with that many the
//! latency is the threshold. A fair share is four slots, fewer than the default ratio of 0.9 can express in whole slots:
//! the difficult case, as in a large fleet.

use std::collections::VecDeque;

use super::*;
use crate::bulkhead::aimd::Aimd;
use crate::bulkhead::spec::AdaptiveSpec;

const SERVICE: Duration = Duration::from_millis(50);
const WINDOW: Duration = Duration::from_secs(10);

/// One replica: the limit, and an exact window for its quantile.
struct Rig {
    aimd: Aimd,
    spec: AdaptiveSpec,
    max: u32,
    recent: VecDeque<(Time, Duration)>,
}

impl Rig {
    /// Creates a limit that grows from `start` to `max`.
    fn new(spec: AdaptiveSpec, start: u32, max: u32) -> Self {
        Self { aimd: Aimd::new(&spec, start), spec, max, recent: VecDeque::new() }
    }

    fn quantile(&mut self, q: f64, now: Time) -> Option<Duration> {
        let since = self.aimd.measured_since();
        while self.recent.front().is_some_and(|(at, _)| *at < since || now.since(*at) > WINDOW) {
            self.recent.pop_front();
        }
        let mut latencies: Vec<Duration> = self.recent.iter().map(|(_, latency)| *latency).collect();
        let enough = latencies.len() as f64 >= (1.0 / (1.0 - q)).floor();
        let rank = (latencies.len().saturating_sub(1) as f64 * q) as usize;
        enough.then(|| *latencies.select_nth_unstable(rank).1)
    }
}

impl Controller for Rig {
    fn limit(&self) -> u32 {
        self.aimd.limit()
    }

    fn observe(&mut self, done: &Completion) {
        self.aimd.observe(done, &self.spec, self.max);
        if self.spec.latency_quantile.is_some() {
            self.recent.push_back((done.now, done.latency));
        }
    }

    fn tick(&mut self, now: Time) {
        if let Some(q) = self.spec.latency_quantile {
            let quantile = self.quantile(q, now);
            self.aimd.judge(now, quantile, &self.spec, self.max);
        }
    }
}

/// Returns the state at which a fleet of `replicas` settles, with this many slots for each.
fn settled(replicas: usize, share: usize, quantile: Option<f64>, seed: u64) -> Seen {
    let mut spec = AdaptiveSpec::threshold(SERVICE * 2);
    spec.latency_quantile = quantile;
    let mut fleet = Fleet::new(replicas * share / 2, SERVICE, Noise::Uniform(0.1), seed);
    let max = share as u32 * 4;
    for index in 0..replicas {
        if index == replicas / 2 {
            fleet.run(Duration::from_secs(5));
        }
        fleet.join(Rig::new(spec, [max, 1, max / 2][index % 3], max));
    }
    fleet.run(Duration::from_secs(30));
    // By chance some limits are lowered more often; with few replicas this takes longer to even out.
    fleet.run(Duration::from_secs(if replicas <= 5 { 120 } else { 30 }))
}

#[track_caller]
fn assert_fair(replicas: usize, share: usize, quantile: Option<f64>) {
    let seen = settled(replicas, share, quantile, 7);
    let used = seen.in_flight / (replicas * share) as f64;
    assert!(seen.jain() >= 0.95, "{replicas} replicas: jain {} of {:?}", seen.jain(), seen.shares);
    assert!((0.85..=1.15).contains(&used), "{replicas} replicas: {used} of the capacity");
}

#[test]
fn two_to_fifty_replicas_share_a_bottleneck_fairly() {
    [2, 3, 5, 10, 20, 50].into_iter().for_each(|replicas| assert_fair(replicas, 4, None));
}

#[test]
fn two_to_fifty_replicas_share_a_bottleneck_fairly_by_their_own_quantile() {
    [2, 3, 5, 10, 20, 50].into_iter().for_each(|replicas| assert_fair(replicas, 4, Some(0.95)));
}

#[test]
fn a_share_of_two_slots_is_still_fair_and_not_overshot() {
    // With two replicas one slot is a quarter of the capacity.
    [5, 10, 50].into_iter().for_each(|replicas| assert_fair(replicas, 2, None));
    [5, 10].into_iter().for_each(|replicas| assert_fair(replicas, 2, Some(0.95)));
}

#[test]
fn a_share_of_twenty_slots_is_fair_too() {
    assert_fair(3, 20, None);
    assert_fair(3, 20, Some(0.95));
}
