//! A Cluster of three masters: redirects while slots move, pushes, and one master that is stopped or hangs.

use phalanx::store::StateKey;
use phalanx_store_redis::internal::{FleetKeys, OpenConnection, OpenSubscription};
use phalanx_store_redis::transport::ScriptForm;
use phalanx_store_redis::{RedisConnection, RedisOptions};
use phalanx_testkit::FaultyRedis;
use phalanx_testkit::server::cluster::slot;
use phalanx_testkit::server::{Cluster, Proxy};
use redis::ProtocolVersion;
use redis::cluster::ClusterClientBuilder;
use tokio::time::sleep;

use crate::harness::{CHANNEL, Deployment, Log, MS, SECOND, ZERO, compare, key, lock, peek, push, release, take};

/// Three masters with a third of the slots each.
pub(crate) enum ThreeMasters {
    Model(FaultyRedis),
    Real(Cluster),
}

impl Deployment for ThreeMasters {
    fn model() -> Self {
        Self::Model(FaultyRedis::cluster(3))
    }

    async fn start() -> Self {
        Self::Real(Cluster::start().await)
    }
}

/// Returns the `n`-th name whose key is in a slot of this master, as the slots are at first.
pub(crate) fn name_on(master: usize, n: usize) -> String {
    let names = (0..).map(|number| format!("k{number}"));
    let mut here = names.filter(|name| usize::from(slot(&key(name))) * 3 / 16_384 == master);
    here.nth(n).unwrap()
}

impl ThreeMasters {
    pub(crate) fn redis(&self) -> RedisConnection {
        match self {
            Self::Model(model) => model.into(),
            Self::Real(cluster) => {
                let client = ClusterClientBuilder::new(cluster.urls()).use_protocol(ProtocolVersion::RESP3);
                client.build().unwrap().into()
            }
        }
    }

    /// Publishes a message on this master, as a foreign client does.
    async fn publish(&self, master: usize, message: &str) {
        match self {
            Self::Model(model) => model.publish(CHANNEL, message),
            Self::Real(cluster) => drop(cluster.masters()[master].cli(&["PUBLISH", CHANNEL, message]).await),
        }
    }

    /// Begins to move a slot: `CLUSTER SETSLOT … IMPORTING` and `MIGRATING`.
    async fn begin_to_move(&self, slot: u16, from: usize, to: usize) {
        match self {
            Self::Model(model) => model.begin_moving_slots(slot..slot + 1, to),
            Self::Real(cluster) => {
                let [from, to] = [from, to].map(|master| &cluster.masters()[master]);
                let (source, target) = (from.cli(&["CLUSTER", "MYID"]).await, to.cli(&["CLUSTER", "MYID"]).await);
                to.cli(&["CLUSTER", "SETSLOT", &slot.to_string(), "IMPORTING", &source]).await;
                from.cli(&["CLUSTER", "SETSLOT", &slot.to_string(), "MIGRATING", &target]).await;
            }
        }
    }

