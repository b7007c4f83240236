//! Every replica knows how many there are.

use phalanx_integration_tests::replica::{Moment, Order, Setup};
use phalanx_integration_tests::server::Redis;

use crate::kit::{MS, PATIENCE, SECOND, fleet, quiet};

/// How long a sign of life counts, and how often one is given.
const LIFE: std::time::Duration = std::time::Duration::from_millis(3_500);

#[tokio::test]
async fn a_killed_replica_is_missed_when_its_last_sign_of_life_is_old() {
    let _quiet = quiet().await;
    let [killed, others @ ..] = fleet::<3>(&Setup::new(Redis::shared().await).patient()).await;
    let at = Moment::now();
    killed.process().kill9();
    for other in &others {
        let seen = other.until(PATIENCE, "two are left", |seen| seen.replicas == Some(2)).await;
        let after = seen.at.since(at);
        println!("missed after {after:?}");
        assert!(after <= LIFE + SECOND, "missed after {after:?}");
    }
}

#[tokio::test]
async fn a_replica_that_leaves_in_good_order_is_missed_at_the_next_sign_of_life() {
    let _quiet = quiet().await;
    let [leaving, others @ ..] = fleet::<3>(&Setup::new(Redis::shared().await).patient()).await;
    let at = Moment::now();
    leaving.obey(Order::Leave).await;
    for other in &others {
        let seen = other.until(PATIENCE, "two are left", |seen| seen.replicas == Some(2)).await;
        let after = seen.at.since(at);
        println!("missed after {after:?}");
        assert!(after <= 1_500 * MS, "missed after {after:?}");
    }
}
