//! Several limits of one policy: by name, each with a rate, a key and a cost. A call needs the permits of all of them, or takes
//! none.

mod form;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::spec::{Consistency, RateLimitSpec};

/// The most limits of one policy, the short form included: one script decides all of them.
pub const MAX_LIMITS: usize = 8;

/// The longest name of a limit, in bytes.
pub const MAX_LIMIT_NAME_BYTES: usize = 64;

/// The name of the limit that `rate_limit` stands for beside others.
pub const SHORT_FORM: &str = "rate_limit";

/// Configures one of several limits: a token bucket for each value of its key.
///
/// # Examples
/// ```
/// use phalanx::policy::{LimitKey, LimitSpec};
/// use phalanx::{Policy, RejectionCode, ResilienceModule};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), phalanx::ConfigError> {
/// let policy = Policy::named("api")
///     .limit("all", LimitSpec::per_second(1_000).key(LimitKey::Policy))
///     .limit("tenant", LimitSpec::per_second(1).key(LimitKey::tag("tenant")));
/// let module = ResilienceModule::in_memory().policy(policy).build()?;
/// let operation = || async { Ok::<_, std::io::Error>(()) };
/// assert!(module.call("api", "eu").tag("tenant", "acme").run(operation).await.is_ok());
/// assert!(module.call("api", "eu").tag("tenant", "other").run(operation).await.is_ok());
/// let error = module.call("api", "eu").tag("tenant", "acme").run(operation).await.unwrap_err();
/// let rejection = *error.rejection().unwrap();
/// assert_eq!((rejection.code(), rejection.limit()), (RejectionCode::RateLimited, Some("tenant")));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(transform = crate::schema::without_examples))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct LimitSpec {
    /// Permits added every `per`; at least 1.
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Calls"))]
    pub permits: u64,
    /// The period in which `permits` are added; more than zero.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::DurationText"))]
    pub per: Duration,
    /// The most permits that can accumulate. Default: `permits`.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Calls"))]
    pub burst: Option<u64>,
    /// How long a call may wait for its permits of this limit. Default: not at all.
    #[cfg_attr(feature = "serde", serde(default, with = "humantime_serde", skip_serializing_if = "Option::is_none"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::DurationText"))]
    pub max_wait: Option<Duration>,
    /// Which calls share a bucket: all of the policy, those of a route, or those with the same value of a tag. Default `route`.
    #[cfg_attr(feature = "serde", serde(default))]
    pub key: LimitKey,
    /// How many permits a call takes: those that the call names, or a fixed number. Default `call`.
    #[cfg_attr(feature = "serde", serde(default))]
    pub cost: LimitCost,
    /// What to do with a call that does not have the tag of the key. Default `share`.
    #[cfg_attr(feature = "serde", serde(default))]
    pub missing: MissingTag,
    /// Whether every call asks the fleet's buckets, or replicas lease permits from them. Permits are leased only if all limits of
    /// the policy are. Default `exact`.
    #[cfg_attr(feature = "serde", serde(default))]
    pub consistency: Consistency,
    /// Other rates for some values of the key: by route, or by the value of the tag.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "BTreeMap::is_empty"))]
    pub overrides: BTreeMap<String, RateOverride>,
    /// Returns other rates in code; asked before `overrides`.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub resolver: Option<RateResolver>,
}

/// Which calls share the bucket of a limit.
///
/// In files: `"policy"`, `"route"`, or `"tag:tenant"`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LimitKey {
    /// All calls of the policy, whatever their route.
    Policy,
    /// The calls of one route.
    #[default]
    Route,
    /// The calls with the same value of this tag, whatever their route.
    Tag(String),
}

impl LimitKey {
    /// Counts by the value of a tag, which a call has of its own or from its task.
    pub fn tag(name: impl Into<String>) -> Self {
        Self::Tag(name.into())
    }

    /// Returns the name of the tag, if it counts by one.
    pub fn tag_name(&self) -> Option<&str> {
        match self {
            Self::Tag(name) => Some(name),
            Self::Policy | Self::Route => None,
        }
    }
}

