//! A policy: the protection of calls to a dependency, as plain data.
//!
//! Stages may be configured in any order; they always run in the order of [`Stage`]. A policy is validated when a module is
//! built, and all mistakes are reported at once ([`validate`]).

pub mod validate;
mod values;

use std::time::Duration;

use crate::breaker::BreakerSpec;
use crate::bulkhead::BulkheadSpec;
use crate::chaos::ChaosSpec;
use crate::guard::{Guard, Guards};
use crate::hedge::HedgeSpec;
use crate::kind::Kind;
use crate::rate_limit::{LimitSpec, Limits, RateLimitSpec};
use crate::retry::{Backoff, RetrySpec};
use crate::throttle::ThrottleSpec;

/// The stages of a pipeline, outermost first. A custom guard's order is compared with the number of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[repr(u16)]
pub enum Stage {
    /// The deadline of the call. A call that is late already must not take a permit or a slot.
    Deadline = 100,
    /// The rate limit, before everything that a call can hold, so that excess calls are rejected cheaply.
    RateLimit = 200,
    /// The bulkhead. A call waits for a slot before the breaker is asked, so that the breaker's answer is current.
    Bulkhead = 300,
    /// Breaker or throttle: one outcome per call, retries included, unless the policy counts attempts.
    Circuit = 400,
    /// The retries, around all attempts.
    Retry = 500,
    /// The hedges of one attempt.
    Hedge = 600,
    /// The timeout of one attempt.
    Timeout = 700,
}

impl Stage {
    /// Returns the name used in logs, metrics and descriptions.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Deadline => "deadline",
            Self::RateLimit => "rate_limit",
            Self::Bulkhead => "bulkhead",
            Self::Circuit => "circuit",
            Self::Retry => "retry",
            Self::Hedge => "hedge",
            Self::Timeout => "timeout",
        }
    }

    /// Returns the order. A guard with a smaller order runs outside this stage.
    pub const fn order(self) -> u16 {
        self as u16
    }
}

/// How to decide while the shared store is away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum OnDegraded {
    /// Decides on the state of this process.
    #[default]
    Local,
    /// Admits every call (fail open).
    Open,
    /// Rejects every call with `store_unavailable` (fail closed).
    Closed,
}

impl OnDegraded {
    /// Returns the name used in configuration files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Open => "open",
            Self::Closed => "closed",
        }
    }
}

/// Configures the total time of a call, and how a call that exceeds it is counted.
///
/// # Examples
/// ```
/// use phalanx::policy::DeadlineSpec;
/// use phalanx::{Policy, RejectionCode, ResilienceModule};
/// # use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), phalanx::ConfigError> {
/// let deadline = DeadlineSpec::total(Duration::from_millis(200)).safety_margin(Duration::from_millis(20));
/// let module = ResilienceModule::in_memory().policy(Policy::named("vendor").deadline(deadline)).build()?;
/// let hangs = || std::future::pending::<Result<(), std::io::Error>>();
/// let error = module.run("vendor", (), hangs).await.unwrap_err();
/// assert_eq!(error.rejection().map(|rejection| rejection.code()), Some(RejectionCode::DeadlineExceeded));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(transform = crate::schema::without_examples))]
#[cfg_attr(feature = "serde", serde(from = "deadline_form::Form"))]
#[cfg_attr(feature = "schema", schemars(with = "deadline_form::Form"))]
pub struct DeadlineSpec {
    /// The longest that a call may take, waiting and retries included. Default none: only the deadline of the
    /// caller counts.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde", skip_serializing_if = "Option::is_none"))]
    pub total: Option<Duration>,
    /// The time reserved for returning the answer: an attempt gets the remaining time minus this. Default zero.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    pub safety_margin: Duration,
    /// An attempt cut off by the deadline counts as a failure only if it had run this long. Default 50 ms.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    pub failure_floor: Duration,
}

impl Default for DeadlineSpec {
    fn default() -> Self {
        Self { total: None, safety_margin: Duration::ZERO, failure_floor: Duration::from_millis(50) }
    }
}

