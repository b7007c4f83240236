//! The specification of a bulkhead: the limit, its adaptation, and the queue.

use std::time::Duration;

/// Configures a bulkhead: how many calls may be in flight, and how many callers may wait for a slot.
///
/// The limit is fixed, unless `adaptive` or `gradient` moves it between its minimum and `max_concurrency`.
///
/// # Examples
/// ```
/// use phalanx::{BulkheadSpec, Policy, RejectionCode, ResilienceModule};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), phalanx::ConfigError> {
/// let policy = Policy::named("vendor").bulkhead(BulkheadSpec::fixed(1));
/// let module = ResilienceModule::in_memory().policy(policy).build()?;
/// let inner = || async { Ok::<_, std::io::Error>(()) };
/// let outer = || async { Ok::<_, std::io::Error>(module.run("vendor", (), inner).await) };
/// let second = module.run("vendor", (), outer).await.expect("the first call has the slot");
/// assert_eq!(second.unwrap_err().rejection().map(|it| it.code()), Some(RejectionCode::BulkheadFull));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(transform = crate::schema::without_examples))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct BulkheadSpec {
    /// The limit of calls in flight, at least 1. For an adaptive limit, its maximum and its start.
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Count"))]
    pub max_concurrency: u32,
    /// The limit of calls in flight on all replicas together, besides `max_concurrency` of each; at least that. Each replica
    /// leases a share of it, and asks for more in one round trip. Without a shared store: of this process. Default none.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Count"))]
    pub fleet_max_concurrency: Option<u32>,
    /// Callers that may wait for a slot. Default 0: excess calls are rejected at once.
    #[cfg_attr(feature = "serde", serde(default))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::CountOrZero"))]
    pub max_queue: u32,
    /// The longest that a caller waits. Default none: as long as its deadline allows.
    #[cfg_attr(feature = "serde", serde(default, with = "humantime_serde", skip_serializing_if = "Option::is_none"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::DurationText"))]
    pub queue_timeout: Option<Duration>,
    /// Sheds by waiting time (CoDel): while the queue has not been empty for a `queue_interval`, a caller waits no longer
    /// than this. Shorter than `queue_interval`. Default none.
    #[cfg_attr(feature = "serde", serde(default, with = "humantime_serde", skip_serializing_if = "Option::is_none"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::DurationText"))]
    pub queue_target: Option<Duration>,
    /// A queue that has not been empty for this long is congested; until then a caller may wait this long. Default
    /// 100 ms.
    #[cfg_attr(feature = "serde", serde(default = "default_interval", with = "humantime_serde"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::DurationText"))]
    pub queue_interval: Duration,
    /// While congested, serves the newest waiter first: its caller is the likeliest to be still waiting. With
    /// `prioritized`, separately for each criticality. Default false.
    #[cfg_attr(feature = "serde", serde(default))]
    pub queue_adaptive_lifo: bool,
    /// Serves critical calls first, lets them displace less critical ones, and sheds those sooner. Default false.
    #[cfg_attr(feature = "serde", serde(default))]
    pub prioritized: bool,
    /// Adapts the limit to a latency threshold (AIMD). Default none.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub adaptive: Option<AdaptiveSpec>,
    /// Adapts the limit to the growth of the latency (Gradient2). Default none.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub gradient: Option<GradientSpec>,
}

/// Configures an AIMD limit: additive increase while calls are fast enough, multiplicative decrease when they are not.
///
/// # Examples
/// ```
/// use std::time::Duration;
///
/// use phalanx::policy::AdaptiveSpec;
/// use phalanx::{BulkheadSpec, Policy};
///
/// let adaptive = AdaptiveSpec::threshold(Duration::from_millis(200)).min_concurrency(4);
/// let spec = BulkheadSpec::adaptive(64, adaptive);
/// assert_eq!((spec.min_concurrency(), spec.max_concurrency), (4, 64));
/// let wrong = BulkheadSpec::adaptive(2, adaptive);
/// assert_eq!(Policy::named("p").bulkhead(wrong).mistakes()[0].path, "policies.p.bulkhead.max_concurrency");
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(transform = crate::schema::without_examples))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct AdaptiveSpec {
    /// A completion slower than this lowers the limit.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::DurationText"))]
    pub latency_threshold: Duration,
    /// The lowest limit, at least 1. Default 1.
    #[cfg_attr(feature = "serde", serde(default = "one"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Count"))]
    pub min_concurrency: u32,
    /// The factor that lowers the limit after a breach, above 0.0 and below 1.0. Default 0.9.
    #[cfg_attr(feature = "serde", serde(default = "default_ratio"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Between"))]
    pub backoff_ratio: f64,
    /// The slots that are added for as many fast completions as the limit; fewer in the last quarter below the
    /// threshold. Default 1.0.
    #[cfg_attr(feature = "serde", serde(default = "default_step"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Positive"))]
    pub increase_step: f64,
    /// The limit is lowered at most once in this time. Default 1 s.
    #[cfg_attr(feature = "serde", serde(default = "default_cooldown", with = "humantime_serde"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::DurationText"))]
    pub cooldown: Duration,
    /// Compares this quantile of recent latencies (of the fleet, if digests are shared) with the threshold, instead of
    /// each completion. Between 0.0 and 1.0. Default none.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Between"))]
    pub latency_quantile: Option<f64>,
}

