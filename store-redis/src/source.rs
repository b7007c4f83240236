//! Where connections come from: whatever the service has already.
//!
//! A client, a deadpool pool, a Cluster or a Sentinel client or pool. Nothing is dialled when the store is made.
//! Connections are taken out of a pool and kept, because what a pool does at every checkout (recycle, wait for a slot)
//! is what a hung server turns into seconds.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use deadpool_redis::{cluster, sentinel};
use futures_util::{FutureExt, Stream, StreamExt};
use redis::aio::{MultiplexedConnection, PubSubSink};
use redis::cluster::{ClusterClient, ClusterConfig};
use redis::cluster_async::ClusterConnection;
use redis::sentinel::SentinelClient;
use redis::{AsyncConnectionConfig, Client, ErrorKind, PushInfo, PushKind, RedisError, Value};
use tokio::sync::{Mutex, mpsc};

use crate::connection::{ANY_MASTER, Connection};
use crate::failure::Failure;

/// How long it may take to connect to one server, and how long to find one first: past sentinels that hang, or together
/// with all others of a Cluster. It happens in the background: callers wait for their budget at most.
pub(crate) const CONNECT: Duration = Duration::from_secs(1);
const FIND: Duration = Duration::from_secs(5);

/// Where connections come from.
#[derive(Clone)]
pub struct RedisConnection {
    from: From,
    /// Who subscribes to changes of phase, if not the source itself.
    push: Option<Client>,
}

#[derive(Clone)]
enum From {
    Client(Box<Client>),
    Pool(deadpool_redis::Pool),
    Cluster(Box<ClusterClient>),
    ClusterPool(cluster::Pool),
    Sentinel(Arc<Mutex<SentinelClient>>),
    SentinelPool(sentinel::Pool),
}

impl RedisConnection {
    /// Lets this client subscribe to changes of phase: pools hand out connections that cannot. Without it a pool's
    /// replicas hear of each other's trips with the next `sync_interval`.
    #[must_use]
    pub fn with_push(mut self, client: Client) -> Self {
        self.push = Some(client);
        self
    }

    pub(crate) const fn is_cluster(&self) -> bool {
        matches!(self.from, From::Cluster(_) | From::ClusterPool(_))
    }

    /// How long dialling may take.
    const fn patience(&self) -> Duration {
        match self.from {
            From::Client(_) | From::Pool(_) => CONNECT,
            From::Cluster(_) | From::ClusterPool(_) | From::Sentinel(_) | From::SentinelPool(_) => FIND,
        }
    }

    /// Opens a connection.
    pub(crate) async fn dial(&self) -> Result<Connection, Failure> {
        guarded(self.patience(), self.dial_unbounded()).await?
    }

    async fn dial_unbounded(&self) -> Result<Connection, Failure> {
        let failed = |error: RedisError| of_dialling(&error);
        match &self.from {
            From::Client(client) => dial_client(client).await.map(Connection::single).map_err(failed),
            From::Sentinel(sentinel) => {
                let client = sentinel.lock().await.async_get_client().await.map_err(failed)?;
                dial_client(&client).await.map(Connection::single).map_err(failed)
            }
            From::Cluster(client) => {
                let dialled = client.get_async_connection_with_config(node_limits()).await;
                dialled.map(Connection::cluster).map_err(failed)
            }
            From::Pool(pool) => {
                let object = pool.get().await.map_err(of_pool)?;
                Ok(Connection::single(deadpool_redis::Connection::take(object)))
            }
            From::SentinelPool(pool) => {
                let object = pool.get().await.map_err(of_pool)?;
                Ok(Connection::single(sentinel::Connection::take(object)))
            }
            From::ClusterPool(pool) => {
                let object = pool.get().await.map_err(of_pool)?;
                Ok(Connection::cluster(cluster::Connection::take(object)))
            }
        }
    }

    /// Subscribes to a channel; none if this source cannot.
    pub(crate) async fn subscribe(&self, channel: &str) -> Option<Result<Subscription, Failure>> {
        let subscribing = async {
            let client = match (&self.push, &self.from) {
                (Some(client), _) => client.clone(),
                (None, From::Client(client)) => (**client).clone(),
                (None, From::Sentinel(sentinel)) => match sentinel.lock().await.async_get_client().await {
                    Ok(client) => client,
                    Err(error) => return Some(Err(of_dialling(&error))),
                },
                (None, From::Cluster(client)) => return subscribe_cluster(client, channel).await,
                (None, From::Pool(_) | From::SentinelPool(_) | From::ClusterPool(_)) => return None,
            };
            Some(subscribe_client(&client, channel).await.map_err(|error| of_dialling(&error)))
        };
        guarded(self.patience(), subscribing).await.unwrap_or_else(|failure| Some(Err(failure)))
    }
}

/// Waits for a client's work no longer than that. rustls panics where it finds no crypto provider, or more than one to
/// choose from; that must not be the end of the keeper.
async fn guarded<T>(patience: Duration, work: impl Future<Output = T>) -> Result<T, Failure> {
    match tokio::time::timeout(patience, AssertUnwindSafe(work).catch_unwind()).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(_)) => Err(Failure::Rejecting("TLS")),
        Err(_) => Err(Failure::Connection),
    }
}

/// Why nobody could be dialled. That TLS rejected only the words of the error tell.
fn of_dialling(error: &RedisError) -> Failure {
    const TLS: [&str; 3] = ["certificate", "fatal alert", "corrupt message"];
    let words = error.to_string();
    let by_tls = error.is_io_error() && TLS.iter().any(|word| words.contains(word));
    if by_tls { Failure::Rejecting("TLS") } else { Failure::of(error) }
}

