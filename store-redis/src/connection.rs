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

/// A master of a Cluster: where it listens, and its slots as ranges.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Shard {
    address: String,
    pub(crate) slots: Vec<(u16, u16)>,
}

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

    /// The shards of a Cluster, in the order of their first slot; none elsewhere.
    pub(crate) async fn shards(&self) -> Option<Vec<Shard>> {
        let Self::Cluster { connection, .. } = self else { return None };
        Some(shards(&connection.clone().route_command(cluster_slots(), ANY_MASTER).await.ok()?))
    }

    /// The same, and the numbers of those that this connection does not reach: who is asked of all masters is told of
    /// those only that it is connected to.
    pub(crate) async fn survey(&self) -> Option<(Vec<Shard>, Vec<usize>)> {
        let Self::Cluster { connection, .. } = self else { return None };
        let everyone = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
        let reply = connection.clone().route_command(cluster_slots(), everyone).await.ok()?;
        surveyed(&reply)
    }
}

fn cluster_slots() -> Cmd {
    redis::cmd("CLUSTER").arg("SLOTS").to_owned()
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

/// What every master that is reached says of the slots, by its address.
fn surveyed(reply: &Value) -> Option<(Vec<Shard>, Vec<usize>)> {
    let Value::Map(replies) = reply else { return None };
    let shards = shards(&replies.first()?.1);
    let reached = |shard: &Shard| replies.iter().any(|(address, _)| *address == text(&shard.address));
    let missing: Vec<usize> = (0..shards.len()).filter(|number| !reached(&shards[*number])).collect();
    // Where the client knows its nodes by other names than they do themselves, nothing can be said.
    let strangers = missing.len() == shards.len();
    Some((shards, if strangers { Vec::new() } else { missing }))
}

fn text(text: &str) -> Value {
    Value::BulkString(text.as_bytes().to_vec())
}

/// `CLUSTER SLOTS`: ranges with their masters, each known by all that is said of it.
fn shards(reply: &Value) -> Vec<Shard> {
    let Value::Array(ranges) = reply else { return Vec::new() };
    let mut sorted: Vec<_> = ranges.iter().filter_map(slot_range).collect();
    sorted.sort_unstable_by_key(|(first, ..)| *first);
    let mut shards: Vec<(&[Value], Shard)> = Vec::new();
    for (first, last, master) in sorted {
        match shards.iter_mut().find(|(known, _)| *known == master) {
            Some((_, shard)) => shard.slots.push((first, last)),
            None => shards.push((master, Shard { address: address(master), slots: vec![(first, last)] })),
        }
    }
    shards.into_iter().map(|(_, shard)| shard).collect()
}

fn slot_range(range: &Value) -> Option<(u16, u16, &[Value])> {
    let Value::Array(parts) = range else { return None };
    let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = &parts[..] else { return None };
    Some((u16::try_from(*first).ok()?, u16::try_from(*last).ok()?, master))
}

fn address(master: &[Value]) -> String {
    match master {
        [Value::BulkString(host), Value::Int(port), ..] => format!("{}:{port}", String::from_utf8_lossy(host)),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: i64, last: i64, port: i64) -> Value {
        let master = Value::Array(vec![text("10.0.0.1"), Value::Int(port), text(&format!("id-{port}"))]);
        Value::Array(vec![Value::Int(first), Value::Int(last), master])
    }

    #[test]
    fn ranges_of_one_master_are_one_shard_and_the_first_slot_gives_the_order() {
        let reply = Value::Array(vec![range(200, 299, 1), range(100, 199, 2), range(0, 99, 1), Value::Nil]);
        let slots: Vec<_> = shards(&reply).into_iter().map(|shard| shard.slots).collect();
        assert_eq!(slots, [vec![(0, 99), (200, 299)], vec![(100, 199)]]);
        assert_eq!(shards(&Value::Nil), []);
    }

    #[test]
    fn a_master_that_did_not_answer_is_missed_unless_nobody_is_known_by_name() {
        let slots = Value::Array(vec![range(0, 99, 1), range(100, 199, 2)]);
        let missing = |addresses: &[&str]| {
            let reply = addresses.iter().map(|address| (text(address), slots.clone())).collect();
            surveyed(&Value::Map(reply)).map(|(_, missing)| missing)
        };
        assert_eq!(missing(&["10.0.0.1:1", "10.0.0.1:2"]), Some(vec![]));
        assert_eq!(missing(&["10.0.0.1:2"]), Some(vec![0]));
        assert_eq!(missing(&["tunnel:1", "tunnel:2"]), Some(vec![]));
        assert_eq!(missing(&[]), None);
    }
}