    /// Moves one key: `MIGRATE`.
    async fn move_key(&self, key: &str, from: usize, to: usize) {
        match self {
            Self::Model(model) => model.move_key(key),
            Self::Real(cluster) => {
                let port = cluster.masters()[to].port().to_string();
                let moved = cluster.masters()[from].cli(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]).await;
                assert_eq!(moved, "OK");
            }
        }
    }

    /// Moves the keys that are left and assigns the slot: `MIGRATE` and `CLUSTER SETSLOT … NODE`.
    async fn finish_move(&self, slot: u16, from: usize, to: usize) {
        match self {
            Self::Model(model) => model.finish_moving_slots(slot..slot + 1),
            Self::Real(cluster) => {
                let slot = slot.to_string();
                let left = cluster.masters()[from].cli(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"]).await;
                for key in left.lines() {
                    self.move_key(key, from, to).await;
                }
                let target = cluster.masters()[to].cli(&["CLUSTER", "MYID"]).await;
                // The target first: it takes a higher epoch and broadcasts it. To the others the former owner has the higher
                // epoch until then, and would take the slot back with its next message.
                cluster.masters()[to].cli(&["CLUSTER", "SETSLOT", &slot, "NODE", &target]).await;
                for master in [from, 3 - from - to].map(|master| &cluster.masters()[master]) {
                    master.until(&["CLUSTER", "NODES"], |nodes| is_owner(nodes, &target, &slot)).await;
                    master.cli(&["CLUSTER", "SETSLOT", &slot, "NODE", &target]).await;
                }
            }
        }
    }

    /// Moves a slot with all its keys.
    async fn move_slot(&self, slot: u16, from: usize, to: usize) {
        match self {
            Self::Model(model) => model.move_slots(slot..slot + 1, to),
            Self::Real(_) => {
                self.begin_to_move(slot, from, to).await;
                self.finish_move(slot, from, to).await;
            }
        }
    }

    /// Moves the slots of the buckets of these policies, with all keys, each from its first master to the next.
    pub(crate) async fn move_bucket_slots(&self, policies: &[String]) {
        let keys = FleetKeys::new(&RedisOptions::default());
        for policy in policies {
            let all = keys.all(&StateKey::new(policy.as_str(), ()), "");
            let (_, bucket) = all.iter().find(|(purpose, _)| *purpose == "bucket").unwrap();
            let from = usize::from(bucket.slot) * 3 / 16_384;
            self.move_slot(bucket.slot, from, (from + 1) % 3).await;
        }
    }

    /// Kills a master, whose data is saved.
    async fn stop(&self, master: usize) {
        match self {
            Self::Model(model) => model.stop_master(master),
            Self::Real(cluster) => {
                cluster.masters()[master].cli(&["SAVE"]).await;
                cluster.masters()[master].kill();
            }
        }
    }

    /// Starts a killed master with its data.
    async fn start_again(&self, master: usize) {
        match self {
            Self::Model(model) => model.start_master(master),
            Self::Real(cluster) => {
                cluster.masters()[master].restart().await;
                cluster.until_healthy().await;
            }
        }
    }

    /// Takes the slot of a name, which is on master 0, away from it, or gives it back: without a master, `CLUSTERDOWN`.
    async fn serve(&self, name: &str, serve: bool) {
        match self {
            Self::Model(model) => model.reply_with_error((!serve).then_some("CLUSTERDOWN Hash slot not served")),
            Self::Real(cluster) => {
                let change = if serve { "ADDSLOTS" } else { "DELSLOTS" };
                cluster.masters()[0].cli(&["CLUSTER", change, &slot(&key(name)).to_string()]).await;
            }
        }
    }

    /// Subscribes at all masters.
    async fn subscribed(&self, log: &mut Log) -> OpenSubscription {
        let mut subscription = log.subscribed(&self.redis()).await;
        self.until_subscribed(log, &mut subscription).await;
        subscription
    }

    /// Checks a subscription until it is made at all masters: the client is content with one.
    async fn until_subscribed(&self, log: &mut Log, subscription: &mut OpenSubscription) {
        let is_made = async || match self {
            Self::Model(_) => true,
            Self::Real(cluster) => {
                let mut all = true;
                for master in cluster.masters() {
                    all &= master.cli(&["PUBSUB", "NUMSUB", CHANNEL]).await == format!("{CHANNEL}\n1");
                }
                all
            }
        };
        log.check_until(subscription, is_made).await;
    }

    /// Ends all subscriptions.
    async fn kill_subscriptions(&self) {
        match self {
            Self::Model(model) => model.break_subscriptions(),
            Self::Real(cluster) => {
                for master in cluster.masters() {
                    master.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
                }
            }
        }
    }

    /// Delays the replies of master 0, whose scripts run at once in the model; or ends that.
    fn delay_replies(&self, delay: bool) {
        match self {
            Self::Model(model) => model.set_script_time(if delay { 300 * MS } else { ZERO }),
            Self::Real(cluster) if delay => cluster.masters()[0].stop(),
            Self::Real(cluster) => cluster.masters()[0].resume(),
        }
    }

    fn hang(&self, master: usize) {
        match self {
            Self::Model(model) => model.hang_master(master),
            Self::Real(cluster) => cluster.masters()[master].stop(),
        }
    }

    fn resume(&self, master: usize) {
        match self {
            Self::Model(model) => model.resume_master(master),
            Self::Real(cluster) => cluster.masters()[master].resume(),
        }
    }
}

