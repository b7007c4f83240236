//! The specification of a breaker: when to trip, for how long, and how to close again.

use std::time::Duration;

/// Configures a circuit breaker. At least one of the four trip conditions must be set.
///
/// # Examples
/// ```
/// # use std::time::Duration;
/// use phalanx::{BreakerSpec, Policy, RejectionCode, ResilienceModule};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), phalanx::ConfigError> {
/// let spec = BreakerSpec::failure_ratio(0.5).min_throughput(2).break_for(Duration::from_secs(5));
/// let module = ResilienceModule::in_memory().policy(Policy::named("vendor").breaker(spec)).build()?;
/// for _ in 0..2 {
///     let _ = module.run("vendor", (), || async { Err::<(), _>(std::io::Error::other("down")) }).await;
/// }
/// let call = || async { Ok::<_, std::io::Error>("up") };
/// let rejection = module.run("vendor", (), call).await.unwrap_err();
/// assert_eq!(rejection.rejection().map(|it| it.code()), Some(RejectionCode::CircuitOpen));
/// tokio::time::sleep(Duration::from_secs(5)).await;
/// assert_eq!(module.run("vendor", (), call).await.unwrap(), "up", "the probe succeeds");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(transform = crate::schema::without_examples))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields, default))]
pub struct BreakerSpec {
    /// Trips when this share of the calls in the window failed, 0.0 to 1.0. Default none.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Share"))]
    pub failure_ratio: Option<f64>,
    /// Trips after this many failures in a row. Default none.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Count"))]
    pub consecutive_failures: Option<u32>,
    /// Trips when this share of the calls in the window was slow. Default none; needs `slow_call_threshold`.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Share"))]
    pub slow_call_ratio: Option<f64>,
    /// A call that takes this long or longer is slow. Default none.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde", skip_serializing_if = "Option::is_none"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::DurationText"))]
    pub slow_call_threshold: Option<Duration>,
    /// Trips when this quantile of the latency, between 0.0 and 1.0, stays over `latency_threshold` for
    /// `latency_duration`. Default none.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Between"))]
    pub latency_quantile: Option<f64>,
    /// The latency that the quantile must not exceed. Default none; goes with `latency_quantile`.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde", skip_serializing_if = "Option::is_none"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::DurationText"))]
    pub latency_threshold: Option<Duration>,
    /// How long the quantile must stay over its threshold. Default 0: at once.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::DurationText"))]
    pub latency_duration: Duration,
    /// The sliding window of the ratios. Default 10 s.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::DurationText"))]
    pub sampling_window: Duration,
    /// The fewest calls in the window for which a ratio counts. Default 20.
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Calls"))]
    pub min_throughput: u32,
    /// How long the circuit stays open. Default 30 s.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::DurationText"))]
    pub break_duration: Duration,
    /// The factor by which the break grows on each trip in close succession, at least 1.0. Default 1.0.
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Factor"))]
    pub break_multiplier: f64,
    /// The longest break, before jitter. Default 10 min.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::DurationText"))]
    pub max_break_duration: Duration,
    /// Lengthens each break by up to this share, at random, 0.0 to 1.0. Default 0.0.
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::ShareOrZero"))]
    pub break_jitter: f64,
    /// Probes at a time when the break is over, at most 100. Default 1.
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Probes"))]
    pub half_open_max_calls: u32,
    /// Probes that must succeed before the circuit closes. Default 1.
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Count"))]
    pub success_threshold: u32,
    /// After this long a probe without an outcome counts as lost, and another may start. Default: twice the longest
    /// time the policy allows a call; without such a limit the break, but at least 30 s.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde", skip_serializing_if = "Option::is_none"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::DurationText"))]
    pub probe_lease: Option<Duration>,
    /// After closing, admits a growing share of the calls. Default none: all at once.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub ramp: Option<RampSpec>,
    /// Opens for the fleet only if this share of the replicas with calls is over the threshold, above 0.0 and at most 1.0;
    /// a replica that is over it without them opens a circuit of its own. Default none: the calls of all replicas count
    /// together. Not with `quorum_replicas`.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Share"))]
    pub quorum_share: Option<f64>,
    /// The same with a number of replicas, or all that have calls if they are fewer. Default none. Not with `quorum_share`.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Count"))]
    pub quorum_replicas: Option<u32>,
    /// Whether a call with its retries is one outcome, or each attempt is one. Default `calls`.
    pub count: CountBy,
}