impl fmt::Display for LimitKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Policy => f.write_str("policy"),
            Self::Route => f.write_str("route"),
            Self::Tag(name) => write!(f, "{}{name}", form::TAG),
        }
    }
}

/// How many permits of a limit a call takes.
///
/// In files: `"call"`, or a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LimitCost {
    /// As many as the call names ([`Call::cost`](crate::call::Call::cost)); 1 by default.
    #[default]
    Call,
    /// As many for every call.
    Fixed(u32),
}

impl LimitCost {
    /// Returns the permits for a call of this cost.
    #[inline]
    pub const fn of(self, call: u32) -> u32 {
        match self {
            Self::Call => call,
            Self::Fixed(permits) => permits,
        }
    }
}

/// What a limit by a tag does with a call that does not have the tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum MissingTag {
    /// All calls without the tag share one bucket of the same rate.
    #[default]
    Share,
    /// The limit does not apply to the call.
    Skip,
    /// Rejects the call with `invalid_tag`.
    Reject,
}

impl MissingTag {
    /// Returns the name, as in a configuration file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Share => "share",
            Self::Skip => "skip",
            Self::Reject => "reject",
        }
    }
}

/// Another rate of a limit for one value of its key. What it leaves out is that of the limit.
///
/// # Examples
/// ```
/// use phalanx::policy::{LimitKey, LimitSpec, RateOverride};
///
/// let limit = LimitSpec::per_second(100).key(LimitKey::tag("tenant")).rate_for("acme", RateOverride::permits(5_000));
/// assert_eq!(limit.rate(Some("acme")).permits, 5_000);
/// assert_eq!(limit.rate(Some("other")).permits, 100);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(transform = crate::schema::without_examples))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct RateOverride {
    /// Permits added every `per`; at least 1.
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Calls"))]
    pub permits: u64,
    /// The period in which `permits` are added. Default: that of the limit.
    #[cfg_attr(feature = "serde", serde(default, with = "humantime_serde", skip_serializing_if = "Option::is_none"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::DurationText"))]
    pub per: Option<Duration>,
    /// The most permits that can accumulate. Default: `permits`.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Calls"))]
    pub burst: Option<u64>,
}

impl RateOverride {
    /// Allows this many permits in the limit's own period.
    pub const fn permits(permits: u64) -> Self {
        Self { permits, per: None, burst: None }
    }

    /// Sets the most permits that can accumulate.
    #[must_use]
    pub const fn burst(mut self, permits: u64) -> Self {
        self.burst = Some(permits);
        self
    }

    /// Sets the period in which the permits are added.
    #[must_use]
    pub const fn per(mut self, per: Duration) -> Self {
        self.per = Some(per);
        self
    }
}

/// Returns the rate for a value of a key in code, or none for that of the limit.
///
/// It is asked when a replica first uses the value, and again after a change of the policy; it must be quick and must not use
/// the module. A rate that would be a mistake in a file is ignored.
#[derive(Clone)]
pub struct RateResolver(Arc<Resolve>);

type Resolve = dyn Fn(&str) -> Option<RateOverride> + Send + Sync;

impl RateResolver {
    /// Creates a resolver from a function of the value.
    pub fn new(resolve: impl Fn(&str) -> Option<RateOverride> + Send + Sync + 'static) -> Self {
        Self(Arc::new(resolve))
    }
}

/// Code has no equality: the same resolver is equal to itself only.
impl PartialEq for RateResolver {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for RateResolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RateResolver")
    }
}

impl LimitSpec {
    /// Allows `permits` every `per`, for each route.
    pub const fn new(permits: u64, per: Duration) -> Self {
        Self {
            permits,
            per,
            burst: None,
            max_wait: None,
            key: LimitKey::Route,
            cost: LimitCost::Call,
            missing: MissingTag::Share,
            consistency: Consistency::Exact,
            overrides: BTreeMap::new(),
            resolver: None,
        }
    }

    /// Allows `permits` a second, for each route.
    pub const fn per_second(permits: u64) -> Self {
        Self::new(permits, Duration::from_secs(1))
    }

