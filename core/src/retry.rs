//! Retry: runs the operation again after a failure that another attempt may avoid.
//!
//! Three rules keep retries from adding to an overload: only retryable kinds can be configured, a budget caps the share of
//! calls that are retried, and the attempts of nested policies do not multiply (`nested.rs`).

pub mod backoff;
pub(crate) mod nested;

pub use self::backoff::Backoff;
use crate::budget::BudgetSpec;
use crate::kind::{Kind, Kinds};

/// Configures retries: how often, after which failures and after which delays.
///
/// # Examples
/// ```
/// use std::cell::Cell;
///
/// use phalanx::{Backoff, Policy, ResilienceModule, RetrySpec};
/// # use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), phalanx::ConfigError> {
/// let retry = RetrySpec::attempts(3).backoff(Backoff::constant(Duration::from_millis(10)));
/// let module = ResilienceModule::in_memory().policy(Policy::named("vendor").retry(retry)).build()?;
/// let attempts = Cell::new(0);
/// let third_time = || async {
///     attempts.set(attempts.get() + 1);
///     if attempts.get() == 3 { Ok("done") } else { Err(std::io::Error::other("down")) }
/// };
/// assert_eq!(module.run("vendor", (), third_time).await.unwrap(), "done");
/// assert_eq!(attempts.get(), 3);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(transform = crate::schema::without_examples))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct RetrySpec {
    /// Attempts in all, the first included; at least 1.
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Count"))]
    pub max_attempts: u32,
    /// The kinds of failure that are retried; retryable ones only. Default `infrastructure`.
    #[cfg_attr(feature = "serde", serde(default = "infrastructure"))]
    #[cfg_attr(feature = "schema", schemars(schema_with = "crate::schema::retryable_kinds"))]
    pub retry_on: Kinds,
    /// The delays between attempts.
    #[cfg_attr(feature = "serde", serde(default))]
    pub backoff: Backoff,
    /// A cap on the share of calls that are retried. Default none.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub budget: Option<BudgetSpec>,
    /// Retries even if a nested policy has just used up its own attempts. Default false: attempts would multiply.
    #[cfg_attr(feature = "serde", serde(default))]
    pub retry_exhausted: bool,
}

fn infrastructure() -> Kinds {
    Kinds::NONE.with(Kind::Infrastructure)
}

impl RetrySpec {
    /// Makes at most `max_attempts` attempts, retries `infrastructure` failures, and uses the default backoff.
    pub fn attempts(max_attempts: u32) -> Self {
        Self {
            max_attempts,
            retry_on: infrastructure(),
            backoff: Backoff::default(),
            budget: None,
            retry_exhausted: false,
        }
    }

    /// Sets the kinds of failure that are retried.
    #[must_use]
    pub fn on(mut self, kinds: impl Into<Kinds>) -> Self {
        self.retry_on = kinds.into();
        self
    }

    /// Sets the delays between attempts.
    #[must_use]
    pub const fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// Caps the share of calls that are retried.
    #[must_use]
    pub const fn budget(mut self, budget: BudgetSpec) -> Self {
        self.budget = Some(budget);
        self
    }

    /// Retries even if a nested policy has just used up its own attempts.
    #[must_use]
    pub const fn retry_exhausted(mut self) -> Self {
        self.retry_exhausted = true;
        self
    }
}
