//! `RedisConnection`: what a store connects with, taken from what the service already has.
//!
//! A client, a deadpool pool, or a Cluster or Sentinel client or pool. Nothing is connected when the store is built.
//! Connections are taken out of a pool for good, because the work of a pool at every checkout (recycle, wait for a
//! slot) takes seconds with a server that hangs.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use deadpool_redis::{cluster, sentinel};
use futures_util::{FutureExt, Stream, StreamExt};
use redis::aio::PubSubSink;
use redis::cluster::{ClusterClient, ClusterConfig};
use redis::cluster_async::ClusterConnection;
use redis::sentinel::SentinelClient;
use redis::{AsyncConnectionConfig, Client, ErrorKind, PushInfo, PushKind, RedisError, Value};
use tokio::sync::{Mutex, mpsc};

use crate::cluster_connection;
use crate::connection::{ANY_MASTER, Connection};
use crate::failure::Failure;
use crate::transport::{Boxed, Transport, TransportSubscription};

/// How long connecting to one server may take, and how long it may take to find one first: past sentinels that hang, or
/// together with all nodes of a Cluster. Both happen in the background; callers wait for their budget at most.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(5);
/// How long connecting to one node of a Cluster may take: the client waits for one that hangs while it looks for others.
pub(crate) const NODE_CONNECT_TIMEOUT: Duration = Duration::from_millis(500);

/// What a store connects with: a client, a pool, a Cluster or a Sentinel.
///
/// # Examples
///
/// ```
/// use phalanx_store_redis::{RedisConnection, RedisStore, StoreMode};
///
/// let config = deadpool_redis::Config::from_url("redis://127.0.0.1/");
/// let pool = config.create_pool(Some(deadpool_redis::Runtime::Tokio1)).expect("a valid URL");
///
/// // A pooled connection cannot subscribe, so a client is added for pushes.
/// let connection = RedisConnection::from(pool).with_push(redis::Client::open("redis://127.0.0.1/")?);
/// assert!(!format!("{connection:?}").contains("127.0.0.1"), "no address is logged");
///
/// let store = RedisStore::over(connection).build().expect("the default options are valid");
/// assert_eq!(store.mode(), StoreMode::Connecting);
/// # Ok::<(), redis::RedisError>(())
/// ```
#[derive(Clone)]
pub struct RedisConnection {
    provider: Provider,
    /// Subscribes to pushes instead of `provider`.
    push_client: Option<Client>,
}

#[derive(Clone)]
enum Provider {
    Client(Box<Client>),
    Pool(deadpool_redis::Pool),
    Cluster(Box<ClusterClient>),
    ClusterPool(cluster::Pool),
    Sentinel(Arc<Mutex<SentinelClient>>),
    SentinelPool(sentinel::Pool),
    Transport(Arc<dyn Transport>),
}

impl RedisConnection {
    /// Subscribes to pushes with this client: pools hand out connections that cannot. Without it, the replicas receive
    /// each other's trips with the next `sync_interval`.
    #[must_use]
    pub fn with_push(mut self, client: Client) -> Self {
        self.push_client = Some(client);
        self
    }

    /// Connects with a transport that is not a socket: the in-process Redis of `phalanx-testkit`.
    #[doc(hidden)]
    pub fn over_transport(transport: Arc<dyn Transport>) -> Self {
        Self { provider: Provider::Transport(transport), push_client: None }
    }

    pub(crate) fn is_cluster(&self) -> bool {
        match &self.provider {
            Provider::Cluster(_) | Provider::ClusterPool(_) => true,
            Provider::Transport(transport) => transport.is_cluster(),
            Provider::Client(_) | Provider::Pool(_) | Provider::Sentinel(_) | Provider::SentinelPool(_) => false,
        }
    }

