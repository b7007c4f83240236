//! What numbers may be, whatever they belong to.

use std::time::Duration;

use super::Mistake;

const LONGEST: Duration = Duration::from_secs(24 * 3_600);
/// The largest count that means anything.
pub(super) const MOST: u64 = 1_000_000_000;

/// A walk through a policy that writes down what is wrong, with the path to it.
pub(super) struct Check {
    pub(super) path: String,
    pub(super) found: Vec<Mistake>,
}

impl Check {
    pub(super) fn within<T>(&mut self, name: &str, spec: Option<&T>, look: impl FnOnce(&mut Self, &T)) {
        let Some(spec) = spec else { return };
        let outer = self.path.len();
        self.path = format!("{}.{name}", self.path);
        look(self, spec);
        self.path.truncate(outer);
    }

    pub(super) fn say(&mut self, field: &str, reason: &str) {
        self.found.push(Mistake::new(format!("{}.{field}", self.path), reason));
    }

    pub(super) fn here(&mut self, reason: &str) {
        self.found.push(Mistake::new(self.path.clone(), reason));
    }

    /// Zero is fine, for ever is not.
    pub(super) fn bounded(&mut self, field: &str, duration: Duration) {
        if duration > LONGEST {
            self.say(field, "must be at most 24 hours");
        }
    }

    pub(super) fn duration(&mut self, field: &str, duration: Duration) {
        if duration < Duration::from_micros(1) {
            self.say(field, "must be at least a microsecond");
        }
        self.bounded(field, duration);
    }

    pub(super) fn optional_duration(&mut self, field: &str, duration: Option<Duration>) {
        if let Some(duration) = duration {
            self.duration(field, duration);
        }
    }

    pub(super) fn count(&mut self, field: &str, count: u64) {
        if !(1..=MOST).contains(&count) {
            self.say(field, &format!("must be between 1 and {MOST}"));
        }
    }

    pub(super) fn optional_share(&mut self, field: &str, share: Option<f64>) {
        if share.is_some_and(|share| !(share > 0.0 && share <= 1.0)) {
            self.say(field, "must be above 0 and at most 1");
        }
    }

    pub(super) fn optional_quantile(&mut self, field: &str, quantile: Option<f64>) {
        if quantile.is_some_and(|quantile| !(quantile > 0.0 && quantile < 1.0)) {
            self.say(field, "must lie between 0 and 1, both excluded");
        }
    }

    pub(super) fn positive(&mut self, field: &str, number: f64) {
        if !(number > 0.0 && number <= 1e6) {
            self.say(field, "must be above 0 and at most 1,000,000");
        }
    }

    pub(super) fn share_or_zero(&mut self, field: &str, share: f64) {
        if !(0.0..=1.0).contains(&share) {
            self.say(field, "must be between 0 and 1");
        }
    }

    pub(super) fn at_least_one(&mut self, field: &str, factor: f64) {
        if !(1.0..=1e6).contains(&factor) {
            self.say(field, "must be between 1 and 1,000,000");
        }
    }
}
