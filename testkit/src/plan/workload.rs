//! The workload of a step: how often callers call, and the dependency without a fault.

use std::time::Duration;

use super::MAX_DURATION;

/// How often callers call, and how the dependency answers without a fault.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use phalanx_testkit::plan::Workload;
///
/// let busy = Workload { rate: 200.0, capacity: Some(250.0), ..Workload::default() };
/// assert_eq!((busy.latency, busy.warmup), (Duration::from_millis(20), Duration::from_secs(10)));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// Calls per second to each targeted policy from each replica; calls arrive at random. Default 50.
    pub rate: f64,
    /// The median latency of the dependency. Default 20 ms.
    pub latency: Duration,
    /// The 95th percentile of its latency. Default twice the median.
    pub latency_p95: Duration,
    /// Calls per second that the dependency completes; further ones wait in its queue. Default: twice the rate of all
    /// replicas.
    pub capacity: Option<f64>,
    /// Healthy traffic before the fault. Default 10 s.
    pub warmup: Duration,
    /// Healthy traffic after the fault. Default 60 s.
    pub recovery: Duration,
    /// Calls in flight, waiting ones included, for which a replica has memory: the limit of `no_oom`. Default 1,000.
    pub max_in_flight: u32,
    /// Whether the dependency recognizes a repeated write by its key. Default true.
    pub idempotency_keys: bool,
    /// Whether callers bind the deadline of their request to the call. Default true.
    pub propagate_deadline: bool,
}

impl Default for Workload {
    fn default() -> Self {
        Self {
            rate: 50.0,
            latency: Duration::from_millis(20),
            latency_p95: Duration::from_millis(40),
            capacity: None,
            warmup: Duration::from_secs(10),
            recovery: Duration::from_secs(60),
            max_in_flight: 1_000,
            idempotency_keys: true,
            propagate_deadline: true,
        }
    }
}

/// The keys of the table `workload` in a file.
pub(super) const KEYS: [&str; 9] = [
    "rate",
    "latency",
    "latency_p95",
    "capacity",
    "warmup",
    "recovery",
    "max_in_flight",
    "idempotency_keys",
    "propagate_deadline",
];

const MAX_RATE: f64 = 100_000.0;
const MIN_RATE: f64 = 0.01;
const MAX_LATENCY: Duration = Duration::from_secs(60);
pub(super) const MAX_IN_FLIGHT: u32 = 1_000_000;

impl Workload {
    /// Returns the fields that are out of range, each with what would be valid.
    pub(super) fn mistakes(&self) -> Vec<(&'static str, String)> {
        let mut found = Vec::new();
        let rate = |rate: f64| !(MIN_RATE..=MAX_RATE).contains(&rate);
        let range = || format!("must be a number from {MIN_RATE} to {MAX_RATE}");
        if rate(self.rate) {
            found.push(("workload.rate", range()));
        }
        if self.capacity.is_some_and(rate) {
            found.push(("workload.capacity", range()));
        }
        if self.latency.is_zero() || self.latency > MAX_LATENCY {
            found.push(("workload.latency", "must be above zero and at most 1 minute".to_owned()));
        }
        if self.latency_p95 < self.latency || self.latency_p95 > MAX_LATENCY {
            found.push(("workload.latency_p95", "must be at least latency and at most 1 minute".to_owned()));
        }
        if self.warmup > MAX_DURATION {
            found.push(("workload.warmup", "must be at most 24 hours".to_owned()));
        }
        if self.recovery > MAX_DURATION {
            found.push(("workload.recovery", "must be at most 24 hours".to_owned()));
        }
        if !(1..=MAX_IN_FLIGHT).contains(&self.max_in_flight) {
            found.push(("workload.max_in_flight", format!("must be from 1 to {MAX_IN_FLIGHT}")));
        }
        found
    }
}
