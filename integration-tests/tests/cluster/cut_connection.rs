//! A connection to one master that is cut after a script has run there, and before its reply has arrived.

use std::time::Duration;

use phalanx::store::{AcquireRequest, RateLimitStore, RedisOptions, StateKey, Store};
use phalanx::{RateLimitSpec, Source};
use phalanx_store_redis::RedisStore;
use phalanx_store_redis::internal::FleetKeys;
use phalanx_testkit::server::{Cluster, Proxy};
use redis::ProtocolVersion;
use redis::cluster::ClusterClientBuilder;

use crate::harness::{BUDGET, SECOND, within_timeout};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_whose_connection_is_cut_after_it_ran_is_not_run_again() {
    let cluster = Cluster::start().await;
    let proxies = cluster.behind_proxies().await;
    for protocol in [ProtocolVersion::RESP2, ProtocolVersion::RESP3] {
        let client = ClusterClientBuilder::new(proxies.iter().map(Proxy::url)).use_protocol(protocol).build().unwrap();
        let service = format!("{protocol:?}").to_lowercase();
        let options = RedisOptions { store_budget: BUDGET, service, ..RedisOptions::default() };
        let key = StateKey::new("policy", ());
        let keys = FleetKeys::new(&options).all(&key, "");
        let (_, bucket_key) = keys.iter().find(|(purpose, _)| *purpose == "bucket").unwrap();
        let master = cluster.master_of(&bucket_key.text);
        let stored = async || master.cli(&["GET", &bucket_key.text]).await;

        let store = RedisStore::over(client).options(options).build().unwrap();
        let bucket = store.bucket(&key, &RateLimitSpec::per_minute(100));
        let acquire = async || {
            let request = AcquireRequest { cost: 1, max_wait: Duration::ZERO };
            store.acquire(&bucket, store.clock().now(), request).await.source
        };
        let until_decided_by_redis = async || within_timeout(async { while acquire().await != Source::Fleet {} }).await;
        until_decided_by_redis().await;

        let before = stored().await;
        proxies.iter().for_each(|proxy| proxy.delay(10 * SECOND));
        let cut = async {
            master.until(&["GET", &bucket_key.text], |now| now != before).await;
            let ran = stored().await;
            for proxy in &proxies {
                proxy.delay(Duration::ZERO);
                proxy.reset_connections().await;
            }
            ran
        };
        let (source, ran) = tokio::join!(acquire(), cut);
        assert_eq!(source, Source::Degraded, "{protocol:?}: the reply is lost");
        assert_eq!(stored().await, ran, "{protocol:?}: the script ran once");
        until_decided_by_redis().await;
    }
}