impl DeadlineSpec {
    /// Limits the whole call, waiting and retries included.
    pub fn total(total: Duration) -> Self {
        Self { total: Some(total), ..Self::default() }
    }

    /// Sets the time that is reserved for returning the answer.
    #[must_use]
    pub const fn safety_margin(mut self, margin: Duration) -> Self {
        self.safety_margin = margin;
        self
    }

    /// Sets how long an attempt must have run for its cut by the deadline to count as a failure.
    #[must_use]
    pub const fn failure_floor(mut self, floor: Duration) -> Self {
        self.failure_floor = floor;
        self
    }
}

/// In files a deadline is its total, `"2s"`, or a table of all its fields.
#[cfg(feature = "serde")]
mod deadline_form {
    use std::fmt;
    use std::time::Duration;

    use serde::de::value::MapAccessDeserializer;
    use serde::de::{Deserialize, Deserializer, Error, IntoDeserializer, MapAccess, Visitor};

    use super::DeadlineSpec;

    #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
    #[cfg_attr(feature = "schema", schemars(untagged))]
    pub(super) enum Form {
        Total(#[cfg_attr(feature = "schema", schemars(with = "crate::schema::DurationText"))] Duration),
        Table(Table),
    }

    /// Not derived as `untagged`, which would lose the path and the reason of a mistake in the table.
    impl<'de> Deserialize<'de> for Form {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            deserializer.deserialize_any(FormVisitor)
        }
    }

    struct FormVisitor;

