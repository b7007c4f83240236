//! A process that holds a lock and writes under it every few milliseconds, as long as it believes in it.

use std::time::Duration;

use phalanx::lifecycle::{DistributedLock, LockSpec};
use tokio::time::sleep;

use super::{Fleet, Said, module, say, say_at};
use crate::replica::Moment;

pub(super) async fn hold(fleet: &Fleet, ttl: Duration) {
    let lock = DistributedLock::new(module(fleet).locks(), LockSpec::named("lock").ttl(ttl));
    let held = lock.acquire(Duration::from_secs(10)).await.expect("a free lock");
    loop {
        // Before it looks, so that being stopped between looking and saying cannot pass for a late write.
        let at = Moment::now();
        match held.check() {
            Ok(fence) => say_at(at, Said::Writes(fence)),
            Err(lost) => break say(Said::Lost(lost.fence)),
        }
        sleep(Duration::from_millis(10)).await;
    }
    std::future::pending::<()>().await;
}
