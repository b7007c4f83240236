//! Failures of a request to Redis, and what they mean for the server.
//!
//! Three kinds are evidence against the server: no reply in time, no connection, and an error reply that it cannot
//! serve (`READONLY`, `OOM`, …). Everything else concerns a single call.

use redis::{ErrorKind, RedisError};

/// Why a request has no reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No reply within the store budget.
    Timeout,
    /// The connection broke or could not be opened.
    Connection,
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

impl Failure {
    /// Classifies an error of the client.
    pub(crate) fn of(error: &RedisError) -> Self {
        if error.is_timeout() {
            return Self::Timeout;
        }
        if error.kind() == ErrorKind::AuthenticationFailed {
            return Self::Rejecting("WRONGPASS");
        }
        let (code, detail) = (error.code().unwrap_or_default(), error.detail().unwrap_or_default());
        Self::of_error_reply(code, detail).unwrap_or_else(|| {
            let lost = error.is_io_error() || error.is_connection_dropped() || error.is_unrecoverable_error();
            let nowhere =
                matches!(error.kind(), ErrorKind::ClusterConnectionNotFound | ErrorKind::MasterNameNotFoundBySentinel);
            if lost || nowhere { Self::Connection } else { Self::Call(error.category().to_owned()) }
        })
    }

    /// Classifies an error reply; `None` if it is no evidence against the server.
    #[doc(hidden)]
    pub fn of_error_reply(code: &str, detail: &str) -> Option<Self> {
        // Older servers wrap errors inside a script, and ACL denials arrive as a plain `ERR`.
        let wrapped = |code: &str| detail.contains(&format!("-{code} ")) || detail.starts_with(code);
        let known = SERVER_ERROR_CODES.iter().find(|known| **known == code || wrapped(known)).copied();
        let denied = detail.contains("can't run this command") || detail.contains("No permissions to access a key");
        let scriptless = code == "ERR" && detail.contains("unknown command");
        known.or(denied.then_some("NOPERM")).or(scriptless.then_some("NOSCRIPTING")).map(Self::Rejecting)
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

    /// Returns the label in events, metrics and logs.
    pub fn label(&self) -> &str {
        match self {
            Self::Timeout => "timeout",
            Self::Connection => "connection",
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

#[cfg(test)]
mod tests {
    use super::*;

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
    fn the_text_of_an_error_is_classified_like_the_error_of_a_client() {
        let of = Failure::of_error_text;
        assert_eq!(of("READONLY You can't write against a read only replica."), Failure::Rejecting("READONLY"));
        assert_eq!(of("ERR user_script:1: attempt to index\r\nstack"), Failure::Call("response error".to_owned()));
        assert_eq!(of("WRONGTYPE Operation against a key"), Failure::Call("extension error".to_owned()));
    }
}