/// The three numbers of a latency trip.
///
/// # Examples
/// ```
/// # use std::time::Duration;
/// use phalanx::BreakerSpec;
///
/// let spec = BreakerSpec::latency(0.99, Duration::from_millis(800), Duration::from_secs(10));
/// let trip = spec.latency_trip().expect("quantile and threshold are set");
/// assert_eq!((trip.quantile, trip.threshold), (0.99, Duration::from_millis(800)));
/// assert_eq!(BreakerSpec::failure_ratio(0.5).latency_trip(), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatencyTrip {
    /// The quantile, between 0.0 and 1.0, both excluded.
    pub quantile: f64,
    /// The latency it must not exceed.
    pub threshold: Duration,
    /// How long it must stay there before the circuit opens.
    pub lasting: Duration,
}

/// Admits a growing share of the calls after a breaker has closed: full traffic after `over`, in `steps` equal steps.
///
/// # Examples
/// ```
/// # use std::time::Duration;
/// use phalanx::policy::RampSpec;
/// use phalanx::{BreakerSpec, Policy};
///
/// let spec = BreakerSpec::failure_ratio(0.5).ramp(Duration::from_secs(30), 4);
/// assert_eq!(spec.ramp, Some(RampSpec { over: Duration::from_secs(30), steps: 4 }));
/// assert!(Policy::named("p").breaker(spec).mistakes().is_empty());
/// let no_steps = BreakerSpec::failure_ratio(0.5).ramp(Duration::from_secs(30), 0);
/// assert_eq!(Policy::named("p").breaker(no_steps).mistakes()[0].path, "policies.p.breaker.ramp.steps");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(transform = crate::schema::without_examples))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct RampSpec {
    /// The time from closing to full traffic.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::DurationText"))]
    pub over: Duration,
    /// The number of steps: with 4 the shares are 20, 40, 60, 80 and then 100 %. Default 4.
    #[cfg_attr(feature = "serde", serde(default = "default_steps"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Count"))]
    pub steps: u32,
}

#[cfg(feature = "serde")]
const fn default_steps() -> u32 {
    4
}

/// What a breaker counts as one outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum CountBy {
    /// A call with all its retries.
    #[default]
    Calls,
    /// Each attempt is admitted and recorded separately. A circuit that opens between attempts ends the retries.
    Attempts,
}

impl Default for BreakerSpec {
    fn default() -> Self {
        Self {
            failure_ratio: None,
            consecutive_failures: None,
            slow_call_ratio: None,
            slow_call_threshold: None,
            latency_quantile: None,
            latency_threshold: None,
            latency_duration: Duration::ZERO,
            sampling_window: Duration::from_secs(10),
            min_throughput: 20,
            break_duration: Duration::from_secs(30),
            break_multiplier: 1.0,
            max_break_duration: Duration::from_secs(600),
            break_jitter: 0.0,
            half_open_max_calls: 1,
            success_threshold: 1,
            probe_lease: None,
            ramp: None,
            quorum_share: None,
            quorum_replicas: None,
            count: CountBy::Calls,
        }
    }
}

impl BreakerSpec {
    /// Trips when this share of the calls in the window failed.
    pub fn failure_ratio(ratio: f64) -> Self {
        Self { failure_ratio: Some(ratio), ..Self::default() }
    }

    /// Trips after this many failures in a row.
    pub fn consecutive_failures(failures: u32) -> Self {
        Self { consecutive_failures: Some(failures), ..Self::default() }
    }

    /// Trips when this share of the calls in the window took `threshold` or longer.
    pub fn slow_call_ratio(ratio: f64, threshold: Duration) -> Self {
        Self::default().or_slow_call_ratio(ratio, threshold)
    }

    /// Trips when the quantile of the latency stays over `threshold` for `lasting`.
    pub fn latency(quantile: f64, threshold: Duration, lasting: Duration) -> Self {
        Self::default().or_latency(quantile, threshold, lasting)
    }

