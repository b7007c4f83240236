//! What the fuzz targets and the differential tests of this workspace need: decoders, encoders and connections that are
//! private otherwise. Not covered by semantic versioning.

use std::fmt;

use futures_util::StreamExt;
use phalanx_core::clock::Time;
use phalanx_core::estimate::bins::Bins;
use phalanx_core::key::StateKey;
use phalanx_lua::Script;
use redis::Value;
use redis::aio::MultiplexedConnection;

use crate::connection::{self, Connection};
use crate::digest;
use crate::dispatcher::ScriptResult;
use crate::failure::Failure;
use crate::invocation::{Invocation, MAX_ATTEMPTS, TimeSource, choose_forms};
use crate::keys::{Key, Keys, Kind};
use crate::options::RedisOptions;
use crate::redis_connection::{self, RedisConnection};
use crate::transport::{Response, ShardSurvey};

/// The text of a key and its Cluster slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyText {
    /// The key as Redis sees it.
    pub text: String,
    /// The slot that the store computed for it.
    pub slot: u16,
}

/// The keys of one fleet.
#[derive(Debug)]
pub struct FleetKeys(Keys);

impl FleetKeys {
    /// Creates the keys of a store with these options.
    pub fn new(options: &RedisOptions) -> Self {
        Self(Keys::of_options(options))
    }

    /// Returns every key that these names lead to, with its purpose.
    pub fn all(&self, state: &StateKey, name: &str) -> Vec<(&'static str, KeyText)> {
        let keys = &self.0;
        let ((lock, fence), (members, generation)) = (keys.lock(name), keys.membership());
        let all = [
            ("bucket", keys.of(Kind::Bucket, state)),
            ("breaker", keys.of(Kind::Breaker, state)),
            ("digest", keys.of(Kind::Digest, state)),
            ("lock", lock),
            ("fence", fence),
            ("mark", keys.completion_mark(name, name)),
            ("request", keys.request(name)),
            ("members", members),
            ("generation", generation),
            ("health", keys.health_check(name.len() as u32)),
        ];
        all.map(|(purpose, Key { text, slot, .. })| (purpose, KeyText { text, slot })).into()
    }
}

/// Sends scripts over an open connection, as a store does.
///
/// # Errors
/// The connection is broken, or the server cannot serve.
pub async fn send_scripts(connection: MultiplexedConnection, calls: &[Invocation]) -> Result<Vec<Response>, Failure> {
    Connection::single(connection).send(calls).await
}

/// Decodes the reply of `digest_read.lua` and returns the counts of the window at `now` that were observed after `since`.
pub fn digest_counts(reply: &Value, slice_micros: u64, [asked, received, now, since]: [Time; 4]) -> Option<Bins> {
    digest::decode_counts(reply, slice_micros, [asked, received, now, since])
}

/// Decodes the replies of all masters to `CLUSTER SLOTS`.
pub fn shard_survey(reply: &Value) -> Option<ShardSurvey> {
    let (shards, unreachable) = connection::parse_survey(reply)?;
    Some((shards.into_iter().map(|shard| shard.slots).collect(), unreachable))
}

/// Makes a call on a virtual clock that shows `now`.
pub fn call_at(script: &'static Script, keys: &[&str], args: &[&[u8]], now: Time) -> Invocation {
    let mut call = Invocation::new(script, TimeSource::Virtual, 0, keys.iter().copied());
    for arg in args {
        call.arg(arg);
    }
    call.arg(now.as_micros());
    call
}

/// A connection as a store opens it, below its dispatchers and timers. Clones share it.
#[derive(Clone)]
pub struct OpenConnection(Connection);

impl OpenConnection {
    /// Opens a connection.
    ///
    /// # Errors
    /// The server cannot be reached, or rejects the client.
    pub async fn open(redis: &RedisConnection) -> Result<Self, Failure> {
        redis.connect().await.map(Self)
    }

    /// Sends all calls at once and waits for all replies.
    ///
    /// # Errors
    /// The connection is broken.
    pub async fn send(&self, calls: &[Invocation]) -> Result<Vec<Response>, Failure> {
        self.0.send(calls).await
    }

    /// Sends all calls at once, and once more those whose script the server does not have, without the timers of a store.
    ///
    /// # Errors
    /// The connection is broken.
    pub async fn run(&self, calls: &[Invocation]) -> Result<Vec<ScriptResult>, Failure> {
        let mut responses = self.0.send(calls).await?;
        for attempt in 1..MAX_ATTEMPTS {
            let unknown: Vec<usize> =
                (0..responses.len()).filter(|index| matches!(responses[*index], Response::UnknownScript)).collect();
            if unknown.is_empty() {
                break;
            }
            let mut again: Vec<Invocation> = unknown.iter().map(|index| calls[*index].clone()).collect();
            choose_forms(&mut again, attempt);
            let sent = self.0.send(&again).await;
            for (place, index) in unknown.into_iter().enumerate() {
                responses[index] = match &sent {
                    Ok(sent) => sent[place].clone(),
                    Err(failure) => Response::Reply(Err(failure.clone())),
                };
            }
        }
        let reply = |response| match response {
            Response::Reply(reply) => reply,
            Response::UnknownScript => Err(Failure::Call("NOSCRIPT".to_owned())),
        };
        Ok(responses.into_iter().map(reply).collect())
    }

    /// Returns the shards of a Cluster and the numbers of those that this connection does not reach.
    pub async fn survey(&self) -> Option<ShardSurvey> {
        let (shards, unreachable) = self.0.reachable_shards().await?;
        Some((shards.into_iter().map(|shard| shard.slots).collect(), unreachable))
    }
}

impl fmt::Debug for OpenConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenConnection").finish_non_exhaustive()
    }
}

/// A subscription as a store holds it.
pub struct OpenSubscription(redis_connection::Subscription);

impl OpenSubscription {
    /// Subscribes to a channel; `None` if this kind of connection cannot.
    pub async fn open(redis: &RedisConnection, channel: &str) -> Option<Result<Self, Failure>> {
        redis.subscribe(channel).await.map(|subscribed| subscribed.map(Self))
    }

    /// Waits for the next message; `None` if the connection has ended.
    pub async fn next(&mut self) -> Option<String> {
        self.0.messages.next().await
    }

    /// Checks whether the server still replies.
    pub async fn check_alive(&mut self) -> bool {
        self.0.check_alive().await
    }
}

impl fmt::Debug for OpenSubscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenSubscription").finish_non_exhaustive()
    }
}
