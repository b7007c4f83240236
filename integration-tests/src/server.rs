//! Real servers for tests, and ways to hurt them.
//!
//! * [`Redis`]: a server, from wherever one can be had. Tests that only need a Redis use [`Redis::shared`] and a prefix
//!   of their own, or [`Redis::start`] for one to themselves.
//! * [`Spawned`]: a `redis-server` process that a test can stop, kill and start again.
//! * [`Cluster`], [`Sentinel`], [`Tls`], [`Restricted`]: the same, in the formations and dresses that Redis comes in.
//! * [`Proxy`]: a wire that stalls, delays, drips or breaks, in front of any of them.
//! * [`Replica`]: a child process that is a replica of the fleet under test.
//!
//! What all of them promise: ready when the constructor returns, on ports of their own, and gone when they are dropped
//! or the test process ends, however it ends. What we spawn listens on loopback only.

pub mod acl;
pub mod ask;
pub mod cluster;
pub mod container;
pub mod port;
pub mod process;
pub mod proxy;
pub mod replica;
pub mod sentinel;
pub mod spawned;
pub mod tls;

use tokio::sync::OnceCell;

pub use self::acl::Restricted;
use self::ask::ask;
pub use self::cluster::Cluster;
use self::container::{Container, IMAGE_VARIABLE};
pub use self::proxy::Proxy;
pub use self::replica::Replica;
pub use self::sentinel::{MASTER_NAME, Sentinel};
pub use self::spawned::{Options, Spawned};
pub use self::tls::Tls;

/// A server that is already there; [`Redis::shared`] uses it.
pub const URL_VARIABLE: &str = "REDIS_URL";

/// `container` or `spawn`: this way and no other, whatever else is there.
pub const WAY_VARIABLE: &str = "PHALANX_TEST_REDIS";

/// A server from wherever one can be had: a container, where Docker answers and has the image or can pull it; else a
/// process.
#[derive(Debug)]
pub enum Redis {
    /// A container.
    Container(Container),
    /// A process; fault tests take this one directly.
    Spawned(Spawned),
}

impl Redis {
    /// A fresh server for one test. Panics if there is none to be had, and says what to install.
    pub async fn start() -> Self {
        match Way::wanted() {
            Way::Container => {
                let container = Container::start().await;
                let container = container.unwrap_or_else(|why| panic!("{WAY_VARIABLE}=container, but {why}"));
                Self::Container(container)
            }
            Way::Spawn => Self::Spawned(Spawned::start().await),
            Way::Any => match Container::start().await {
                Ok(container) => Self::Container(container),
                Err(_) if Spawned::possible() => Self::Spawned(Spawned::start().await),
                Err(why) => panic!(
                    "no Redis to test with. Either set {URL_VARIABLE}, or have Docker run an image of it \
                     ({IMAGE_VARIABLE}; here: {why}), or install redis-server (scripts/setup does it on Debian)"
                ),
            },
        }
    }

    /// The URL of one server for all tests of this process; `REDIS_URL` if that is set. Tests keep apart by prefixes.
    pub async fn shared() -> &'static str {
        static SHARED: OnceCell<(String, Option<Redis>)> = OnceCell::const_new();
        &SHARED.get_or_init(find_shared).await.0
    }

    /// How it is reached.
    pub fn url(&self) -> String {
        match self {
            Self::Container(_) => format!("redis://{}", self.address()),
            Self::Spawned(server) => server.url(),
        }
    }

    /// Its port, on loopback or on the host that Docker publishes it on.
    pub fn port(&self) -> u16 {
        match self {
            Self::Container(container) => container.port(),
            Self::Spawned(server) => server.port(),
        }
    }

    /// Host and port, for a [`Proxy`] in front of it.
    pub fn address(&self) -> String {
        match self {
            Self::Container(container) => format!("{}:{}", container.host(), container.port()),
            Self::Spawned(server) => server.address(),
        }
    }

    /// The answer to a command, as text. Panics on an error.
    pub async fn cli(&self, words: &[&str]) -> String {
        ask(&self.url(), words).await.unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }
}

async fn find_shared() -> (String, Option<Redis>) {
    if let (Way::Any, Ok(url)) = (Way::wanted(), std::env::var(URL_VARIABLE)) {
        return (url, None);
    }
    let redis = Redis::start().await;
    if let Redis::Spawned(server) = &redis {
        server.forget_directory();
    }
    (redis.url(), Some(redis))
}

#[derive(Clone, Copy)]
enum Way {
    Any,
    Container,
    Spawn,
}

impl Way {
    fn wanted() -> Self {
        match std::env::var(WAY_VARIABLE).as_deref() {
            Ok("container") => Self::Container,
            Ok("spawn") => Self::Spawn,
            Ok(other) if !other.is_empty() => panic!("{WAY_VARIABLE} is container or spawn, not {other:?}"),
            _ => Self::Any,
        }
    }
}
