//! Readiness: whether an orchestrator should send requests to this replica.
//!
//! A replica that has not reached the shared store yet, or no longer reaches it, is ready and makes degraded decisions. The answer reports the mode of
//! the store as a detail.

use std::fmt::Write;

/// Whether to send requests to this replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Every step has started.
    Ready,
    /// The replica is shutting down.
    Draining,
    /// The replica has not started, or has stopped.
    Unavailable,
}

impl Status {
    /// Returns the name used in the JSON answer.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Draining => "draining",
            Self::Unavailable => "unavailable",
        }
    }

    /// Returns the HTTP status: 200 for ready, 503 otherwise.
    pub const fn http_status(self) -> u16 {
        match self {
            Self::Ready => 200,
            Self::Draining | Self::Unavailable => 503,
        }
    }
}

/// The answer to a readiness check, from [`Runtime::readiness`](crate::Runtime::readiness).
///
/// # Examples
///
/// ```
/// use phalanx_lifecycle::{Readiness, Runtime, Status};
///
/// let runtime = Runtime::builder().build().unwrap();
/// let before_start = runtime.readiness();
/// assert_eq!((before_start.status, before_start.status.http_status()), (Status::Unavailable, 503));
///
/// let degraded = Readiness { status: Status::Ready, stores: vec!["shared", "degraded"], in_flight: 3 };
/// assert_eq!(degraded.to_json(), r#"{"status":"ready","in_flight":3,"store":"degraded"}"#);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Readiness {
    /// Whether to send requests to this replica.
    pub status: Status,
    /// The store mode of each module that shares its state: `connecting`, `shared`, `partial` or `degraded`.
    pub stores: Vec<&'static str>,
    /// Calls in flight.
    pub in_flight: u64,
}

impl Readiness {
    /// Returns the answer as JSON. `store` is the worst mode of all modules.
    pub fn to_json(&self) -> String {
        let mut json = format!(r#"{{"status":"{}","in_flight":{}"#, self.status.as_str(), self.in_flight);
        let worst = ["degraded", "partial", "connecting", "shared"].into_iter().find(|mode| self.stores.contains(mode));
        if let Some(store) = worst {
            let _ = write!(json, r#","store":"{store}""#); // writing to a string cannot fail
        }
        json.push('}');
        json
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_names_the_status_and_the_worst_store_mode() {
        let ready = Readiness { status: Status::Ready, stores: vec![], in_flight: 3 };
        assert_eq!(ready.to_json(), r#"{"status":"ready","in_flight":3}"#);
        let degraded = Readiness { status: Status::Draining, stores: vec!["shared", "degraded"], in_flight: 0 };
        assert_eq!(degraded.to_json(), r#"{"status":"draining","in_flight":0,"store":"degraded"}"#);
        let connecting = Readiness { stores: vec!["shared", "connecting"], ..ready };
        assert_eq!(connecting.to_json(), r#"{"status":"ready","in_flight":3,"store":"connecting"}"#);
    }
}
