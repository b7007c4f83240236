//! Keys, their types and their time to live, and the commands the scripts call, as Redis 7 has them.

use std::collections::{BTreeMap, HashMap};

use super::numbers::{integer, score};

/// What a command answers.
pub(super) enum Answer {
    Nil,
    Ok,
    Int(i64),
    Bytes(Vec<u8>),
    Array(Vec<Answer>),
}

/// What can lie under a key.
#[derive(Clone, Debug, PartialEq)]
pub enum Stored {
    /// A string.
    Text(Vec<u8>),
    /// A sorted set.
    Sorted(BTreeMap<Vec<u8>, f64>),
    /// Anything else: a list, a hash. No script reads one.
    Foreign,
}

#[derive(Debug)]
struct Entry {
    value: Stored,
    /// In milliseconds of the server's clock.
    expires: Option<u64>,
}

/// The keys.
#[derive(Debug, Default)]
pub(super) struct Keyspace {
    now: u64,
    entries: HashMap<Vec<u8>, Entry>,
    published: Vec<(Vec<u8>, Vec<u8>)>,
}

type Outcome = Result<Answer, String>;

const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

impl Keyspace {
    /// Sets the time, in microseconds.
    pub(super) const fn turn_to(&mut self, now: u64) {
        self.now = now;
    }

    pub(super) fn published(&mut self) -> Vec<(Vec<u8>, Vec<u8>)> {
        std::mem::take(&mut self.published)
    }

    pub(super) fn put(&mut self, key: &[u8], value: Stored) {
        self.entries.insert(key.to_vec(), Entry { value, expires: None });
    }

    pub(super) fn stored(&mut self, key: &[u8]) -> Option<&mut Stored> {
        let now = self.now / 1_000;
        if self.entries.get(key)?.expires.is_some_and(|expires| now > expires) {
            self.entries.remove(key);
        }
        self.entries.get_mut(key).map(|entry| &mut entry.value)
    }

    pub(super) fn pttl(&mut self, key: &[u8]) -> Option<u64> {
        self.stored(key)?;
        Some(self.entries.get(key)?.expires?.saturating_sub(self.now / 1_000))
    }

    pub(super) fn remove(&mut self, key: &[u8]) -> bool {
        self.stored(key).is_some() && self.entries.remove(key).is_some()
    }

    pub(super) fn keys(&mut self) -> Vec<Vec<u8>> {
        let mut keys: Vec<_> = self.entries.keys().cloned().collect();
        keys.retain(|key| self.stored(key).is_some());
        keys.sort();
        keys
    }

