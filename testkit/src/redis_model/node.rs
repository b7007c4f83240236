//! One server: its keys, its clock, and the scripts it knows.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::LazyLock;
use std::time::Duration;

use parking_lot::Mutex;
use phalanx_lua::Script;
use phalanx_store_redis::transport::{Response, ScriptForm};
use phalanx_store_redis::{Failure, Invocation};
use redis::Value;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{Replies, Request};
use crate::lua_server::Reply;
use crate::lua_server::engine;
use crate::lua_server::keyspace::Keyspace;

/// Whether a node serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Availability {
    #[default]
    Up,
    /// It accepts connections and answers nothing.
    Hung,
    /// Connections are refused.
    Stopped,
}

/// One server.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) availability: Availability,
    /// Increases when all connections break.
    pub(super) generation: u64,
    pub(super) keyspace: Keyspace,
    /// The scripts it has loaded, by their [`source_id`].
    pub(super) loaded: HashSet<usize>,
    /// Microseconds by which its clock differs.
    offset: i64,
    /// How much longer it takes for everything.
    pub(crate) delay: Duration,
    /// How long it takes to run one script. It runs one at a time.
    pub(crate) script_time: Duration,
    /// When it has run everything that has arrived.
    busy_until: Option<Instant>,
    /// The user may neither subscribe nor publish, as by an ACL.
    pub(crate) channels_denied: bool,
    /// The error that it returns instead of running a script.
    pub(crate) error: Option<String>,
    /// Scripts that write fail, as on a replica.
    pub(super) read_only: bool,
    /// Whether the script of the health checks runs all the same.
    pub(crate) error_spares_health_checks: bool,
    /// Requests that arrived while it hung.
    pub(super) backlog: VecDeque<Request>,
    /// Messages that it received for its subscribers while it hung, by the numbers of the subscribers.
    pub(super) held_pushes: Vec<(u64, String)>,
    /// Senders of replies that were lost.
    pub(super) lost: Vec<oneshot::Sender<Replies>>,
}

impl Default for Node {
    fn default() -> Self {
        Self {
            availability: Availability::Up,
            generation: 0,
            keyspace: Keyspace::journaled(),
            loaded: HashSet::new(),
            offset: 0,
            delay: Duration::ZERO,
            script_time: Duration::ZERO,
            busy_until: None,
            channels_denied: false,
            error: None,
            read_only: false,
            error_spares_health_checks: false,
            backlog: VecDeque::new(),
            held_pushes: Vec::new(),
            lost: Vec::new(),
        }
    }
}

/// A script call, copied from the store's.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) name: &'static str,
    source: &'static str,
    source_id: usize,
    /// The number of cells it runs on.
    pub(crate) cells: u32,
    pub(crate) keys: Vec<Vec<u8>>,
    args: Vec<Vec<u8>>,
    pub(super) form: ScriptForm,
}

impl Call {
    /// Copies a call; `scripts` are used instead of the shipped ones of the same name.
    pub(crate) fn of(call: &Invocation, scripts: &[Script]) -> Self {
        let (keys, args) = call.keys_and_args();
        let shipped = call.script();
        let script = scripts.iter().find(|script| script.name == shipped.name).unwrap_or(shipped);
        let owned = |parts: Vec<&[u8]>| parts.into_iter().map(<[u8]>::to_vec).collect();
        let source = call.source_of(script);
        let (cells, source_id) = (u32::try_from(call.cells()).unwrap_or(u32::MAX), source_id(source));
        Self { name: script.name, source, source_id, cells, keys: owned(keys), args: owned(args), form: call.form() }
    }
}

