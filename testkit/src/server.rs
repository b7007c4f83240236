//! Real servers for tests, and fault injection.
//!
//! * [`Redis`]: a server in a container or a process, whichever is available. Tests that only need a Redis use
//!   [`Redis::shared`] with a prefix of their own, or [`Redis::start`] for a server of their own.
//! * [`RedisProcess`]: a `redis-server` process that a test can stop, kill and restart; [`Engine`]: which program that is.
//! * [`Cluster`], [`Sentinel`], [`TlsServer`], [`AclServer`]: Redis in its other deployments.
//! * [`Proxy`]: a TCP proxy that stalls, delays, throttles or resets connections to any of them.
//! * [`ChildProcess`]: a child process that exchanges lines with the test.
//!
//! All of them are ready when the constructor returns, listen on ports of their own, and are gone when they are dropped or
//! when the test process ends, however it ends. Spawned processes listen on loopback only. Spawning needs Linux and
//! `setpriv` (util-linux).

pub mod acl;
pub mod child_process;
pub mod cluster;
pub mod container;
pub mod engine;
pub mod port;
pub mod process;
pub mod proxy;
pub mod redis_cli;
pub mod redis_process;
pub mod sentinel;
pub mod tls;

use tokio::sync::OnceCell;

pub use self::acl::AclServer;
pub use self::child_process::ChildProcess;
pub use self::cluster::Cluster;
use self::container::{Container, IMAGE_VARIABLE};
pub use self::engine::Engine;
pub use self::proxy::Proxy;
use self::redis_cli::redis_command;
pub use self::redis_process::{Options, RedisProcess};
pub use self::sentinel::{MASTER_NAME, Sentinel};
pub use self::tls::TlsServer;

/// The variable with the URL of an existing server, which [`Redis::shared`] then uses.
pub const URL_VARIABLE: &str = "REDIS_URL";

/// The variable that selects how servers are started: `container` or `spawn`. Unset: whichever works.
pub const BACKEND_VARIABLE: &str = "PHALANX_TEST_REDIS";

/// A server: a container if Docker runs and has the image or can pull it, otherwise a process.
#[derive(Debug)]
pub enum Redis {
    /// A container.
    Container(Container),
    /// A process. Fault tests use [`RedisProcess`] directly.
    Process(RedisProcess),
}

impl Redis {
    /// Starts a server for one test. Panics with instructions if that is not possible.
    pub async fn start() -> Self {
        match Backend::configured() {
            Backend::Container => {
                let container = Container::start().await;
                let container = container.unwrap_or_else(|error| panic!("{BACKEND_VARIABLE}=container, but {error}"));
                Self::Container(container)
            }
            Backend::Spawn => Self::Process(RedisProcess::start().await),
            Backend::Any => match Container::start().await {
                Ok(container) => Self::Container(container),
                Err(_) if RedisProcess::is_installed() => Self::Process(RedisProcess::start().await),
                Err(error) => panic!(
                    "no Redis to test with. Either set {URL_VARIABLE}, or let Docker run an image of it \
                     ({IMAGE_VARIABLE}; failed: {error}), or install redis-server (scripts/setup does it on Debian)"
                ),
            },
        }
    }

    /// Returns the URL of one server shared by all tests of this process; `REDIS_URL` if that is set. Tests use prefixes
    /// of their own.
    pub async fn shared() -> &'static str {
        static SHARED: OnceCell<(String, Option<Redis>)> = OnceCell::const_new();
        &SHARED.get_or_init(find_shared).await.0
    }

    /// Returns its URL.
    pub fn url(&self) -> String {
        match self {
            Self::Container(_) => format!("redis://{}", self.address()),
            Self::Process(server) => server.url(),
        }
    }

    /// Returns its port, on loopback or on the host where Docker publishes it.
    pub fn port(&self) -> u16 {
        match self {
            Self::Container(container) => container.port(),
            Self::Process(server) => server.port(),
        }
    }

    /// Returns host and port, for a [`Proxy`] in front of it.
    pub fn address(&self) -> String {
        match self {
            Self::Container(container) => format!("{}:{}", container.host(), container.port()),
            Self::Process(server) => server.address(),
        }
    }

    /// Runs a command and returns the reply as text. Panics on an error.
    pub async fn cli(&self, words: &[&str]) -> String {
        redis_command(&self.url(), words).await.unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }
}

async fn find_shared() -> (String, Option<Redis>) {
    if let (Backend::Any, Ok(url)) = (Backend::configured(), std::env::var(URL_VARIABLE)) {
        return (url, None);
    }
    let redis = Redis::start().await;
    if let Redis::Process(server) = &redis {
        server.forget_directory();
    }
    (redis.url(), Some(redis))
}

#[derive(Clone, Copy)]
enum Backend {
    Any,
    Container,
    Spawn,
}

impl Backend {
    fn configured() -> Self {
        match std::env::var(BACKEND_VARIABLE).as_deref() {
            Ok("container") => Self::Container,
            Ok("spawn") => Self::Spawn,
            Ok(other) if !other.is_empty() => panic!("{BACKEND_VARIABLE} is container or spawn, not {other:?}"),
            _ if Engine::is_chosen() => Self::Spawn,
            _ => Self::Any,
        }
    }
}
