//! What a circuit breaker is told: when to trip, for how long, and how to come back.

use std::time::Duration;

/// When to stop calling, and how to start again. At least one of the four trip conditions must be set.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
    /// A call is slow from this long on. Default none.
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
    /// How long the quantile must stay over its threshold. Default 0: one look is enough.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::DurationText"))]
    pub latency_duration: Duration,
    /// The sliding window of the ratios. Default 10 s.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::DurationText"))]
    pub sampling_window: Duration,
    /// Calls in the window below which a ratio means nothing. Default 20.
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Calls"))]
    pub min_throughput: u32,
    /// How long the circuit stays open. Default 30 s.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::DurationText"))]
    pub break_duration: Duration,
    /// Each trip that follows closely on another lasts this much longer, at least 1.0. Default 1.0.
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Factor"))]
    pub break_multiplier: f64,
    /// The longest break, before jitter. Default 10 min.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::DurationText"))]
    pub max_break_duration: Duration,
    /// Lengthens each break by up to this share, at random, 0.0 to 1.0. Default 0.0.
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::ShareOrZero"))]
    pub break_jitter: f64,
    /// Trial calls at a time when the break is over. Default 1.
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Count"))]
    pub half_open_max_calls: u32,
    /// Trial calls that must succeed before the circuit closes. Default 1.
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Count"))]
    pub success_threshold: u32,
    /// After this long a probe that was never heard of again loses its place. Default: twice the longest
    /// time the policy gives a call; where it gives none, the break, but at least 30 s.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde", skip_serializing_if = "Option::is_none"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::DurationText"))]
    pub probe_lease: Option<Duration>,
    /// After closing, let traffic back in by steps. Default none: all at once.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub ramp: Option<RampSpec>,
    /// Whether a call with its retries is one outcome, or each attempt is. Default `calls`.
    pub count: CountBy,
}

/// The three numbers of a latency trip, together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatencyTrip {
    /// Which quantile, between 0.0 and 1.0, both excluded.
    pub quantile: f64,
    /// The latency it must not exceed.
    pub threshold: Duration,
    /// How long it must stay there before the circuit opens.
    pub lasting: Duration,
}

/// Back to full traffic over `over`, in `steps` equal steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct RampSpec {
    /// From the closing of the circuit to full traffic.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::DurationText"))]
    pub over: Duration,
    /// Steps on the way: with 4 the shares are 20, 40, 60, 80 and then 100 %. Default 4.
    #[cfg_attr(feature = "serde", serde(default = "default_steps"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Count"))]
    pub steps: u32,
}

#[cfg(feature = "serde")]
const fn default_steps() -> u32 {
    4
}

/// What one outcome is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum CountBy {
    /// A call with all its retries.
    #[default]
    Calls,
    /// Each attempt: admitted and recorded by itself; a circuit that opens meanwhile ends the retries.
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

    /// The sliding window of the ratios.
    #[must_use]
    pub const fn window(mut self, window: Duration) -> Self {
        self.sampling_window = window;
        self
    }

    /// Calls in the window below which a ratio means nothing.
    #[must_use]
    pub const fn min_throughput(mut self, calls: u32) -> Self {
        self.min_throughput = calls;
        self
    }

    /// How long the circuit stays open.
    #[must_use]
    pub const fn break_for(mut self, duration: Duration) -> Self {
        self.break_duration = duration;
        self
    }

    /// Each trip that follows closely on another lasts `multiplier` times longer, up to `max`.
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

    /// Trial calls at a time, and how many must succeed.
    #[must_use]
    pub const fn probes(mut self, at_a_time: u32, successes: u32) -> Self {
        self.half_open_max_calls = at_a_time;
        self.success_threshold = successes;
        self
    }

    /// After this long a probe that was never heard of again loses its place.
    #[must_use]
    pub const fn probe_lease(mut self, lease: Duration) -> Self {
        self.probe_lease = Some(lease);
        self
    }

    /// After closing, lets traffic back in over `over` in `steps` steps.
    #[must_use]
    pub const fn ramp(mut self, over: Duration, steps: u32) -> Self {
        self.ramp = Some(RampSpec { over, steps });
        self
    }

    /// Counts each attempt instead of each call.
    #[must_use]
    pub const fn count_attempts(mut self) -> Self {
        self.count = CountBy::Attempts;
        self
    }

    /// The lease of a probe.
    pub fn lease(&self) -> Duration {
        let unbounded = self.break_duration.max(Duration::from_secs(30));
        self.probe_lease.unwrap_or(unbounded)
    }

    /// Whether it cares how long calls take.
    pub(crate) fn measures_latency(&self) -> bool {
        self.slow_call_threshold.is_some() || self.latency_trip().is_some()
    }

    /// When the latency trips it, if it does.
    pub fn latency_trip(&self) -> Option<LatencyTrip> {
        let (quantile, threshold) = (self.latency_quantile?, self.latency_threshold?);
        Some(LatencyTrip { quantile, threshold, lasting: self.latency_duration })
    }

    /// Whether a call of this latency is slow.
    pub fn is_slow(&self, latency: Duration) -> bool {
        self.slow_call_threshold.is_some_and(|threshold| latency >= threshold)
    }
}
