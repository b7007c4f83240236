//! What the fuzz targets of this workspace need: decoders and encoders that are private otherwise. Not covered by
//! semantic versioning.

use phalanx_core::clock::Time;
use phalanx_core::estimate::bins::Bins;
use phalanx_core::key::StateKey;
use redis::Value;
use redis::aio::MultiplexedConnection;

use crate::connection::{self, Connection};
use crate::digest;
use crate::dispatcher::ScriptResult;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::keys::{Key, Keys, Kind};
use crate::options::RedisOptions;
use crate::transport::ShardSurvey;

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
        Self(Keys::new(options.prefix.as_deref(), &options.environment, options.key_secret.clone()))
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

/// Runs scripts over an open connection, as a store does.
///
/// # Errors
/// The connection is broken, or the server cannot serve.
pub async fn run_scripts(
    connection: MultiplexedConnection,
    calls: &[Invocation],
) -> Result<Vec<ScriptResult>, Failure> {
    Connection::single(connection).run(calls).await
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