/// Returns a number for the text of a script. Not its address, because a constant may have several; and texts are only
/// compared when an address is new, because they are long.
fn source_id(source: &'static str) -> usize {
    static IDS: LazyLock<Mutex<HashMap<usize, usize>>> = LazyLock::new(Mutex::default);
    static SOURCES: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());
    let new_id = || {
        let mut sources = SOURCES.lock();
        sources.iter().position(|known| *known == source).unwrap_or_else(|| {
            sources.push(source);
            sources.len() - 1
        })
    };
    *IDS.lock().entry(source.as_ptr().addr()).or_insert_with(new_id)
}

/// A script that was run, for an observer.
#[derive(Debug)]
pub(crate) struct ScriptRun<'a> {
    /// The server's clock, in microseconds.
    pub(crate) at: u64,
    pub(crate) link: usize,
    pub(crate) name: &'static str,
    pub(crate) keys: &'a [Vec<u8>],
    pub(crate) args: &'a [Vec<u8>],
    pub(crate) reply: &'a Result<Reply, String>,
    /// How many commands of it wrote.
    pub(crate) writes: u64,
    /// The value of its first key afterwards, if that is a string.
    pub(crate) stored: Option<&'a [u8]>,
    /// Of a script on several buckets, which is reported once for each: the place of the bucket among its keys, and their number.
    pub(crate) place: Place,
}

/// The place of a key among the keys of a script, and their number.
pub(crate) type Place = (usize, usize);

/// Returns the keys for which a script is reported: a script on several buckets for each of them, others for the first.
pub(crate) fn reported<'a>(name: &str, keys: &'a [Vec<u8>]) -> Vec<(&'a [Vec<u8>], Place)> {
    if name != phalanx_lua::RATE_LIMIT_ACQUIRE_ALL.name {
        return vec![(keys, (0, 1))];
    }
    keys.chunks(1).enumerate().map(|(place, key)| (key, (place, keys.len()))).collect()
}

impl Node {
    /// Returns its time, given the model's.
    pub(super) fn now(&self, micros: u64) -> u64 {
        micros.saturating_add_signed(self.offset)
    }

    /// Moves its clock.
    pub(crate) fn step_clock(&mut self, micros: i64) {
        self.offset += micros;
    }

    /// Removes all keys, as `FLUSHALL` does. A replica that has not received it still has them.
    pub(super) fn flush(&mut self, micros: u64) {
        let now = self.now(micros);
        self.keyspace.set_time(now);
        self.keyspace.clear();
    }

    /// Loses all keys, as a restart without saved data does.
    pub(crate) fn lose_data(&mut self) {
        self.keyspace = Keyspace::journaled();
    }

    /// Forgets the loaded scripts.
    pub(crate) fn forget_scripts(&mut self) {
        self.loaded.clear();
    }

    /// Undoes the writes of the last `lost`.
    pub(super) fn go_back(&mut self, micros: u64, lost: Duration) {
        let now = self.now(micros);
        self.keyspace.set_time(now);
        self.keyspace.go_back(lost.as_micros() as u64);
    }

    /// Whether it has loaded the script of this call.
    pub(super) fn knows(&self, call: &Call) -> bool {
        self.loaded.contains(&call.source_id)
    }

    /// Adds the time of scripts on this many cells to what it has to do. They take effect when they arrive; their replies
    /// wait.
    pub(super) fn work(&mut self, now: Instant, cells: u32) {
        let time = self.script_time.saturating_mul(cells);
        if !time.is_zero() {
            self.busy_until = Some(self.busy_until.map_or(now, |until| until.max(now)) + time);
        }
    }

    /// Returns how long it is busy from `now` on.
    pub(super) fn busy_for(&self, now: Instant) -> Duration {
        self.busy_until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
    }

    /// Returns how many of these keys it has.
    pub(super) fn count_keys(&mut self, micros: u64, keys: &[Vec<u8>]) -> usize {
        let now = self.now(micros);
        self.keyspace.set_time(now);
        keys.iter().filter(|key| self.keyspace.contains(key)).count()
    }

    /// Returns all keys.
    pub(crate) fn keys(&mut self, micros: u64) -> Vec<Vec<u8>> {
        let now = self.now(micros);
        self.keyspace.set_time(now);
        self.keyspace.keys()
    }

