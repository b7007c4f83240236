//! The degraded share: what one replica may grant while Redis is unreachable.

use std::time::Duration;

use phalanx_core::rate_limit::{Rate, RateLimitSpec};
use phalanx_core::store::AcquireRequest;
use phalanx_store_memory::BucketCell;

use crate::store::inner::StoreInner;

/// Creates a bucket with `1 / replicas` of the rate, holding the same share of the last known level, but no more than
/// the previous twin had left.
pub(super) fn share(
    spec: &RateLimitSpec,
    replicas: u32,
    last_level: Option<i64>,
    left: Option<u64>,
    store: &StoreInner,
) -> BucketCell {
    let parts = u64::from(replicas.max(1));
    let burst = spec.capacity().div_ceil(parts).max(1);
    let own = RateLimitSpec { per: spec.per.saturating_mul(replicas.max(1)), burst: Some(burst), ..spec.clone() };
    let cell = BucketCell::new(store.clock.clone(), &own);
    let price = Rate::of(spec).price.max(1);
    let last_seen = last_level.map_or(spec.capacity(), |units| u64::try_from(units).unwrap_or(0) / price);
    let mut surplus = burst.saturating_sub((last_seen / parts).min(left.unwrap_or(u64::MAX)));
    while surplus > 0 {
        let cost = u32::try_from(surplus).unwrap_or(u32::MAX);
        cell.acquire(store.clock.now(), AcquireRequest { cost, max_wait: Duration::ZERO });
        surplus -= u64::from(cost);
    }
    cell
}
