//! The checks of single values: ranges of numbers and durations.

use std::time::Duration;

use super::Mistake;
use crate::breaker::MAX_PROBES;

const MAX_DURATION: Duration = Duration::from_secs(24 * 3_600);
/// The largest count of things that exist at a time: slots, waiters, attempts.
pub(super) const MAX_COUNT: u64 = 1_000_000;
/// The largest count of calls in a period: permits of a rate, calls in a window.
const MAX_CALLS: u64 = 1_000_000_000;

/// Collects mistakes while it descends into a policy.
pub(super) struct Check {
    pub(super) path: String,
    pub(super) found: Vec<Mistake>,
}

impl Check {
    pub(super) fn within<T>(&mut self, name: &str, spec: Option<&T>, check: impl FnOnce(&mut Self, &T)) {
        let Some(spec) = spec else { return };
        let outer = self.path.len();
        self.path = format!("{}.{name}", self.path);
        check(self, spec);
        self.path.truncate(outer);
    }

    pub(super) fn add(&mut self, field: &str, reason: &str) {
        self.found.push(Mistake::new(format!("{}.{field}", self.path), reason));
    }

    pub(super) fn add_here(&mut self, reason: &str) {
        self.found.push(Mistake::new(self.path.clone(), reason));
    }

    /// Checks the upper bound only; zero is valid.
    pub(super) fn bounded(&mut self, field: &str, duration: Duration) {
        if duration > MAX_DURATION {
            self.add(field, "must be at most 24 hours");
        }
    }

    pub(super) fn duration(&mut self, field: &str, duration: Duration) {
        if duration < Duration::from_micros(1) {
            self.add(field, "must be at least a microsecond");
        }
        self.bounded(field, duration);
    }

    pub(super) fn optional_duration(&mut self, field: &str, duration: Option<Duration>) {
        if let Some(duration) = duration {
            self.duration(field, duration);
        }
    }

    pub(super) fn count(&mut self, field: &str, count: u64) {
        if !(1..=MAX_COUNT).contains(&count) {
            self.add(field, &format!("must be between 1 and {MAX_COUNT}"));
        }
    }

    /// Checks the number of probes at a time: a store reads all of them at every probe.
    pub(super) fn probes(&mut self, field: &str, probes: u32) {
        if !(1..=MAX_PROBES).contains(&probes) {
            self.add(field, &format!("must be between 1 and {MAX_PROBES}"));
        }
    }

    pub(super) fn calls(&mut self, field: &str, calls: u64) {
        if !(1..=MAX_CALLS).contains(&calls) {
            self.add(field, &format!("must be between 1 and {MAX_CALLS}"));
        }
    }

    pub(super) fn optional_share(&mut self, field: &str, share: Option<f64>) {
        if share.is_some_and(|share| !(share > 0.0 && share <= 1.0)) {
            self.add(field, "must be above 0 and at most 1");
        }
    }

    pub(super) fn optional_quantile(&mut self, field: &str, quantile: Option<f64>) {
        if quantile.is_some_and(|quantile| !(quantile > 0.0 && quantile < 1.0)) {
            self.add(field, "must lie between 0 and 1, both excluded");
        }
    }

    pub(super) fn positive(&mut self, field: &str, number: f64) {
        if !(number > 0.0 && number <= 1e6) {
            self.add(field, "must be above 0 and at most 1,000,000");
        }
    }

    pub(super) fn share_or_zero(&mut self, field: &str, share: f64) {
        if !(0.0..=1.0).contains(&share) {
            self.add(field, "must be between 0 and 1");
        }
    }

    pub(super) fn at_least_one(&mut self, field: &str, factor: f64) {
        if !(1.0..=1e6).contains(&factor) {
            self.add(field, "must be between 1 and 1,000,000");
        }
    }
}
