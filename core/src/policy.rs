//! A policy: what to do about a dependency, as plain data.
//!
//! The author may write the stages in any order; they always run in one ([`Stage`]). Whether a policy makes sense is
//! decided when a module is built, all mistakes at once ([`validate`]).

pub mod validate;
mod values;

use std::time::Duration;

use crate::breaker::BreakerSpec;
use crate::bulkhead::BulkheadSpec;
use crate::guard::{Guard, Guards};
use crate::hedge::HedgeSpec;
use crate::kind::Kind;
use crate::rate_limit::RateLimitSpec;
use crate::retry::{Backoff, RetrySpec};
use crate::throttle::ThrottleSpec;

/// The places of a pipeline, outermost first. The number is what a custom guard's order is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[repr(u16)]
pub enum Stage {
    /// The caller's time: a call that is late already must not take anything from anybody.
    Deadline = 100,
    /// Before everything that can be held, so that excess is turned away at the price of a counter.
    RateLimit = 200,
    /// Waiting for a slot comes after the permit to start, and before the circuit is asked: what it says must be fresh.
    Bulkhead = 300,
    /// Breaker or throttle: one outcome per call, retries included, unless the policy counts attempts.
    Circuit = 400,
    /// Around every attempt.
    Retry = 500,
    /// Around the copies of one attempt.
    Hedge = 600,
    /// Around the operation itself, so that every attempt has its own time.
    Timeout = 700,
}

impl Stage {
    /// The name in logs, metrics and descriptions.
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

    /// Its place; a guard with a smaller order stands outside it.
    pub const fn order(self) -> u16 {
        self as u16
    }
}

/// What to do when the shared store is away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum OnDegraded {
    /// Decide on this process' own state.
    #[default]
    Local,
    /// Let every call through (fail open).
    Open,
    /// Reject every call with `store_unavailable` (fail closed).
    Closed,
}

/// The total time of a call, and what to make of a call that was cut off by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "serde", serde(from = "deadline_form::Form"))]
#[cfg_attr(feature = "schema", schemars(with = "deadline_form::Form"))]
pub struct DeadlineSpec {
    /// The longest a call may take with everything, waiting and retries included. Default none: only the
    /// caller's own deadline counts.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde", skip_serializing_if = "Option::is_none"))]
    pub total: Option<Duration>,
    /// Time kept back for the way home: an attempt gets what remains minus this. Default zero.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    pub safety_margin: Duration,
    /// An attempt cut off by the deadline is the dependency's failure only if it had run this long. Default 50 ms.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    pub failure_floor: Duration,
}

impl Default for DeadlineSpec {
    fn default() -> Self {
        Self { total: None, safety_margin: Duration::ZERO, failure_floor: Duration::from_millis(50) }
    }
}

impl DeadlineSpec {
    /// The longest a call may take with everything.
    pub fn total(total: Duration) -> Self {
        Self { total: Some(total), ..Self::default() }
    }

    /// Time kept back for the way home.
    #[must_use]
    pub const fn safety_margin(mut self, margin: Duration) -> Self {
        self.safety_margin = margin;
        self
    }

    /// An attempt cut off by the deadline is the dependency's failure only if it had run this long.
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

    /// By hand: what is `untagged` is read twice, and of a mistake in the table nothing is left but that there is one.
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

    // The fields once more, because the type itself is read through this form.
    /// A deadline with all its fields.
    #[derive(serde::Deserialize)]
    #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
    #[cfg_attr(feature = "schema", schemars(rename = "DeadlineTable"))]
    #[serde(deny_unknown_fields, default)]
    pub(super) struct Table {
        /// The longest a call may take with everything, waiting and retries included. Default none: only the
        /// caller's own deadline counts.
        #[serde(with = "humantime_serde", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "schema", schemars(with = "crate::schema::DurationText"))]
        total: Option<Duration>,
        /// Time kept back for the way home: an attempt gets what remains minus this. Default zero.
        #[serde(with = "humantime_serde")]
        #[cfg_attr(feature = "schema", schemars(with = "crate::schema::DurationText"))]
        safety_margin: Duration,
        /// An attempt cut off by the deadline is the dependency's failure only if it had run this long. Default 50 ms.
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
}

impl From<Duration> for DeadlineSpec {
    fn from(total: Duration) -> Self {
        Self::total(total)
    }
}

/// What to do about a dependency.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields, default))]
pub struct Policy {
    /// The name calls refer to. In files it is the key of the table the policy stands in.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "String::is_empty"))]
    #[cfg_attr(feature = "schema", schemars(skip))] // of files, that is
    pub name: String,
    /// The caller's time.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub deadline: Option<DeadlineSpec>,
    /// How many calls may start, and how fast.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub rate_limit: Option<RateLimitSpec>,
    /// How many calls may be under way at a time.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub bulkhead: Option<BulkheadSpec>,
    /// When to stop calling. Not together with `throttle`.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub breaker: Option<BreakerSpec>,
    /// How much to shed. Not together with `breaker`.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub throttle: Option<ThrottleSpec>,
    /// How often to try again.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub retry: Option<RetrySpec>,
    /// When to send a copy of an attempt that takes long. Needs `idempotent`.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub hedge: Option<HedgeSpec>,
    /// The operation may run twice, also at the same time, and nobody will notice. Default false.
    pub idempotent: bool,
    /// The longest one attempt may take.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde", skip_serializing_if = "Option::is_none"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::DurationText"))]
    pub timeout: Option<Duration>,
    /// What to do when the shared store is away. Default `local`.
    pub on_degraded: OnDegraded,
    /// Custom strategies, in the order of their own numbers.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub guards: Guards,
}

impl Policy {
    /// An empty policy: a pass-through until stages are added.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// Built in: try again when an optimistic lock was lost. 3 attempts on `concurrency`, 50 ms to 2 s apart.
    pub fn occ() -> Self {
        let backoff = Backoff::exponential(Duration::from_millis(50)).max(Duration::from_secs(2));
        let retry = RetrySpec::attempts(3).on([Kind::Concurrency]);
        Self::named("occ").retry(retry.backoff(backoff))
    }

