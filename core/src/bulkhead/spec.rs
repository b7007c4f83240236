//! What a bulkhead is told: how many at a time, what moves that number, and who may wait.

use std::time::Duration;

/// How many calls may be under way at a time, and who waits for a slot.
///
/// The limit is fixed unless `adaptive` or `gradient` moves it between its least and `max_concurrency`; not both.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct BulkheadSpec {
    /// Calls at a time, at least 1; for an adaptive limit, the most it may ever be, and where it starts.
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Count"))]
    pub max_concurrency: u32,
    /// Callers that may wait for a slot. Default 0: rejected at once.
    #[cfg_attr(feature = "serde", serde(default))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::CountOrZero"))]
    pub max_queue: u32,
    /// The longest a caller waits. Default none: as long as its deadline allows.
    #[cfg_attr(feature = "serde", serde(default, with = "humantime_serde", skip_serializing_if = "Option::is_none"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::DurationText"))]
    pub queue_timeout: Option<Duration>,
    /// Sheds by waiting time (CoDel): while the queue does not empty for a `queue_interval`, nobody waits longer than
    /// this. Shorter than `queue_interval`. Default none.
    #[cfg_attr(feature = "serde", serde(default, with = "humantime_serde", skip_serializing_if = "Option::is_none"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::DurationText"))]
    pub queue_target: Option<Duration>,
    /// A queue that has not been empty for this long is congested; until then a caller may wait this long. Default
    /// 100 ms.
    #[cfg_attr(feature = "serde", serde(default = "default_interval", with = "humantime_serde"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::DurationText"))]
    pub queue_interval: Duration,
    /// While congested, serve the newest first: its caller is the likeliest to be still there. With `prioritized`, each
    /// rank for itself. Default false.
    #[cfg_attr(feature = "serde", serde(default))]
    pub queue_adaptive_lifo: bool,
    /// Serve the more critical first, let them displace the less critical, and shed those sooner. Default false.
    #[cfg_attr(feature = "serde", serde(default))]
    pub prioritized: bool,
    /// Lets a latency threshold move the limit (AIMD). Default none.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub adaptive: Option<AdaptiveSpec>,
    /// Lets the slope of the latency move the limit (Gradient2). Default none.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub gradient: Option<GradientSpec>,
}

/// Additive increase while calls are quick enough, multiplicative decrease when they are not.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct AdaptiveSpec {
    /// A completion slower than this lowers the limit.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::DurationText"))]
    pub latency_threshold: Duration,
    /// The limit never falls below this, at least 1. Default 1.
    #[cfg_attr(feature = "serde", serde(default = "one"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Count"))]
    pub min_concurrency: u32,
    /// What is left of the limit after a breach, above 0.0 and below 1.0. Default 0.9.
    #[cfg_attr(feature = "serde", serde(default = "default_ratio"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Between"))]
    pub backoff_ratio: f64,
    /// What a whole limit's worth of quick completions adds to it; less in the last quarter below the threshold.
    /// Default 1.0.
    #[cfg_attr(feature = "serde", serde(default = "default_step"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Positive"))]
    pub increase_step: f64,
    /// The limit is lowered at most once in this time. Default 1 s.
    #[cfg_attr(feature = "serde", serde(default = "default_cooldown", with = "humantime_serde"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::DurationText"))]
    pub cooldown: Duration,
    /// Judge by this quantile of recent completions, the fleet's where it is shared, instead of by each one. Between
    /// 0.0 and 1.0. Default none.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Between"))]
    pub latency_quantile: Option<f64>,
}

/// Follows the ratio between the latency without load, which it learns, and the latency now.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields, default))]
pub struct GradientSpec {
    /// The limit never falls below this, at least 1. Default 1.
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Count"))]
    pub min_concurrency: u32,
    /// How many times its baseline the latency may be before the limit shrinks, at least 1.0. Default 1.5.
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Factor"))]
    pub rtt_tolerance: f64,
    /// How far each round of samples (as many as are in flight) moves the limit towards its new value, above 0.0 and
    /// at most 1.0. Default 0.2.
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Share"))]
    pub smoothing: f64,
    /// Samples the baseline is averaged over. Default 600.
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Count"))]
    pub long_window: u32,
    /// Slots added while there is no sign of queueing, so that the limit can grow. Default: the limit's square root.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Positive"))]
    pub headroom: Option<f64>,
}

pub(crate) const fn default_interval() -> Duration {
    Duration::from_millis(100)
}

const fn one() -> u32 {
    1
}

const fn default_ratio() -> f64 {
    0.9
}

const fn default_step() -> f64 {
    1.0
}

const fn default_cooldown() -> Duration {
    Duration::from_secs(1)
}

