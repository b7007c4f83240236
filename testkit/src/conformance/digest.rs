//! Conformance cases of `LatencyDigestStore`.

#![allow(missing_docs)] // the name of a case describes it

use std::sync::Arc;
use std::time::Duration;

use phalanx_core::clock::Time;
use phalanx_core::estimate::bins::RELATIVE_ERROR;
use phalanx_core::key::StateKey;
use phalanx_core::store::{LatencyDigestStore, Store};

use super::{MICRO, SECOND, advance_to_edge, keys_that_look_alike};
use crate::bed::Bed;

const WINDOW: Duration = Duration::from_secs(10);
const SLICE: Duration = Duration::from_secs(2);
const MILLI: Duration = Duration::from_millis(1);

/// One digest, shared by two replicas.
struct Fleet<B: Bed> {
    bed: B,
    one: Replica<B>,
    two: Replica<B>,
}

struct Replica<B: Bed> {
    store: B::Store,
    digest: Arc<<B::Store as LatencyDigestStore>::Digest>,
}

impl<B: Bed> Fleet<B> {
    async fn new() -> Self {
        let bed = B::new().await;
        let key = StateKey::new("search", "eu");
        Self { one: Replica::new(&bed, &key), two: Replica::new(&bed, &key), bed }
    }
}

impl<B: Bed> Replica<B> {
    fn new(bed: &B, key: &StateKey) -> Self {
        let store = bed.store();
        Self { digest: store.digest(key, WINDOW), store }
    }

    fn observe(&self, times: usize, latency: Duration) {
        for _ in 0..times {
            self.store.observe(&self.digest, self.store.clock().now(), latency);
        }
    }

    fn quantile(&self, quantile: f64) -> Option<Duration> {
        self.store.quantile(&self.digest, self.store.clock().now(), quantile)
    }

    fn quantile_since(&self, since: Time, quantile: f64) -> Option<Duration> {
        self.store.quantile_since(&self.digest, self.store.clock().now(), since, quantile)
    }
}

/// Asserts that a quantile is within the relative error of a digest.
#[track_caller]
fn assert_about(quantile: Option<Duration>, exact: Duration) {
    let quantile = quantile.expect("enough samples for a quantile");
    let off = quantile.as_secs_f64() / exact.as_secs_f64() - 1.0;
    // Slightly more than the error itself, because results are rounded to nanoseconds.
    assert!(off.abs() <= RELATIVE_ERROR * 1.001, "{quantile:?} for {exact:?}");
}

pub async fn the_same_key_is_the_same_digest<B: Bed>() {
    let fleet = Fleet::<B>::new().await;
    fleet.one.observe(60, 10 * MILLI);
    fleet.two.observe(40, 500 * MILLI);
    fleet.bed.sync_all().await;
    let latecomer = Replica::new(&fleet.bed, &StateKey::new("search", "eu"));
    fleet.bed.sync_all().await;
    for replica in [&fleet.one, &fleet.two, &latecomer] {
        assert_about(replica.quantile(0.5), 10 * MILLI);
        assert_about(replica.quantile(0.7), 500 * MILLI);
    }
}

pub async fn different_keys_never_share_a_digest<B: Bed>() {
    let bed = B::new().await;
    let digests = keys_that_look_alike().map(|key| Replica::new(&bed, &key));
    for (i, digest) in digests.iter().enumerate() {
        assert_eq!(digest.quantile(0.5), None);
        digest.observe(10, MILLI * (i as u32 + 1));
        bed.sync_all().await;
    }
    for (i, digest) in digests.iter().enumerate() {
        assert_about(digest.quantile(0.5), MILLI * (i as u32 + 1));
    }
}

pub async fn another_window_starts_the_digest_over<B: Bed>() {
    let fleet = Fleet::<B>::new().await;
    fleet.one.observe(10, SECOND);
    fleet.bed.sync_all().await;
    for replica in [&fleet.one, &fleet.two] {
        replica.store.digest(&StateKey::new("search", "eu"), 2 * WINDOW);
    }
    fleet.bed.sync_all().await;
    assert_eq!(fleet.one.quantile(0.5), None);
    fleet.two.observe(10, MILLI);
    fleet.bed.advance(WINDOW).await;
    fleet.bed.sync_all().await;
    assert_about(fleet.one.quantile(0.5), MILLI);
}