    const fn kind(&self) -> &'static str {
        match &self.provider {
            Provider::Client(_) => "client",
            Provider::Pool(_) => "pool",
            Provider::Cluster(_) => "cluster",
            Provider::ClusterPool(_) => "cluster pool",
            Provider::Sentinel(_) => "sentinel",
            Provider::SentinelPool(_) => "sentinel pool",
            Provider::Transport(_) => "transport",
        }
    }

    /// The seed of this replica's ids in a simulation.
    pub(crate) fn identity_seed(&self) -> Option<u64> {
        match &self.provider {
            Provider::Transport(transport) => transport.identity_seed(),
            _ => None,
        }
    }

    /// How long connecting may take.
    const fn connect_timeout(&self) -> Duration {
        match self.provider {
            Provider::Client(_) | Provider::Pool(_) | Provider::Transport(_) => CONNECT_TIMEOUT,
            Provider::Cluster(_) | Provider::ClusterPool(_) | Provider::Sentinel(_) | Provider::SentinelPool(_) => {
                DISCOVERY_TIMEOUT
            }
        }
    }

    /// Opens a connection.
    pub(crate) async fn connect(&self) -> Result<Connection, Failure> {
        bounded(self.connect_timeout(), self.connect_unbounded()).await?
    }

    async fn connect_unbounded(&self) -> Result<Connection, Failure> {
        let failed = |error: RedisError| Failure::of_connecting(&error);
        match &self.provider {
            Provider::Client(client) => connect_client(client).await.map_err(failed),
            Provider::Sentinel(sentinel) => {
                let client = sentinel.lock().await.async_get_client().await.map_err(failed)?;
                connect_client(&client).await.map_err(failed)
            }
            Provider::Cluster(client) => {
                cluster_connection::ClusterConnection::open(client).await.map(Connection::cluster).map_err(failed)
            }
            Provider::Pool(pool) => {
                let object = pool.get().await.map_err(pool_failure)?;
                Ok(Connection::single(deadpool_redis::Connection::take(object)))
            }
            Provider::SentinelPool(pool) => {
                let object = pool.get().await.map_err(pool_failure)?;
                Ok(Connection::single(sentinel::Connection::take(object)))
            }
            Provider::ClusterPool(pool) => {
                let object = pool.get().await.map_err(pool_failure)?;
                Ok(Connection::cluster(cluster_connection::ClusterConnection::Pooled(cluster::Connection::take(
                    object,
                ))))
            }
            Provider::Transport(transport) => transport.connect().await.map(Connection::transport),
        }
    }

    /// Subscribes to a channel; `None` if this kind of connection cannot.
    pub(crate) async fn subscribe(&self, channel: &str) -> Option<Result<Subscription, Failure>> {
        let subscribing = async {
            let client = match (&self.push_client, &self.provider) {
                (Some(client), _) => client.clone(),
                (None, Provider::Client(client)) => (**client).clone(),
                (None, Provider::Sentinel(sentinel)) => match sentinel.lock().await.async_get_client().await {
                    Ok(client) => client,
                    Err(error) => return Some(Err(Failure::of_connecting(&error))),
                },
                (None, Provider::Cluster(client)) => return subscribe_cluster(client, channel).await,
                (None, Provider::Transport(transport)) => {
                    let subscribed = transport.subscribe(channel).await?;
                    return Some(subscribed.map(Subscription::of_transport));
                }
                (None, Provider::Pool(_) | Provider::SentinelPool(_) | Provider::ClusterPool(_)) => return None,
            };
            Some(subscribe_client(&client, channel).await.map_err(|error| Failure::of_connecting(&error)))
        };
        bounded(self.connect_timeout(), subscribing).await.unwrap_or_else(|failure| Some(Err(failure)))
    }
}

/// Limits the time of a client's work and catches its panics: rustls panics if it finds no crypto provider, or more
/// than one, and that must not end the background task.
async fn bounded<T>(connect_timeout: Duration, work: impl Future<Output = T>) -> Result<T, Failure> {
    match tokio::time::timeout(connect_timeout, AssertUnwindSafe(work).catch_unwind()).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(_)) => Err(Failure::Rejecting("TLS")),
        Err(_) => Err(Failure::Unreachable("timeout")),
    }
}

/// The error of the pooled connection, or that the pool had none.
fn pool_failure(error: deadpool_redis::PoolError) -> Failure {
    match error {
        deadpool_redis::PoolError::Backend(error) => Failure::of_connecting(&error),
        _ => Failure::Connection,
    }
}

async fn connect_client(client: &Client) -> Result<Connection, RedisError> {
    // The store budget covers queueing, connecting and the command with one timer, so the client needs none.
    let config = AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(Some(CONNECT_TIMEOUT));
    let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
    Ok(Connection::single(connection).at(client.get_connection_info().addr()))
}

/// A subscription to a channel.
pub(crate) struct Subscription {
    pub(crate) messages: Pin<Box<dyn Stream<Item = String> + Send>>,
    handle: SubscriptionHandle,
}

/// What has to live as long as the subscription.
enum SubscriptionHandle {
    Client(PubSubSink),
    Cluster { connection: ClusterConnection, channel: String },
    Transport(Box<dyn Fn() -> Boxed<'static, bool> + Send + Sync>),
}

impl Subscription {
    fn of_transport(subscription: TransportSubscription) -> Self {
        let messages = futures_util::stream::unfold(subscription.messages, |mut receiver| async {
            receiver.recv().await.map(|message| (message, receiver))
        });
        Self { messages: Box::pin(messages), handle: SubscriptionHandle::Transport(subscription.check_alive) }
    }