    impl<'de> Visitor<'de> for FormVisitor {
        type Value = Form;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a deadline: its total, such as \"2s\", or a table of its fields")
        }

        fn visit_str<E: Error>(self, total: &str) -> Result<Form, E> {
            humantime_serde::deserialize(total.into_deserializer()).map(Form::Total)
        }

        fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<Form, A::Error> {
            Table::deserialize(MapAccessDeserializer::new(table)).map(Form::Table)
        }
    }

    // Repeats the fields, because the type itself is deserialized through this form.
    /// A deadline with all its fields.
    #[derive(serde::Deserialize)]
    #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
    #[cfg_attr(feature = "schema", schemars(rename = "DeadlineTable"))]
    #[serde(deny_unknown_fields, default)]
    pub(super) struct Table {
        /// The longest that a call may take, waiting and retries included. Default none: only the deadline of the
        /// caller counts.
        #[serde(with = "humantime_serde", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "schema", schemars(with = "crate::schema::DurationText"))]
        total: Option<Duration>,
        /// The time reserved for returning the answer: an attempt gets the remaining time minus this. Default zero.
        #[serde(with = "humantime_serde")]
        #[cfg_attr(feature = "schema", schemars(with = "crate::schema::DurationText"))]
        safety_margin: Duration,
        /// An attempt cut off by the deadline counts as a failure only if it had run this long. Default 50 ms.
        #[serde(with = "humantime_serde")]
        #[cfg_attr(feature = "schema", schemars(with = "crate::schema::DurationText"))]
        failure_floor: Duration,
    }

    impl Default for Table {
        fn default() -> Self {
            let DeadlineSpec { total, safety_margin, failure_floor } = DeadlineSpec::default();
            Self { total, safety_margin, failure_floor }
        }
    }

    impl From<Form> for DeadlineSpec {
        fn from(form: Form) -> Self {
            match form {
                Form::Total(total) => Self::total(total),
                Form::Table(Table { total, safety_margin, failure_floor }) => {
                    Self { total, safety_margin, failure_floor }
                }
            }
        }
    }

    #[cfg(test)]
    #[allow(clippy::unwrap_used)] // a failed expectation panics
    mod tests {
        use super::*;

        fn read(text: &str) -> Result<DeadlineSpec, String> {
            serde_json::from_str(text).map_err(|error| error.to_string())
        }

        #[test]
        fn a_deadline_is_its_total_or_a_table_of_its_fields() {
            let total = DeadlineSpec::total(Duration::from_secs(2));
            assert_eq!(read(r#""2s""#), Ok(total));
            assert_eq!(read(r#"{"total": "2s"}"#), Ok(total), "the other fields have their defaults");
            assert_eq!(read("{}"), Ok(DeadlineSpec::default()));
            let all = total.safety_margin(Duration::from_millis(7)).failure_floor(Duration::from_millis(9));
            assert_eq!(read(r#"{"total": "2s", "safety_margin": "7ms", "failure_floor": "9ms"}"#), Ok(all));
            assert_eq!(read(&serde_json::to_string(&all).unwrap()), Ok(all), "written and read back");
        }

        #[test]
        fn what_is_no_deadline_is_named_with_what_is_expected() {
            assert!(read("7").unwrap_err().contains("its total, such as \"2s\", or a table of its fields"));
            assert!(read(r#""soon""#).is_err());
            assert!(read(r#"{"totl": "2s"}"#).unwrap_err().contains("totl"));
        }
    }
}

impl From<Duration> for DeadlineSpec {
    fn from(total: Duration) -> Self {
        Self::total(total)
    }
}

/// The protection of calls to a dependency.
///
/// # Examples
/// ```
/// use std::time::Duration;
///
/// use phalanx::{BreakerSpec, Policy, RetrySpec};
///
/// let policy = Policy::named("vendor")
///     .retry(RetrySpec::attempts(3))
///     .breaker(BreakerSpec::failure_ratio(0.5))
///     .timeout(Duration::from_millis(800));
/// assert!(policy.mistakes().is_empty());
/// let mistake = &policy.timeout(Duration::ZERO).mistakes()[0];
/// assert_eq!(mistake.to_string(), "policies.vendor.timeout: must be at least a microsecond");
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(transform = crate::schema::without_examples))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields, default))]
pub struct Policy {
    /// The name that calls refer to. In files it is the key of the policy's table.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "String::is_empty"))]
    #[cfg_attr(feature = "schema", schemars(skip))] // the key, in files
    pub name: String,
    /// The total time of a call.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub deadline: Option<DeadlineSpec>,
    /// How many calls may start in a period.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub rate_limit: Option<RateLimitSpec>,
    /// Several limits by name, decided together with `rate_limit`: a call needs the permits of all of them.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Limits::is_empty"))]
    pub limits: Limits,
    /// How many calls may be in flight.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub bulkhead: Option<BulkheadSpec>,
    /// When to stop calling the dependency. Excludes `throttle`.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub breaker: Option<BreakerSpec>,
    /// How many calls to shed. Excludes `breaker`.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub throttle: Option<ThrottleSpec>,
    /// When and how often to retry.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub retry: Option<RetrySpec>,
    /// When to hedge an attempt that takes long. Needs `idempotent`.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub hedge: Option<HedgeSpec>,
    /// Whether the operation may run twice, also at the same time, with the effect of running once. Default false.
    pub idempotent: bool,
    /// The longest that one attempt may take.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde", skip_serializing_if = "Option::is_none"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::DurationText"))]
    pub timeout: Option<Duration>,
    /// How to decide while the shared store is away. Default: as the module configures, else `local`.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub on_degraded: Option<OnDegraded>,
    /// Faults to inject while the lever `chaos` is pulled. Default none.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub chaos: Option<ChaosSpec>,
    /// Custom guards, by their order.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub guards: Guards,
}

impl Policy {
    /// Creates a policy without stages.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// The built-in policy for optimistic locks: 3 attempts on `concurrency`, 50 ms to 2 s apart.
    pub fn occ() -> Self {
        let backoff = Backoff::exponential(Duration::from_millis(50)).max(Duration::from_secs(2));
        let retry = RetrySpec::attempts(3).on([Kind::Concurrency]);
        Self::named("occ").retry(retry.backoff(backoff))
    }

    /// The built-in policy for short failures: 3 attempts on `infrastructure`, 100 ms to 5 s apart, 30 s each.
    pub fn transient() -> Self {
        let backoff = Backoff::exponential(Duration::from_millis(100)).max(Duration::from_secs(5));
        let retry = RetrySpec::attempts(3).on([Kind::Infrastructure]);
        Self::named("transient").retry(retry.backoff(backoff)).timeout(Duration::from_secs(30))
    }

    /// Limits the total time of a call.
    #[must_use]
    pub fn deadline(mut self, deadline: impl Into<DeadlineSpec>) -> Self {
        self.deadline = Some(deadline.into());
        self
    }

    /// Limits how many calls may start in a period.
    #[must_use]
    pub fn rate_limit(mut self, spec: RateLimitSpec) -> Self {
        self.rate_limit = Some(spec);
        self
    }

    /// Limits how many calls may be in flight.
    #[must_use]
    pub fn bulkhead(mut self, spec: BulkheadSpec) -> Self {
        self.bulkhead = Some(spec);
        self
    }

    /// Adds one of several limits, which are decided together: a call takes the permits of all of them, or of none.
    #[must_use]
    pub fn limit(mut self, name: impl Into<String>, spec: LimitSpec) -> Self {
        self.limits.add(name, spec);
        self
    }

    /// Sets when to stop calling the dependency.
    #[must_use]
    pub fn breaker(mut self, spec: BreakerSpec) -> Self {
        self.breaker = Some(spec);
        self
    }

    /// Sheds calls that the dependency would not accept.
    #[must_use]
    pub fn throttle(mut self, spec: ThrottleSpec) -> Self {
        self.throttle = Some(spec);
        self
    }

    /// Sets when and how often to retry.
    #[must_use]
    pub fn retry(mut self, spec: RetrySpec) -> Self {
        self.retry = Some(spec);
        self
    }

    /// Hedges attempts that take long. Needs [`idempotent`](Self::idempotent), because the operation may run twice.
    #[must_use]
    pub fn hedge(mut self, spec: HedgeSpec) -> Self {
        self.hedge = Some(spec);
        self
    }

    /// Declares that the operation may run twice, also at the same time, with the effect of running once.
    #[must_use]
    pub fn idempotent(mut self) -> Self {
        self.idempotent = true;
        self
    }

    /// Limits one attempt.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = Some(limit);
        self
    }

    /// Sets how to decide while the shared store is away, whatever the module configures.
    #[must_use]
    pub fn on_degraded(mut self, on_degraded: OnDegraded) -> Self {
        self.on_degraded = Some(on_degraded);
        self
    }

    /// Sets the faults to inject while the lever `chaos` is pulled.
    #[must_use]
    pub fn chaos(mut self, spec: ChaosSpec) -> Self {
        self.chaos = Some(spec);
        self
    }

    /// Adds a custom guard.
    #[must_use]
    pub fn guard(mut self, guard: impl Guard) -> Self {
        self.guards.add(guard);
        self
    }

    /// Whether it retries after failures that leave open whether the call took effect.
    pub(crate) fn is_blanket_retry(&self) -> bool {
        self.retry.is_some_and(|retry| retry.max_attempts > 1 && retry.retry_on.contains(Kind::Infrastructure))
    }

    /// Returns the longest that a call can take, if anything bounds it. The lease of a probe derives from it.
    fn longest_call(&self) -> Option<Duration> {
        if let Some(total) = self.deadline.and_then(|deadline| deadline.total) {
            return Some(total);
        }
        let attempts = self.retry.map_or(1, |retry| retry.max_attempts);
        let waits =
            self.retry.map_or(Duration::ZERO, |retry| retry.backoff.max.saturating_mul(attempts.saturating_sub(1)));
        // A hedge has a timeout of its own, which begins when it starts.
        let longest_attempt = self.timeout?.saturating_add(self.hedge.map_or(Duration::ZERO, |it| it.longest_delay()));
        Some(longest_attempt.saturating_mul(attempts).saturating_add(waits))
    }

    /// Returns the breaker's spec with the defaults that depend on the rest of the policy.
    pub(crate) fn complete_breaker(&self) -> Option<BreakerSpec> {
        let mut spec = self.breaker.clone()?;
        if spec.probe_lease.is_none() {
            spec.probe_lease = self.longest_call().map(|longest| longest.saturating_mul(2));
        }
        Some(spec)
    }
}
