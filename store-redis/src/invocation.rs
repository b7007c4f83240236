//! One script call with its keys and arguments: an `EVALSHA` command that can be sent as an `EVAL`.

use std::collections::HashMap;
use std::sync::LazyLock;

use phalanx_lua::Script;
use redis::{Arg, Cmd, ToRedisArgs, Value};

use crate::transport::ScriptForm;

/// The clock that a script uses: the server's, or a virtual one that a test passes as an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimeSource {
    Server,
    Virtual,
}

/// One call of a script: on one cell, or on several of one slot.
#[derive(Clone, Debug)]
pub struct Invocation {
    script: &'static Script,
    order: usize,
    time: TimeSource,
    /// The Cluster slot of its keys.
    slot: u16,
    /// Whether it has fewer keys than its script takes, so that it is no cell among others.
    has_fewer_keys: bool,
    cells: usize,
    cmd: Cmd,
    form: ScriptForm,
}

/// Of every script its place in [`phalanx_lua::ALL`], and its SHA-1 digests: with the server's clock, and with a virtual
/// one.
static SCRIPTS: LazyLock<HashMap<&'static str, (usize, [String; 2])>> = LazyLock::new(|| {
    let digest = |source: &str| sha1_smol::Sha1::from(source).hexdigest();
    let both = |script: &Script| [digest(script.source), digest(script.virtual_source)];
    phalanx_lua::ALL.iter().enumerate().map(|(order, script)| (script.name, (order, both(script)))).collect()
});

impl Invocation {
    pub(crate) fn new<'a>(
        script: &'static Script,
        time: TimeSource,
        slot: u16,
        keys: impl ExactSizeIterator<Item = &'a str>,
    ) -> Self {
        let (order, digest) = SCRIPTS.get(script.name).map_or((0, ""), |(order, both)| (*order, &both[time as usize]));
        let mut cmd = Cmd::with_capacity(16, 256);
        cmd.arg("EVALSHA").arg(digest).arg(keys.len());
        let has_fewer_keys = keys.len() < script.keys;
        for key in keys {
            cmd.arg(key);
        }
        Self { script, order, time, slot, has_fewer_keys, cells: 1, cmd, form: ScriptForm::Digest }
    }

    /// Returns the place of its script in the order in which cells send them.
    pub(crate) const fn order(&self) -> usize {
        self.order
    }

    /// Whether both run the same script.
    pub(crate) const fn is_same_script(&self, other: &Self) -> bool {
        self.order == other.order
    }

    /// Whether both can be sent as one call: the same script on cells of the same slot, or of any where the server takes it.
    pub(crate) fn merges_with(&self, other: &Self, across_slots: bool) -> bool {
        let is_cell = !self.has_fewer_keys && !other.has_fewer_keys;
        is_cell && self.is_same_script(other) && (across_slots || self.slot == other.slot) && self.time == other.time
    }

    /// Merges calls on single cells, all of which [merge](Self::merges_with), into one call; `None` without calls.
    pub(crate) fn merged(calls: &[&Self]) -> Option<Self> {
        let first = calls.first()?;
        let parts: Vec<_> = calls.iter().map(|call| call.keys_and_args()).collect();
        let keys: Vec<&str> =
            parts.iter().flat_map(|(keys, _)| keys).filter_map(|key| str::from_utf8(key).ok()).collect();
        let mut merged = Self::new(first.script, first.time, first.slot, keys.into_iter());
        merged.cells = calls.len();
        for (_, args) in &parts {
            merged.cmd.arg(args.len());
        }
        for arg in parts.iter().flat_map(|(_, args)| args) {
            merged.cmd.arg(*arg);
        }
        Some(merged)
    }

    pub(crate) fn arg(&mut self, arg: impl ToRedisArgs) -> &mut Self {
        self.cmd.arg(arg);
        self
    }

    /// Returns the number of cells it runs on. With more than one, the reply is an array of one reply for each.
    pub const fn cells(&self) -> usize {
        self.cells
    }

    /// Returns the script.
    pub const fn script(&self) -> &'static Script {
        self.script
    }

    /// Returns the source text of this script, or of one that stands in for it, with the clock that the call uses.
    pub const fn source_of(&self, script: &Script) -> &'static str {
        match self.time {
            TimeSource::Server => script.source,
            TimeSource::Virtual => script.virtual_source,
        }
    }

    /// Returns keys and arguments, in the order of the script.
    pub fn keys_and_args(&self) -> (Vec<&[u8]>, Vec<&[u8]>) {
        let mut all = self.cmd.args_iter().skip(2).filter_map(|arg| match arg {
            Arg::Simple(bytes) => Some(bytes),
            _ => None,
        });
        let count = all.next().and_then(|count| std::str::from_utf8(count).ok()?.parse().ok()).unwrap_or(0);
        let keys = all.by_ref().take(count).collect();
        (keys, all.collect())
    }

    /// Returns how it names its script when it is sent.
    pub const fn form(&self) -> ScriptForm {
        self.form
    }

    /// Returns the same call in this form.
    #[must_use]
    pub fn in_form(mut self, form: ScriptForm) -> Self {
        self.form = form;
        self
    }

    /// Returns the command that is sent.
    pub(crate) fn command(&self) -> Cmd {
        match self.form {
            ScriptForm::Digest => self.cmd.clone(),
            ScriptForm::Source => self.eval(),
        }
    }

    /// The same call with the script's source, for a server that does not have the script yet. Not `SCRIPT LOAD`: in a
    /// Cluster that goes to every master, and one that hangs would delay all others.
    fn eval(&self) -> Cmd {
        let source = self.source_of(self.script);
        let mut cmd = Cmd::with_capacity(16, source.len() + 256);
        cmd.arg("EVAL").arg(source);
        for arg in self.cmd.args_iter().skip(2) {
            if let Arg::Simple(bytes) = arg {
                cmd.arg(bytes);
            }
        }
        cmd
    }
}

