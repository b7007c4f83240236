//! The lock-holder role: holds a lock and writes under it every few milliseconds until its lock check fails.

use std::time::Duration;

use phalanx::lifecycle::{DistributedLock, LockSpec};
use tokio::time::sleep;

use super::{Fleet, ProcessEvent, module, report, report_at};
use crate::replica::Moment;

pub(super) async fn hold(fleet: &Fleet, ttl: Duration) {
    let lock = DistributedLock::new(module(fleet).locks(), LockSpec::named("lock").ttl(ttl));
    let held = lock.acquire(Duration::from_secs(10)).await.expect("a free lock");
    loop {
        // Read before the check, so that a SIGSTOP between check and report does not look like a late write.
        let at = Moment::now();
        match held.check() {
            Ok(fence) => report_at(at, ProcessEvent::Writing(fence)),
            Err(lost) => break report(ProcessEvent::LockLost(lost.fence)),
        }
        sleep(Duration::from_millis(10)).await;
    }
    std::future::pending::<()>().await;
}