pub async fn a_latency_over_an_hour_is_ignored<B: Bed>() {
    let fleet = Fleet::<B>::new().await;
    fleet.one.observe(50, 3_601 * SECOND);
    fleet.two.observe(50, Duration::MAX);
    fleet.one.observe(10, 3_600 * SECOND);
    fleet.bed.sync_all().await;
    assert_about(fleet.one.quantile(0.9), 3_600 * SECOND);
    assert_eq!(fleet.two.quantile(0.95), None, "ten are left");
}

pub async fn a_quantile_is_within_its_error<B: Bed>() {
    let fleet = Fleet::<B>::new().await;
    // From microseconds to most of an hour, in steps of 1 %: almost every bin over eight decades.
    let latencies: Vec<Duration> = (0..2_000).map(|i| (MICRO * 5).mul_f64(1.01_f64.powi(i))).collect();
    for (i, latency) in latencies.iter().enumerate() {
        let replica = if i % 2 == 0 { &fleet.one } else { &fleet.two };
        replica.observe(1, *latency);
    }
    fleet.bed.sync_all().await;
    for quantile in [0.0, 0.01, 0.1, 0.5, 0.9, 0.95, 0.99, 0.999] {
        let exact = latencies[(quantile * (latencies.len() - 1) as f64) as usize];
        assert_about(fleet.one.quantile(quantile), exact);
        assert_about(fleet.two.quantile(quantile), exact);
    }
}

pub async fn too_few_samples_have_no_quantile<B: Bed>() {
    let fleet = Fleet::<B>::new().await;
    assert_eq!(fleet.one.quantile(0.5), None);
    fleet.one.observe(10, 5 * MILLI);
    fleet.two.observe(9, 5 * MILLI);
    fleet.bed.sync_all().await;
    // The p95 of 19 samples would be their maximum; their median is meaningful.
    for replica in [&fleet.one, &fleet.two] {
        assert_eq!(replica.quantile(0.95), None);
        assert_about(replica.quantile(0.5), 5 * MILLI);
    }
    fleet.two.observe(1, 5 * MILLI);
    fleet.bed.sync_all().await;
    for replica in [&fleet.one, &fleet.two] {
        assert_about(replica.quantile(0.95), 5 * MILLI);
        assert_eq!(replica.quantile(0.96), None);
    }
}

pub async fn the_window_forgets<B: Bed>() {
    let fleet = Fleet::<B>::new().await;
    advance_to_edge(&fleet.bed, WINDOW).await;
    fleet.one.observe(100, SECOND);
    fleet.bed.advance(WINDOW / 2).await;
    fleet.two.observe(50, 10 * MILLI);
    fleet.bed.advance(WINDOW / 2 - MICRO).await;
    fleet.bed.sync_all().await;
    assert_about(fleet.one.quantile(0.5), SECOND);
    assert_about(fleet.two.quantile(0.5), SECOND);
    fleet.bed.advance(MICRO).await;
    fleet.bed.sync_all().await;
    assert_about(fleet.one.quantile(0.5), 10 * MILLI);
    assert_about(fleet.two.quantile(0.98), 10 * MILLI);
    assert_eq!(fleet.two.quantile(0.99), None, "only the fifty are left");
    fleet.bed.advance(WINDOW / 2).await;
    fleet.bed.sync_all().await;
    assert_eq!(fleet.one.quantile(0.0), None);
    assert_eq!(fleet.two.quantile(0.0), None);
}

pub async fn a_late_latency_reaches_every_reader<B: Bed>() {
    let fleet = Fleet::<B>::new().await;
    advance_to_edge(&fleet.bed, SLICE).await;
    fleet.one.observe(10, MILLI);
    fleet.bed.sync_all().await;
    for replica in [&fleet.one, &fleet.two] {
        assert_about(replica.quantile(0.5), MILLI);
    }
    // Observed in a slice that every reader has, and sent in the next one, which has latencies too.
    fleet.two.observe(30, 10 * MILLI);
    fleet.bed.advance(SLICE).await;
    fleet.one.observe(20, 500 * MILLI);
    fleet.bed.sync_all().await;
    for replica in [&fleet.one, &fleet.two] {
        assert_about(replica.quantile(0.1), MILLI);
        assert_about(replica.quantile(0.5), 10 * MILLI);
        assert_about(replica.quantile(0.9), 500 * MILLI);
    }
}

