//! Keys with their types and TTLs, and the commands that the scripts call, as in Redis 7.

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::numbers::{integer, score};

/// The reply of a command.
pub(crate) enum CommandReply {
    Nil,
    Ok,
    Int(i64),
    Bytes(Vec<u8>),
    Array(Vec<CommandReply>),
}

/// The value of a key.
#[derive(Clone, Debug, PartialEq)]
pub enum Stored {
    /// A string.
    Text(Vec<u8>),
    /// A sorted set.
    Sorted(BTreeMap<Vec<u8>, f64>),
    /// Any other type, such as a list or a hash. No script reads one.
    Foreign,
}

#[derive(Clone, Debug)]
struct Entry {
    value: Stored,
    /// Expiry, in milliseconds of the server's clock.
    expires: Option<u64>,
}

/// Written keys that are kept at most, for keyspaces whose user never takes them.
const MAX_WRITTEN: usize = 1_024;

/// The keys.
#[derive(Debug, Default)]
pub(crate) struct Keyspace {
    now: u64,
    entries: HashMap<Vec<u8>, Entry>,
    published: Vec<(Vec<u8>, Vec<u8>)>,
    /// The user may not publish.
    channels_denied: bool,
    /// Commands that write are rejected, as on a replica.
    read_only: bool,
    /// The keys of the writes since they were last taken.
    written: Vec<Vec<u8>>,
    /// What was overwritten, oldest first, if old states can be restored.
    journal: Option<VecDeque<Overwritten>>,
}

/// The former value of a key that a command has changed.
#[derive(Debug)]
struct Overwritten {
    at: u64,
    key: Vec<u8>,
    former: Option<Entry>,
}

/// Old states are kept for this long, in microseconds.
const JOURNAL_LENGTH: u64 = 60_000_000;

type CommandResult = Result<CommandReply, String>;

const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

const READ_ONLY: &str = "READONLY You can't write against a read only replica.";

/// The commands that a replica rejects, whether or not they would change anything.
const WRITING: [&[u8]; 6] = [b"SET", b"DEL", b"PEXPIRE", b"ZADD", b"ZREM", b"ZREMRANGEBYSCORE"];

const CHANNEL_DENIED: &str = "ERR The user executing the script can't publish to the channel mentioned in the command";

impl Keyspace {
    /// Sets the time, in microseconds.
    pub(crate) const fn set_time(&mut self, now: u64) {
        self.now = now;
    }

    /// Lets `PUBLISH` fail as it does for a user without channels, or no longer.
    pub(crate) const fn deny_channels(&mut self, denied: bool) {
        self.channels_denied = denied;
    }

    /// Rejects commands that write, as a replica does, or no longer.
    pub(crate) const fn set_read_only(&mut self, read_only: bool) {
        self.read_only = read_only;
    }

    /// Removes all keys. It can go back to the state before.
    pub(crate) fn clear(&mut self) {
        for key in self.keys() {
            self.remove(&key);
        }
    }

    /// Returns whether there is a key.
    pub(crate) fn contains(&mut self, key: &[u8]) -> bool {
        self.stored(key).is_some()
    }

    /// Returns an empty keyspace that can go back to an earlier state.
    pub(crate) fn journaled() -> Self {
        Self { journal: Some(VecDeque::new()), ..Self::default() }
    }

