//! Key placement: each key is in the slot of its hash tag, membership keys share a slot, and user input is hashed.

use std::collections::{BTreeMap, BTreeSet};

use phalanx::store::{RedisOptions, StateKey};
use phalanx::{Pipeline, ResilienceModule, Source};
use phalanx_store_redis::RedisStore;
use phalanx_testkit::server::redis_cli::field;
use phalanx_testkit::server::{Cluster, RedisProcess};
use redis::cluster::ClusterClient;

use crate::harness::{self, EventLog};
use crate::operations;

/// A route and the keys it created.
pub(crate) struct Placed {
    pub(crate) pipeline: Pipeline,
    pub(crate) keys: BTreeSet<String>,
}

impl Placed {
    /// Returns the key of a kind: `r`, `b` or `d`.
    pub(crate) fn key(&self, kind: char) -> &str {
        self.keys.iter().find(|key| key.contains(&format!(":{kind}:"))).unwrap()
    }

    /// Returns whether this master has any of the keys.
    pub(crate) fn lies_on(&self, cluster: &Cluster, master: &RedisProcess) -> bool {
        self.keys.iter().any(|key| cluster.master_of(key).port() == master.port())
    }
}

/// Calls routes one by one, each of a policy of its own, because the buckets of one policy are on one master, and
/// determines the keys that each created.
pub(crate) async fn place(cluster: &Cluster, module: &ResilienceModule, routes: usize) -> Vec<Placed> {
    module.redis_store().unwrap().settle().await;
    let mut known = keys_of_routes(cluster).await;
    let mut placed = Vec::new();
    for route in 0..routes {
        let pipeline = module.pipeline(&harness::policy_name(route), &format!("route {route} {{x}}")).unwrap();
        assert_eq!(harness::call(&pipeline).await.0.source, Source::Fleet);
        module.redis_store().unwrap().settle().await;
        let now = keys_of_routes(cluster).await;
        let keys: BTreeSet<String> = now.difference(&known).cloned().collect();
        placed.push(Placed { pipeline, keys });
        known = now;
    }
    placed
}

async fn keys_of_routes(cluster: &Cluster) -> BTreeSet<String> {
    let all = all_keys(cluster).await;
    all.into_keys().filter(|key| ["r", "b", "d"].iter().any(|kind| key.contains(&format!(":{kind}:")))).collect()
}

/// Returns all keys with the port of their master.
async fn all_keys(cluster: &Cluster) -> BTreeMap<String, u16> {
    let mut keys = BTreeMap::new();
    for master in cluster.masters() {
        let text = master.cli(&["KEYS", "*"]).await;
        keys.extend(text.lines().map(|key| (key.to_owned(), master.port())));
    }
    keys
}

/// Asserts that no script failed on any master, except with NOSCRIPT.
async fn no_script_failed(cluster: &Cluster) {
    for master in cluster.masters() {
        let commands = master.cli(&["INFO", "commandstats"]).await;
        let errors = master.cli(&["INFO", "errorstats"]).await;
        let failed = |command: &str| number(field(&commands, &format!("cmdstat_{command}")), "failed_calls=");
        assert_eq!(failed("eval"), 0, "{commands}");
        assert_eq!(failed("evalsha"), number(field(&errors, "errorstat_NOSCRIPT"), "count="), "{errors}");
        assert!(!errors.contains("CROSSSLOT"), "{errors}");
    }
}

/// Returns the number after a name in a line of `INFO`; 0 if there is none.
fn number(line: Option<&str>, name: &str) -> u64 {
    let value = line.and_then(|line| line.split(',').find_map(|part| part.strip_prefix(name)));
    value.map_or(0, |value| value.parse().unwrap())
}

pub(crate) fn client(cluster: &Cluster) -> ClusterClient {
    ClusterClient::new(cluster.urls()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_routes_are_decided_by_redis_and_every_key_is_in_the_slot_of_its_tag() {
    let cluster = Cluster::start().await;
    let (log, other_log) = (EventLog::default(), EventLog::default());
    let module = harness::replica(client(&cluster), &log).build().unwrap();
    harness::warm_up(&module, &log).await;
    let placed = place(&cluster, &module, 60).await;

    for route in &placed {
        // The evidence of a breaker is beside it.
        let evidence = format!("{}:e", route.key('b'));
        let hashes: BTreeSet<_> = route.keys.iter().map(|key| key.trim_end_matches(":e").rsplit(':').next()).collect();
        assert_eq!((route.keys.len(), hashes.len()), (4, 1), "one of each kind under one hash: {:?}", route.keys);
        assert!(route.keys.contains(&evidence), "{:?}", route.keys);
        for kind in ['r', 'b', 'd'] {
            let (tag, hash) = route.key(kind).split_once(&format!("}}:{kind}:")).unwrap();
            let partition = tag.strip_prefix("ph2:{test.default:").unwrap();
            assert!(u8::from_str_radix(partition, 16).unwrap() < 64, "{partition}");
            assert!(hash.len() == 32 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()), "{hash}");
        }
    }
    for master in cluster.masters() {
        for kind in ['r', 'b', 'd'] {
            let here = placed.iter().filter(|route| cluster.master_of(route.key(kind)).port() == master.port());
            assert!(here.count() > 0, "every master has keys of every kind");
        }
    }

    // Two replicas count each other, and both membership keys are in one slot.
    let other = harness::replica(client(&cluster), &other_log).build().unwrap();
    harness::until_fleet(&other.pipeline("stack", "other").unwrap()).await;
    log.until("two replicas", |events| events.contains(&harness::LoggedEvent::Replicas(2))).await;
    assert_eq!(other.replicas(), Some(2));
    let keys = all_keys(&cluster).await;
    assert_eq!(keys.get("ph2:{test.default:m}:m"), keys.get("ph2:{test.default:m}:g"));
    for (key, port) in &keys {
        assert_eq!(cluster.master_of(key).port(), *port);
        let left: i64 = cluster.master_of(key).cli(&["PTTL", key]).await.parse().unwrap();
        assert_ne!(left, -1, "{key} never expires");
    }
    other.leave_fleet().await;
    log.until("one replica again", |events| events.last() == Some(&harness::LoggedEvent::Replicas(1))).await;

    no_script_failed(&cluster).await;
    assert_eq!(log.outages(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_operation_uses_one_slot() {
    let cluster = Cluster::start().await;
    let options = RedisOptions { store_budget: harness::BUDGET, ..RedisOptions::default() };
    let store = RedisStore::over(client(&cluster)).options(options).build().unwrap();
    for route in 0..6 {
        let key = StateKey::new("policy", &format!("route-{route}"));
        let decided = operations::run_all(&store, &key).await;
        assert!(decided.iter().all(|source| *source == Source::Fleet), "{decided:?}");
    }
    store.leave().await;
    no_script_failed(&cluster).await;
}
