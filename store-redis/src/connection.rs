//! An open connection that sends scripts: to one server, to a Cluster, or to a Redis that is not reached over a socket.

use std::sync::Arc;

use futures_util::future::join_all;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster_routing::{MultipleNodeRoutingInfo, ResponsePolicy, RoutingInfo};
use redis::{Cmd, ErrorKind, Pipeline, RedisError, ServerErrorKind, Value};

use crate::cluster_connection::ClusterConnection;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::store::inner::SLOTS;
use crate::transport::{Response, TransportConnection};

/// One open connection. Clones share it.
#[derive(Clone)]
pub(crate) enum Connection {
    Single {
        connection: MultiplexedConnection,
        /// Host and port; unknown for a connection of a pool.
        address: Option<Arc<str>>,
    },
    Cluster {
        connection: ClusterConnection,
        /// Dispatchers whose shards could not be reached when the connection was opened.
        unreachable: Vec<usize>,
    },
    Transport {
        connection: Arc<dyn TransportConnection>,
        unreachable: Vec<usize>,
    },
}

/// The most shards that are distinguished: a Cluster has at most a thousand nodes.
const MAX_SHARDS: usize = 1_024;

/// Masters of a Cluster that a description names.
const MAX_SHOWN_SHARDS: usize = 3;

/// Which server a connection leads to. Contains no credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerIdentity {
    pub(crate) server: String,
    /// Name and version; `None` if the server did not tell.
    pub(crate) version: Option<String>,
}

/// Reads name and version from the reply to `HELLO`: pairs, as an array in RESP2.
fn version(reply: &Value) -> Option<String> {
    let of = |value: &Value| match value {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text.clone()),
        _ => None,
    };
    let field = |name: &str| match reply {
        Value::Map(pairs) => pairs.iter().find(|(key, _)| of(key).as_deref() == Some(name)).and_then(|(_, v)| of(v)),
        Value::Array(parts) => {
            parts.chunks_exact(2).find(|pair| of(&pair[0]).as_deref() == Some(name)).and_then(|pair| of(&pair[1]))
        }
        _ => None,
    };
    Some(format!("{} {}", field("server")?, field("version")?))
}

/// A master of a Cluster: its address and its slot ranges.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Shard {
    address: String,
    pub(crate) slots: Vec<(u16, u16)>,
}

/// Sends to all masters and takes the first success, so that one that hangs delays nothing.
pub(crate) const ANY_MASTER: RoutingInfo =
    RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, Some(ResponsePolicy::OneSucceeded)));

impl Connection {
    pub(crate) const fn single(connection: MultiplexedConnection) -> Self {
        Self::Single { connection, address: None }
    }

    /// Records the address of a single connection.
    pub(crate) fn at(self, known: &redis::ConnectionAddr) -> Self {
        match self {
            Self::Single { connection, .. } => Self::Single { connection, address: Some(known.to_string().into()) },
            other => other,
        }
    }

    pub(crate) const fn cluster(connection: ClusterConnection) -> Self {
        Self::Cluster { connection, unreachable: Vec::new() }
    }

    pub(crate) const fn transport(connection: Arc<dyn TransportConnection>) -> Self {
        Self::Transport { connection, unreachable: Vec::new() }
    }

    /// Marks the shards of these dispatchers as unreachable over this connection.
    pub(crate) fn with_unreachable(self, dispatchers: Vec<usize>) -> Self {
        match self {
            Self::Cluster { connection, .. } => Self::Cluster { connection, unreachable: dispatchers },
            Self::Transport { connection, .. } => Self::Transport { connection, unreachable: dispatchers },
            single @ Self::Single { .. } => single,
        }
    }

    /// Whether the shard of this dispatcher is known to be unreachable over this connection.
    pub(crate) fn unreachable(&self, dispatcher: usize) -> bool {
        match self {
            Self::Single { .. } => false,
            Self::Cluster { unreachable, .. } | Self::Transport { unreachable, .. } => {
                unreachable.contains(&dispatcher)
            }
        }
    }

