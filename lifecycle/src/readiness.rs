//! What an orchestrator asks: whether to send calls here.
//!
//! A shared store that is away makes a replica no less ready: it decides alone. That is told as a detail.

use std::fmt::Write;

/// Whether to send calls here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Yes.
    Ready,
    /// No more: it is going.
    Draining,
    /// Not yet, or no longer.
    Unavailable,
}

impl Status {
    /// The word in the answer.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Draining => "draining",
            Self::Unavailable => "unavailable",
        }
    }

    /// The HTTP status of the answer.
    pub const fn http(self) -> u16 {
        match self {
            Self::Ready => 200,
            Self::Draining | Self::Unavailable => 503,
        }
    }
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Readiness {
    /// Whether to send calls here.
    pub status: Status,
    /// Who decides, for each module that shares its state: `shared`, `partial`, `degraded`.
    pub stores: Vec<&'static str>,
    /// Calls in flight.
    pub in_flight: u64,
}

impl Readiness {
    /// As JSON.
    pub fn to_json(&self) -> String {
        let mut json = format!(r#"{{"status":"{}","in_flight":{}"#, self.status.name(), self.in_flight);
        // The worst of all, which is what somebody who looks wants to know.
        let worst = ["degraded", "partial", "shared"].into_iter().find(|mode| self.stores.contains(mode));
        if let Some(store) = worst {
            let _ = write!(json, r#","store":"{store}""#); // to a string: cannot fail
        }
        json.push('}');
        json
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_reads_as_json_and_names_the_worst_store() {
        let ready = Readiness { status: Status::Ready, stores: vec![], in_flight: 3 };
        assert_eq!(ready.to_json(), r#"{"status":"ready","in_flight":3}"#);
        let alone = Readiness { status: Status::Draining, stores: vec!["shared", "degraded"], in_flight: 0 };
        assert_eq!(alone.to_json(), r#"{"status":"draining","in_flight":0,"store":"degraded"}"#);
    }
}
