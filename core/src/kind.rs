//! The thirteen kinds of failure: all that a policy looks at in an error.
//!
//! A kind answers two questions: may the call be retried (`retryable`), and did the dependency fail (`outcome`, which
//! breaker and throttle count). A domain error is a success of the dependency: it answered.

use std::fmt;
use std::str::FromStr;

/// The kind of a failure.
///
/// # Examples
/// ```
/// use phalanx::Kind;
///
/// assert!(Kind::Infrastructure.retryable());
/// assert!(!Kind::Validation.retryable());
/// assert_eq!("not_found".parse(), Ok(Kind::NotFound));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[repr(u8)]
pub enum Kind {
    /// An optimistic lock was lost: the same work may succeed at once.
    Concurrency,
    /// The dependency failed or cannot be reached: connection refused, 5xx, attempt timeout.
    Infrastructure,
    /// The call was rejected for load: 429, a rate limit, a draining peer.
    Throttled,
    /// The deadline of the caller has passed.
    Timeout,
    /// The input is wrong.
    Validation,
    /// A business rule does not allow it.
    Domain,
    /// A precondition of the request does not hold.
    Precondition,
    /// The resource does not exist.
    NotFound,
    /// The request conflicts with the current state.
    Conflict,
    /// The caller is not authenticated.
    Authentication,
    /// The caller is not allowed to do this.
    Authorization,
    /// This process is misconfigured.
    Configuration,
    /// A bug on either side.
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

    /// Returns the name used in files, logs and metrics.
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

    /// Returns whether another attempt may succeed. A policy cannot be configured to retry other kinds.
    pub const fn retryable(self) -> bool {
        matches!(self, Self::Concurrency | Self::Infrastructure | Self::Throttled)
    }

    /// Returns the outcome that breaker and throttle count.
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

/// The outcome of a call or attempt, as evidence about the dependency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The dependency answered, possibly with a domain error.
    Success,
    /// The dependency failed.
    Failure,
    /// No evidence: rejected for load, or an optimistic lock was lost.
    Neutral,
    /// The caller cancelled before there was an answer.
    Cancelled,
}

impl Outcome {
    /// Returns the name used in logs, spans and metrics.
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
///
/// # Examples
/// ```
/// use phalanx::policy::Kinds;
/// use phalanx::Kind;
///
/// let kinds = Kinds::from([Kind::Infrastructure]).with(Kind::Throttled);
/// assert!(kinds.contains(Kind::Throttled) && !kinds.contains(Kind::Domain));
/// assert_eq!(kinds.iter().count(), 2);
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(into = "Vec<Kind>", from = "Vec<Kind>"))]
pub struct Kinds(u16);

impl Kinds {
    /// The empty set.
    pub const NONE: Self = Self(0);

    /// Adds a kind.
    #[must_use]
    pub const fn with(self, kind: Kind) -> Self {
        Self(self.0 | 1 << kind as u8)
    }

    /// Returns whether the kind is in the set.
    pub const fn contains(self, kind: Kind) -> bool {
        self.0 & (1 << kind as u8) != 0
    }

    /// Returns whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the kinds in the set.
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
    fn every_name_parses_to_its_kind() {
        for kind in Kind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
        }
        assert!("nonsense".parse::<Kind>().is_err());
    }

    #[test]
    fn a_set_holds_exactly_the_kinds_added() {
        let set = Kinds::from([Kind::Internal, Kind::Concurrency]);
        assert_eq!(set.iter().collect::<Vec<_>>(), [Kind::Concurrency, Kind::Internal]);
        assert!(!set.contains(Kind::Timeout) && Kinds::NONE.is_empty());
    }
}
