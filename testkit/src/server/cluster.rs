//! A Redis Cluster: three masters with a third of the slots each, no replicas.
//!
//! The masters serve their slots while another one is down or hung (`cluster-require-full-coverage no`), for tests of a
//! single failing shard. Starting takes two seconds: a master rejects queries for that long, and no setting shortens it.

use super::engine::Engine;
use super::proxy::Proxy;
use super::redis_process::{Options, RedisProcess};

/// The number of hash slots.
pub const SLOTS: u16 = 16_384;

const MASTERS: u16 = 3;

/// A running cluster.
#[derive(Debug)]
pub struct Cluster {
    masters: Vec<RedisProcess>,
}

impl Cluster {
    /// Starts a cluster. A master counts as failed after two seconds without a reply.
    pub async fn start() -> Self {
        Self::with(Options::new()).await
    }

    /// Starts a cluster whose masters have these options.
    pub async fn with(options: Options) -> Self {
        let options = options_of_masters().merge(options);
        let (a, b, c) = tokio::join!(
            RedisProcess::with(options.clone()),
            RedisProcess::with(options.clone()),
            RedisProcess::with(options.clone())
        );
        let cluster = Self { masters: vec![a, b, c] };
        cluster.introduce().await;
        cluster
    }

    /// Starts a server in Cluster mode that owns all slots, so that a client which knows nothing of Clusters can use it.
    pub async fn lone_master() -> RedisProcess {
        let master = RedisProcess::with(options_of_masters()).await;
        add_slots(&master, 0..SLOTS).await;
        master.until(&["CLUSTER", "INFO"], |info| info.contains("cluster_state:ok")).await;
        master
    }

    /// Returns the masters in the order of their slots. Each can be stopped, killed and restarted; a restart keeps the
    /// node's identity and slots and loses its keys.
    pub fn masters(&self) -> &[RedisProcess] {
        &self.masters
    }

    /// Returns the URLs of all masters.
    pub fn urls(&self) -> Vec<String> {
        self.masters.iter().map(RedisProcess::url).collect()
    }

    /// Starts a proxy in front of every master, which the masters announce in place of themselves. Clients that begin with
    /// the URL of a proxy use no other way.
    pub async fn behind_proxies(&self) -> Vec<Proxy> {
        let mut proxies = Vec::new();
        for master in &self.masters {
            let proxy = Proxy::start(master.address()).await;
            master.cli(&["CONFIG", "SET", "cluster-announce-port", &proxy.port().to_string()]).await;
            proxies.push(proxy);
        }
        for master in &self.masters {
            let announced = |slots: &str| proxies.iter().all(|proxy| slots.contains(&proxy.port().to_string()));
            master.until(&["CLUSTER", "SLOTS"], announced).await;
        }
        proxies
    }

    /// Returns the master that owns a key.
    pub fn master_of(&self, key: &str) -> &RedisProcess {
        &self.masters[usize::from(slot(key)) * usize::from(MASTERS) / usize::from(SLOTS)]
    }

    /// Waits until every master reports a complete, healthy cluster.
    pub async fn until_healthy(&self) {
        for master in &self.masters {
            let slots = format!("cluster_slots_ok:{SLOTS}");
            let nodes = format!("cluster_known_nodes:{MASTERS}");
            let healthy = ["cluster_state:ok", slots.as_str(), nodes.as_str()];
            master.until(&["CLUSTER", "INFO"], |info| healthy.iter().all(|line| info.contains(line))).await;
        }
    }

    async fn introduce(&self) {
        for (index, master) in (0..).zip(&self.masters) {
            // Distinct epochs from the start save the nodes an election.
            master.cli(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()]).await;
            add_slots(master, slots_of(index)).await;
        }
        // Every pair meets explicitly, because gossip takes longer.
        for one in &self.masters {
            for other in self.masters.iter().filter(|other| other.port() > one.port()) {
                let (port, bus) = (other.port().to_string(), bus_port(other).to_string());
                one.cli(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]).await;
            }
        }
        self.until_healthy().await;
    }
}

fn options_of_masters() -> Options {
    let with_port = if has_cluster_port() { Options::new().port("cluster-port") } else { Options::new() };
    with_port
        .set("cluster-enabled", &["yes"])
        .set("cluster-node-timeout", &["2000"])
        .set("cluster-require-full-coverage", &["no"])
}

async fn add_slots(master: &RedisProcess, slots: std::ops::Range<u16>) {
    let slots: Vec<String> = slots.map(|slot| slot.to_string()).collect();
    let words = ["CLUSTER", "ADDSLOTS"].into_iter().chain(slots.iter().map(String::as_str));
    master.cli(&words.collect::<Vec<_>>()).await;
}

/// Whether the port of the cluster bus can be set: since Redis 7.0. Before, it is always 10,000 above the other one.
fn has_cluster_port() -> bool {
    Engine::installed().is_some_and(Engine::is_redis_7_or_later)
}

fn bus_port(master: &RedisProcess) -> u16 {
    if has_cluster_port() { master.port_of("cluster-port") } else { master.port() + 10_000 }
}

/// The slots of a master, which are those of the same master in the model of Redis.
const fn slots_of(index: u16) -> std::ops::Range<u16> {
    const fn first(index: u16) -> u16 {
        (index as u32 * SLOTS as u32).div_ceil(MASTERS as u32) as u16
    }
    first(index)..first(index + 1)
}

/// Computes the slot of a key, without asking a node that a test may have stopped.
pub fn slot(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    let hashed = tag.filter(|tag| !tag.is_empty()).unwrap_or(key);
    // CRC-16/XMODEM, bit by bit.
    let step = |crc: u16| if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 };
    let crc = hashed.bytes().fold(0, |crc, byte| (0..8).fold(crc ^ u16::from(byte) << 8, |crc, _| step(crc)));
    crc % SLOTS
}