    /// Takes the keys of the writes since the last call, one for each write.
    pub(crate) fn take_written(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.written)
    }

    /// Undoes every write of the last `micros`, like a replica that had not received them.
    pub(crate) fn go_back(&mut self, micros: u64) {
        let until = self.now.saturating_sub(micros);
        let Some(journal) = &mut self.journal else { return };
        while journal.back().is_some_and(|change| change.at > until) {
            if let Some(change) = journal.pop_back() {
                match change.former {
                    Some(entry) => self.entries.insert(change.key, entry),
                    None => self.entries.remove(&change.key),
                };
            }
        }
    }

    /// Takes the keys for which `moved` is true, with their values and TTLs, out of `self` and puts them into `other`.
    pub(crate) fn move_keys(&mut self, other: &mut Self, moved: impl Fn(&[u8]) -> bool) -> usize {
        let keys: Vec<Vec<u8>> = self.entries.keys().filter(|key| moved(key)).cloned().collect();
        let count = keys.len();
        for key in keys {
            self.changes(&key);
            other.changes(&key);
            if let Some(entry) = self.entries.remove(&key) {
                other.entries.insert(key, entry);
            }
        }
        count
    }

    /// Notes a write to `key`, and keeps its former value if old states can be restored.
    fn changes(&mut self, key: &[u8]) {
        if self.written.len() < MAX_WRITTEN {
            self.written.push(key.to_vec());
        }
        if let Some(journal) = &mut self.journal {
            journal.push_back(Overwritten { at: self.now, key: key.to_vec(), former: self.entries.get(key).cloned() });
            while journal.front().is_some_and(|change| change.at + JOURNAL_LENGTH < self.now) {
                journal.pop_front();
            }
        }
    }

    pub(crate) fn take_published(&mut self) -> Vec<(Vec<u8>, Vec<u8>)> {
        std::mem::take(&mut self.published)
    }

    pub(crate) fn put(&mut self, key: &[u8], value: Stored) {
        self.changes(key);
        self.entries.insert(key.to_vec(), Entry { value, expires: None });
    }

    pub(crate) fn stored(&mut self, key: &[u8]) -> Option<&mut Stored> {
        let now = self.now / 1_000;
        if self.entries.get(key)?.expires.is_some_and(|expires| now > expires) {
            self.entries.remove(key);
        }
        self.entries.get_mut(key).map(|entry| &mut entry.value)
    }

    /// Returns the string of a key.
    pub(crate) fn text_of(&mut self, key: &[u8]) -> Option<&[u8]> {
        match self.stored(key) {
            Some(Stored::Text(text)) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn pttl(&mut self, key: &[u8]) -> Option<u64> {
        self.stored(key)?;
        Some(self.entries.get(key)?.expires?.saturating_sub(self.now / 1_000))
    }

    pub(crate) fn remove(&mut self, key: &[u8]) -> bool {
        if self.stored(key).is_none() {
            return false;
        }
        self.changes(key);
        self.entries.remove(key).is_some()
    }

    pub(crate) fn keys(&mut self) -> Vec<Vec<u8>> {
        let mut keys: Vec<_> = self.entries.keys().cloned().collect();
        keys.retain(|key| self.stored(key).is_some());
        keys.sort();
        keys
    }

    pub(crate) fn execute(&mut self, parts: &[&[u8]]) -> CommandResult {
        if self.read_only && parts.first().is_some_and(|name| WRITING.contains(name)) {
            return Err(READ_ONLY.to_owned());
        }
        match *parts {
            [b"TIME"] => {
                let part = |number: u64| CommandReply::Bytes(number.to_string().into_bytes());
                Ok(CommandReply::Array(vec![part(self.now / 1_000_000), part(self.now % 1_000_000)]))
            }
            [b"GET", key] => {
                self.text(key).map(|text| text.map_or(CommandReply::Nil, |text| CommandReply::Bytes(text.clone())))
            }
            [b"SET", key, value, ref options @ ..] => self.set(key, value, options),
            [b"DEL", key] => Ok(CommandReply::Int(i64::from(self.remove(key)))),
            [b"PTTL", key] => Ok(CommandReply::Int(match (self.stored(key).is_some(), self.pttl(key)) {
                (false, _) => -2,
                (true, None) => -1,
                (true, Some(left)) => left as i64,
            })),
            [b"PEXPIRE", key, millis] => self.pexpire(key, integer(millis)?),
            [b"GETRANGE", key, from, to] => self.getrange(key, integer(from)?, integer(to)?),
            [b"ZADD", key, points, member] => self.zadd(key, score(points)?.0, member),
            [b"ZREM", key, member] => self.retain(key, |name, _| name != member),
            [b"ZREMRANGEBYSCORE", key, from, to] => self.zremrangebyscore(key, score(from)?, score(to)?),
            [b"ZCARD", key] => Ok(CommandReply::Int(self.sorted(key)?.map_or(0, |set| set.len() as i64))),
            [b"PUBLISH", ..] if self.channels_denied => Err(CHANNEL_DENIED.to_owned()),
            [b"PUBLISH", channel, message] => {
                self.published.push((channel.to_vec(), message.to_vec()));
                Ok(CommandReply::Int(0))
            }
            _ => Err(format!(
                "ERR unknown command or arguments: {:?}",
                parts.first().map(|n| n.escape_ascii().to_string())
            )),
        }
    }

    fn text(&mut self, key: &[u8]) -> Result<Option<&mut Vec<u8>>, String> {
        match self.stored(key) {
            None => Ok(None),
            Some(Stored::Text(text)) => Ok(Some(text)),
            Some(_) => Err(WRONG_TYPE.to_owned()),
        }
    }

    fn sorted(&mut self, key: &[u8]) -> Result<Option<&mut BTreeMap<Vec<u8>, f64>>, String> {
        match self.stored(key) {
            None => Ok(None),
            Some(Stored::Sorted(set)) => Ok(Some(set)),
            Some(_) => Err(WRONG_TYPE.to_owned()),
        }
    }

    fn set(&mut self, key: &[u8], value: &[u8], mut options: &[&[u8]]) -> CommandResult {
        let mut expires = None;
        loop {
            match *options {
                [] => break,
                [b"PX", millis, ref rest @ ..] => {
                    let millis = integer(millis)?;
                    if millis <= 0 {
                        return Err("ERR invalid expire time in 'set' command".to_owned());
                    }
                    expires = Some(self.now / 1_000 + millis as u64);
                    options = rest;
                }
                [b"NX", ref rest @ ..] => {
                    if self.stored(key).is_some() {
                        return Ok(CommandReply::Nil);
                    }
                    options = rest;
                }
                _ => return Err("ERR syntax error".to_owned()),
            }
        }
        self.changes(key);
        self.entries.insert(key.to_vec(), Entry { value: Stored::Text(value.to_vec()), expires });
        Ok(CommandReply::Ok)
    }

    fn pexpire(&mut self, key: &[u8], millis: i64) -> CommandResult {
        if self.stored(key).is_none() {
            return Ok(CommandReply::Int(0));
        }
        if millis <= 0 {
            self.remove(key);
            return Ok(CommandReply::Int(1));
        }
        self.changes(key);
        if let Some(entry) = self.entries.get_mut(key) {
            entry.expires = Some(self.now / 1_000 + millis as u64);
        }
        Ok(CommandReply::Int(1))
    }

    fn getrange(&mut self, key: &[u8], from: i64, to: i64) -> CommandResult {
        let text = self.text(key)?.map_or(&[][..], |text| text);
        let index = |at: i64| if at < 0 { at + text.len() as i64 } else { at }.max(0) as usize;
        let (from, to) = (index(from), (index(to) + 1).min(text.len()));
        Ok(CommandReply::Bytes(text.get(from..to).unwrap_or_default().to_vec()))
    }

    fn zadd(&mut self, key: &[u8], points: f64, member: &[u8]) -> CommandResult {
        self.changes(key);
        if self.stored(key).is_none() {
            self.entries.insert(key.to_vec(), Entry { value: Stored::Sorted(BTreeMap::new()), expires: None });
        }
        let set = self.sorted(key)?.ok_or(WRONG_TYPE)?;
        Ok(CommandReply::Int(i64::from(set.insert(member.to_vec(), points).is_none())))
    }

    fn zremrangebyscore(&mut self, key: &[u8], from: (f64, bool), to: (f64, bool)) -> CommandResult {
        let above = |points: f64| if from.1 { points > from.0 } else { points >= from.0 };
        let below = |points: f64| if to.1 { points < to.0 } else { points <= to.0 };
        self.retain(key, |_, points| !(above(points) && below(points)))
    }

    /// Removes members for which `keep` is false, and the key of an empty set.
    fn retain(&mut self, key: &[u8], keep: impl Fn(&[u8], f64) -> bool) -> CommandResult {
        let removes = |set: &mut BTreeMap<Vec<u8>, f64>| set.iter().any(|(member, points)| !keep(member, *points));
        if !self.sorted(key)?.is_some_and(removes) {
            return Ok(CommandReply::Int(0));
        }
        self.changes(key);
        let Some(set) = self.sorted(key)? else { return Ok(CommandReply::Int(0)) };
        let before = set.len();
        set.retain(|member, points| keep(member, *points));
        let (removed, empty) = (before - set.len(), set.is_empty());
        if empty {
            self.entries.remove(key);
        }
        Ok(CommandReply::Int(removed as i64))
    }
}
