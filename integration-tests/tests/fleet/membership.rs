//! Every replica counts the live replicas.

use phalanx_integration_tests::replica::{Command, Moment, Setup};
use phalanx_testkit::server::Redis;

use crate::harness::{MS, SECOND, WAIT_TIMEOUT, exclusive, fleet};

/// The TTL of a member.
const MEMBER_TTL: std::time::Duration = std::time::Duration::from_millis(3_500);

#[tokio::test]
async fn a_killed_replica_is_removed_when_its_last_heartbeat_expires() {
    let _exclusive = exclusive().await;
    let [killed, others @ ..] = fleet::<3>(&Setup::new(Redis::shared().await).generous_budget()).await;
    let at = Moment::now();
    killed.process().kill();
    for other in &others {
        let seen = other.until(WAIT_TIMEOUT, "two are left", |seen| seen.replicas == Some(2)).await;
        let after = seen.at.since(at);
        println!("removed after {after:?}");
        assert!(after <= MEMBER_TTL + SECOND, "removed after {after:?}");
    }
}

#[tokio::test]
async fn a_replica_that_leaves_the_fleet_is_removed_at_the_next_heartbeat() {
    let _exclusive = exclusive().await;
    let [leaving, others @ ..] = fleet::<3>(&Setup::new(Redis::shared().await).generous_budget()).await;
    let at = Moment::now();
    leaving.execute(Command::LeaveFleet).await;
    for other in &others {
        let seen = other.until(WAIT_TIMEOUT, "two are left", |seen| seen.replicas == Some(2)).await;
        let after = seen.at.since(at);
        println!("removed after {after:?}");
        assert!(after <= 1_500 * MS, "removed after {after:?}");
    }
}