/// How often calls are sent at most: by digest; the first of each script by source; all by source, because in a Cluster
/// another master does not have the script from the first call.
pub(crate) const MAX_ATTEMPTS: u32 = 3;

/// Chooses the forms for the next attempt at calls whose script the server did not have, after `attempt` of them. The
/// first call of each script carries the source and the others follow it, so that a long script is sent once.
pub(crate) fn choose_forms(calls: &mut [Invocation], attempt: u32) {
    for index in 0..calls.len() {
        let is_first = !calls[..index].iter().any(|earlier| earlier.is_same_script(&calls[index]));
        if is_first || attempt > 1 {
            calls[index].form = ScriptForm::Source;
        }
    }
}

/// Returns the integers of a reply, up to the first value that is not one. All integer replies are read through here.
pub(crate) fn integers(value: &Value) -> Vec<i64> {
    let Value::Array(values) = value else { return Vec::new() };
    let integer = |value: &Value| match value {
        Value::Int(n) => Some(*n),
        _ => None,
    };
    values.iter().map_while(integer).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eval_sends_the_same_keys_and_arguments() {
        let mut call = Invocation::new(&phalanx_lua::RATE_LIMIT_PEEK, TimeSource::Server, 0, ["k"].into_iter());
        call.arg(1).arg("two");
        assert_eq!(call.keys_and_args(), (vec![&b"k"[..]], vec![&b"1"[..], b"two"]));
        let source = call.in_form(ScriptForm::Source).command();
        let args: Vec<_> = source.args_iter().collect();
        assert_eq!(args.len(), 6);
        assert!(matches!(args[1], Arg::Simple(bytes) if bytes == phalanx_lua::RATE_LIMIT_PEEK.source.as_bytes()));
    }

    #[test]
    fn the_second_attempt_sends_each_source_once_and_the_third_every_one() {
        let call = |script| Invocation::new(script, TimeSource::Server, 0, ["k"].into_iter());
        let (peek, probe) = (call(&phalanx_lua::RATE_LIMIT_PEEK), call(&phalanx_lua::PROBE));
        let mut calls = [peek.clone(), probe.clone(), peek, probe];
        let (digest, source) = (ScriptForm::Digest, ScriptForm::Source);
        assert_eq!(calls.each_ref().map(Invocation::form), [digest; 4]);
        choose_forms(&mut calls, 1);
        assert_eq!(calls.each_ref().map(Invocation::form), [source, source, digest, digest]);
        choose_forms(&mut calls, 2);
        assert_eq!(calls.each_ref().map(Invocation::form), [source; 4]);
    }

    #[test]
    fn any_reply_is_read_without_panic() {
        assert!(integers(&Value::Nil).is_empty());
        assert_eq!(integers(&Value::Array(vec![Value::Int(1), Value::Nil, Value::Int(2)])), [1]);
    }
}
