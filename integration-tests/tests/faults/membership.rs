//! Who lives does not depend on how often circuits are looked after.

use phalanx_integration_tests::replica::{Heard, Setup};
use phalanx_integration_tests::server::Redis;
use tokio::time::sleep;

use crate::kit::{SECOND, workers};

#[tokio::test]
async fn replicas_that_make_their_rounds_rarely_are_alive_all_the_same() {
    let setup = Setup::new(Redis::shared().await).patient().sync_interval(30 * SECOND);
    let replicas = workers::<2>(&setup).await;
    sleep(5 * SECOND).await; // longer than a sign of life counts
    for replica in replicas {
        let told: Vec<_> = replica.look().told.into_iter().map(|told| told.kind).collect();
        let lives = |live: u32| Heard::Replicas { live };
        assert!(!told.ends_with(&[lives(1)]), "they have lost sight of each other: {told:?}");
        assert_eq!(replica.module().replicas(), Some(2), "{told:?}");
    }
}
