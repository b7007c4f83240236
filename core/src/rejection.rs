//! Rejections: the code, when to retry, and whose state decided.
//!
//! [`RejectionCode`] is that table: name, kind and HTTP status of every rejection stand side by side here, docs/errors.md
//! prints the same rows, and a test compares the two.

use std::fmt;
use std::time::Duration;

use crate::classify::{Class, Classify};
use crate::clock::micros;
use crate::key::{LimitName, intern};
use crate::kind::Kind;

/// The reason of a rejection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
#[repr(u8)]
pub enum RejectionCode {
    /// The rate limit's bucket is empty.
    RateLimited,
    /// The call costs more permits than the rate limit's bucket can hold.
    CostAboveBurst,
    /// The adaptive throttle shed the call, because the dependency accepts too few.
    AdaptiveThrottle,
    /// Every slot of the bulkhead is taken and its queue, if any, is full.
    BulkheadFull,
    /// A waiter was shed because the queue is congested.
    BulkheadQueueShed,
    /// A waiter reached its queue timeout.
    BulkheadQueueTimeout,
    /// Every slot of the fleet is taken.
    FleetBulkheadFull,
    /// The circuit is open.
    CircuitOpen,
    /// The circuit is half-open and has as many probes as it allows, or a ramp admits only a share of the calls.
    ProbeQuota,
    /// One attempt took too long.
    AttemptTimeout,
    /// The deadline of the call has passed.
    DeadlineExceeded,
    /// This process is shutting down.
    Draining,
    /// An operator forced the circuit open.
    ForcedOpen,
    /// The shared store is away and the policy has `on_degraded = "closed"`.
    StoreUnavailable,
    /// A custom guard rejected the call.
    GuardRejected,
    /// The lever `chaos` is pulled and injected this fault.
    InjectedFault,
    /// No policy has this name.
    UnknownPolicy,
    /// The route's name is longer than `MAX_ROUTE_BYTES`.
    RouteTooLong,
    /// A whole port is bound to a policy that retries `infrastructure`, and the binding does not allow that.
    BlanketRetry,
    /// The body of the request could not be read, so there was nothing to send.
    BodyUnreadable,
    /// A limit counts by a tag that the call does not have, or whose value is longer than `MAX_ROUTE_BYTES`; or the call has
    /// more than `MAX_CALL_TAGS` tags.
    InvalidTag,
}

impl RejectionCode {
    /// All codes, in the order of the table in docs/errors.md.
    pub const ALL: [Self; 21] = [
        Self::RateLimited,
        Self::CostAboveBurst,
        Self::AdaptiveThrottle,
        Self::BulkheadFull,
        Self::BulkheadQueueShed,
        Self::BulkheadQueueTimeout,
        Self::FleetBulkheadFull,
        Self::CircuitOpen,
        Self::ProbeQuota,
        Self::AttemptTimeout,
        Self::DeadlineExceeded,
        Self::Draining,
        Self::ForcedOpen,
        Self::StoreUnavailable,
        Self::GuardRejected,
        Self::InjectedFault,
        Self::UnknownPolicy,
        Self::RouteTooLong,
        Self::BlanketRetry,
        Self::BodyUnreadable,
        Self::InvalidTag,
    ];

