//! Heartbeats do not depend on the sync interval.

use phalanx_integration_tests::replica::{LoggedKind, Setup};
use phalanx_testkit::server::Redis;
use tokio::time::sleep;

use crate::harness::{SECOND, replicas};

#[tokio::test]
async fn replicas_with_a_long_sync_interval_stay_members() {
    let setup = Setup::new(Redis::shared().await).generous_budget().sync_interval(30 * SECOND);
    let replicas = replicas::<2>(&setup).await;
    sleep(5 * SECOND).await; // longer than the TTL of a member
    for replica in replicas {
        let events: Vec<_> = replica.report().events.into_iter().map(|event| event.kind).collect();
        let live_replicas = |live: u32| LoggedKind::Replicas { live };
        assert!(!events.ends_with(&[live_replicas(1)]), "they no longer count each other: {events:?}");
        assert_eq!(replica.module().replicas(), Some(2), "{events:?}");
    }
}