pub async fn an_epoch_holds_nothing_from_before_it<B: Bed>() {
    let fleet = Fleet::<B>::new().await;
    advance_to_edge(&fleet.bed, SLICE).await;
    fleet.one.observe(500, SECOND);
    fleet.two.observe(500, SECOND);
    let since = fleet.one.store.clock().now().after(MICRO);
    fleet.bed.sync_all().await;
    assert_eq!(fleet.one.quantile_since(since, 0.0), None);
    fleet.bed.advance(SLICE).await;
    assert_eq!(fleet.one.quantile_since(since, 0.0), None);
    fleet.one.observe(10, 5 * MILLI);
    assert_about(fleet.one.quantile_since(since, 0.9), 5 * MILLI);
    fleet.two.observe(30, 10 * MILLI);
    fleet.bed.sync_all().await;
    for replica in [&fleet.one, &fleet.two] {
        assert_about(replica.quantile_since(since, 0.2), 5 * MILLI);
        assert_about(replica.quantile_since(since, 0.95), 10 * MILLI);
        assert_about(replica.quantile_since(Time::ZERO, 0.5), SECOND);
        assert_about(replica.quantile(0.5), SECOND);
    }
    // An epoch older than the window equals the window.
    fleet.bed.advance(WINDOW - SLICE).await;
    fleet.bed.sync_all().await;
    for replica in [&fleet.one, &fleet.two] {
        assert_eq!(replica.quantile_since(since, 0.9), replica.quantile(0.9));
        assert_about(replica.quantile_since(since, 0.95), 10 * MILLI);
    }
}

pub async fn an_epoch_begins_with_the_next_slice<B: Bed>() {
    let fleet = Fleet::<B>::new().await;
    advance_to_edge(&fleet.bed, SLICE).await;
    let edge = fleet.one.store.clock().now();
    fleet.bed.advance(SLICE - MICRO).await;
    fleet.two.observe(10, SECOND);
    fleet.bed.sync_all().await;
    // A slice that had already begun is excluded, whether its samples were flushed or not.
    fleet.one.observe(10, SECOND);
    assert_about(fleet.one.quantile_since(edge, 0.9), SECOND);
    assert_eq!(fleet.one.quantile_since(edge.after(MICRO), 0.9), None);
    fleet.bed.sync_all().await;
    assert_about(fleet.one.quantile_since(edge, 0.95), SECOND);
    assert_eq!(fleet.one.quantile_since(edge.after(MICRO), 0.0), None);
    fleet.bed.advance(MICRO).await;
    fleet.one.observe(10, MILLI);
    fleet.bed.sync_all().await;
    for since in [edge.after(MICRO), edge.after(SLICE)] {
        assert_about(fleet.one.quantile_since(since, 0.9), MILLI);
    }
    assert_eq!(fleet.one.quantile_since(edge.after(SLICE + MICRO), 0.0), None);
}

pub async fn an_epoch_of_one_replica_is_not_the_others<B: Bed>() {
    let fleet = Fleet::<B>::new().await;
    advance_to_edge(&fleet.bed, SLICE).await;
    fleet.one.observe(100, SECOND);
    fleet.bed.advance(SLICE).await;
    fleet.bed.sync_all().await;
    let since = fleet.one.store.clock().now();
    assert_eq!(fleet.one.quantile_since(since, 0.95), None);
    assert_about(fleet.two.quantile(0.95), SECOND);
    fleet.two.observe(20, MILLI);
    fleet.bed.sync_all().await;
    assert_about(fleet.one.quantile_since(since, 0.95), MILLI);
    for replica in [&fleet.one, &fleet.two] {
        assert_about(replica.quantile(0.5), SECOND);
        assert_about(replica.quantile(0.1), MILLI);
    }
}

pub async fn too_few_samples_since_have_no_quantile<B: Bed>() {
    let fleet = Fleet::<B>::new().await;
    advance_to_edge(&fleet.bed, SLICE).await;
    fleet.one.observe(1_000, 5 * MILLI);
    fleet.bed.advance(SLICE).await;
    let since = fleet.one.store.clock().now();
    fleet.one.observe(10, 5 * MILLI);
    fleet.two.observe(9, 5 * MILLI);
    fleet.bed.sync_all().await;
    for replica in [&fleet.one, &fleet.two] {
        assert_eq!(replica.quantile_since(since, 0.95), None);
        assert_about(replica.quantile_since(since, 0.5), 5 * MILLI);
    }
    fleet.two.observe(1, 5 * MILLI);
    fleet.bed.sync_all().await;
    for replica in [&fleet.one, &fleet.two] {
        assert_about(replica.quantile_since(since, 0.95), 5 * MILLI);
    }
}
