//! Where connections come from: whatever the service has already.
//!
//! A client, a deadpool pool, a Cluster or a Sentinel client or pool. Nothing is dialled when the store is made.
//! Connections are taken out of a pool and kept, because what a pool does at every checkout (recycle, wait for a slot)
//! is what a hung server turns into seconds.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use deadpool_redis::{cluster, sentinel};
use futures_util::{Stream, StreamExt};
use redis::aio::{MultiplexedConnection, PubSubSink};
use redis::cluster::{ClusterClient, ClusterConfig};
use redis::cluster_async::ClusterConnection;
use redis::sentinel::SentinelClient;
use redis::{AsyncConnectionConfig, Client, PushInfo, PushKind, RedisError, Value};
use tokio::sync::{Mutex, mpsc};

use crate::connection::Connection;
use crate::failure::Failure;

/// How long dialling may take. It happens in the background: callers wait for their budget at most.
pub(crate) const DIAL: Duration = Duration::from_secs(1);

/// Where connections come from.
#[derive(Clone)]
pub struct Source {
    from: From,
    /// Who subscribes to changes of phase, if not the source itself.
    push: Option<Client>,
}

#[derive(Clone)]
enum From {
    Client(Client),
    Pool(deadpool_redis::Pool),
    Cluster(Box<ClusterClient>),
    ClusterPool(cluster::Pool),
    Sentinel(Arc<Mutex<SentinelClient>>),
    SentinelPool(sentinel::Pool),
}

impl Source {
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

    /// Opens a connection.
    pub(crate) async fn dial(&self) -> Result<Connection, Failure> {
        let dialled = tokio::time::timeout(DIAL, self.dial_unbounded()).await;
        dialled.unwrap_or(Err(Failure::Connection))
    }

    async fn dial_unbounded(&self) -> Result<Connection, Failure> {
        let failed = |error: RedisError| Failure::of(&error);
        match &self.from {
            From::Client(client) => dial_client(client).await.map(Connection::single).map_err(failed),
            From::Sentinel(sentinel) => {
                let client = sentinel.lock().await.async_get_client().await.map_err(failed)?;
                dial_client(&client).await.map(Connection::single).map_err(failed)
            }
            From::Cluster(client) => client.get_async_connection().await.map(Connection::cluster).map_err(failed),
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
                (Some(client), _) | (None, From::Client(client)) => client.clone(),
                (None, From::Sentinel(sentinel)) => match sentinel.lock().await.async_get_client().await {
                    Ok(client) => client,
                    Err(error) => return Some(Err(Failure::of(&error))),
                },
                (None, From::Cluster(client)) => return subscribe_cluster(client, channel).await,
                (None, From::Pool(_) | From::SentinelPool(_) | From::ClusterPool(_)) => return None,
            };
            Some(subscribe_client(&client, channel).await.map_err(|error| Failure::of(&error)))
        };
        tokio::time::timeout(DIAL, subscribing).await.unwrap_or(Some(Err(Failure::Connection)))
    }
}

/// A pool's error is its connection's, or that it had none to give.
fn of_pool(error: deadpool_redis::PoolError) -> Failure {
    match error {
        deadpool_redis::PoolError::Backend(error) => Failure::of(&error),
        _ => Failure::Connection,
    }
}

async fn dial_client(client: &Client) -> Result<MultiplexedConnection, RedisError> {
    // The budget is ours: one timer for waiting, dialling and the command together.
    let config = AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(Some(DIAL));
    client.get_multiplexed_async_connection_with_config(&config).await
}

/// Messages of a channel.
pub(crate) struct Subscription {
    pub(crate) messages: Pin<Box<dyn Stream<Item = String> + Send>>,
    keep: Keep,
}

/// What has to live as long as the subscription.
enum Keep {
    Client(PubSubSink),
    Cluster(#[allow(dead_code)] ClusterConnection),
}

impl Subscription {
    /// Whether the other end still answers. A connection that swallows everything looks like a quiet one.
    pub(crate) async fn is_alive(&mut self) -> bool {
        match &mut self.keep {
            Keep::Client(sink) => {
                matches!(tokio::time::timeout(DIAL, sink.ping::<Value>()).await, Ok(Ok(_)))
            }
            Keep::Cluster(_) => true, // the client looks after it
        }
    }
}

async fn subscribe_client(client: &Client, channel: &str) -> Result<Subscription, RedisError> {
    let (mut sink, messages) = client.get_async_pubsub().await?.split();
    sink.subscribe(channel).await?;
    let messages = messages.filter_map(|message| std::future::ready(message.get_payload::<String>().ok()));
    Ok(Subscription { messages: Box::pin(messages), keep: Keep::Client(sink) })
}

/// In a Cluster a message published anywhere reaches every node; over RESP2 there is no way to hear it.
async fn subscribe_cluster(client: &ClusterClient, channel: &str) -> Option<Result<Subscription, Failure>> {
    let (sender, receiver) = mpsc::unbounded_channel::<PushInfo>();
    let config = ClusterConfig::new().set_push_sender(sender);
    let mut connection = client.get_async_connection_with_config(config).await.ok()?;
    if let Err(error) = connection.subscribe(channel).await {
        return match Failure::of(&error) {
            Failure::Call(_) => None,
            failure => Some(Err(failure)),
        };
    }
    let messages = futures_util::stream::unfold(receiver, |mut receiver| async {
        loop {
            let push = receiver.recv().await?;
            if let (PushKind::Message, [_, Value::BulkString(payload)]) = (&push.kind, &push.data[..])
                && let Ok(text) = String::from_utf8(payload.clone())
            {
                return Some((text, receiver));
            }
        }
    });
    Some(Ok(Subscription { messages: Box::pin(messages), keep: Keep::Cluster(connection) }))
}

macro_rules! from {
    ($($type:ty => $make:expr),+ $(,)?) => {$(
        impl std::convert::From<$type> for Source {
            fn from(given: $type) -> Self {
                Self { from: $make(given), push: None }
            }
        }
    )+};
}

from! {
    Client => From::Client,
    deadpool_redis::Pool => From::Pool,
    ClusterClient => |client| From::Cluster(Box::new(client)),
    cluster::Pool => From::ClusterPool,
    SentinelClient => |client| From::Sentinel(Arc::new(Mutex::new(client))),
    sentinel::Pool => From::SentinelPool,
}

/// No address and no password: secrets live in both.
impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let from = match &self.from {
            From::Client(_) => "client",
            From::Pool(_) => "pool",
            From::Cluster(_) => "cluster",
            From::ClusterPool(_) => "cluster pool",
            From::Sentinel(_) => "sentinel",
            From::SentinelPool(_) => "sentinel pool",
        };
        f.debug_struct("Source").field("from", &from).field("push", &self.push.is_some()).finish()
    }
}