/// A pool's error is its connection's, or that it had none to give.
fn of_pool(error: deadpool_redis::PoolError) -> Failure {
    match error {
        deadpool_redis::PoolError::Backend(error) => of_dialling(&error),
        _ => Failure::Connection,
    }
}

async fn dial_client(client: &Client) -> Result<MultiplexedConnection, RedisError> {
    // The budget is ours: one timer for waiting, dialling and the command together.
    let config = AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(Some(CONNECT));
    client.get_multiplexed_async_connection_with_config(&config).await
}

/// The client has no limit of its own for answers, and waits for a node that hangs while it looks for others. Longer than
/// any budget: what nobody waits for any more is not repeated.
fn node_limits() -> ClusterConfig {
    ClusterConfig::new().set_connection_timeout(CONNECT / 2).set_response_timeout(CONNECT)
}

/// Messages of a channel.
pub(crate) struct Subscription {
    pub(crate) messages: Pin<Box<dyn Stream<Item = String> + Send>>,
    keep: Keep,
}

/// What has to live as long as the subscription.
enum Keep {
    Client(PubSubSink),
    Cluster { connection: ClusterConnection, channel: String },
}

impl Subscription {
    /// Whether the other end still answers. A connection that swallows everything looks like a quiet one.
    pub(crate) async fn is_alive(&mut self) -> bool {
        let answer = async {
            match &mut self.keep {
                Keep::Client(sink) => sink.ping::<Value>().await.is_ok(),
                Keep::Cluster { connection, channel } => subscribe_everywhere(connection, channel).await.is_ok(),
            }
        };
        tokio::time::timeout(CONNECT, answer).await.unwrap_or(false)
    }
}

async fn subscribe_client(client: &Client, channel: &str) -> Result<Subscription, RedisError> {
    let (mut sink, messages) = client.get_async_pubsub().await?.split();
    sink.subscribe(channel).await?;
    let messages = messages.filter_map(|message| std::future::ready(message.get_payload::<String>().ok()));
    Ok(Subscription { messages: Box::pin(messages), keep: Keep::Client(sink) })
}

/// In a Cluster a message published anywhere reaches every node. Over RESP2 there is no way to hear it.
async fn subscribe_cluster(client: &ClusterClient, channel: &str) -> Option<Result<Subscription, Failure>> {
    let (sender, receiver) = mpsc::unbounded_channel::<PushInfo>();
    let config = node_limits().set_push_sender(sender);
    let mut connection = match client.get_async_connection_with_config(config).await {
        Ok(connection) => connection,
        Err(error) => return Some(Err(of_dialling(&error))),
    };
    // Which of the two it speaks, a connection says by rejecting at once.
    let rejected = connection.subscribe(channel).now_or_never();
    if matches!(rejected, Some(Err(error)) if error.kind() == ErrorKind::RESP3NotSupported) {
        return None;
    }
    let subscribed = subscribe_everywhere(&mut connection, channel).await;
    Some(subscribed.map_err(|error| Failure::of(&error)).map(|()| {
        let messages = Box::pin(messages(receiver));
        Subscription { messages, keep: Keep::Cluster { connection, channel: channel.to_owned() } }
    }))
}

/// Subscribes on every master that answers, so that one that hangs takes nobody's messages away; what is heard more than
/// once is no news. Done over and over it also finds masters that are new, or new again.
async fn subscribe_everywhere(connection: &mut ClusterConnection, channel: &str) -> Result<(), RedisError> {
    let subscribe = redis::cmd("SUBSCRIBE").arg(channel).to_owned();
    connection.route_command(subscribe, ANY_MASTER).await.map(|_| ())
}

fn messages(receiver: mpsc::UnboundedReceiver<PushInfo>) -> impl Stream<Item = String> {
    futures_util::stream::unfold(receiver, |mut receiver| async {
        loop {
            let push = receiver.recv().await?;
            if let (PushKind::Message, [_, Value::BulkString(payload)]) = (&push.kind, &push.data[..])
                && let Ok(text) = String::from_utf8(payload.clone())
            {
                return Some((text, receiver));
            }
        }
    })
}

macro_rules! from {
    ($($type:ty => $make:expr),+ $(,)?) => {$(
        impl std::convert::From<$type> for RedisConnection {
            fn from(given: $type) -> Self {
                Self { from: $make(given), push: None }
            }
        }
    )+};
}

from! {
    Client => |client| From::Client(Box::new(client)),
    deadpool_redis::Pool => From::Pool,
    ClusterClient => |client| From::Cluster(Box::new(client)),
    cluster::Pool => From::ClusterPool,
    SentinelClient => |client| From::Sentinel(Arc::new(Mutex::new(client))),
    sentinel::Pool => From::SentinelPool,
}

/// No address and no password: secrets live in both.
impl fmt::Debug for RedisConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let from = match &self.from {
            From::Client(_) => "client",
            From::Pool(_) => "pool",
            From::Cluster(_) => "cluster",
            From::ClusterPool(_) => "cluster pool",
            From::Sentinel(_) => "sentinel",
            From::SentinelPool(_) => "sentinel pool",
        };
        f.debug_struct("RedisConnection").field("from", &from).field("push", &self.push.is_some()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_client_that_panics_is_a_dial_that_failed() {
        let panics = async { std::panic::resume_unwind(Box::new("no crypto provider")) }; // one that does not print
        assert_eq!(guarded::<()>(Duration::from_secs(1), panics).await, Err(Failure::Rejecting("TLS")));
        assert_eq!(guarded(Duration::from_secs(1), async { 7 }).await, Ok(7));
        let never = std::future::pending::<()>();
        assert_eq!(guarded(Duration::from_secs(1), never).await, Err(Failure::Connection));
    }
}
