//! What a failure means, in thirteen words: the only thing about an error that a policy looks at.
//!
//! A kind answers two questions: may the call be repeated (`retryable`), and was it the dependency's fault
//! (`outcome`, which breaker and throttle read). Domain answers are successes of the dependency: it did its job.

use std::fmt;
use std::str::FromStr;

/// The kind of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[repr(u8)]
pub enum Kind {
    /// An optimistic lock was lost; the same work may succeed at once.
    Concurrency,
    /// The dependency, or the way to it, is broken: connection refused, 5xx, attempt timeout.
    Infrastructure,
    /// Somebody rejected for load: 429, a rate limit, a draining peer.
    Throttled,
    /// The caller's time is up.
    Timeout,
    /// The input is wrong.
    Validation,
    /// A business rule said no.
    Domain,
    /// A precondition of the request does not hold.
    Precondition,
    /// There is no such thing.
    NotFound,
    /// The request contradicts the present state.
    Conflict,
    /// Who are you?
    Authentication,
    /// You may not.
    Authorization,
    /// This process is set up wrongly.
    Configuration,
    /// A defect on either side.
    Internal,
}

impl Kind {
    /// All kinds, in the order of their declaration.
    pub const ALL: [Self; 13] = [
        Self::Concurrency,
        Self::Infrastructure,
        Self::Throttled,
        Self::Timeout,
        Self::Validation,
        Self::Domain,
        Self::Precondition,
        Self::NotFound,
        Self::Conflict,
        Self::Authentication,
        Self::Authorization,
        Self::Configuration,
        Self::Internal,
    ];

    /// The name in files, logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Concurrency => "concurrency",
            Self::Infrastructure => "infrastructure",
            Self::Throttled => "throttled",
            Self::Timeout => "timeout",
            Self::Validation => "validation",
            Self::Domain => "domain",
            Self::Precondition => "precondition",
            Self::NotFound => "not_found",
            Self::Conflict => "conflict",
            Self::Authentication => "authentication",
            Self::Authorization => "authorization",
            Self::Configuration => "configuration",
            Self::Internal => "internal",
        }
    }

    /// Whether repeating the call may help. Nothing else can be retried, by design.
    pub const fn retryable(self) -> bool {
        matches!(self, Self::Concurrency | Self::Infrastructure | Self::Throttled)
    }

    /// What it says about the dependency.
    pub const fn outcome(self) -> Outcome {
        match self {
            Self::Infrastructure | Self::Timeout => Outcome::Failure,
            Self::Throttled | Self::Concurrency => Outcome::Neutral,
            _ => Outcome::Success,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| format!("no failure kind is called {name:?}"))
    }
}

/// What one finished call or attempt says about the dependency's health.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It answered, be it with a "no".
    Success,
    /// It did not do its job.
    Failure,
    /// It says nothing either way: rejected for load, lost a race.
    Neutral,
    /// The caller went away before there was an answer.
    Cancelled,
}

impl Outcome {
    /// The name in logs, spans and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failure => "failure",
            Self::Neutral => "neutral",
            Self::Cancelled => "cancelled",
        }
    }
}

/// A set of kinds.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(into = "Vec<Kind>", from = "Vec<Kind>"))]
pub struct Kinds(u16);

impl Kinds {
    /// No kind at all.
    pub const NONE: Self = Self(0);

    /// This set and one more kind.
    #[must_use]
    pub const fn with(self, kind: Kind) -> Self {
        Self(self.0 | 1 << kind as u8)
    }

    /// Whether the kind is in the set.
    pub const fn contains(self, kind: Kind) -> bool {
        self.0 & (1 << kind as u8) != 0
    }

    /// Whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The kinds in the set.
    pub fn iter(self) -> impl Iterator<Item = Kind> {
        Kind::ALL.into_iter().filter(move |kind| self.contains(*kind))
    }
}

impl FromIterator<Kind> for Kinds {
    fn from_iter<I: IntoIterator<Item = Kind>>(kinds: I) -> Self {
        kinds.into_iter().fold(Self::NONE, Self::with)
    }
}

impl<I: IntoIterator<Item = Kind>> From<I> for Kinds {
    fn from(kinds: I) -> Self {
        kinds.into_iter().collect()
    }
}

#[cfg(feature = "serde")]
impl From<Kinds> for Vec<Kind> {
    fn from(kinds: Kinds) -> Self {
        kinds.iter().collect()
    }
}

impl fmt::Debug for Kinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_three_kinds_may_be_retried() {
        let retryable: Vec<Kind> = Kind::ALL.into_iter().filter(|k| k.retryable()).collect();
        assert_eq!(retryable, [Kind::Concurrency, Kind::Infrastructure, Kind::Throttled]);
    }

    #[test]
    fn a_domain_answer_is_a_success_of_the_dependency() {
        assert_eq!(Kind::Domain.outcome(), Outcome::Success);
        assert_eq!(Kind::NotFound.outcome(), Outcome::Success);
        assert_eq!(Kind::Timeout.outcome(), Outcome::Failure);
        assert_eq!(Kind::Throttled.outcome(), Outcome::Neutral);
    }

    #[test]
    fn names_are_read_back() {
        for kind in Kind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
        }
        assert!("nonsense".parse::<Kind>().is_err());
    }

    #[test]
    fn a_set_holds_just_what_was_put_in() {
        let set = Kinds::from([Kind::Internal, Kind::Concurrency]);
        assert_eq!(set.iter().collect::<Vec<_>>(), [Kind::Concurrency, Kind::Internal]);
        assert!(!set.contains(Kind::Timeout) && Kinds::NONE.is_empty());
    }
}