/// Whether a master's `CLUSTER NODES` assigns a slot to the node of this id.
fn is_owner(nodes: &str, id: &str, slot: &str) -> bool {
    let contains = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let bounds = [first, slot, last].map(|number| number.parse::<u16>().ok());
        matches!(bounds, [Some(first), Some(slot), Some(last)] if (first..=last).contains(&slot))
    };
    let line = nodes.lines().find(|line| line.starts_with(id));
    line.is_some_and(|line| line.split_whitespace().skip(8).any(contains))
}

/// Notes which shards there are, and which of them the connection does not reach.
async fn survey(log: &mut Log, on: &OpenConnection) {
    log.note("survey", format!("{:?}", on.survey().await));
}

#[test]
fn each_master_has_its_keys_and_its_scripts_and_a_moved_slot_is_found() {
    let seen = compare::<ThreeMasters>(async |cluster, log| {
        let redis = log.connected(&cluster.redis()).await;
        survey(log, &redis).await;
        let [a, b, c] = [0, 1, 2].map(|master| name_on(master, 0));
        log.send(&redis, ScriptForm::Digest, &[take(&a, 1)]).await;
        log.run(&redis, &[take(&a, 1)]).await;
        log.send(&redis, ScriptForm::Digest, &[take(&a, 1), take(&b, 1), take(&c, 1)]).await;
        log.run(&redis, &[take(&a, 1), take(&b, 2), take(&c, 3), lock(&format!("{a}/l"), "me")]).await;
        log.send(&redis, ScriptForm::Digest, &[take(&c, 1), take(&b, 1), take(&a, 1)]).await;
        // Master 2 knows the first script, but not those of locks.
        cluster.move_slot(slot(&key(&a)), 0, 2).await;
        log.send(&redis, ScriptForm::Digest, &[take(&a, 1), lock(&format!("{a}/l"), "other")]).await;
        log.run(&redis, &[peek(&a), peek(&b), peek(&c), lock(&format!("{a}/l"), "other")]).await;
        let new = log.connected(&cluster.redis()).await;
        survey(log, &new).await;
        log.run(&new, &[peek(&a), peek(&b), peek(&c), lock(&format!("{a}/l"), "me")]).await;
    });
    assert!(seen[2].ends_with("unknown script"), "{seen:?}");
}

#[test]
fn a_slot_that_moves_key_by_key_is_served_by_both_masters_and_loses_nothing() {
    let seen = compare::<ThreeMasters>(async |cluster, log| {
        let redis = log.connected(&cluster.redis()).await;
        let tag = name_on(0, 0);
        let name = |suffix: &str| format!("{tag}/{suffix}");
        log.run(&redis, &[take(&name("stays"), 1), take(&name("moves"), 2), lock(&name("held"), "me")]).await;
        cluster.begin_to_move(slot(&key(&tag)), 0, 1).await;
        // All keys are still with the source.
        log.run(&redis, &[take(&name("stays"), 1), take(&name("moves"), 1), lock(&name("held"), "me")]).await;
        // A new key is made by the target, which did not know the script.
        log.run(&redis, &[take(&name("new"), 3)]).await;
        log.run(&redis, &[take(&name("new"), 1), peek(&name("absent"))]).await;
        cluster.move_key(&key(&name("moves")), 0, 1).await;
        log.run(&redis, &[take(&name("stays"), 1), take(&name("moves"), 1)]).await;
        // Two keys of which none is there, and two of which one is: neither master can serve them.
        log.run_unanswered(&redis, &[lock(&name("fresh"), "me")]).await;
        cluster.move_key(&key(&name("held")), 0, 1).await;
        log.run_unanswered(&redis, &[lock(&name("held"), "me"), take(&name("new"), 1)]).await;
        cluster.move_key(&format!("{}:f", key(&name("held"))), 0, 1).await;
        log.run(&redis, &[lock(&name("held"), "other")]).await;
        cluster.finish_move(slot(&key(&tag)), 0, 1).await;
        log.run(&redis, &["stays", "moves", "new", "absent"].map(|suffix| peek(&name(suffix)))).await;
        log.run(&redis, &[lock(&name("held"), "me"), lock(&name("fresh"), "me")]).await;
        let new = log.connected(&cluster.redis()).await;
        survey(log, &new).await;
    });
    assert_eq!(seen.iter().filter(|step| step.ends_with("no reply")).count(), 2, "{seen:?}");
}