    /// Built in: ride out a hiccup. 3 attempts on `infrastructure`, 100 ms to 5 s apart, 30 s each.
    pub fn transient() -> Self {
        let backoff = Backoff::exponential(Duration::from_millis(100)).max(Duration::from_secs(5));
        let retry = RetrySpec::attempts(3).on([Kind::Infrastructure]);
        Self::named("transient").retry(retry.backoff(backoff)).timeout(Duration::from_secs(30))
    }

    /// The caller's time.
    #[must_use]
    pub fn deadline(mut self, deadline: impl Into<DeadlineSpec>) -> Self {
        self.deadline = Some(deadline.into());
        self
    }

    /// How many calls may start, and how fast.
    #[must_use]
    pub fn rate_limit(mut self, spec: RateLimitSpec) -> Self {
        self.rate_limit = Some(spec);
        self
    }

    /// How many calls may be under way at a time.
    #[must_use]
    pub fn bulkhead(mut self, spec: BulkheadSpec) -> Self {
        self.bulkhead = Some(spec);
        self
    }

    /// When to stop calling.
    #[must_use]
    pub fn breaker(mut self, spec: BreakerSpec) -> Self {
        self.breaker = Some(spec);
        self
    }

    /// How much to shed.
    #[must_use]
    pub fn throttle(mut self, spec: ThrottleSpec) -> Self {
        self.throttle = Some(spec);
        self
    }

    /// How often to try again.
    #[must_use]
    pub fn retry(mut self, spec: RetrySpec) -> Self {
        self.retry = Some(spec);
        self
    }

    /// When to send a copy of an attempt that takes long. Only for operations that may run twice: say
    /// [`idempotent`](Self::idempotent) too.
    #[must_use]
    pub fn hedge(mut self, spec: HedgeSpec) -> Self {
        self.hedge = Some(spec);
        self
    }

    /// The operation may run twice, also at the same time, and nobody will notice.
    #[must_use]
    pub fn idempotent(mut self) -> Self {
        self.idempotent = true;
        self
    }

    /// The longest one attempt may take.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = Some(limit);
        self
    }

    /// What to do when the shared store is away.
    #[must_use]
    pub fn on_degraded(mut self, what: OnDegraded) -> Self {
        self.on_degraded = what;
        self
    }

    /// Adds a custom strategy.
    #[must_use]
    pub fn guard(mut self, guard: impl Guard) -> Self {
        self.guards.add(guard);
        self
    }

    /// The longest a call can take, if anything bounds it: what a probe's lease is made of.
    fn longest_call(&self) -> Option<Duration> {
        if let Some(total) = self.deadline.and_then(|deadline| deadline.total) {
            return Some(total);
        }
        let attempts = self.retry.map_or(1, |retry| retry.max_attempts);
        let waits =
            self.retry.map_or(Duration::ZERO, |retry| retry.backoff.max.saturating_mul(attempts.saturating_sub(1)));
        // A copy has a timeout of its own, from when it is sent.
        let longest_attempt = self.timeout?.saturating_add(self.hedge.map_or(Duration::ZERO, |it| it.longest_delay()));
        Some(longest_attempt.saturating_mul(attempts).saturating_add(waits))
    }

    /// The breaker's spec with what it inherits from the rest of the policy.
    pub(crate) fn complete_breaker(&self) -> Option<BreakerSpec> {
        let mut spec = self.breaker.clone()?;
        if spec.probe_lease.is_none() {
            spec.probe_lease = self.longest_call().map(|longest| longest.saturating_mul(2));
        }
        Some(spec)
    }
}