    /// Sends all calls at once, each in its form, and waits for all replies. The outer error means that the connection is
    /// broken; over the connections of a Cluster every call fails for itself.
    pub(crate) async fn send(&self, calls: &[Invocation]) -> Result<Vec<Response>, Failure> {
        match self {
            Self::Single { connection, .. } => send_single(connection.clone(), calls).await,
            Self::Cluster { connection, .. } => {
                // Each goes to the master of its key; a pipeline can only go to one.
                let each = calls.iter().map(Invocation::command).map(|command| {
                    let mut connection = connection.clone();
                    async move { classify(connection.request(&command).await) }
                });
                let responses = join_all(each).await;
                Ok(responses
                    .into_iter()
                    .map(|sent| sent.unwrap_or_else(|broken| Response::Reply(Err(broken))))
                    .collect())
            }
            Self::Transport { connection, .. } => connection.send(calls).await,
        }
    }

    /// Whether it is a connection to one server.
    pub(crate) const fn is_single(&self) -> bool {
        matches!(self, Self::Single { .. })
    }

    /// Asks which server this is, without permissions and without changing the connection: `HELLO` needs no grant.
    pub(crate) async fn identify(&self) -> Result<ServerIdentity, Failure> {
        let hello = redis::cmd("HELLO");
        let (server, reply) = match self {
            Self::Transport { .. } => return Ok(ServerIdentity { server: "in-process".to_owned(), version: None }),
            Self::Single { connection, address } => {
                let server = address.as_deref().unwrap_or("a connection of a pool").to_owned();
                (server, connection.clone().req_packed_command(&hello).await)
            }
            Self::Cluster { connection, .. } => {
                let shards = self.shards().await.unwrap_or_default();
                let shown: Vec<&str> =
                    shards.iter().take(MAX_SHOWN_SHARDS).map(|shard| shard.address.as_str()).collect();
                let more = if shards.len() > shown.len() { ", …" } else { "" };
                let server = format!("a Cluster of {}: {}{more}", shards.len(), shown.join(", "));
                (server, connection.clone().route(hello, ANY_MASTER).await)
            }
        };
        match reply.and_then(Value::extract_error) {
            Ok(reply) => Ok(ServerIdentity { server, version: version(&reply) }),
            Err(error) => match Failure::of(&error) {
                // A proxy that does not know the command.
                Failure::Call(_) | Failure::Rejecting("NOSCRIPTING") => Ok(ServerIdentity { server, version: None }),
                failure => Err(failure),
            },
        }
    }

    /// Returns the shards of a Cluster in the order of their first slot; `None` without a Cluster.
    pub(crate) async fn shards(&self) -> Option<Vec<Shard>> {
        let connection = match self {
            Self::Single { .. } => return None,
            Self::Transport { .. } => return self.reachable_shards().await.map(|(shards, _)| shards),
            Self::Cluster { connection, .. } => connection,
        };
        Some(shards(&connection.clone().route(cluster_slots(), ANY_MASTER).await.ok()?))
    }

    /// The same, with the numbers of the shards that this connection does not reach. A command to all masters is only
    /// sent to those it is connected to, so a missing reply means an unreachable master.
    pub(crate) async fn reachable_shards(&self) -> Option<(Vec<Shard>, Vec<usize>)> {
        let connection = match self {
            Self::Single { .. } => return None,
            Self::Transport { connection, .. } => {
                let (shards, unreachable) = connection.shards().await?;
                let shard = |(number, slots)| Shard { address: format!("shard {number}"), slots };
                return Some((shards.into_iter().enumerate().map(shard).collect(), unreachable));
            }
            Self::Cluster { connection, .. } => connection,
        };
        let everyone = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
        let reply = connection.clone().route(cluster_slots(), everyone).await.ok()?;
        parse_survey(&reply)
    }
}

fn cluster_slots() -> Cmd {
    redis::cmd("CLUSTER").arg("SLOTS").to_owned()
}

async fn send_single(mut connection: MultiplexedConnection, calls: &[Invocation]) -> Result<Vec<Response>, Failure> {
    if let [call] = calls {
        return Ok(vec![classify(connection.req_packed_command(&call.command()).await)?]);
    }
    let mut pipeline = Pipeline::with_capacity(calls.len());
    for call in calls {
        pipeline.add_command(call.command());
    }
    pipeline.ignore_errors();
    let replies = connection.req_packed_commands(&pipeline, 0, calls.len()).await;
    replies.map_err(|error| Failure::of(&error))?.into_iter().map(|value| classify(Ok(value))).collect()
}

