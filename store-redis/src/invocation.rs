//! One script with its keys and arguments, as it goes over the wire: an `EVALSHA` that can become an `EVAL`.

use std::collections::HashMap;
use std::sync::LazyLock;

use phalanx_lua::Script;
use redis::{Arg, Cmd, ToRedisArgs, Value};

/// The server's clock, or one that a test moves and sends along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Time {
    Server,
    Virtual,
}

/// One script to be run.
#[derive(Clone, Debug)]
pub struct Invocation {
    script: &'static Script,
    time: Time,
    cmd: Cmd,
}

/// The digests by which the server knows scripts: with its own clock and with a virtual one.
static DIGESTS: LazyLock<HashMap<&'static str, [String; 2]>> = LazyLock::new(|| {
    let digest = |source: &str| sha1_smol::Sha1::from(source).hexdigest();
    let both = |script: &Script| (script.name, [digest(script.source), digest(script.virtual_source)]);
    phalanx_lua::ALL.iter().map(both).collect()
});

impl Invocation {
    pub(crate) fn new(script: &'static Script, time: Time, keys: &[&str]) -> Self {
        let digest = DIGESTS.get(script.name).map_or("", |both| &both[time as usize]);
        let mut cmd = Cmd::with_capacity(16, 256);
        cmd.arg("EVALSHA").arg(digest).arg(keys.len());
        for key in keys {
            cmd.arg(key);
        }
        Self { script, time, cmd }
    }

    pub(crate) fn arg(&mut self, arg: impl ToRedisArgs) -> &mut Self {
        self.cmd.arg(arg);
        self
    }

    /// The script.
    pub const fn script(&self) -> &'static Script {
        self.script
    }

    /// Keys and arguments, in the order in which the script has them.
    pub fn keys_and_args(&self) -> (Vec<&[u8]>, Vec<&[u8]>) {
        let mut all = self.cmd.args_iter().skip(2).filter_map(|arg| match arg {
            Arg::Simple(bytes) => Some(bytes),
            _ => None,
        });
        let count = all.next().and_then(|count| std::str::from_utf8(count).ok()?.parse().ok()).unwrap_or(0);
        let keys = all.by_ref().take(count).collect();
        (keys, all.collect())
    }

    pub(crate) const fn by_digest(&self) -> &Cmd {
        &self.cmd
    }

    /// The same with its source, for a server that does not know the script yet. Not `SCRIPT LOAD`: in a Cluster that
    /// goes to every master, and one that hangs would keep all others from learning it.
    pub(crate) fn by_source(&self) -> Cmd {
        let source = match self.time {
            Time::Server => self.script.source,
            Time::Virtual => self.script.virtual_source,
        };
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

/// The integers of a reply, up to the first thing that is none. Everything that comes from outside is read through here.
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
    fn the_source_goes_with_the_same_keys_and_arguments() {
        let mut call = Invocation::new(&phalanx_lua::RATE_LIMIT_PEEK, Time::Server, &["k"]);
        call.arg(1).arg("two");
        assert_eq!(call.keys_and_args(), (vec![&b"k"[..]], vec![&b"1"[..], b"two"]));
        let source = call.by_source();
        let words: Vec<_> = source.args_iter().collect();
        assert_eq!(words.len(), 6);
        assert!(matches!(words[1], Arg::Simple(bytes) if bytes == phalanx_lua::RATE_LIMIT_PEEK.source.as_bytes()));
    }

    #[test]
    fn whatever_a_server_replies_is_read_without_harm() {
        assert!(integers(&Value::Nil).is_empty());
        assert_eq!(integers(&Value::Array(vec![Value::Int(1), Value::Nil, Value::Int(2)])), [1]);
    }
}
