//! A Redis Cluster: three masters, a third of the slots each, no replicas.
//!
//! The slots of a dead or hung master are gone and the others' are served (`cluster-require-full-coverage no`), because
//! that is what a test of one sick shard wants to see. Starting takes two seconds: that long every master stays shy
//! after its start, and no setting shortens it.

use super::spawned::{Options, Spawned};

/// All slots there are.
pub const SLOTS: u16 = 16_384;

const MASTERS: u16 = 3;

/// The cluster.
#[derive(Debug)]
pub struct Cluster {
    masters: Vec<Spawned>,
}

impl Cluster {
    /// A plain one; a silent master counts as failed after two seconds.
    pub async fn start() -> Self {
        Self::with(Options::new()).await
    }

    /// One whose masters all have these options.
    pub async fn with(options: Options) -> Self {
        let options = Options::new()
            .port("cluster-port")
            .set("cluster-enabled", &["yes"])
            .set("cluster-node-timeout", &["2000"])
            .set("cluster-require-full-coverage", &["no"])
            .and(options);
        let (a, b, c) = tokio::join!(
            Spawned::with(options.clone()),
            Spawned::with(options.clone()),
            Spawned::with(options.clone())
        );
        let cluster = Self { masters: vec![a, b, c] };
        cluster.introduce().await;
        cluster
    }

    /// The masters, in the order of their slots. Each can be stopped, killed and started again; a new start keeps the
    /// node's identity and slots and loses its keys.
    pub fn masters(&self) -> &[Spawned] {
        &self.masters
    }

    /// How clients reach them.
    pub fn urls(&self) -> Vec<String> {
        self.masters.iter().map(Spawned::url).collect()
    }

    /// The master that holds a key.
    pub fn master_of(&self, key: &str) -> &Spawned {
        &self.masters[usize::from(slot(key) / share())]
    }

    /// Returns when every master that runs knows all the others to serve all slots.
    pub async fn settle(&self) {
        for master in &self.masters {
            let slots = format!("cluster_slots_ok:{SLOTS}");
            let nodes = format!("cluster_known_nodes:{MASTERS}");
            let fine = ["cluster_state:ok", slots.as_str(), nodes.as_str()];
            master.until(&["CLUSTER", "INFO"], |info| fine.iter().all(|line| info.contains(line))).await;
        }
    }

    async fn introduce(&self) {
        for (place, master) in (0..).zip(&self.masters) {
            // Epochs of their own from the start, or the nodes would first have to quarrel about them.
            master.cli(&["CLUSTER", "SET-CONFIG-EPOCH", &(place + 1).to_string()]).await;
            let (first, last) = (place * share(), ((place + 1) * share() - 1).min(SLOTS - 1));
            master.cli(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()]).await;
        }
        // Everyone meets everyone: gossip would get there too, later.
        for one in &self.masters {
            for other in self.masters.iter().filter(|other| other.port() > one.port()) {
                let (port, bus) = (other.port().to_string(), other.port_of("cluster-port").to_string());
                one.cli(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]).await;
            }
        }
        self.settle().await;
    }
}

/// How many slots a master holds; the last one a few less.
const fn share() -> u16 {
    SLOTS.div_ceil(MASTERS)
}

/// The slot of a key. Any node could be asked, but a test may have stopped it.
pub fn slot(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    let hashed = tag.filter(|tag| !tag.is_empty()).unwrap_or(key);
    // CRC-16/XMODEM, bit by bit.
    let step = |crc: u16| if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 };
    let crc = hashed.bytes().fold(0, |crc, byte| (0..8).fold(crc ^ u16::from(byte) << 8, |crc, _| step(crc)));
    crc % SLOTS
}
