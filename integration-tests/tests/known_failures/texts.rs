//! What is printed and what is documented.

use std::sync::Arc;

use phalanx::ResilienceModule;
use phalanx_core::breaker::BreakerSpec;
use phalanx_core::store::{BreakerStore, LatencyDigestStore, Store};
use phalanx_store_redis::RedisOptions;
use phalanx_testkit::FaultyRedis;
use tokio::time::sleep;

use crate::harness::*;

pub(crate) async fn review_1_13_debug_output_does_not_contain_the_key_secret() -> Seen {
    let redis = FaultyRedis::new();
    let options = RedisOptions { key_secret: Some(Arc::from(&b"secret"[..])), ..RedisOptions::default() };
    let store = builder(&redis, 1).options(options.clone());
    let module = ResilienceModule::with_redis(&redis).key_secret(&b"secret"[..]);
    let mut printed = vec![("RedisOptions", format!("{options:?}")), ("StoreBuilder", format!("{store:?}"))];
    printed.push(("ModuleBuilder", format!("{module:?}")));
    printed.push(("RedisStore", format!("{:?}", store.build().unwrap())));
    printed.push(("ResilienceModule", format!("{:?}", module.build().unwrap())));
    printed.retain(|(_, text)| text.contains("115, 101, 99, 114, 101, 116") || text.contains("\"secret\""));
    let types: Vec<_> = printed.iter().map(|(name, _)| name).collect();
    promise(types.is_empty(), || format!("the secret is in the Debug output of {types:?}"))
}

pub(crate) async fn review_1_16_the_cost_on_the_tuning_page_is_what_redis_executes() -> Seen {
    const BREAKERS: usize = 50;
    const DIGESTS: usize = 10;
    let page = include_str!("../../../docs/tuning.md");
    let example = "20 replicas with 50 breakers and 10 digests at 0.25 s: ";
    let (_, rest) = page.split_once(example).expect("the example is on the page");
    let documented: f64 = rest.split(' ').next().unwrap().replace(',', "").parse().expect("a number");
    let redis = FaultyRedis::new();
    let store = replica(&redis, 1);
    let breakers: Vec<_> = (0..BREAKERS)
        .map(|route| store.breaker(&key(&format!("route {route}")), &BreakerSpec::failure_ratio(0.5)))
        .collect();
    let digests: Vec<_> =
        (0..DIGESTS).map(|route| store.digest(&key(&format!("route {route}")), 10 * SECOND)).collect();
    let use_for = async |seconds: u32| {
        for _ in 0..20 * seconds {
            for breaker in &breakers {
                call(&store, breaker, phalanx_core::kind::Outcome::Success).await.unwrap();
            }
            for digest in &digests {
                store.observe(digest, store.clock().now(), 5 * MS);
            }
            sleep(50 * MS).await;
        }
    };
    use_for(2).await;
    let before = redis.scripts();
    use_for(5).await;
    let measured = 20.0 * (redis.scripts() - before) as f64 / 5.0;
    promise(measured <= 1.1 * documented, || {
        format!("20 replicas cost {measured:.0} scripts a second, {documented:.0} on the page")
    })
}
