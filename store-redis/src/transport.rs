//! The seam for a Redis that is not reached over a socket: the in-process model of `phalanx-testkit`.
//!
//! It is cut below everything that a store does with a server (connecting, health checks, subscriptions, scripts that a
//! server does not know yet), so that a simulation runs all of that code.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::mpsc;

use crate::dispatcher::ScriptResult;
use crate::failure::Failure;
use crate::invocation::Invocation;

/// A boxed future.
pub type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A server, or a Cluster, that a store connects to.
pub trait Transport: Send + Sync + fmt::Debug + 'static {
    /// Whether the keys are spread over shards.
    fn is_cluster(&self) -> bool;

    /// Opens a connection.
    fn connect(&self) -> Boxed<'_, Result<Arc<dyn TransportConnection>, Failure>>;

    /// Subscribes to a channel; `None` if this server has no pushes.
    fn subscribe<'a>(&'a self, channel: &'a str) -> Boxed<'a, Option<Result<TransportSubscription, Failure>>>;

    /// The seed of this replica's ids, which must differ between replicas; `None`: random ids.
    fn identity_seed(&self) -> Option<u64>;
}

/// An open connection.
pub trait TransportConnection: Send + Sync + fmt::Debug + 'static {
    /// Sends all calls at once, each in its [form](Invocation::form), and waits for all replies. The outer error means that
    /// the connection is broken; a connection to a Cluster has one to each master, so there every call fails for itself.
    fn send<'a>(&'a self, calls: &'a [Invocation]) -> Boxed<'a, Result<Vec<Response>, Failure>>;

    /// Returns the slot ranges of every shard, and the numbers of the shards that this connection does not reach.
    fn shards(&self) -> Boxed<'_, Option<ShardSurvey>>;
}

/// The slot ranges of every shard in the order of their first slot, and the numbers of unreachable shards.
pub type ShardSurvey = (Vec<Vec<(u16, u16)>>, Vec<usize>);

/// How a script is named in a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScriptForm {
    /// By its digest (`EVALSHA`).
    Digest,
    /// By its source (`EVAL`).
    Source,
}

/// The reply to one call.
#[derive(Clone, Debug)]
pub enum Response {
    /// The script ran, or the server returned an error.
    Reply(ScriptResult),
    /// The server does not have the script, so it did not run.
    UnknownScript,
}

/// A subscription.
pub struct TransportSubscription {
    /// The messages; the channel closes with the connection.
    pub messages: mpsc::UnboundedReceiver<String>,
    /// Checks whether the server still replies.
    pub check_alive: Box<dyn Fn() -> Boxed<'static, bool> + Send + Sync>,
}

impl fmt::Debug for TransportSubscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransportSubscription").finish_non_exhaustive()
    }
}
