//! Shares of slots: renewed while anything is held, and handed back when it is not used any more.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::store::inner::StoreInner;

/// The shortest pause between two rounds.
const MIN_PAUSE: Duration = Duration::from_millis(5);

/// Looks after shares until the task ends.
pub(super) async fn run(store: &Arc<StoreInner>) {
    let background = &store.background;
    loop {
        let cells = background.slots.take_in_use();
        let next = cells.iter().filter_map(|cell| cell.tick(false)).min();
        drop(cells); // a cell that was evicted ends here
        match next {
            None => background.share_taken.notified().await,
            Some(next) => tokio::select! {
                biased;
                () = sleep(next.max(MIN_PAUSE)) => {}
                () = background.share_taken.notified() => {}
            },
        }
    }
}