    /// Checks whether the server still replies. A connection that lost its peer looks like one without messages.
    pub(crate) async fn check_alive(&mut self) -> bool {
        let answer = async {
            match &mut self.handle {
                SubscriptionHandle::Client(sink) => sink.ping::<Value>().await.is_ok(),
                SubscriptionHandle::Cluster { connection, channel } => {
                    subscribe_everywhere(connection, channel).await.is_ok()
                }
                SubscriptionHandle::Transport(check_alive) => check_alive().await,
            }
        };
        tokio::time::timeout(CONNECT_TIMEOUT, answer).await.unwrap_or(false)
    }
}

async fn subscribe_client(client: &Client, channel: &str) -> Result<Subscription, RedisError> {
    let (mut sink, messages) = client.get_async_pubsub().await?.split();
    sink.subscribe(channel).await?;
    let messages = messages.filter_map(|message| std::future::ready(message.get_payload::<String>().ok()));
    Ok(Subscription { messages: Box::pin(messages), handle: SubscriptionHandle::Client(sink) })
}

/// In a Cluster, a message published on any node reaches every node. RESP2 connections cannot receive it.
async fn subscribe_cluster(client: &ClusterClient, channel: &str) -> Option<Result<Subscription, Failure>> {
    let (sender, receiver) = mpsc::unbounded_channel::<PushInfo>();
    // The limits of the connection for scripts.
    let limits =
        ClusterConfig::new().set_connection_timeout(NODE_CONNECT_TIMEOUT).set_response_timeout(CONNECT_TIMEOUT);
    let config = limits.set_push_sender(sender);
    let mut connection = match client.get_async_connection_with_config(config).await {
        Ok(connection) => connection,
        Err(error) => return Some(Err(Failure::of_connecting(&error))),
    };
    // A RESP2 connection rejects this at once.
    let rejected = connection.subscribe(channel).now_or_never();
    if matches!(rejected, Some(Err(error)) if error.kind() == ErrorKind::RESP3NotSupported) {
        return None;
    }
    let subscribed = subscribe_everywhere(&mut connection, channel).await;
    Some(subscribed.map_err(|error| Failure::of(&error)).map(|()| {
        let messages = Box::pin(messages(receiver));
        Subscription { messages, handle: SubscriptionHandle::Cluster { connection, channel: channel.to_owned() } }
    }))
}

/// Subscribes on every master that replies, so that one that hangs loses no messages; duplicates are stale and ignored.
/// Repeating it includes masters that are new or have returned.
async fn subscribe_everywhere(connection: &mut ClusterConnection, channel: &str) -> Result<(), RedisError> {
    let subscribe = redis::cmd("SUBSCRIBE").arg(channel).to_owned();
    connection.route_command(subscribe, ANY_MASTER).await.map(|_| ())
}

fn messages(receiver: mpsc::UnboundedReceiver<PushInfo>) -> impl Stream<Item = String> {
    futures_util::stream::unfold(receiver, |mut receiver| async {
        loop {
            let push_client = receiver.recv().await?;
            if let (PushKind::Message, [_, Value::BulkString(payload)]) = (&push_client.kind, &push_client.data[..])
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
                Self { provider: $make(given), push_client: None }
            }
        }
    )+};
}

from! {
    Client => |client| Provider::Client(Box::new(client)),
    deadpool_redis::Pool => Provider::Pool,
    ClusterClient => |client| Provider::Cluster(Box::new(client)),
    cluster::Pool => Provider::ClusterPool,
    SentinelClient => |client| Provider::Sentinel(Arc::new(Mutex::new(client))),
    sentinel::Pool => Provider::SentinelPool,
}

/// Shows neither address nor password, because both may contain secrets.
impl fmt::Debug for RedisConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisConnection")
            .field("from", &self.kind())
            .field("push", &self.push_client.is_some())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_client_that_panics_fails_to_connect() {
        let panics = async { std::panic::resume_unwind(Box::new("no crypto provider")) }; // does not print a message
        assert_eq!(bounded::<()>(Duration::from_secs(1), panics).await, Err(Failure::Rejecting("TLS")));
        assert_eq!(bounded(Duration::from_secs(1), async { 7 }).await, Ok(7));
        let never = std::future::pending::<()>();
        assert_eq!(bounded(Duration::from_secs(1), never).await, Err(Failure::Unreachable("timeout")));
    }
}