    /// Allows `permits` a minute, for each route.
    pub const fn per_minute(permits: u64) -> Self {
        Self::new(permits, Duration::from_secs(60))
    }

    /// Sets the most permits that can accumulate.
    #[must_use]
    pub const fn burst(mut self, permits: u64) -> Self {
        self.burst = Some(permits);
        self
    }

    /// Sets how long a call may wait for its permits of this limit.
    #[must_use]
    pub const fn max_wait(mut self, wait: Duration) -> Self {
        self.max_wait = Some(wait);
        self
    }

    /// Sets which calls share a bucket.
    #[must_use]
    pub fn key(mut self, key: LimitKey) -> Self {
        self.key = key;
        self
    }

    /// Sets how many permits a call takes.
    #[must_use]
    pub const fn cost(mut self, cost: LimitCost) -> Self {
        self.cost = cost;
        self
    }

    /// Sets what to do with a call that does not have the tag.
    #[must_use]
    pub const fn missing(mut self, missing: MissingTag) -> Self {
        self.missing = missing;
        self
    }

    /// Sets how the replicas of a fleet share the limit.
    #[must_use]
    pub const fn consistency(mut self, consistency: Consistency) -> Self {
        self.consistency = consistency;
        self
    }

    /// Sets another rate for one value of the key.
    #[must_use]
    pub fn rate_for(mut self, value: impl Into<String>, rate: RateOverride) -> Self {
        self.overrides.insert(value.into(), rate);
        self
    }

    /// Sets a function that returns the rate for a value of the key, before `overrides` are asked.
    #[must_use]
    pub fn resolver(mut self, resolve: impl Fn(&str) -> Option<RateOverride> + Send + Sync + 'static) -> Self {
        self.resolver = Some(RateResolver::new(resolve));
        self
    }

    /// Returns the rate for a value of the key; of the limit itself without one.
    pub fn rate(&self, value: Option<&str>) -> RateLimitSpec {
        let resolved = value.and_then(|value| {
            let sane = |rate: &RateOverride| self.with(*rate).is_valid();
            let in_code = self.resolver.as_ref().and_then(|resolver| (resolver.0)(value)).filter(sane);
            in_code.or_else(|| self.overrides.get(value).copied())
        });
        resolved.map_or_else(|| self.own_rate(), |rate| self.with(rate))
    }

    /// Returns the rate with an override.
    pub(crate) fn with(&self, rate: RateOverride) -> RateLimitSpec {
        let RateOverride { permits, per, burst } = rate;
        RateLimitSpec { permits, per: per.unwrap_or(self.per), burst, ..self.own_rate() }
    }

    fn own_rate(&self) -> RateLimitSpec {
        let Self { permits, per, burst, max_wait, consistency, .. } = *self;
        RateLimitSpec { burst, max_wait, consistency, ..RateLimitSpec::new(permits, per) }
    }
}

/// The limit of each route that the short form stands for.
impl From<RateLimitSpec> for LimitSpec {
    fn from(spec: RateLimitSpec) -> Self {
        // `near_limit` is of a limit that decides alone.
        let RateLimitSpec { permits, per, burst, max_wait, consistency, near_limit: _ } = spec;
        Self { burst, max_wait, consistency, ..Self::new(permits, per) }
    }
}

/// The limits of a policy by name, in the order in which they were added. In files: a table.
///
/// Two of one name are a mistake of the policy.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limits(Vec<(String, LimitSpec)>);

impl Limits {
    /// Adds a limit.
    pub fn add(&mut self, name: impl Into<String>, limit: LimitSpec) {
        self.0.push((name.into(), limit));
    }

    /// Returns the limit of this name.
    pub fn get(&self, name: &str) -> Option<&LimitSpec> {
        self.iter().find(|(own, _)| *own == name).map(|(_, limit)| limit)
    }

    /// Returns the limits with their names.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &LimitSpec)> {
        self.0.iter().map(|(name, limit)| (name.as_str(), limit))
    }

    /// Returns the number of limits.
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