/// Configures a Gradient2 limit: follows the ratio of the latency with little load, which it measures, to the current
/// latency.
///
/// # Examples
/// ```
/// use phalanx::policy::GradientSpec;
/// use phalanx::{BulkheadSpec, Policy};
///
/// let spec = BulkheadSpec::gradient(400, GradientSpec::default().min_concurrency(10).rtt_tolerance(2.0));
/// assert_eq!(spec.min_concurrency(), 10);
/// assert!(Policy::named("p").bulkhead(spec).mistakes().is_empty());
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(transform = crate::schema::without_examples))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields, default))]
pub struct GradientSpec {
    /// The lowest limit, at least 1. Default 1.
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Count"))]
    pub min_concurrency: u32,
    /// The multiple of the baseline that the latency may reach before the limit shrinks, at least 1.0. Default 1.5.
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Factor"))]
    pub rtt_tolerance: f64,
    /// How far each round of samples (as many as calls in flight) moves the limit towards its new value, above 0.0 and
    /// at most 1.0. Default 0.2.
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Share"))]
    pub smoothing: f64,
    /// The number of samples over which the baseline is averaged. Default 600.
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
    /// Limits calls in flight to `max_concurrency`, without a queue.
    pub const fn fixed(max_concurrency: u32) -> Self {
        Self {
            max_concurrency,
            fleet_max_concurrency: None,
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

    /// Limits calls in flight to at most `max_concurrency`, and to fewer while they are slow.
    pub const fn adaptive(max_concurrency: u32, spec: AdaptiveSpec) -> Self {
        Self { adaptive: Some(spec), ..Self::fixed(max_concurrency) }
    }

    /// Limits calls in flight to at most `max_concurrency`, and to fewer while more would only queue at the dependency.
    pub const fn gradient(max_concurrency: u32, spec: GradientSpec) -> Self {
        Self { gradient: Some(spec), ..Self::fixed(max_concurrency) }
    }

    /// Limits the calls in flight on all replicas together.
    #[must_use]
    pub const fn fleet_max_concurrency(mut self, slots: u32) -> Self {
        self.fleet_max_concurrency = Some(slots);
        self
    }

    /// Lets up to `max_queue` callers wait for a slot.
    #[must_use]
    pub const fn queue(mut self, max_queue: u32) -> Self {
        self.max_queue = max_queue;
        self
    }

    /// Sets the longest that a caller waits.
    #[must_use]
    pub const fn queue_timeout(mut self, timeout: Duration) -> Self {
        self.queue_timeout = Some(timeout);
        self
    }

    /// Sheds by waiting time: once the queue is congested, a caller waits no longer than this.
    #[must_use]
    pub const fn queue_target(mut self, target: Duration) -> Self {
        self.queue_target = Some(target);
        self
    }

    /// Sets how long the queue must not have been empty to be congested.
    #[must_use]
    pub const fn queue_interval(mut self, interval: Duration) -> Self {
        self.queue_interval = interval;
        self
    }

    /// Serves the newest waiter first while congested.
    #[must_use]
    pub const fn adaptive_lifo(mut self) -> Self {
        self.queue_adaptive_lifo = true;
        self
    }

    /// Serves critical calls first, and sheds less critical ones for them.
    #[must_use]
    pub const fn prioritized(mut self) -> Self {
        self.prioritized = true;
        self
    }

    /// Returns the lowest limit.
    pub fn min_concurrency(&self) -> u32 {
        let adaptive = self.adaptive.map(|spec| spec.min_concurrency);
        let least = adaptive.or(self.gradient.map(|spec| spec.min_concurrency)).unwrap_or(self.max_concurrency);
        least.clamp(1, self.max_concurrency.max(1))
    }

    /// Returns whether the limit depends on the latency.
    pub(crate) const fn measures_latency(&self) -> bool {
        self.adaptive.is_some() || self.gradient.is_some()
    }
}

impl AdaptiveSpec {
    /// Lowers the limit on a completion slower than this.
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

    /// Sets the lowest limit.
    #[must_use]
    pub const fn min_concurrency(mut self, least: u32) -> Self {
        self.min_concurrency = least;
        self
    }

    /// Sets the factor that lowers the limit after a breach.
    #[must_use]
    pub const fn backoff_ratio(mut self, ratio: f64) -> Self {
        self.backoff_ratio = ratio;
        self
    }

    /// Sets the slots that are added for as many fast completions as the limit.
    #[must_use]
    pub const fn increase_step(mut self, step: f64) -> Self {
        self.increase_step = step;
        self
    }

    /// Sets the time in which the limit is lowered at most once.
    #[must_use]
    pub const fn cooldown(mut self, cooldown: Duration) -> Self {
        self.cooldown = cooldown;
        self
    }

    /// Compares this quantile of recent latencies with the threshold, instead of each completion.
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
    /// Sets the lowest limit.
    #[must_use]
    pub const fn min_concurrency(mut self, least: u32) -> Self {
        self.min_concurrency = least;
        self
    }

    /// Sets the multiple of the baseline that the latency may reach before the limit shrinks.
    #[must_use]
    pub const fn rtt_tolerance(mut self, tolerance: f64) -> Self {
        self.rtt_tolerance = tolerance;
        self
    }

    /// Sets how far each round of samples moves the limit towards its new value.
    #[must_use]
    pub const fn smoothing(mut self, share: f64) -> Self {
        self.smoothing = share;
        self
    }

    /// Sets the number of samples over which the baseline is averaged.
    #[must_use]
    pub const fn long_window(mut self, samples: u32) -> Self {
        self.long_window = samples;
        self
    }

    /// Sets the slots that are added while there is no sign of queueing.
    #[must_use]
    pub const fn headroom(mut self, slots: f64) -> Self {
        self.headroom = Some(slots);
        self
    }
}