#[test]
fn a_message_arrives_from_every_master_that_serves_and_a_subscription_outlives_one_of_them() {
    compare::<ThreeMasters>(async |cluster, log| {
        let redis = log.connected(&cluster.redis()).await;
        let mut subscription = cluster.subscribed(log).await;
        for master in 0..3 {
            let name = name_on(master, 0);
            log.run(&redis, &push(&name)).await;
            log.receive_until(&mut subscription, &format!("lock {name}"), 3).await;
        }
        let moved = name_on(0, 1);
        log.run(&redis, &[lock(&moved, "me")]).await;
        cluster.move_slot(slot(&key(&moved)), 0, 2).await;
        log.run(&redis, &[release(&moved, "me")]).await;
        log.receive_until(&mut subscription, &format!("lock {moved}"), 3).await;
        cluster.publish(1, "foreign").await;
        log.receive_until(&mut subscription, "foreign", 3).await;
        log.check(&mut subscription).await;
        cluster.hang(2);
        cluster.publish(0, "twice").await;
        log.receive_until(&mut subscription, "twice", 2).await;
        log.receive_nothing(&mut subscription).await;
        cluster.resume(2);
        log.receive_until(&mut subscription, "twice", 1).await;

        cluster.kill_subscriptions().await;
        cluster.until_subscribed(log, &mut subscription).await;
        cluster.publish(1, "from all").await;
        log.receive_until(&mut subscription, "from all", 3).await;
        cluster.stop(1).await;
        cluster.publish(0, "from two").await;
        log.receive_until(&mut subscription, "from two", 2).await;
        log.check(&mut subscription).await;
        log.receive_nothing(&mut subscription).await;
        cluster.start_again(1).await;
        cluster.until_subscribed(log, &mut subscription).await;
        cluster.publish(2, "from all again").await;
        log.receive_until(&mut subscription, "from all again", 3).await;
        log.receive_nothing(&mut subscription).await;
    });
}

/// Masters that are reached through proxies, which delay replies and break connections.
enum MastersBehindProxies {
    Model(FaultyRedis),
    Real { _cluster: Cluster, proxies: Vec<Proxy> },
}

impl Deployment for MastersBehindProxies {
    fn model() -> Self {
        Self::Model(FaultyRedis::cluster(3))
    }

    async fn start() -> Self {
        let cluster = Cluster::start().await;
        let proxies = cluster.behind_proxies().await;
        Self::Real { _cluster: cluster, proxies }
    }
}

impl MastersBehindProxies {
    fn redis(&self, protocol: ProtocolVersion) -> RedisConnection {
        match self {
            Self::Model(model) => model.into(),
            Self::Real { proxies, .. } => {
                let client = ClusterClientBuilder::new(proxies.iter().map(Proxy::url)).use_protocol(protocol);
                client.build().unwrap().into()
            }
        }
    }

    /// Delays all replies. Requests are executed at once.
    fn delay_replies(&self) {
        match self {
            Self::Model(model) => model.set_script_time(SECOND / 2),
            Self::Real { proxies, .. } => proxies.iter().for_each(|proxy| proxy.delay(10 * SECOND)),
        }
    }

