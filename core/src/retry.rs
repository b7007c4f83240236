//! Retry: run the whole operation again when repeating may help.
//!
//! Three things keep it from making matters worse: only retryable kinds can be named, a budget caps the share of calls
//! that are repeated, and nested policies do not multiply (`nested.rs`).

pub mod backoff;
pub(crate) mod nested;

pub use self::backoff::Backoff;
use crate::budget::BudgetSpec;
use crate::kind::{Kind, Kinds};

/// How often, on what, and after which waits to try again.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct RetrySpec {
    /// Attempts in all, the first included; at least 1.
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Count"))]
    pub max_attempts: u32,
    /// The kinds that are tried again; retryable ones only. Default `infrastructure`.
    #[cfg_attr(feature = "serde", serde(default = "infrastructure"))]
    #[cfg_attr(feature = "schema", schemars(schema_with = "crate::schema::retryable_kinds"))]
    pub retry_on: Kinds,
    /// The waits between attempts.
    #[cfg_attr(feature = "serde", serde(default))]
    pub backoff: Backoff,
    /// A cap on the share of calls that are repeated. Default none.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub budget: Option<BudgetSpec>,
    /// Try again even when a policy inside has just used up its own attempts. Default false: attempts would multiply.
    #[cfg_attr(feature = "serde", serde(default))]
    pub retry_exhausted: bool,
}

fn infrastructure() -> Kinds {
    Kinds::NONE.with(Kind::Infrastructure)
}

impl RetrySpec {
    /// So many attempts in all, on `infrastructure`, with the default back-off.
    pub fn attempts(max_attempts: u32) -> Self {
        Self {
            max_attempts,
            retry_on: infrastructure(),
            backoff: Backoff::default(),
            budget: None,
            retry_exhausted: false,
        }
    }

    /// The kinds that are tried again.
    #[must_use]
    pub fn on(mut self, kinds: impl Into<Kinds>) -> Self {
        self.retry_on = kinds.into();
        self
    }

    /// The waits between attempts.
    #[must_use]
    pub const fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// A cap on the share of calls that are repeated.
    #[must_use]
    pub const fn budget(mut self, budget: BudgetSpec) -> Self {
        self.budget = Some(budget);
        self
    }

    /// Try again even when a policy inside has just used up its own attempts.
    #[must_use]
    pub const fn retry_exhausted(mut self) -> Self {
        self.retry_exhausted = true;
        self
    }
}
