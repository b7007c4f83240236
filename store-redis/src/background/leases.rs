//! Leased permits that are not called for: blocks whose lease ends, or whose replica has no demand any more, are closed, so
//! that the fleet's bucket gets back what was not spent. Blocks that are called for need no timer: calls draw the next one.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::store::inner::StoreInner;

/// The shortest pause between two rounds, and what it grows by for each bucket with blocks.
const MIN_PAUSE: Duration = Duration::from_millis(1);
const PAUSE_PER_BUCKET: Duration = Duration::from_micros(2);

/// Looks after blocks until the task ends.
pub(super) async fn run(store: &Arc<StoreInner>) {
    let background = &store.background;
    loop {
        let buckets = background.leases.take_in_use();
        let least = MIN_PAUSE.max(PAUSE_PER_BUCKET * u32::try_from(buckets.len()).unwrap_or(u32::MAX));
        let next = buckets.iter().filter_map(|bucket| bucket.tick_leases()).min();
        drop(buckets); // a bucket that was evicted ends here
        match next {
            None => background.lease_drawn.notified().await,
            Some(next) => tokio::select! {
                biased;
                () = sleep(next.max(least)) => {}
                () = background.lease_drawn.notified() => {}
            },
        }
    }
}
