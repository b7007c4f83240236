//! Replicas whose clocks differ from the server's: samples recorded on one clock and read on another. The server's clock is
//! the bed's; each replica's clock began with the replica, somewhere inside a slice of the server's.

#![allow(clippy::unwrap_used)] // a failed expectation panics, in helpers too

use std::sync::Arc;
use std::time::Duration;

use phalanx_core::clock::{Clock, Time};
use phalanx_core::key::StateKey;
use phalanx_core::store::LatencyDigestStore;
use phalanx_store_redis::{RedisStore, SharedDigest};
use phalanx_testkit::bed::{Bed, LuaBed};
use proptest::prelude::*;

const WINDOW: Duration = Duration::from_secs(10);
const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// A replica on a clock of its own.
struct Replica {
    clock: Clock,
    store: RedisStore,
    digest: Arc<SharedDigest>,
}

impl Replica {
    /// Starts with this time on its clock.
    fn new(bed: &LuaBed, shows: Duration) -> Self {
        let clock = Clock::manual();
        clock.set(Time::ZERO.after(shows));
        let store = bed.store_on(clock.clone());
        Self { clock, digest: store.digest(&StateKey::new("p", "r"), WINDOW), store }
    }

    fn observe(&self, times: usize, latency: Duration) {
        (0..times).for_each(|_| self.store.observe(&self.digest, self.clock.now(), latency));
    }

    fn quantile(&self, quantile: f64) -> Option<Duration> {
        self.quantile_since(Time::ZERO, quantile)
    }

    fn quantile_since(&self, since: Time, quantile: f64) -> Option<Duration> {
        self.store.quantile_since(&self.digest, self.clock.now(), since, quantile)
    }
}

async fn advance(bed: &LuaBed, replicas: &[&Replica], by: Duration) {
    bed.advance(by).await;
    replicas.iter().for_each(|replica| replica.clock.advance(by));
}

/// Returns whether a quantile is within the digest's error, with a small margin.
fn is_about(quantile: Option<Duration>, exact: Duration) -> bool {
    quantile.is_some_and(|quantile| quantile.abs_diff(exact) <= exact.mul_f64(0.011))
}

#[tokio::test]
async fn a_new_replica_starts_with_samples_from_before_its_clock_began() {
    let bed = LuaBed::new().await;
    let one = Replica::new(&bed, 3_600 * SECOND);
    one.observe(100, 40 * MS);
    bed.sync_all().await;
    advance(&bed, &[&one], 5 * SECOND).await;
    let fresh = Replica::new(&bed, MS);
    assert_eq!(fresh.quantile(0.95), None, "nothing received yet");
    fresh.store.settle().await;
    assert!(is_about(fresh.quantile(0.95), 40 * MS), "{:?}", fresh.quantile(0.95));
    assert_eq!(fresh.quantile_since(fresh.clock.now(), 0.0), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// For any alignment of slices and any times of flushes.
    #[test]
    fn an_epoch_holds_nothing_from_before_it_and_eventually_everything_after_it(
        shows in [1_u64..8_000, 1_u64..8_000],
        rounds in prop::collection::vec((0_u64..700, any::<bool>()), 1..15),
        later in prop::collection::vec(0_u64..1_000, 1..6),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let bed = LuaBed::new().await;
            let [one, two] = shows.map(|shows| Replica::new(&bed, MS * shows as u32));
            let both = [&one, &two];
            for (pause, flushes) in rounds {
                advance(&bed, &both, MS * pause as u32).await;
                both.iter().for_each(|replica| replica.observe(10, SECOND));
                if flushes {
                    bed.sync_all().await;
                }
            }
            advance(&bed, &both, Duration::from_micros(1)).await;
            let since = one.clock.now();
            for pause in later {
                advance(&bed, &both, MS * pause as u32).await;
                bed.sync_all().await;
                for share in [0.0, 0.5, 0.9] {
                    let quantile = one.quantile_since(since, share);
                    prop_assert!(quantile.is_none() || is_about(quantile, MS), "{:?}", quantile);
                }
                both.iter().for_each(|replica| replica.observe(10, MS));
            }
            // Two slices later the epoch has begun on every clock; earlier samples are still in the window.
            advance(&bed, &both, 4 * SECOND).await;
            both.iter().for_each(|replica| replica.observe(10, MS));
            bed.sync_all().await;
            prop_assert!(is_about(one.quantile_since(since, 0.95), MS));
            Ok(())
        })?;
    }
}