    pub(super) fn execute(&mut self, args: &[Vec<u8>]) -> Outcome {
        let parts: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
        match *parts.as_slice() {
            [b"TIME"] => {
                let part = |number: u64| Answer::Bytes(number.to_string().into_bytes());
                Ok(Answer::Array(vec![part(self.now / 1_000_000), part(self.now % 1_000_000)]))
            }
            [b"GET", key] => self.text(key).map(|text| text.map_or(Answer::Nil, |text| Answer::Bytes(text.clone()))),
            [b"SET", key, value, ref options @ ..] => self.set(key, value, options),
            [b"DEL", key] => Ok(Answer::Int(i64::from(self.remove(key)))),
            [b"PTTL", key] => Ok(Answer::Int(match (self.stored(key).is_some(), self.pttl(key)) {
                (false, _) => -2,
                (true, None) => -1,
                (true, Some(left)) => left as i64,
            })),
            [b"PEXPIRE", key, millis] => self.pexpire(key, integer(millis)?),
            [b"GETRANGE", key, from, to] => self.getrange(key, integer(from)?, integer(to)?),
            [b"SETRANGE", key, offset, value] => self.setrange(key, integer(offset)?, value),
            [b"BITFIELD", key, ref operations @ ..] => self.bitfield(key, operations),
            [b"ZADD", key, points, member] => self.zadd(key, score(points)?.0, member),
            [b"ZREM", key, member] => self.retain(key, |name, _| name != member),
            [b"ZREMRANGEBYSCORE", key, from, to] => self.zremrangebyscore(key, score(from)?, score(to)?),
            [b"ZCARD", key] => Ok(Answer::Int(self.sorted(key)?.map_or(0, |set| set.len() as i64))),
            [b"PUBLISH", channel, message] => {
                self.published.push((channel.to_vec(), message.to_vec()));
                Ok(Answer::Int(0))
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

    fn set(&mut self, key: &[u8], value: &[u8], mut options: &[&[u8]]) -> Outcome {
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
                        return Ok(Answer::Nil);
                    }
                    options = rest;
                }
                _ => return Err("ERR syntax error".to_owned()),
            }
        }
        self.entries.insert(key.to_vec(), Entry { value: Stored::Text(value.to_vec()), expires });
        Ok(Answer::Ok)
    }

    fn pexpire(&mut self, key: &[u8], millis: i64) -> Outcome {
        if self.stored(key).is_none() {
            return Ok(Answer::Int(0));
        }
        if millis <= 0 {
            self.remove(key);
        } else if let Some(entry) = self.entries.get_mut(key) {
            entry.expires = Some(self.now / 1_000 + millis as u64);
        }
        Ok(Answer::Int(1))
    }

    fn getrange(&mut self, key: &[u8], from: i64, to: i64) -> Outcome {
        let text = self.text(key)?.map_or(&[][..], |text| text);
        let place = |at: i64| if at < 0 { at + text.len() as i64 } else { at }.max(0) as usize;
        let (from, to) = (place(from), (place(to) + 1).min(text.len()));
        Ok(Answer::Bytes(text.get(from..to).unwrap_or_default().to_vec()))
    }

    fn setrange(&mut self, key: &[u8], offset: i64, value: &[u8]) -> Outcome {
        let offset = usize::try_from(offset).map_err(|_| "ERR offset is out of range")?;
        let text = self.text_to_change(key, offset + value.len())?;
        text[offset..offset + value.len()].copy_from_slice(value);
        Ok(Answer::Int(text.len() as i64))
    }

    /// The string under a key, made if there is none, and at least so long.
    fn text_to_change(&mut self, key: &[u8], length: usize) -> Result<&mut Vec<u8>, String> {
        if self.stored(key).is_none() {
            self.put(key, Stored::Text(Vec::new()));
        }
        let text = self.text(key)?.ok_or(WRONG_TYPE)?;
        text.resize(text.len().max(length), 0);
        Ok(text)
    }

    /// `OVERFLOW SAT` and `INCRBY u32 #place by`, which is all that is used of it.
    fn bitfield(&mut self, key: &[u8], mut operations: &[&[u8]]) -> Outcome {
        let mut answers = Vec::new();
        loop {
            match *operations {
                [] => return Ok(Answer::Array(answers)),
                [b"OVERFLOW", b"SAT", ref rest @ ..] => operations = rest,
                [b"INCRBY", b"u32", place, by, ref rest @ ..] => {
                    let place = place.strip_prefix(b"#").ok_or("ERR bit offset is not an integer or out of range")?;
                    let place = 4 * usize::try_from(integer(place)?).map_err(|_| "ERR bit offset is out of range")?;
                    let by = integer(by)?;
                    let bytes = &mut self.text_to_change(key, place + 4)?[place..place + 4];
                    let old = bytes.iter().fold(0, |sum, byte| sum << 8 | i64::from(*byte));
                    let new = old.saturating_add(by).clamp(0, i64::from(u32::MAX));
                    bytes.copy_from_slice(&(new as u32).to_be_bytes());
                    answers.push(Answer::Int(new));
                    operations = rest;
                }
                _ => return Err("ERR syntax error".to_owned()),
            }
        }
    }

    fn zadd(&mut self, key: &[u8], points: f64, member: &[u8]) -> Outcome {
        if self.stored(key).is_none() {
            self.put(key, Stored::Sorted(BTreeMap::new()));
        }
        let set = self.sorted(key)?.ok_or(WRONG_TYPE)?;
        Ok(Answer::Int(i64::from(set.insert(member.to_vec(), points).is_none())))
    }

    fn zremrangebyscore(&mut self, key: &[u8], from: (f64, bool), to: (f64, bool)) -> Outcome {
        let above = |points: f64| if from.1 { points > from.0 } else { points >= from.0 };
        let below = |points: f64| if to.1 { points < to.0 } else { points <= to.0 };
        self.retain(key, |_, points| !(above(points) && below(points)))
    }

    /// Removes the members that are not to be kept; a sorted set without members is no key.
    fn retain(&mut self, key: &[u8], keep: impl Fn(&[u8], f64) -> bool) -> Outcome {
        let Some(set) = self.sorted(key)? else { return Ok(Answer::Int(0)) };
        let before = set.len();
        set.retain(|member, points| keep(member, *points));
        let (removed, empty) = (before - set.len(), set.is_empty());
        if empty {
            self.entries.remove(key);
        }
        Ok(Answer::Int(removed as i64))
    }
}