impl BulkheadSpec {
    /// So many calls at a time, and nobody waits.
    pub const fn fixed(max_concurrency: u32) -> Self {
        Self {
            max_concurrency,
            max_queue: 0,
            queue_timeout: None,
            queue_target: None,
            queue_interval: default_interval(),
            queue_adaptive_lifo: false,
            prioritized: false,
            adaptive: None,
            gradient: None,
        }
    }

    /// At most so many calls at a time, fewer while they are slow.
    pub const fn adaptive(max_concurrency: u32, spec: AdaptiveSpec) -> Self {
        Self { adaptive: Some(spec), ..Self::fixed(max_concurrency) }
    }

    /// At most so many calls at a time, fewer while more would only queue up at the dependency.
    pub const fn gradient(max_concurrency: u32, spec: GradientSpec) -> Self {
        Self { gradient: Some(spec), ..Self::fixed(max_concurrency) }
    }

    /// Callers that may wait for a slot.
    #[must_use]
    pub const fn queue(mut self, max_queue: u32) -> Self {
        self.max_queue = max_queue;
        self
    }

    /// The longest a caller waits.
    #[must_use]
    pub const fn queue_timeout(mut self, timeout: Duration) -> Self {
        self.queue_timeout = Some(timeout);
        self
    }

    /// Sheds by waiting time: nobody waits longer than this once the queue is congested.
    #[must_use]
    pub const fn queue_target(mut self, target: Duration) -> Self {
        self.queue_target = Some(target);
        self
    }

    /// A queue that has not been empty for this long is congested.
    #[must_use]
    pub const fn queue_interval(mut self, interval: Duration) -> Self {
        self.queue_interval = interval;
        self
    }

    /// While congested, serve the newest first.
    #[must_use]
    pub const fn adaptive_lifo(mut self) -> Self {
        self.queue_adaptive_lifo = true;
        self
    }

    /// Serve the more critical first, and shed the less critical for them.
    #[must_use]
    pub const fn prioritized(mut self) -> Self {
        self.prioritized = true;
        self
    }

    /// The least the limit can be.
    pub fn min_concurrency(&self) -> u32 {
        let adaptive = self.adaptive.map(|spec| spec.min_concurrency);
        let least = adaptive.or(self.gradient.map(|spec| spec.min_concurrency)).unwrap_or(self.max_concurrency);
        least.clamp(1, self.max_concurrency.max(1))
    }

    /// Whether it has to know how long calls take.
    pub(crate) const fn measures_latency(&self) -> bool {
        self.adaptive.is_some() || self.gradient.is_some()
    }
}

impl AdaptiveSpec {
    /// A completion slower than this lowers the limit.
    pub const fn threshold(latency_threshold: Duration) -> Self {
        Self {
            latency_threshold,
            min_concurrency: one(),
            backoff_ratio: default_ratio(),
            increase_step: default_step(),
            cooldown: default_cooldown(),
            latency_quantile: None,
        }
    }

    /// The limit never falls below this.
    #[must_use]
    pub const fn min_concurrency(mut self, least: u32) -> Self {
        self.min_concurrency = least;
        self
    }

    /// What is left of the limit after a breach.
    #[must_use]
    pub const fn backoff_ratio(mut self, ratio: f64) -> Self {
        self.backoff_ratio = ratio;
        self
    }

    /// What a whole limit's worth of quick completions adds to it.
    #[must_use]
    pub const fn increase_step(mut self, step: f64) -> Self {
        self.increase_step = step;
        self
    }

    /// The limit is lowered at most once in this time.
    #[must_use]
    pub const fn cooldown(mut self, cooldown: Duration) -> Self {
        self.cooldown = cooldown;
        self
    }

    /// Judges by this quantile of recent completions instead of by each one.
    #[must_use]
    pub const fn quantile(mut self, quantile: f64) -> Self {
        self.latency_quantile = Some(quantile);
        self
    }
}

impl Default for GradientSpec {
    fn default() -> Self {
        Self { min_concurrency: one(), rtt_tolerance: 1.5, smoothing: 0.2, long_window: 600, headroom: None }
    }
}

impl GradientSpec {
    /// The limit never falls below this.
    #[must_use]
    pub const fn min_concurrency(mut self, least: u32) -> Self {
        self.min_concurrency = least;
        self
    }

    /// How many times its baseline the latency may be before the limit shrinks.
    #[must_use]
    pub const fn rtt_tolerance(mut self, tolerance: f64) -> Self {
        self.rtt_tolerance = tolerance;
        self
    }

    /// How far each round of samples moves the limit towards its new value.
    #[must_use]
    pub const fn smoothing(mut self, share: f64) -> Self {
        self.smoothing = share;
        self
    }

    /// Samples the baseline is averaged over.
    #[must_use]
    pub const fn long_window(mut self, samples: u32) -> Self {
        self.long_window = samples;
        self
    }

    /// Slots added while there is no sign of queueing.
    #[must_use]
    pub const fn headroom(mut self, slots: f64) -> Self {
        self.headroom = Some(slots);
        self
    }
}
