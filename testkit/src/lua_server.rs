//! An in-process server that runs the shipped scripts of `phalanx-lua` on a manual clock.
//!
//! It embeds Lua 5.1 like Redis, over a keyspace that implements only the commands the scripts use. It converts arguments
//! and replies and rejects globals like Redis, and is fast enough for property tests: hundreds of thousands of scripts a
//! second in a release build. The same properties are also tested on a real Redis.

pub(crate) mod engine;
pub(crate) mod keyspace;
mod numbers;

use std::sync::{Mutex, MutexGuard};

use phalanx_core::clock::{Clock, Time};
use phalanx_lua::Script;

use self::keyspace::Keyspace;
pub use self::keyspace::Stored;

/// The reply of a script, as a client receives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Nil.
    Nil,
    /// An integer.
    Int(i64),
    /// A string.
    Bytes(Vec<u8>),
    /// An array.
    Array(Vec<Reply>),
}

impl Reply {
    /// Returns the elements of an array. Panics on another reply.
    pub fn parts(&self) -> &[Self] {
        match self {
            Self::Array(parts) => parts,
            other => panic!("not an array: {other:?}"),
        }
    }

    /// Returns the integer. Panics on another reply.
    pub fn int(&self) -> i64 {
        match self {
            Self::Int(int) => *int,
            other => panic!("not an integer: {other:?}"),
        }
    }

    /// Returns the bytes of a string. Panics on another reply.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            other => panic!("not a string: {other:?}"),
        }
    }

    /// Returns the integers of a flat array. Panics on another reply.
    pub fn ints(&self) -> Vec<i64> {
        self.parts().iter().map(Self::int).collect()
    }
}

/// The server. Used by shared reference; scripts run one at a time, as in Redis.
#[derive(Debug)]
pub struct LuaServer {
    clock: Clock,
    keyspace: Mutex<Keyspace>,
}

impl Default for LuaServer {
    fn default() -> Self {
        Self::new()
    }
}

impl LuaServer {
    /// Creates an empty server with its own manual clock, set to a time in 2023.
    pub fn new() -> Self {
        let clock = Clock::manual();
        clock.set(Time::from_micros(1_700_000_000_000_000));
        Self::with_clock(clock)
    }

    /// Creates an empty server on this clock.
    pub fn with_clock(clock: Clock) -> Self {
        Self { clock, keyspace: Mutex::new(Keyspace::default()) }
    }

    /// Returns its clock.
    pub const fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Runs a script with the time as an additional argument: on one cell, or on several. The error is the text that a
    /// client would receive.
    pub fn run(&self, script: &Script, keys: &[Vec<u8>], args: &[Vec<u8>]) -> Result<Reply, String> {
        // A script of one cell that can do with fewer keys.
        let varies = ["log_heads", "rate_limit_acquire_all"].contains(&script.name);
        let fewer = varies && keys.len() < script.keys;
        let whole_cells = !keys.is_empty() && (keys.len().is_multiple_of(script.keys) || fewer);
        assert!(whole_cells, "{} takes {} keys for each cell", script.name, script.keys);
        let time = self.clock.now().as_micros().to_string();
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let args: Vec<&[u8]> = args.iter().map(Vec::as_slice).chain([time.as_bytes()]).collect();
        engine::run(&mut self.current_keyspace(), script.name, script.virtual_source, &keys, &args)
    }

    /// Takes the messages published since the last call: channels and messages, in order.
    pub fn take_published(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        self.current_keyspace().take_published()
    }

    /// Lets `PUBLISH` fail as it does for a user without channels, or no longer.
    pub fn deny_channels(&self, denied: bool) {
        self.current_keyspace().deny_channels(denied);
    }

    /// Writes a value of any type to a key, without a TTL, as another client could.
    pub fn put(&self, key: &[u8], value: Stored) {
        self.current_keyspace().put(key, value);
    }

    /// Returns the string of a key.
    pub fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        match self.current_keyspace().stored(key) {
            Some(Stored::Text(text)) => Some(text.clone()),
            _ => None,
        }
    }

    /// Returns the TTL of a key in milliseconds; none without a key or without a TTL.
    pub fn pttl(&self, key: &[u8]) -> Option<u64> {
        self.current_keyspace().pttl(key)
    }

    /// Removes a key.
    pub fn remove(&self, key: &[u8]) -> bool {
        self.current_keyspace().remove(key)
    }

    /// Removes all keys, like a restart without persistence.
    pub fn flush(&self) {
        *self.current_keyspace() = Keyspace::default();
    }

    /// Returns all keys, sorted.
    pub fn keys(&self) -> Vec<Vec<u8>> {
        self.current_keyspace().keys()
    }

    fn current_keyspace(&self) -> MutexGuard<'_, Keyspace> {
        // A panic under the lock has already failed its test.
        let mut keyspace = self.keyspace.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        keyspace.set_time(self.clock.now().as_micros());
        keyspace
    }
}
