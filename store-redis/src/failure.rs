//! What can go wrong between here and Redis, and what it says about the server.
//!
//! Three classes matter: it does not answer (time), nobody is there (connection), and it answers that it cannot serve
//! (its own word: `READONLY`, `OOM`, …). Everything else concerns one call only.

use redis::{ErrorKind, RedisError};

/// Why an operation has no answer of the fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No answer within the store budget.
    Timeout,
    /// The connection broke, or cannot be made.
    Connection,
    /// The server answers that it cannot serve; its own word for it.
    Rejecting(&'static str),
    /// This call went wrong, which says nothing about the server.
    Call(String),
    /// Nobody was asked: the latch is down, or there was no time left to ask.
    NotAsked,
}

/// Words of a server that cannot serve writes, or not us.
const REJECTIONS: [&str; 11] = [
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
    /// What an error of the client means.
    pub(crate) fn of(error: &RedisError) -> Self {
        if error.is_timeout() {
            return Self::Timeout;
        }
        if error.kind() == ErrorKind::AuthenticationFailed {
            return Self::Rejecting("WRONGPASS");
        }
        let (code, detail) = (error.code().unwrap_or_default(), error.detail().unwrap_or_default());
        Self::of_words(code, detail).unwrap_or_else(|| {
            let lost = error.is_io_error() || error.is_connection_dropped() || error.is_unrecoverable_error();
            let nowhere =
                matches!(error.kind(), ErrorKind::ClusterConnectionNotFound | ErrorKind::MasterNameNotFoundBySentinel);
            if lost || nowhere { Self::Connection } else { Self::Call(error.category().to_owned()) }
        })
    }

    /// What an answer of the server means, if it says something about the server.
    pub(crate) fn of_words(code: &str, detail: &str) -> Option<Self> {
        // Older servers wrap what happens inside a script, and denials by ACL come as a plain error.
        let inside = |word: &str| detail.contains(&format!("-{word} ")) || detail.starts_with(word);
        let known = REJECTIONS.iter().find(|word| **word == code || inside(word)).copied();
        let denied = detail.contains("can't run this command") || detail.contains("No permissions to access a key");
        let scriptless = code == "ERR" && detail.contains("unknown command");
        known.or(denied.then_some("NOPERM")).or(scriptless.then_some("NOSCRIPTING")).map(Self::Rejecting)
    }

    /// The word in events and logs.
    pub fn word(&self) -> &str {
        match self {
            Self::Timeout => "timeout",
            Self::Connection => "connection",
            Self::Rejecting(word) => word,
            Self::Call(_) => "call",
            Self::NotAsked => "not_asked",
        }
    }

    /// Whether only an operator can end it, so that asking often is pointless.
    pub(crate) fn needs_an_operator(&self) -> bool {
        matches!(self, Self::Rejecting("NOAUTH" | "WRONGPASS" | "NOPERM" | "NOSCRIPTING"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_cannot_serve_is_told_from_a_call_that_went_wrong() {
        assert_eq!(Failure::of_words("READONLY", "You can't write"), Some(Failure::Rejecting("READONLY")));
        assert_eq!(Failure::of_words("ERR", "-OOM command not allowed"), Some(Failure::Rejecting("OOM")));
        assert_eq!(Failure::of_words("ERR", "unknown command 'EVALSHA'"), Some(Failure::Rejecting("NOSCRIPTING")));
        assert_eq!(Failure::of_words("ERR", "user_script:1: attempt to index"), None);
        assert_eq!(Failure::of_words("WRONGTYPE", "Operation against a key"), None);
    }
}