    #[allow(clippy::too_many_arguments)]
    pub(super) fn execute(
        &mut self,
        call: &Call,
        link: usize,
        micros: u64,
        observer: Option<&(dyn Fn(&ScriptRun<'_>) + Send + Sync)>,
        published: &mut Vec<(Vec<u8>, Vec<u8>)>,
    ) -> Response {
        if let Some(error) = &self.error
            && !(self.error_spares_health_checks && call.name == phalanx_lua::PROBE.name)
        {
            return Response::Reply(Err(Failure::of_error_text(error)));
        }
        match call.form {
            ScriptForm::Digest if !self.knows(call) => return Response::UnknownScript,
            ScriptForm::Digest => {}
            ScriptForm::Source => drop(self.loaded.insert(call.source_id)),
        }
        let at = self.now(micros);
        self.keyspace.set_time(at);
        self.keyspace.deny_channels(self.channels_denied);
        self.keyspace.set_read_only(self.read_only);
        self.keyspace.take_written();
        let keys: Vec<&[u8]> = call.keys.iter().map(Vec::as_slice).collect();
        let args: Vec<&[u8]> = call.args.iter().map(Vec::as_slice).collect();
        let reply = engine::run(&mut self.keyspace, call.name, call.source, &keys, &args);
        published.extend(self.keyspace.take_published());
        if let Some(observer) = observer {
            let written = self.keyspace.take_written();
            for (keys, args, reply) in cells_of(call.cells as usize, &call.keys, &call.args, &reply) {
                for (keys, place) in reported(call.name, keys) {
                    let writes = written.iter().filter(|key| keys.first() == Some(*key)).count() as u64;
                    let stored = keys.first().and_then(|key| self.keyspace.text_of(key));
                    observer(&ScriptRun {
                        at,
                        link,
                        name: call.name,
                        keys,
                        args,
                        reply: &reply,
                        writes,
                        stored,
                        place,
                    });
                }
            }
        }
        Response::Reply(reply.map(value).map_err(|error| Failure::of_error_text(&error)))
    }
}

/// The keys, arguments and reply of one cell.
pub(crate) type CellRun<'a> = (&'a [Vec<u8>], &'a [Vec<u8>], Result<Reply, String>);

/// Splits a script that ran on several cells (`lua/scripts/include/cells.lua`) into what each of them did.
pub(crate) fn cells_of<'a>(
    cells: usize,
    keys: &'a [Vec<u8>],
    args: &'a [Vec<u8>],
    reply: &Result<Reply, String>,
) -> Vec<CellRun<'a>> {
    if cells <= 1 {
        return vec![(keys, args, reply.clone())];
    }
    let (counts, mut args) = args.split_at(cells.min(args.len()));
    let each = keys.chunks(keys.len().div_ceil(cells).max(1)).zip(counts).enumerate();
    each.map(|(cell, (keys, count))| {
        let count = std::str::from_utf8(count).ok().and_then(|count| count.parse().ok()).unwrap_or(0);
        let own;
        (own, args) = args.split_at(args.len().min(count));
        let reply = match reply {
            Ok(Reply::Array(replies)) => match replies.get(cell) {
                Some(Reply::Bytes(error)) => Err(String::from_utf8_lossy(error).into_owned()),
                Some(reply) => Ok(reply.clone()),
                None => Err("no reply".to_owned()),
            },
            other => other.clone(),
        };
        (keys, own, reply)
    })
    .collect()
}

/// Converts a reply to that of the client library.
pub(crate) fn value(reply: Reply) -> Value {
    match reply {
        Reply::Nil => Value::Nil,
        Reply::Int(n) => Value::Int(n),
        Reply::Bytes(bytes) => Value::BulkString(bytes),
        Reply::Array(parts) => Value::Array(parts.into_iter().map(value).collect()),
    }
}
