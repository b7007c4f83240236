//! The specification of a rate limit.

use std::time::Duration;

/// Configures a rate limit: a token bucket that holds `burst` permits and is refilled with `permits` every `per`.
///
/// # Examples
/// ```
/// # use std::time::Duration;
/// use phalanx::{Policy, RateLimitSpec, RejectionCode, ResilienceModule};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), phalanx::ConfigError> {
/// let spec = RateLimitSpec::per_second(10).burst(2);
/// let module = ResilienceModule::in_memory().policy(Policy::named("vendor").rate_limit(spec)).build()?;
/// let call = || async { Ok::<_, std::io::Error>(()) };
/// assert!(module.run("vendor", (), call).await.is_ok());
/// assert!(module.run("vendor", (), call).await.is_ok());
/// let rejection = *module.run("vendor", (), call).await.unwrap_err().rejection().unwrap();
/// assert_eq!(rejection.code(), RejectionCode::RateLimited);
/// assert_eq!(rejection.retry_after(), Some(Duration::from_millis(100)));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(transform = crate::schema::without_examples))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct RateLimitSpec {
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
    /// How long a call may wait for its permit. Default: not at all.
    #[cfg_attr(feature = "serde", serde(default, with = "humantime_serde", skip_serializing_if = "Option::is_none"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::DurationText"))]
    pub max_wait: Option<Duration>,
    /// Whether every call asks the fleet's bucket, or replicas lease permits from it. Default: `exact`.
    #[cfg_attr(feature = "serde", serde(default))]
    pub consistency: Consistency,
    /// The share of the burst that is used up when the event `near_limit` is emitted, once every `per`. Default 0.8.
    #[cfg_attr(feature = "serde", serde(default = "RateLimitSpec::default_near_limit"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Share"))]
    pub near_limit: f64,
}

/// How the replicas of a fleet share a rate limit. Both kinds admit at most burst + rate × time together. Without Redis there
/// is no difference.
///
/// # Examples
/// ```
/// use phalanx::{Consistency, RateLimitSpec};
///
/// let spec = RateLimitSpec::per_second(10_000).consistency(Consistency::Leased);
/// assert_eq!(spec.consistency.name(), "leased");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(transform = crate::schema::without_examples))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Consistency {
    /// A call asks the fleet's bucket, in one round trip with all concurrent calls of its replica.
    #[default]
    Exact,
    /// A replica leases blocks of permits, sized by its own demand, and grants them without a round trip. The fleet admits
    /// fewer calls than it could by at most the permits that are leased and not spent.
    Leased,
}

impl Consistency {
    /// Returns the name, as in a configuration file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Leased => "leased",
        }
    }
}

impl RateLimitSpec {
    /// Allows `permits` every `per`.
    pub const fn new(permits: u64, per: Duration) -> Self {
        Self {
            permits,
            per,
            burst: None,
            max_wait: None,
            consistency: Consistency::Exact,
            near_limit: Self::default_near_limit(),
        }
    }

    /// Allows `permits` a second.
    pub const fn per_second(permits: u64) -> Self {
        Self::new(permits, Duration::from_secs(1))
    }

    /// Allows `permits` a minute.
    pub const fn per_minute(permits: u64) -> Self {
        Self::new(permits, Duration::from_secs(60))
    }

    /// Sets the most permits that can accumulate.
    #[must_use]
    pub const fn burst(mut self, permits: u64) -> Self {
        self.burst = Some(permits);
        self
    }

    /// Sets how long a call may wait for its permit.
    #[must_use]
    pub const fn max_wait(mut self, wait: Duration) -> Self {
        self.max_wait = Some(wait);
        self
    }

    /// Sets how the replicas of a fleet share the limit.
    #[must_use]
    pub const fn consistency(mut self, consistency: Consistency) -> Self {
        self.consistency = consistency;
        self
    }

    /// Sets the share of the burst that is used up when the event `near_limit` is emitted.
    #[must_use]
    pub const fn near_limit(mut self, share: f64) -> Self {
        self.near_limit = share;
        self
    }

    const fn default_near_limit() -> f64 {
        0.8
    }

    /// Returns the most permits that the bucket holds.
    pub fn capacity(&self) -> u64 {
        self.burst.unwrap_or(self.permits)
    }
}
