//! A connection that runs scripts: by digest, and by source where the server does not know them.

use futures_util::future::join_all;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{MultipleNodeRoutingInfo, ResponsePolicy, RoutingInfo};
use redis::{Cmd, ErrorKind, Pipeline, RedisError, ServerErrorKind, Value};

use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::lane::Replied;

/// One open connection. Clones share it.
#[derive(Clone)]
pub(crate) enum Connection {
    Single(MultiplexedConnection),
    Cluster {
        connection: ClusterConnection,
        /// The lanes of shards that did not answer when it was opened.
        lacking: Vec<usize>,
    },
}

/// The slots of each master of a Cluster, as ranges, in the order of their first slot.
pub(crate) type Shards = Vec<Vec<(u16, u16)>>;

/// To all masters, and the first good answer counts: one that hangs keeps nobody waiting.
pub(crate) const ANY_MASTER: RoutingInfo =
    RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, Some(ResponsePolicy::OneSucceeded)));

/// What one command came to.
enum Came {
    Reply(Replied),
    /// The server does not know the script: it did not run.
    Unknown,
}

impl Connection {
    pub(crate) const fn single(connection: MultiplexedConnection) -> Self {
        Self::Single(connection)
    }

    pub(crate) const fn cluster(connection: ClusterConnection) -> Self {
        Self::Cluster { connection, lacking: Vec::new() }
    }

    /// The same, known not to reach the shards of these lanes.
    pub(crate) fn lacking(self, lanes: Vec<usize>) -> Self {
        match self {
            Self::Cluster { connection, .. } => Self::Cluster { connection, lacking: lanes },
            single @ Self::Single(_) => single,
        }
    }

    /// Whether it is known not to reach the shard of this lane.
    pub(crate) fn lacks(&self, lane: usize) -> bool {
        matches!(self, Self::Cluster { lacking, .. } if lacking.contains(&lane))
    }

    /// Runs scripts, all at once. The outer error means that the connection is of no use any more.
    pub(crate) async fn run(&self, calls: &[Invocation]) -> Result<Vec<Replied>, Failure> {
        let known = self.send(calls.iter().map(|call| call.by_digest().clone()).collect()).await?;
        let unknown = |(call, came): (&Invocation, &Came)| matches!(came, Came::Unknown).then(|| call.by_source());
        let sources: Vec<Cmd> = calls.iter().zip(&known).filter_map(unknown).collect();
        // What did not run may be sent again.
        let mut again = if sources.is_empty() { Vec::new() } else { self.send(sources).await? }.into_iter();
        let reply = |came: Came| match came {
            Came::Reply(reply) => reply,
            Came::Unknown => match again.next() {
                Some(Came::Reply(reply)) => reply,
                Some(Came::Unknown) | None => Err(Failure::Call("NOSCRIPT".to_owned())),
            },
        };
        Ok(known.into_iter().map(reply).collect())
    }

    async fn send(&self, commands: Vec<Cmd>) -> Result<Vec<Came>, Failure> {
        match self {
            Self::Single(connection) => send_single(connection.clone(), commands).await,
            Self::Cluster { connection, .. } => {
                // Each to the master of its key; a pipeline can only go to one.
                let each = commands.into_iter().map(|command| {
                    let mut connection = connection.clone();
                    async move { came(connection.req_packed_command(&command).await) }
                });
                join_all(each).await.into_iter().collect()
            }
        }
    }

    /// The shards of a Cluster; none elsewhere.
    pub(crate) async fn shards(&self) -> Option<Shards> {
        let Self::Cluster { connection, .. } = self else { return None };
        let slots = redis::cmd("CLUSTER").arg("SLOTS").to_owned();
        Some(shards(&connection.clone().route_command(slots, ANY_MASTER).await.ok()?))
    }
}

async fn send_single(mut connection: MultiplexedConnection, commands: Vec<Cmd>) -> Result<Vec<Came>, Failure> {
    if let [command] = &commands[..] {
        return Ok(vec![came(connection.req_packed_command(command).await)?]);
    }
    let count = commands.len();
    let mut pipeline = Pipeline::with_capacity(count);
    for command in commands {
        pipeline.add_command(command);
    }
    pipeline.ignore_errors();
    let replies = connection.req_packed_commands(&pipeline, 0, count).await.map_err(|error| Failure::of(&error))?;
    replies.into_iter().map(|value| came(Ok(value))).collect()
}

/// Sorts a reply: the outer error is the connection's, everything else is this call's own.
fn came(reply: Result<Value, RedisError>) -> Result<Came, Failure> {
    match reply.and_then(Value::extract_error) {
        Ok(value) => Ok(Came::Reply(Ok(value))),
        Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => Ok(Came::Unknown),
        Err(error) => match Failure::of(&error) {
            failure @ (Failure::Timeout | Failure::Connection) => Err(failure),
            failure => Ok(Came::Reply(Err(failure))),
        },
    }
}

/// `CLUSTER SLOTS`: ranges with their masters; a master is known by its node id, or else by its address.
fn shards(reply: &Value) -> Shards {
    let Value::Array(ranges) = reply else { return Vec::new() };
    let mut masters: Vec<(String, Vec<(u16, u16)>)> = Vec::new();
    let mut sorted: Vec<_> = ranges.iter().filter_map(slot_range).collect();
    sorted.sort_unstable();
    for (first, last, master) in sorted {
        match masters.iter_mut().find(|(known, _)| *known == master) {
            Some((_, ranges)) => ranges.push((first, last)),
            None => masters.push((master, vec![(first, last)])),
        }
    }
    masters.into_iter().map(|(_, ranges)| ranges).collect()
}

fn slot_range(range: &Value) -> Option<(u16, u16, String)> {
    let Value::Array(parts) = range else { return None };
    let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = &parts[..] else { return None };
    Some((u16::try_from(*first).ok()?, u16::try_from(*last).ok()?, format!("{master:?}")))
}
