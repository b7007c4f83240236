//! Replicas whose clocks show something else than the server's, as they all do: what is seen on one clock and asked for on
//! another. The server's clock is the bed's; each replica's began when it did, somewhere inside a slice of the server's.

#![allow(clippy::unwrap_used)] // a panic is how a test says no, in its helpers too

use std::sync::Arc;
use std::time::Duration;

use phalanx_core::clock::{Clock, Time};
use phalanx_core::key::StateKey;
use phalanx_core::store::LatencyDigestStore;
use phalanx_integration_tests::bed::{Bed, LuaBed};
use phalanx_store_redis::{Digest, RedisStore};
use proptest::prelude::*;

const WINDOW: Duration = Duration::from_secs(10);
const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// A replica on a clock of its own.
struct Replica {
    clock: Clock,
    store: RedisStore,
    digest: Arc<Digest>,
}

impl Replica {
    /// Its clock shows this at first.
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

/// Within the digest's error, and a little.
fn is_about(told: Option<Duration>, exact: Duration) -> bool {
    told.is_some_and(|told| told.abs_diff(exact) <= exact.mul_f64(0.011))
}

#[tokio::test]
async fn a_fresh_replica_starts_with_what_the_fleet_saw_before_its_clock_began() {
    let bed = LuaBed::new().await;
    let one = Replica::new(&bed, 3_600 * SECOND);
    one.observe(100, 40 * MS);
    bed.sync_all().await;
    advance(&bed, &[&one], 5 * SECOND).await;
    let fresh = Replica::new(&bed, MS);
    assert_eq!(fresh.quantile(0.95), None, "it has heard nothing yet");
    fresh.store.settle().await;
    assert!(is_about(fresh.quantile(0.95), 40 * MS), "{:?}", fresh.quantile(0.95));
    assert_eq!(fresh.quantile_since(fresh.clock.now(), 0.0), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Wherever the slices of the clocks lie, and whenever replicas tell what they saw.
    #[test]
    fn an_epoch_holds_nothing_from_before_it_and_in_the_end_all_that_came_after(
        shows in [1_u64..8_000, 1_u64..8_000],
        rounds in prop::collection::vec((0_u64..700, any::<bool>()), 1..15),
        later in prop::collection::vec(0_u64..1_000, 1..6),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let bed = LuaBed::new().await;
            let [one, two] = shows.map(|shows| Replica::new(&bed, MS * shows as u32));
            let both = [&one, &two];
            for (pause, tells) in rounds {
                advance(&bed, &both, MS * pause as u32).await;
                both.iter().for_each(|replica| replica.observe(10, SECOND));
                if tells {
                    bed.sync_all().await;
                }
            }
            advance(&bed, &both, Duration::from_micros(1)).await;
            let since = one.clock.now();
            for pause in later {
                advance(&bed, &both, MS * pause as u32).await;
                bed.sync_all().await;
                for quantile in [0.0, 0.5, 0.9] {
                    let told = one.quantile_since(since, quantile);
                    prop_assert!(told.is_none() || is_about(told, MS), "{:?}", told);
                }
                both.iter().for_each(|replica| replica.observe(10, MS));
            }
            // Two slices on, the epoch has begun on every clock; what came before it is in the window still.
            advance(&bed, &both, 4 * SECOND).await;
            both.iter().for_each(|replica| replica.observe(10, MS));
            bed.sync_all().await;
            prop_assert!(is_about(one.quantile_since(since, 0.95), MS));
            Ok(())
        })?;
    }
}
