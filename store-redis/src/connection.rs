//! An open connection that runs scripts: with `EVALSHA`, and with `EVAL` where the server does not have the script yet.

use std::sync::Arc;

use futures_util::future::{join, join_all};
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{MultipleNodeRoutingInfo, ResponsePolicy, RoutingInfo};
use redis::{Cmd, ErrorKind, Pipeline, RedisError, ServerErrorKind, Value};

use crate::dispatcher::ScriptResult;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::store::inner::SLOTS;
use crate::transport::{Response, ScriptForm, TransportConnection};

/// One open connection. Clones share it.
#[derive(Clone)]
pub(crate) enum Connection {
    Single(MultiplexedConnection),
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
        Self::Single(connection)
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
            single @ Self::Single(_) => single,
        }
    }

    /// Whether the shard of this dispatcher is known to be unreachable over this connection.
    pub(crate) fn unreachable(&self, dispatcher: usize) -> bool {
        match self {
            Self::Single(_) => false,
            Self::Cluster { unreachable, .. } | Self::Transport { unreachable, .. } => {
                unreachable.contains(&dispatcher)
            }
        }
    }

    /// Runs all scripts at once. The outer error means that the connection is broken.
    ///
    /// Calls of a script that the server does not know did not run, and are sent again: the first with the source, the
    /// others right behind it with the digest. A failure of this second attempt concerns only these calls.
    pub(crate) async fn run(&self, calls: &[Invocation]) -> Result<Vec<ScriptResult>, Failure> {
        let all: Vec<&Invocation> = calls.iter().collect();
        let mut responses = self.send(&all, ScriptForm::Digest).await?;
        let unknown = indices_of_unknown(&responses);
        if !unknown.is_empty() {
            let is_first =
                |n: &usize| !unknown[..*n].iter().any(|earlier| calls[*earlier].is_same_script(&calls[unknown[*n]]));
            let (first, others): (Vec<usize>, Vec<usize>) = (0..unknown.len()).partition(is_first);
            let [first, others] = [first, others].map(|part| part.into_iter().map(|n| unknown[n]).collect::<Vec<_>>());
            let (loaded, found) = join(
                self.send_some(calls, &first, ScriptForm::Source),
                self.send_some(calls, &others, ScriptForm::Digest),
            )
            .await;
            loaded.into_iter().chain(found).for_each(|(index, response)| responses[index] = response);
            // Another master of a Cluster does not have the script from the first.
            let missing = indices_of_unknown(&responses);
            let sent = self.send_some(calls, &missing, ScriptForm::Source).await;
            sent.into_iter().for_each(|(index, response)| responses[index] = response);
        }
        let reply = |response| match response {
            Response::Reply(reply) => reply,
            Response::UnknownScript => Err(Failure::Call("NOSCRIPT".to_owned())),
        };
        Ok(responses.into_iter().map(reply).collect())
    }

    /// Sends the calls at these indices, and returns each index with its response.
    async fn send_some(&self, calls: &[Invocation], indices: &[usize], form: ScriptForm) -> Vec<(usize, Response)> {
        if indices.is_empty() {
            return Vec::new();
        }
        let some: Vec<&Invocation> = indices.iter().map(|index| &calls[*index]).collect();
        match self.send(&some, form).await {
            Ok(responses) => indices.iter().copied().zip(responses).collect(),
            Err(failure) => indices.iter().map(|index| (*index, Response::Reply(Err(failure.clone())))).collect(),
        }
    }

    pub(crate) async fn send(&self, calls: &[&Invocation], form: ScriptForm) -> Result<Vec<Response>, Failure> {
        let command = |call: &&Invocation| match form {
            ScriptForm::Digest => call.evalsha().clone(),
            ScriptForm::Source => call.eval(),
        };
        match self {
            Self::Single(connection) => send_single(connection.clone(), calls.iter().map(command).collect()).await,
            Self::Cluster { connection, .. } => {
                // Each goes to the master of its key; a pipeline can only go to one.
                let each = calls.iter().map(command).map(|command| {
                    let mut connection = connection.clone();
                    async move { classify(connection.req_packed_command(&command).await) }
                });
                join_all(each).await.into_iter().collect()
            }
            Self::Transport { connection, .. } => connection.send(calls, form).await,
        }
    }

    /// Returns the shards of a Cluster in the order of their first slot; `None` without a Cluster.
    pub(crate) async fn shards(&self) -> Option<Vec<Shard>> {
        let connection = match self {
            Self::Single(_) => return None,
            Self::Transport { .. } => return self.reachable_shards().await.map(|(shards, _)| shards),
            Self::Cluster { connection, .. } => connection,
        };
        Some(shards(&connection.clone().route_command(cluster_slots(), ANY_MASTER).await.ok()?))
    }

    /// The same, with the numbers of the shards that this connection does not reach. A command to all masters is only
    /// sent to those it is connected to, so a missing reply means an unreachable master.
    pub(crate) async fn reachable_shards(&self) -> Option<(Vec<Shard>, Vec<usize>)> {
        let connection = match self {
            Self::Single(_) => return None,
            Self::Transport { connection, .. } => {
                let (shards, unreachable) = connection.shards().await?;
                let shard = |(number, slots)| Shard { address: format!("shard {number}"), slots };
                return Some((shards.into_iter().enumerate().map(shard).collect(), unreachable));
            }
            Self::Cluster { connection, .. } => connection,
        };
        let everyone = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
        let reply = connection.clone().route_command(cluster_slots(), everyone).await.ok()?;
        parse_survey(&reply)
    }
}

fn indices_of_unknown(responses: &[Response]) -> Vec<usize> {
    (0..responses.len()).filter(|index| matches!(responses[*index], Response::UnknownScript)).collect()
}

fn cluster_slots() -> Cmd {
    redis::cmd("CLUSTER").arg("SLOTS").to_owned()
}

async fn send_single(mut connection: MultiplexedConnection, commands: Vec<Cmd>) -> Result<Vec<Response>, Failure> {
    if let [command] = &commands[..] {
        return Ok(vec![classify(connection.req_packed_command(command).await)?]);
    }
    let count = commands.len();
    let mut pipeline = Pipeline::with_capacity(count);
    for command in commands {
        pipeline.add_command(command);
    }
    pipeline.ignore_errors();
    let replies = connection.req_packed_commands(&pipeline, 0, count).await.map_err(|error| Failure::of(&error))?;
    replies.into_iter().map(|value| classify(Ok(value))).collect()
}

/// Classifies a reply: the outer error concerns the connection, everything else only this call.
fn classify(reply: Result<Value, RedisError>) -> Result<Response, Failure> {
    match reply.and_then(Value::extract_error) {
        Ok(value) => Ok(Response::Reply(Ok(value))),
        Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => Ok(Response::UnknownScript),
        Err(error) => match Failure::of(&error) {
            failure @ (Failure::Timeout | Failure::Connection) => Err(failure),
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