/// Classifies a reply: the outer error concerns the connection, everything else only this call.
fn classify(reply: Result<Value, RedisError>) -> Result<Response, Failure> {
    match reply.and_then(Value::extract_error) {
        Ok(value) => Ok(Response::Reply(Ok(value))),
        Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => Ok(Response::UnknownScript),
        Err(error) => match Failure::of(&error) {
            failure if failure == Failure::Timeout || failure.is_connection() => Err(failure),
            failure => Ok(Response::Reply(Err(failure))),
        },
    }
}

/// Reads the `CLUSTER SLOTS` reply of every reachable master, by its address.
pub(crate) fn parse_survey(reply: &Value) -> Option<(Vec<Shard>, Vec<usize>)> {
    let Value::Map(replies) = reply else { return None };
    let shards = shards(&replies.first()?.1);
    let reached = |shard: &Shard| replies.iter().any(|(address, _)| *address == text(&shard.address));
    let missing: Vec<usize> = (0..shards.len()).filter(|number| !reached(&shards[*number])).collect();
    // If the client knows the nodes by other addresses than they announce, nothing can be concluded.
    let no_address_matches = missing.len() == shards.len();
    Some((shards, if no_address_matches { Vec::new() } else { missing }))
}

fn text(text: &str) -> Value {
    Value::BulkString(text.as_bytes().to_vec())
}

/// Parses `CLUSTER SLOTS`: slot ranges with their masters. All fields of a master together identify it.
fn shards(reply: &Value) -> Vec<Shard> {
    let Value::Array(ranges) = reply else { return Vec::new() };
    let mut sorted: Vec<_> = ranges.iter().filter_map(slot_range).collect();
    sorted.sort_unstable_by_key(|(first, ..)| *first);
    let mut shards: Vec<(&[Value], Shard)> = Vec::new();
    let mut next = 0;
    for (first, last, master) in sorted {
        // Ranges never overlap. In a reply where they do, the first counts, so that the work stays bounded.
        if first < next {
            continue;
        }
        next = last + 1;
        match shards.iter().position(|(known, _)| *known == master) {
            Some(number) => shards[number].1.slots.push((first, last)),
            None if shards.len() < MAX_SHARDS => {
                shards.push((master, Shard { address: address(master), slots: vec![(first, last)] }));
            }
            None => {}
        }
    }
    shards.into_iter().map(|(_, shard)| shard).collect()
}

fn slot_range(range: &Value) -> Option<(u16, u16, &[Value])> {
    let Value::Array(parts) = range else { return None };
    let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = &parts[..] else { return None };
    let (first, last) = (u16::try_from(*first).ok()?, u16::try_from(*last).ok()?);
    (first <= last && usize::from(last) < SLOTS).then_some((first, last, master))
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
    fn ranges_of_one_master_are_one_shard_and_shards_are_ordered_by_first_slot() {
        let reply = Value::Array(vec![range(200, 299, 1), range(100, 199, 2), range(0, 99, 1), Value::Nil]);
        let slots: Vec<_> = shards(&reply).into_iter().map(|shard| shard.slots).collect();
        assert_eq!(slots, [vec![(0, 99), (200, 299)], vec![(100, 199)]]);
        assert_eq!(shards(&Value::Nil), []);
    }

    #[test]
    fn a_reply_never_assigns_more_slots_than_there_are() {
        let slots = |reply: Value| -> Vec<_> { shards(&reply).into_iter().flat_map(|shard| shard.slots).collect() };
        assert_eq!(slots(Value::Array(vec![range(5, 4, 1), range(0, 16_384, 1), range(-1, 3, 1)])), []);
        let overlapping = (0..20_000).map(|port| range(0, 16_383, port)).collect();
        assert_eq!(slots(Value::Array(overlapping)), [(0, 16_383)]);
    }

    #[test]
    fn a_master_without_a_reply_is_unreachable_unless_no_address_matches() {
        let slots = Value::Array(vec![range(0, 99, 1), range(100, 199, 2)]);
        let missing = |addresses: &[&str]| {
            let reply = addresses.iter().map(|address| (text(address), slots.clone())).collect();
            parse_survey(&Value::Map(reply)).map(|(_, missing)| missing)
        };
        assert_eq!(missing(&["10.0.0.1:1", "10.0.0.1:2"]), Some(vec![]));
        assert_eq!(missing(&["10.0.0.1:2"]), Some(vec![0]));
        assert_eq!(missing(&["tunnel:1", "tunnel:2"]), Some(vec![]));
        assert_eq!(missing(&[]), None);
    }
}