    const fn row(self) -> (&'static str, Kind, u16, &'static str) {
        use Kind::{Configuration, Infrastructure, Throttled, Timeout, Validation};
        match self {
            Self::RateLimited => ("rate_limited", Throttled, 429, "the rate limit is used up"),
            Self::CostAboveBurst => {
                ("cost_above_burst", Validation, 400, "the call costs more than the burst of the limit")
            }
            Self::AdaptiveThrottle => ("adaptive_throttle", Throttled, 429, "shed: the dependency accepts too little"),
            Self::BulkheadFull => ("bulkhead_full", Infrastructure, 503, "all slots and queue places are taken"),
            Self::BulkheadQueueShed => ("bulkhead_queue_shed", Infrastructure, 503, "shed from a congested queue"),
            Self::BulkheadQueueTimeout => ("bulkhead_queue_timeout", Infrastructure, 503, "waited too long for a slot"),
            Self::FleetBulkheadFull => ("fleet_bulkhead_full", Infrastructure, 503, "all slots of the fleet are taken"),
            Self::CircuitOpen => ("circuit_open", Infrastructure, 503, "the circuit is open"),
            Self::ProbeQuota => ("probe_quota", Infrastructure, 503, "the circuit is being tried out by other calls"),
            Self::AttemptTimeout => ("attempt_timeout", Infrastructure, 504, "the attempt took too long"),
            Self::DeadlineExceeded => ("deadline_exceeded", Timeout, 504, "the deadline has passed"),
            Self::Draining => ("draining", Throttled, 503, "this process is shutting down"),
            Self::ForcedOpen => ("forced_open", Infrastructure, 503, "an operator forced the circuit open"),
            Self::StoreUnavailable => {
                ("store_unavailable", Infrastructure, 503, "the shared store is away and the policy fails closed")
            }
            Self::GuardRejected => ("guard_rejected", Infrastructure, 503, "a custom guard rejected"),
            Self::InjectedFault => ("injected_fault", Infrastructure, 503, "a fault injected by the lever `chaos`"),
            Self::UnknownPolicy => ("unknown_policy", Configuration, 500, "no policy has this name"),
            Self::RouteTooLong => ("route_too_long", Configuration, 500, "the route's name is too long"),
            Self::BlanketRetry => {
                ("blanket_retry", Configuration, 500, "a whole port would be retried, and its binding does not say so")
            }
            Self::BodyUnreadable => ("body_unreadable", Validation, 400, "the request's body could not be read"),
            Self::InvalidTag => {
                ("invalid_tag", Configuration, 500, "a tag that a limit counts by is missing or too long")
            }
        }
    }

    /// Returns the name used in logs, metrics and response bodies.
    pub const fn name(self) -> &'static str {
        self.row().0
    }

    /// Returns the kind of failure, for the caller and for an outer policy.
    pub const fn kind(self) -> Kind {
        self.row().1
    }

    /// Returns the HTTP status, unless the service overrides it.
    pub const fn status(self) -> u16 {
        self.row().2
    }

    /// Returns a short explanation.
    pub const fn meaning(self) -> &'static str {
        self.row().3
    }
}

impl fmt::Display for RejectionCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The state that a decision was based on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Source {
    /// The state shared by all replicas.
    Fleet,
    /// Permits, or a share of slots, that this replica has leased from the shared state.
    Leased,
    /// The state of this process.
    #[default]
    Local,
    /// The local twin, because the shared store is away.
    Degraded,
    /// An override by an operator.
    Forced,
    /// Decided and reported, but not enforced.
    Shadow,
}

impl Source {
    /// Returns the name used in logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fleet => "fleet",
            Self::Leased => "leased",
            Self::Local => "local",
            Self::Degraded => "degraded",
            Self::Forced => "forced",
            Self::Shadow => "shadow",
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The value of [`Rejection::wait`] for an unknown time.
pub(crate) const UNKNOWN: u64 = u64::MAX;

/// The rejection of a call by a policy. Small, because it is part of every result.
///
/// # Examples
/// ```
/// use std::time::Duration;
///
/// use phalanx::{Rejection, RejectionCode};
///
/// let rejection = Rejection::new(RejectionCode::RateLimited).retry_in(Duration::from_millis(250));
/// assert_eq!((rejection.status(), rejection.retry_after()), (429, Some(Duration::from_millis(250))));
/// assert_eq!(rejection.to_string(), "the rate limit is used up (rate_limited), retry after 250ms");
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Rejection {
    policy: Option<&'static str>,
    /// Microseconds until a retry makes sense.
    wait: u64,
    code: RejectionCode,
    source: Source,
    limit: LimitName,
}

impl Rejection {
    /// Creates a rejection, decided by this process.
    pub const fn new(code: RejectionCode) -> Self {
        Self { policy: None, wait: UNKNOWN, code, source: Source::Local, limit: LimitName::NONE }
    }

    /// Sets when a retry makes sense.
    #[must_use]
    pub fn retry_in(mut self, wait: impl Into<Option<Duration>>) -> Self {
        self.wait = wait.into().map_or(UNKNOWN, micros);
        self
    }

