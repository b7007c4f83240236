//! A master, its replicas and three sentinels.
//!
//! A master is down after 400 ms without a reply, if two sentinels agree, and a replica is promoted about a second later.
//! The sentinels gossip faster than by default, where the server allows it, to shorten the tests.

use super::redis_process::{Options, RedisProcess};

/// The name of the master in the sentinels.
pub const MASTER_NAME: &str = "phalanx-test";

const SENTINELS: usize = 3;

/// A running Sentinel deployment.
#[derive(Debug)]
pub struct Sentinel {
    sentinels: Vec<RedisProcess>,
    servers: Vec<RedisProcess>,
}

impl Sentinel {
    /// Starts one master and one replica.
    pub async fn start() -> Self {
        Self::with(1, Options::new()).await
    }

    /// Starts one master and several replicas, all with these options.
    pub async fn with(replicas: usize, options: Options) -> Self {
        // By default a master waits five seconds for more replicas before it syncs the first.
        let options = Options::new().set("repl-diskless-sync-delay", &["0"]).merge(options);
        let mut servers = vec![RedisProcess::with(options.clone()).await];
        let port = servers[0].port().to_string();
        for _ in 0..replicas {
            servers.push(RedisProcess::with(options.clone().set("replicaof", &["127.0.0.1", &port])).await);
        }
        for replica in &servers[1..] {
            replica.until(&["INFO", "replication"], |info| info.contains("master_link_status:up")).await;
        }
        let watch = watching(&port);
        let (a, b, c) = tokio::join!(
            RedisProcess::with(watch.clone()),
            RedisProcess::with(watch.clone()),
            RedisProcess::with(watch.clone())
        );
        let formation = Self { sentinels: vec![a, b, c], servers };
        formation.introduce().await;
        formation
    }

    /// Returns the name of the master in the sentinels.
    pub fn master_name(&self) -> &'static str {
        MASTER_NAME
    }

    /// Returns the URLs of the sentinels.
    pub fn sentinel_urls(&self) -> Vec<String> {
        self.sentinels.iter().map(RedisProcess::url).collect()
    }

    /// Returns the sentinels.
    pub fn sentinels(&self) -> &[RedisProcess] {
        &self.sentinels
    }

    /// Returns the servers, the initial master first. [`Sentinel::master`] returns the current master.
    pub fn servers(&self) -> &[RedisProcess] {
        &self.servers
    }

    /// Returns the current master according to the sentinels, which may have died recently.
    pub async fn master(&self) -> &RedisProcess {
        let address = self.sentinels[0].cli(&WHO).await;
        let is_named = |server: &&RedisProcess| named(&address) == server.port();
        self.servers.iter().find(is_named).expect("the master is one of the servers")
    }

    /// Promotes a replica of a healthy master. Waits until all sentinels agree on the new master and it accepts writes.
    pub async fn fail_over(&self) -> &RedisProcess {
        let old = self.master().await.port();
        self.sentinels[0].cli(&["SENTINEL", "FAILOVER", MASTER_NAME]).await;
        self.until_another_than(old).await
    }

    /// Waits until all sentinels agree on a master other than the one on `port` and it accepts writes, and returns it. For
    /// use after killing or stopping the old one.
    pub async fn until_another_than(&self, port: u16) -> &RedisProcess {
        let mut address = String::new();
        for sentinel in &self.sentinels {
            address = sentinel.until(&WHO, |address| named(address) != port).await;
        }
        let master = self
            .servers
            .iter()
            .find(|server| server.port() == named(&address))
            .expect("the master is one of the servers");
        master.until(&["ROLE"], |role| role.starts_with("master")).await;
        master
    }

    /// Waits until every sentinel knows all other sentinels and all replicas, connected and fit for promotion.
    pub async fn until_replicas_are_known(&self) {
        let wanted = [("num-slaves", self.servers.len() - 1), ("num-other-sentinels", SENTINELS - 1)];
        let wanted = wanted.map(|(name, count)| format!("{name}\n{count}\n"));
        for sentinel in &self.sentinels {
            let knows_all = |text: &str| wanted.iter().all(|pair| text.contains(pair));
            sentinel.until(&["SENTINEL", "MASTER", MASTER_NAME], knows_all).await;
            let all_fit = |text: &str| text.matches("master-link-status\nok").count() == self.servers.len() - 1;
            sentinel.until(&["SENTINEL", "REPLICAS", MASTER_NAME], all_fit).await;
        }
    }

    async fn introduce(&self) {
        for sentinel in &self.sentinels {
            // Available since 7.0; without it everything takes a few seconds longer.
            let hurry = ["SENTINEL", "DEBUG", "PUBLISH-PERIOD", "100", "INFO-PERIOD", "100", "ASK-PERIOD", "100"];
            let _ = sentinel.try_cli(&hurry).await;
        }
        self.until_replicas_are_known().await;
    }
}

const WHO: [&str; 3] = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER_NAME];

/// Returns the port of a two-line address; zero if there is none.
fn named(address: &str) -> u16 {
    address.lines().nth(1).and_then(|port| port.parse().ok()).unwrap_or_default()
}

fn watching(port: &str) -> Options {
    let lines = [
        format!("sentinel monitor {MASTER_NAME} 127.0.0.1 {port} 2"),
        format!("sentinel down-after-milliseconds {MASTER_NAME} 400"),
        format!("sentinel failover-timeout {MASTER_NAME} 3000"),
    ];
    Options::new().config_file("sentinel.conf", lines.join("\n") + "\n").set("sentinel", &[])
}
