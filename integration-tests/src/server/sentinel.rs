//! A master, its replicas and three sentinels that watch them.
//!
//! A master that is silent for 400 ms is down, two sentinels have to agree, and a replica takes its place about a second
//! later. The sentinels gossip faster than usual, where the server lets them, so that tests need not wait for them.

use super::spawned::{Options, Spawned};

/// What the sentinels call their master.
pub const MASTER_NAME: &str = "phalanx-test";

const SENTINELS: usize = 3;

/// The formation.
#[derive(Debug)]
pub struct Sentinel {
    sentinels: Vec<Spawned>,
    servers: Vec<Spawned>,
}

impl Sentinel {
    /// One master and one replica.
    pub async fn start() -> Self {
        Self::with(1, Options::new()).await
    }

    /// One master and so many replicas, all with these options.
    pub async fn with(replicas: usize, options: Options) -> Self {
        // By default a master waits five seconds for more replicas before it serves the first.
        let options = Options::new().set("repl-diskless-sync-delay", &["0"]).and(options);
        let mut servers = vec![Spawned::with(options.clone()).await];
        let port = servers[0].port().to_string();
        for _ in 0..replicas {
            servers.push(Spawned::with(options.clone().set("replicaof", &["127.0.0.1", &port])).await);
        }
        for replica in &servers[1..] {
            replica.until(&["INFO", "replication"], |info| info.contains("master_link_status:up")).await;
        }
        let watch = watching(&port);
        let (a, b, c) =
            tokio::join!(Spawned::with(watch.clone()), Spawned::with(watch.clone()), Spawned::with(watch.clone()));
        let formation = Self { sentinels: vec![a, b, c], servers };
        formation.introduce().await;
        formation
    }

    /// The name under which clients ask for the master.
    pub fn master_name(&self) -> &'static str {
        MASTER_NAME
    }

    /// How clients reach the sentinels.
    pub fn sentinel_urls(&self) -> Vec<String> {
        self.sentinels.iter().map(Spawned::url).collect()
    }

    /// The sentinels.
    pub fn sentinels(&self) -> &[Spawned] {
        &self.sentinels
    }

    /// The servers, the first master first; who is master now, [`Sentinel::master`] knows.
    pub fn servers(&self) -> &[Spawned] {
        &self.servers
    }

    /// The server that the sentinels call master, which they do for a while after it has died.
    pub async fn master(&self) -> &Spawned {
        let address = self.sentinels[0].cli(&WHO).await;
        let is_named = |server: &&Spawned| named(&address) == server.port();
        self.servers.iter().find(is_named).expect("the master is one of the servers")
    }

    /// Has a replica take over from a healthy master and returns when all sentinels agree on it and it takes writes.
    pub async fn fail_over(&self) -> &Spawned {
        let old = self.master().await.port();
        self.sentinels[0].cli(&["SENTINEL", "FAILOVER", MASTER_NAME]).await;
        self.until_another_than(old).await
    }

    /// Returns the new master when all sentinels agree on another one than that on `port` and it takes writes: what to
    /// wait for after killing or stopping the old one.
    pub async fn until_another_than(&self, port: u16) -> &Spawned {
        let mut address = String::new();
        for sentinel in &self.sentinels {
            address = sentinel.until(&WHO, |address| named(address) != port).await;
        }
        let master = self.servers.iter().find(|server| server.port() == named(&address)).expect("one of the servers");
        master.until(&["ROLE"], |role| role.starts_with("master")).await;
        master
    }

    /// Returns when every sentinel knows all replicas, connected and fit to take over, and all other sentinels.
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
            // Known from 7.0 on; without it everything works, a few seconds later.
            let hurry = ["SENTINEL", "DEBUG", "PUBLISH-PERIOD", "100", "INFO-PERIOD", "100", "ASK-PERIOD", "100"];
            let _ = sentinel.try_cli(&hurry).await;
        }
        self.until_replicas_are_known().await;
    }
}

const WHO: [&str; 3] = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER_NAME];

/// The port in an address of two lines; zero, nobody's, if it is none.
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