    /// Creates the rejection of a pipeline.
    #[inline]
    pub(crate) const fn by(policy: &'static str, code: RejectionCode, wait: u64, source: Source) -> Self {
        Self { policy: Some(policy), wait, code, source, limit: LimitName::NONE }
    }

    /// Names the limit that rejected the call.
    #[inline]
    pub(crate) const fn by_limit(mut self, limit: LimitName) -> Self {
        self.limit = limit;
        self
    }

    /// Creates the rejection of a call that names an unknown policy.
    pub(crate) fn unknown(policy: &str) -> Self {
        Self { policy: intern(policy), ..Self::new(RejectionCode::UnknownPolicy) }
    }

    pub(crate) const fn wait(&self) -> u64 {
        self.wait
    }

    /// Sets whose state decided.
    #[must_use]
    pub const fn decided_by(mut self, source: Source) -> Self {
        self.source = source;
        self
    }

    /// Returns the code.
    pub const fn code(&self) -> RejectionCode {
        self.code
    }

    /// Returns when a retry makes sense, if that is known.
    pub const fn retry_after(&self) -> Option<Duration> {
        match self.wait {
            UNKNOWN => None,
            wait => Some(Duration::from_micros(wait)),
        }
    }

    /// Returns whose state decided.
    pub const fn source(&self) -> Source {
        self.source
    }

    /// Returns the limit that rejected the call, if the policy has several.
    pub fn limit(&self) -> Option<&'static str> {
        self.limit.get()
    }

    /// Returns the policy that rejected the call, or the name that has no policy.
    pub const fn policy(&self) -> Option<&'static str> {
        self.policy
    }

    /// Returns the kind of failure for the caller.
    pub const fn kind(&self) -> Kind {
        self.code.kind()
    }

    /// Returns the HTTP status.
    pub const fn status(&self) -> u16 {
        self.code.status()
    }
}

impl fmt::Debug for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rejection")
            .field("policy", &self.policy)
            .field("code", &self.code)
            .field("retry_after", &self.retry_after())
            .field("source", &self.source)
            .field("limit", &self.limit())
            .finish()
    }
}

/// For an outer policy. Only a rejection for load has a retry-after: waiting for an open circuit inside a retry would turn
/// failing fast into a queue.
impl Classify for Rejection {
    fn classify(&self) -> Class {
        let load = self.kind() == Kind::Throttled;
        Class { kind: Some(self.kind()), retry_after: self.retry_after().filter(|_| load) }
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(policy) = self.policy {
            write!(f, "{}: ", policy.escape_debug())?;
        }
        match self.limit() {
            None => write!(f, "{} ({})", self.code.meaning(), self.code)?,
            Some(limit) => write!(f, "{} ({} by {})", self.code.meaning(), self.code, limit.escape_debug())?,
        }
        if let Some(after) = self.retry_after() {
            write!(f, ", retry after {after:?}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Rejection {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_code_has_a_unique_name() {
        let names: HashSet<_> = RejectionCode::ALL.iter().map(|code| code.name()).collect();
        assert_eq!(names.len(), RejectionCode::ALL.len());
    }

    #[test]
    fn rejections_for_load_are_throttled_and_the_deadline_is_a_timeout() {
        for code in [RejectionCode::RateLimited, RejectionCode::AdaptiveThrottle, RejectionCode::Draining] {
            assert_eq!(code.kind(), Kind::Throttled, "{code}");
        }
        assert_eq!(RejectionCode::DeadlineExceeded.kind(), Kind::Timeout);
        assert_eq!(RejectionCode::CostAboveBurst.kind(), Kind::Validation, "no retry can help");
        assert_eq!(RejectionCode::CircuitOpen.kind(), Kind::Infrastructure);
    }

    #[test]
    fn a_rejection_reads_as_a_sentence() {
        let no = Rejection::by("payments", RejectionCode::CircuitOpen, 1_500_000, Source::Local);
        assert_eq!(no.to_string(), "payments: the circuit is open (circuit_open), retry after 1.5s");
        let no =
            Rejection::by("api", RejectionCode::RateLimited, 250_000, Source::Fleet).by_limit(LimitName::of("tenant"));
        assert_eq!(no.to_string(), "api: the rate limit is used up (rate_limited by tenant), retry after 250ms");
        assert_eq!(size_of::<Rejection>(), 32, "it is part of every result");
    }
}
