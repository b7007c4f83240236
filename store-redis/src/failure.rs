//! Failures of a request to Redis, and what they mean for the server.
//!
//! Three kinds are evidence against the server: no reply in time, no connection, and an error reply that it cannot
//! serve (`READONLY`, `OOM`, …). Everything else concerns a single call.
//!
//! A reply is classified by its error code. Where there is none, by its wording: errors inside a script arrive as a plain
//! `ERR`, and Redis 6.2, 7.0 and 8 and Valkey word them differently. The tests list the wordings.

use std::error::Error;
use std::io;
use std::sync::Arc;

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::cluster_connection::failure_of_script;

/// Why a request has no reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No reply within the store budget.
    Timeout,
    /// The connection broke, or could not be opened for an unknown reason.
    Connection,
    /// The connection could not be opened, for this reason.
    Unreachable(&'static str),
    /// The server replied that it cannot serve, with this error code.
    Rejecting(&'static str),
    /// This call failed, which is no evidence against the server.
    Call(String),
    /// The request was not sent: the latch is down, or its budget was used up in the queue.
    NotSent,
}

/// Error codes of a server that cannot serve writes, or not this client.
const SERVER_ERROR_CODES: [&str; 11] = [
    "READONLY",
    "LOADING",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "NOREPLICAS",
    "MISCONF",
    "OOM",
    "BUSY",
    "NOAUTH",
    "WRONGPASS",
    "NOPERM",
];

/// The text of a call on keys of several slots, which a server in Cluster mode does not take in one script.
pub(crate) const CROSS_SLOT: &str = "CROSSSLOT";

/// How servers word that the user may not run a command, or use a key or a channel, from a script. Up to Redis 7.0: "The
/// user executing the script can't …"; later, and in Valkey: "ACL failure in script: …".
const DENIED_IN_SCRIPT: [&str; 2] = ["The user executing the script can't ", "ACL failure in script"];

/// How servers word that a command is renamed or switched off: one that a client sends, or one that a script calls.
const UNKNOWN_COMMAND: [&str; 3] = ["unknown command", "command called from script", "command called from Lua script"];

impl Failure {
    /// Classifies an error of the client.
    pub(crate) fn of(error: &RedisError) -> Self {
        if let Some(failure) = io_error(error).and_then(failure_of_script) {
            return failure.clone();
        }
        if error.is_timeout() {
            return Self::Timeout;
        }
        if error.kind() == ErrorKind::AuthenticationFailed {
            return Self::Rejecting("WRONGPASS");
        }
        let (code, detail) = (error.code().unwrap_or_default(), error.detail().unwrap_or_default());
        Self::of_error_reply(code, detail).unwrap_or_else(|| {
            let lost = error.is_io_error() || error.is_connection_dropped() || error.is_unrecoverable_error();
            match error.kind() {
                ErrorKind::MasterNameNotFoundBySentinel => Self::Unreachable("no_master"),
                // Nothing that speaks the protocol sends this: the connection is useless.
                ErrorKind::Parse => Self::Unreachable("not_redis"),
                ErrorKind::Server(ServerErrorKind::CrossSlot) => Self::Call(CROSS_SLOT.to_owned()),
                _ if lost => Self::Connection,
                _ => Self::Call(error.category().to_owned()),
            }
        })
    }

    /// Classifies an error of connecting. Name resolution and TLS are only recognizable by the text of the error.
    pub(crate) fn of_connecting(error: &RedisError) -> Self {
        const DNS: [&str; 2] = ["failed to lookup address", "No address found for host"];
        const TLS: [&str; 4] = ["certificate", "fatal alert", "corrupt message", "tls"];
        let text = error.to_string();
        let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
        match io_error(error).map(io::Error::kind) {
            _ if says(&DNS) => Self::Unreachable("dns"),
            _ if error.is_io_error() && says(&TLS) => Self::Rejecting("TLS"),
            Some(io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) => Self::Unreachable("refused"),
            Some(io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable) => Self::Unreachable("no_route"),
            _ => Self::of(error),
        }
    }

    /// Whether the connection is broken, or there is none.
    pub(crate) const fn is_connection(&self) -> bool {
        matches!(self, Self::Connection | Self::Unreachable(_))
    }

    /// Classifies an error reply; `None` if it is no evidence against the server.
    #[doc(hidden)]
    pub fn of_error_reply(code: &str, detail: &str) -> Option<Self> {
        // Redis 6.2 wraps errors inside a script.
        let wrapped = |code: &str| detail.contains(&format!("-{code} ")) || detail.starts_with(code);
        let known = SERVER_ERROR_CODES.iter().find(|known| **known == code || wrapped(known)).copied();
        let says = |words: &[&str]| code == "ERR" && words.iter().any(|word| detail.contains(word));
        known
            .or_else(|| says(&DENIED_IN_SCRIPT).then_some("NOPERM"))
            .or_else(|| says(&UNKNOWN_COMMAND).then_some("NOSCRIPTING"))
            .map(Self::Rejecting)
    }

    /// Classifies the text of an error reply, such as `ERR …`, as it is when a client has received it.
    #[doc(hidden)]
    pub fn of_error_text(text: &str) -> Self {
        let line = format!("-{}\r\n", text.replace(['\r', '\n'], " "));
        match redis::parse_redis_value(line.as_bytes()).and_then(redis::Value::extract_error) {
            Err(error) => Self::of(&error),
            Ok(_) => Self::Call(text.to_owned()),
        }
    }

    /// Returns the label in events, metrics and logs: a word of ours, or the error code of the server in capitals.
    pub fn label(&self) -> &str {
        match self {
            Self::Timeout => "timeout",
            Self::Connection => "connection",
            Self::Unreachable(reason) => reason,
            Self::Rejecting("NOAUTH" | "WRONGPASS") => "auth",
            Self::Rejecting("NOPERM") => "acl",
            Self::Rejecting("TLS") => "tls",
            Self::Rejecting("NOSCRIPTING") => "no_scripting",
            Self::Rejecting(code) => code,
            Self::Call(_) => "call",
            Self::NotSent => "not_sent",
        }
    }

    /// Whether only an operator can fix it, so that frequent health checks are pointless.
    pub(crate) fn needs_operator(&self) -> bool {
        matches!(self, Self::Rejecting("NOAUTH" | "WRONGPASS" | "NOPERM" | "NOSCRIPTING"))
    }
}

/// Returns the I/O error that this error wraps.
fn io_error(error: &RedisError) -> Option<&io::Error> {
    error.source()?.downcast_ref::<Arc<dyn Error + Send + Sync>>()?.downcast_ref::<io::Error>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_without_a_connection_is_a_lost_connection() {
        let error = RedisError::from((ErrorKind::ClusterConnectionNotFound, "No connections found"));
        assert_eq!(Failure::of(&error), Failure::Connection);
    }

    #[test]
    fn a_server_that_cannot_serve_is_distinguished_from_a_failed_call() {
        assert_eq!(Failure::of_error_reply("READONLY", "You can't write"), Some(Failure::Rejecting("READONLY")));
        assert_eq!(Failure::of_error_reply("ERR", "-OOM command not allowed"), Some(Failure::Rejecting("OOM")));
        assert_eq!(
            Failure::of_error_reply("ERR", "unknown command 'EVALSHA'"),
            Some(Failure::Rejecting("NOSCRIPTING"))
        );
        assert_eq!(Failure::of_error_reply("ERR", "user_script:1: attempt to index"), None);
        assert_eq!(Failure::of_error_reply("WRONGTYPE", "Operation against a key"), None);
    }

    #[test]
    fn a_denial_inside_a_script_is_recognized_in_the_words_of_every_engine() {
        let of = Failure::of_error_text;
        let call = "ERR Error running script (call to f_a8e045687019c1230c01d4717e0579b12b1a1b50): @user_script:1: ";
        for text in [
            // Redis 6.2.14
            &format!("{call}@user_script: 1: The user executing the script can't run this command or subcommand"),
            &format!("{call}@user_script: 1: The user executing the script can't access at least one of the keys"),
            &format!("{call}@user_script: 1: The user executing the script can't publish to the channel mentioned"),
            // Redis 7.0.15
            "ERR The user executing the script can't run this command or subcommand script: a8e0, on @user_script:1.",
            "ERR The user executing the script can't access at least one of the keys mentioned in the command",
            "ERR The user executing the script can't publish to the channel mentioned in the command",
            // Redis 8.2.3, Valkey 9.1.2
            "ERR ACL failure in script: User u has no permissions to run the 'set' command script: on @user_script:1.",
            "ERR ACL failure in script: No permissions to access a key script: on @user_script:1.",
            "ERR ACL failure in script: No permissions to access a channel script: on @user_script:1.",
            // Outside a script
            "NOPERM this user has no permissions to run the 'evalsha' command or its subcommand",
            "NOPERM User u has no permissions to run the 'evalsha' command",
            "NOPERM No permissions to access a channel",
        ] {
            assert_eq!(of(text), Failure::Rejecting("NOPERM"), "{text}");
            assert_eq!(of(text).label(), "acl");
        }
    }

    #[test]
    fn errors_inside_a_script_are_recognized_in_the_words_of_redis_6() {
        let of = |text: &str| Failure::of_error_text(&format!("ERR Error running script (call to f_a8): {text}"));
        let oom = "@user_script:1: @user_script: 1: -OOM command not allowed when used memory > 'maxmemory'.";
        assert_eq!(of(oom), Failure::Rejecting("OOM"));
        let readonly = "@user_script:1: @user_script: 1: -READONLY You can't write against a read only replica.";
        assert_eq!(of(readonly), Failure::Rejecting("READONLY"));
        let unknown = "@user_script:1: @user_script: 1: Unknown Redis command called from Lua script";
        assert_eq!(of(unknown), Failure::Rejecting("NOSCRIPTING"));
        let type_error = "@user_script:1: WRONGTYPE Operation against a key holding the wrong kind of value";
        assert_eq!(of(type_error), Failure::Call("response error".to_owned()));
    }

    #[test]
    fn a_command_that_is_switched_off_is_recognized_in_the_words_of_every_engine() {
        for text in [
            "ERR unknown command 'EVALSHA', with args beginning with: ",
            "ERR unknown command `EVALSHA`, with args beginning with: ",
            "ERR Unknown Redis command called from script script: 7ae0, on @user_script:1.",
            "ERR Unknown command called from script script: on @user_script:1.",
        ] {
            assert_eq!(Failure::of_error_text(text).label(), "no_scripting", "{text}");
        }
    }

    #[test]
    fn the_cause_of_a_failed_connect_has_a_label() {
        let io = |kind, text: &str| Failure::of_connecting(&RedisError::from(io::Error::new(kind, text)));
        let other = |text| io(io::ErrorKind::Other, text).label().to_owned();
        assert_eq!(other("failed to lookup address information: Name or service not known"), "dns");
        assert_eq!(other("invalid peer certificate: Expired"), "tls");
        assert_eq!(
            io(io::ErrorKind::InvalidData, "received corrupt message of type InvalidContentType").label(),
            "tls"
        );
        assert_eq!(io(io::ErrorKind::ConnectionRefused, "Connection refused").label(), "refused");
        assert_eq!(io(io::ErrorKind::NotFound, "No such file or directory").label(), "refused");
        assert_eq!(io(io::ErrorKind::HostUnreachable, "No route to host").label(), "no_route");
        assert_eq!(io(io::ErrorKind::UnexpectedEof, "unexpected end of file").label(), "connection");
        assert_eq!(io(io::ErrorKind::TimedOut, "timed out").label(), "timeout");
        let of = |kind| Failure::of_connecting(&RedisError::from((kind, "text"))).label().to_owned();
        assert_eq!(of(ErrorKind::Parse), "not_redis");
        assert_eq!(of(ErrorKind::AuthenticationFailed), "auth");
        assert_eq!(of(ErrorKind::MasterNameNotFoundBySentinel), "no_master");
    }

    #[test]
    fn the_text_of_an_error_is_classified_like_the_error_of_a_client() {
        let of = Failure::of_error_text;
        assert_eq!(of("READONLY You can't write against a read only replica."), Failure::Rejecting("READONLY"));
        assert_eq!(of("ERR user_script:1: attempt to index\r\nstack"), Failure::Call("response error".to_owned()));
        assert_eq!(of("WRONGTYPE Operation against a key"), Failure::Call("extension error".to_owned()));
        let several_slots = "CROSSSLOT Keys in request don't hash to the same slot";
        assert_eq!(of(several_slots), Failure::Call(CROSS_SLOT.to_owned()));
    }
}
