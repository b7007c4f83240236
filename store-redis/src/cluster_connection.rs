//! The connection to a Cluster, over which no script runs twice.
//!
//! The client of the redis crate sends a request again if its connection broke, also one that the node may have run. It
//! cannot be told otherwise without losing redirects, but it lets the connection to a node be of another type:
//! [`NodeConnection`] returns an error that the client does not repeat for a script that may have run. A redirect, or a
//! node that is not connected, means that the script did not run, and the client continues to deal with both.
//!
//! The connections of deadpool's Cluster pool are opened by the pool, with the client's own type.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fmt, io};

use futures_util::FutureExt;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClient;
use redis::cluster_async::Connect;
use redis::cluster_routing::RoutingInfo;
use redis::{
    Arg, AsyncConnectionConfig, Cmd, IntoConnectionInfo, Pipeline, RedisError, RedisFuture, RedisResult, Value,
    cluster_async,
};

use crate::failure::Failure;
use crate::redis_connection::{CONNECT_TIMEOUT, NODE_CONNECT_TIMEOUT};

/// A connection to all nodes of a Cluster. Clones share it.
#[derive(Clone)]
pub(crate) enum ClusterConnection {
    Client(cluster_async::ClusterConnection<NodeConnection>),
    /// Its client repeats scripts that may have run.
    Pooled(cluster_async::ClusterConnection),
}

impl ClusterConnection {
    /// Connects to all nodes.
    pub(crate) async fn open(client: &ClusterClient) -> RedisResult<Self> {
        client.get_async_generic_connection().await.map(Self::Client)
    }

    /// Sends a command to the master of its key.
    pub(crate) async fn request(&mut self, command: &Cmd) -> RedisResult<Value> {
        match self {
            Self::Client(connection) => connection.req_packed_command(command).await,
            Self::Pooled(connection) => connection.req_packed_command(command).await,
        }
    }

    /// Sends a command to these nodes.
    pub(crate) async fn route(&mut self, command: Cmd, nodes: RoutingInfo) -> RedisResult<Value> {
        match self {
            Self::Client(connection) => connection.route_command(command, nodes).await,
            Self::Pooled(connection) => connection.route_command(command, nodes).await,
        }
    }
}

/// The connection to one node. Clones share it.
#[derive(Clone)]
pub(crate) struct NodeConnection {
    connection: MultiplexedConnection,
    /// Whether a script has failed with the connection.
    broken: Arc<AtomicBool>,
}

impl NodeConnection {
    async fn request(&mut self, command: &Cmd) -> RedisResult<Value> {
        let is_script = is_script(command);
        if self.broken.load(Ordering::Acquire) || (is_script && self.has_ended()) {
            // Not sent: the client connects again, and sends it there.
            return Err(io::Error::from(io::ErrorKind::BrokenPipe).into());
        }
        if !is_script {
            return self.connection.req_packed_command(command).await;
        }
        // Errors that the node replies with are values here.
        self.connection.req_packed_command(command).await.map_err(|error| {
            self.broken.fetch_or(error.is_unrecoverable_error(), Ordering::AcqRel);
            MayHaveRun(Failure::of(&error)).into()
        })
    }

    /// Whether the connection is known to have ended, without waiting. The task that drives it no longer takes requests then.
    /// Otherwise it finds that this one was dropped and does not send it, or sends a `PING` too many.
    fn has_ended(&self) -> bool {
        matches!(self.connection.clone().req_packed_command(&redis::cmd("PING")).now_or_never(), Some(Err(_)))
    }
}

fn is_script(command: &Cmd) -> bool {
    matches!(command.args_iter().next(), Some(Arg::Simple(b"EVALSHA" | b"EVAL")))
}

impl ConnectionLike for NodeConnection {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        self.request(command).boxed()
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        self.connection.req_packed_commands(pipeline, offset, count)
    }

    fn get_db(&self) -> i64 {
        self.connection.get_db()
    }
}

impl Connect for NodeConnection {
    /// Connects to a node. The Cluster client waits for a node that hangs while it looks for others, hence the limits. That
    /// of a reply is longer than any store budget.
    fn connect_with_config<'a, T>(node: T, config: AsyncConnectionConfig) -> RedisFuture<'a, Self>
    where
        T: IntoConnectionInfo + Send + 'a,
    {
        let config =
            config.set_connection_timeout(Some(NODE_CONNECT_TIMEOUT)).set_response_timeout(Some(CONNECT_TIMEOUT));
        let connected = MultiplexedConnection::connect_with_config(node, config);
        async { Ok(Self { connection: connected.await?, broken: Arc::default() }) }.boxed()
    }
}

/// The failure of a script that may have run, in the form of an error that the Cluster client returns at once.
#[derive(Debug)]
struct MayHaveRun(Failure);

impl MayHaveRun {
    /// Of the errors that concern a connection, the client repeats all but two kinds.
    const KIND: io::ErrorKind = io::ErrorKind::Unsupported;
}

impl From<MayHaveRun> for RedisError {
    fn from(failure: MayHaveRun) -> Self {
        io::Error::new(MayHaveRun::KIND, failure).into()
    }
}

impl fmt::Display for MayHaveRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the script may have run: {}", self.0.label())
    }
}

impl Error for MayHaveRun {}

/// Returns the failure of a script that may have run, if that is what the error contains.
pub(crate) fn failure_of_script(error: &io::Error) -> Option<&Failure> {
    error.get_ref()?.downcast_ref::<MayHaveRun>().map(|MayHaveRun(failure)| failure)
}

#[cfg(test)]
mod tests {
    use redis::RetryMethod;

    use super::*;

    #[test]
    fn the_failure_of_a_script_is_not_repeated_by_the_client_and_keeps_its_meaning() {
        for failure in [Failure::Timeout, Failure::Connection] {
            let error = RedisError::from(MayHaveRun(failure.clone()));
            assert!(matches!(error.retry_method(), RetryMethod::NoRetry), "{error:?}");
            assert_eq!(Failure::of(&error), failure);
        }
    }

    #[test]
    fn scripts_are_told_from_the_commands_of_the_client() {
        let command = |name: &str| is_script(redis::cmd(name).arg("x"));
        assert_eq!(["EVAL", "EVALSHA", "PING", "ASKING"].map(command), [true, true, false, false]);
        assert!(!is_script(&Cmd::new()));
    }
}