    /// Trips also after this many failures in a row.
    #[must_use]
    pub const fn or_consecutive_failures(mut self, failures: u32) -> Self {
        self.consecutive_failures = Some(failures);
        self
    }

    /// Trips also when this share of the calls in the window took `threshold` or longer.
    #[must_use]
    pub const fn or_slow_call_ratio(mut self, ratio: f64, threshold: Duration) -> Self {
        self.slow_call_ratio = Some(ratio);
        self.slow_call_threshold = Some(threshold);
        self
    }

    /// Trips also when the quantile of the latency stays over `threshold` for `lasting`.
    #[must_use]
    pub const fn or_latency(mut self, quantile: f64, threshold: Duration, lasting: Duration) -> Self {
        self.latency_quantile = Some(quantile);
        self.latency_threshold = Some(threshold);
        self.latency_duration = lasting;
        self
    }

    /// Sets the sliding window of the ratios.
    #[must_use]
    pub const fn window(mut self, window: Duration) -> Self {
        self.sampling_window = window;
        self
    }

    /// Sets the fewest calls in the window for which a ratio counts.
    #[must_use]
    pub const fn min_throughput(mut self, calls: u32) -> Self {
        self.min_throughput = calls;
        self
    }

    /// Sets how long the circuit stays open.
    #[must_use]
    pub const fn break_for(mut self, duration: Duration) -> Self {
        self.break_duration = duration;
        self
    }

    /// Multiplies the break by `multiplier` on each trip in close succession, up to `max`.
    #[must_use]
    pub const fn escalate(mut self, multiplier: f64, max: Duration) -> Self {
        self.break_multiplier = multiplier;
        self.max_break_duration = max;
        self
    }

    /// Lengthens each break by up to this share, at random.
    #[must_use]
    pub const fn jitter(mut self, share: f64) -> Self {
        self.break_jitter = share;
        self
    }

    /// Sets the number of probes at a time, and how many must succeed.
    #[must_use]
    pub const fn probes(mut self, at_a_time: u32, successes: u32) -> Self {
        self.half_open_max_calls = at_a_time;
        self.success_threshold = successes;
        self
    }

    /// Sets the time after which a probe without an outcome counts as lost.
    #[must_use]
    pub const fn probe_lease(mut self, lease: Duration) -> Self {
        self.probe_lease = Some(lease);
        self
    }

    /// Admits a growing share of the calls after closing: full traffic after `over`, in `steps` steps.
    #[must_use]
    pub const fn ramp(mut self, over: Duration, steps: u32) -> Self {
        self.ramp = Some(RampSpec { over, steps });
        self
    }

    /// Opens for the fleet only if this share of the replicas with calls is over the threshold.
    #[must_use]
    pub const fn quorum_share(mut self, share: f64) -> Self {
        self.quorum_share = Some(share);
        self
    }

    /// Opens for the fleet only if this many replicas are over the threshold.
    #[must_use]
    pub const fn quorum_replicas(mut self, replicas: u32) -> Self {
        self.quorum_replicas = Some(replicas);
        self
    }

    /// Counts each attempt instead of each call.
    #[must_use]
    pub const fn count_attempts(mut self) -> Self {
        self.count = CountBy::Attempts;
        self
    }

    /// Returns the lease of a probe: the configured one, or the break, but at least 30 s.
    pub fn lease(&self) -> Duration {
        let unbounded = self.break_duration.max(Duration::from_secs(30));
        self.probe_lease.unwrap_or(unbounded)
    }

    /// Returns whether a trip condition depends on the latency.
    pub(crate) fn measures_latency(&self) -> bool {
        self.slow_call_threshold.is_some() || self.latency_trip().is_some()
    }

    /// Returns the latency trip, if quantile and threshold are set.
    pub fn latency_trip(&self) -> Option<LatencyTrip> {
        let (quantile, threshold) = (self.latency_quantile?, self.latency_threshold?);
        Some(LatencyTrip { quantile, threshold, lasting: self.latency_duration })
    }

    /// Returns whether a call of this latency is slow.
    pub fn is_slow(&self, latency: Duration) -> bool {
        self.slow_call_threshold.is_some_and(|threshold| latency >= threshold)
    }
}