    /// Breaks all connections and ends the delay.
    async fn break_connections(&self) {
        match self {
            Self::Model(model) => {
                model.set_script_time(ZERO);
                model.break_connections();
            }
            Self::Real { proxies, .. } => {
                for proxy in proxies {
                    proxy.delay(ZERO);
                    proxy.reset_connections().await;
                }
                sleep(10 * MS).await; // the tasks of the client read that their connections have ended
            }
        }
    }
}

#[test]
fn a_script_whose_connection_breaks_fails_and_runs_once() {
    for protocol in [ProtocolVersion::RESP2, ProtocolVersion::RESP3] {
        let seen = compare::<MastersBehindProxies>(async |cluster, log| {
            let redis = log.connected(&cluster.redis(protocol)).await;
            let [a, b, c] = [0, 1, 2].map(|master| name_on(master, 0));
            log.run(&redis, &[take(&b, 1), peek(&b)]).await;
            cluster.delay_replies();
            let pending = log.send_unanswered(&redis, &[take(&b, 2)]).await;
            cluster.break_connections().await;
            log.answered(pending).await;
            log.run(&redis, &[peek(&b)]).await;
            // The connections to the other masters broke while nothing was under way, so nothing fails.
            log.run(&redis, &[take(&a, 1), take(&c, 1), peek(&b)]).await;
        });
        // Nine permits less two.
        assert!(seen.last().is_some_and(|level| level.ends_with("25200000000, 0]")), "{seen:?}");
    }
}

#[test]
fn a_stopped_master_fails_its_own_keys_and_no_others() {
    compare::<ThreeMasters>(async |cluster, log| {
        let redis = log.connected(&cluster.redis()).await;
        let [a, b, c] = [0, 1, 2].map(|master| name_on(master, 0));
        log.run(&redis, &[take(&a, 1), take(&b, 2), take(&c, 3), peek(&a), peek(&c)]).await;
        cluster.delay_replies(true);
        let pending = log.send_unanswered(&redis, &[take(&a, 1)]).await;
        cluster.stop(1).await;
        cluster.delay_replies(false);
        log.answered(pending).await;
        log.run(&redis, &[take(&c, 1)]).await;
        log.run_unanswered(&redis, &[take(&b, 1)]).await;
        log.run_unanswered(&redis, &[take(&a, 1), take(&b, 1), take(&c, 1)]).await;
        log.run(&redis, &[peek(&a), peek(&c)]).await;
        let during = log.connected(&cluster.redis()).await;
        survey(log, &during).await;
        log.run(&during, &[take(&a, 1), take(&c, 1)]).await;
        cluster.start_again(1).await;
        let after = log.connected(&cluster.redis()).await;
        survey(log, &after).await;
        log.send(&after, ScriptForm::Digest, &[peek(&a), peek(&b), peek(&c)]).await;
        log.run(&after, &[peek(&a), peek(&b), peek(&c)]).await;
        log.run(&redis, &[take(&a, 1), take(&b, 1), take(&c, 1)]).await;
    });
}

#[test]
fn keys_of_a_hung_master_or_of_none_get_no_reply_and_do_not_delay_the_others() {
    compare::<ThreeMasters>(async |cluster, log| {
        let redis = log.connected(&cluster.redis()).await;
        let [a, b, c] = [0, 1, 2].map(|master| name_on(master, 0));
        log.run(&redis, &[take(&a, 1), take(&b, 2), take(&c, 3), peek(&b)]).await;
        cluster.hang(1);
        log.run_unanswered(&redis, &[take(&b, 4)]).await;
        log.run(&redis, &[take(&a, 1), take(&c, 1)]).await;
        cluster.resume(1);
        // What was sent is executed later.
        log.run_until_changed(&redis, peek(&b), "28800000000").await;
        log.run(&redis, &[take(&a, 1), take(&b, 1), take(&c, 1)]).await;
        cluster.serve(&a, false).await;
        log.run_unanswered(&redis, &[take(&a, 1)]).await;
        cluster.serve(&a, true).await;
        log.run(&redis, &[take(&a, 1), take(&b, 1)]).await;
    });
}
