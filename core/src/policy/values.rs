//! The values of a policy or a lever as a list, each as in a configuration file: `retry.backoff.max`, `"2s"`.
//!
//! Fields that are not set are left out; defaults are listed. Does not use serde, so that a module can be described without
//! that feature. Every spec is destructured, so that a forgotten field does not compile.

use std::time::Duration;

use super::{DeadlineSpec, OnDegraded, Policy};
use crate::breaker::{BreakerSpec, CountBy, Override, RampSpec};
use crate::budget::BudgetSpec;
use crate::bulkhead::{AdaptiveSpec, BulkheadSpec, GradientSpec};
use crate::chaos::ChaosSpec;
use crate::hedge::HedgeSpec;
use crate::kind::Kinds;
use crate::levers::LeverSpec;
use crate::rate_limit::{LimitCost, LimitSpec, RateLimitSpec, RateOverride};
use crate::retry::RetrySpec;
use crate::retry::backoff::{Backoff, Curve, Jitter};
use crate::throttle::ThrottleSpec;

impl Policy {
    /// Returns the values in the order of the stages: the path below the policy, and the value as in a TOML file.
    pub fn values(&self) -> Vec<(String, String)> {
        let mut list = List::default();
        let Self {
            name: _, // the key
            deadline,
            rate_limit,
            limits,
            bulkhead,
            breaker,
            throttle,
            retry,
            hedge,
            idempotent,
            timeout,
            on_degraded,
            chaos,
            guards: _, // code, not data
        } = self;
        list.within("deadline", deadline.as_ref(), List::deadline);
        list.within("rate_limit", rate_limit.as_ref(), List::rate_limit);
        list.within("limits", Some(limits), |list, limits| {
            limits.iter().for_each(|(name, spec)| list.within(name, Some(spec), List::limit));
        });
        list.within("bulkhead", bulkhead.as_ref(), List::bulkhead);
        list.within("breaker", breaker.as_ref(), List::breaker);
        list.within("throttle", throttle.as_ref(), List::throttle);
        list.within("retry", retry.as_ref(), List::retry);
        list.within("hedge", hedge.as_ref(), List::hedge);
        list.plain("idempotent", idempotent);
        list.optional_duration("timeout", *timeout);
        list.optional("on_degraded", on_degraded.map(OnDegraded::name));
        list.within("chaos", chaos.as_ref(), List::chaos);
        list.found
    }
}

impl LeverSpec {
    /// Returns the values: the name, and the value as in a TOML file.
    pub fn values(&self) -> Vec<(String, String)> {
        let mut list = List::default();
        let Self { force, hedging, retries, max_concurrency, chaos, reason } = self;
        list.optional("force", force.map(Override::name));
        list.plain("hedging", hedging);
        list.plain("retries", retries);
        list.optional("max_concurrency", *max_concurrency);
        list.plain("chaos", chaos);
        list.optional("reason", reason.as_ref());
        list.found
    }
}

#[derive(Default)]
struct List {
    path: String,
    found: Vec<(String, String)>,
}

impl List {
    fn within<T>(&mut self, name: &str, spec: Option<&T>, look: impl FnOnce(&mut Self, &T)) {
        let Some(spec) = spec else { return };
        let outer = self.path.len();
        self.path.push_str(name);
        self.path.push('.');
        look(self, spec);
        self.path.truncate(outer);
    }

    fn plain(&mut self, field: &str, value: impl std::fmt::Debug) {
        self.found.push((format!("{}{field}", self.path), format!("{value:?}")));
    }

    fn text(&mut self, field: &str, value: &str) {
        self.plain(field, value);
    }

    fn optional(&mut self, field: &str, value: Option<impl std::fmt::Debug>) {
        if let Some(value) = value {
            self.plain(field, value);
        }
    }

    fn duration(&mut self, field: &str, duration: Duration) {
        self.text(field, &to_text(duration));
    }

    fn optional_duration(&mut self, field: &str, duration: Option<Duration>) {
        if let Some(duration) = duration {
            self.duration(field, duration);
        }
    }

    fn deadline(&mut self, spec: &DeadlineSpec) {
        let DeadlineSpec { total, safety_margin, failure_floor } = *spec;
        self.optional_duration("total", total);
        self.duration("safety_margin", safety_margin);
        self.duration("failure_floor", failure_floor);
    }

    fn rate_limit(&mut self, spec: &RateLimitSpec) {
        let RateLimitSpec { permits, per, burst, max_wait, consistency, near_limit } = *spec;
        self.plain("permits", permits);
        self.duration("per", per);
        self.optional("burst", burst);
        self.optional_duration("max_wait", max_wait);
        self.plain("consistency", consistency.name());
        self.plain("near_limit", near_limit);
    }

    fn limit(&mut self, spec: &LimitSpec) {
        let LimitSpec { permits, per, burst, max_wait, key, cost, missing, consistency, overrides, resolver: _ } = spec;
        self.plain("permits", permits);
        self.duration("per", *per);
        self.optional("burst", *burst);
        self.optional_duration("max_wait", *max_wait);
        self.text("key", &key.to_string());
        match cost {
            LimitCost::Call => self.text("cost", "call"),
            LimitCost::Fixed(permits) => self.plain("cost", permits),
        }
        self.plain("missing", missing.name());
        self.plain("consistency", consistency.name());
        self.within("overrides", Some(overrides), |list, overrides| {
            for (value, rate) in overrides {
                list.within(value, Some(rate), |list, rate| {
                    let RateOverride { permits, per, burst } = *rate;
                    list.plain("permits", permits);
                    list.optional_duration("per", per);
                    list.optional("burst", burst);
                });
            }
        });
    }

    fn bulkhead(&mut self, spec: &BulkheadSpec) {
        let BulkheadSpec {
            max_concurrency,
            fleet_max_concurrency,
            max_queue,
            queue_timeout,
            queue_target,
            queue_interval,
            queue_adaptive_lifo,
            prioritized,
            adaptive,
            gradient,
        } = *spec;
        self.plain("max_concurrency", max_concurrency);
        self.optional("fleet_max_concurrency", fleet_max_concurrency);
        self.plain("max_queue", max_queue);
        self.optional_duration("queue_timeout", queue_timeout);
        self.optional_duration("queue_target", queue_target);
        self.duration("queue_interval", queue_interval);
        self.plain("queue_adaptive_lifo", queue_adaptive_lifo);
        self.plain("prioritized", prioritized);
        self.within("adaptive", adaptive.as_ref(), Self::adaptive);
        self.within("gradient", gradient.as_ref(), Self::gradient);
    }

    fn adaptive(&mut self, spec: &AdaptiveSpec) {
        let AdaptiveSpec {
            latency_threshold,
            min_concurrency,
            backoff_ratio,
            increase_step,
            cooldown,
            latency_quantile,
        } = *spec;
        self.duration("latency_threshold", latency_threshold);
        self.plain("min_concurrency", min_concurrency);
        self.plain("backoff_ratio", backoff_ratio);
        self.plain("increase_step", increase_step);
        self.duration("cooldown", cooldown);
        self.optional("latency_quantile", latency_quantile);
    }

    fn gradient(&mut self, spec: &GradientSpec) {
        let GradientSpec { min_concurrency, rtt_tolerance, smoothing, long_window, headroom } = *spec;
        self.plain("min_concurrency", min_concurrency);
        self.plain("rtt_tolerance", rtt_tolerance);
        self.plain("smoothing", smoothing);
        self.plain("long_window", long_window);
        self.optional("headroom", headroom);
    }

    fn breaker(&mut self, spec: &BreakerSpec) {
        let BreakerSpec {
            failure_ratio,
            consecutive_failures,
            slow_call_ratio,
            slow_call_threshold,
            latency_quantile,
            latency_threshold,
            latency_duration,
            sampling_window,
            min_throughput,
            break_duration,
            break_multiplier,
            max_break_duration,
            break_jitter,
            half_open_max_calls,
            success_threshold,
            probe_lease,
            ramp,
            quorum_share,
            quorum_replicas,
            count,
        } = spec;
        self.optional("failure_ratio", *failure_ratio);
        self.optional("consecutive_failures", *consecutive_failures);
        self.optional("slow_call_ratio", *slow_call_ratio);
        self.optional_duration("slow_call_threshold", *slow_call_threshold);
        self.optional("latency_quantile", *latency_quantile);
        self.optional_duration("latency_threshold", *latency_threshold);
        self.duration("latency_duration", *latency_duration);
        self.duration("sampling_window", *sampling_window);
        self.plain("min_throughput", min_throughput);
        self.duration("break_duration", *break_duration);
        self.plain("break_multiplier", break_multiplier);
        self.duration("max_break_duration", *max_break_duration);
        self.plain("break_jitter", break_jitter);
        self.plain("half_open_max_calls", half_open_max_calls);
        self.plain("success_threshold", success_threshold);
        self.optional_duration("probe_lease", *probe_lease);
        self.within("ramp", ramp.as_ref(), |list, ramp| {
            let RampSpec { over, steps } = *ramp;
            list.duration("over", over);
            list.plain("steps", steps);
        });
        self.optional("quorum_share", *quorum_share);
        self.optional("quorum_replicas", *quorum_replicas);
        let count = match count {
            CountBy::Calls => "calls",
            CountBy::Attempts => "attempts",
        };
        self.text("count", count);
    }

    fn throttle(&mut self, spec: &ThrottleSpec) {
        let ThrottleSpec { k, window, min_throughput, scope } = *spec;
        self.plain("k", k);
        self.duration("window", window);
        self.plain("min_throughput", min_throughput);
        self.text("scope", scope.name());
    }

    fn retry(&mut self, spec: &RetrySpec) {
        let RetrySpec { max_attempts, retry_on, backoff, budget, retry_exhausted } = *spec;
        self.plain("max_attempts", max_attempts);
        self.kinds("retry_on", retry_on);
        self.within("backoff", Some(&backoff), Self::backoff);
        self.within("budget", budget.as_ref(), Self::budget);
        self.plain("retry_exhausted", retry_exhausted);
    }

    fn kinds(&mut self, field: &str, kinds: Kinds) {
        self.plain(field, kinds.iter().map(|kind| kind.name()).collect::<Vec<_>>());
    }

    fn backoff(&mut self, spec: &Backoff) {
        let Backoff { curve, base, max, multiplier, jitter } = *spec;
        let curve = match curve {
            Curve::Constant => "constant",
            Curve::Linear => "linear",
            Curve::Exponential => "exponential",
        };
        self.text("curve", curve);
        self.duration("base", base);
        self.duration("max", max);
        self.plain("multiplier", multiplier);
        let jitter = match jitter {
            Jitter::None => "none",
            Jitter::Full => "full",
            Jitter::Equal => "equal",
            Jitter::Decorrelated => "decorrelated",
        };
        self.text("jitter", jitter);
    }

    fn budget(&mut self, spec: &BudgetSpec) {
        let BudgetSpec { ratio, min_per_second, scope } = *spec;
        self.plain("ratio", ratio);
        self.plain("min_per_second", min_per_second);
        self.text("scope", scope.name());
    }

    fn hedge(&mut self, spec: &HedgeSpec) {
        let HedgeSpec { delay, max_attempts, adaptive_delay_quantile, delay_min, delay_max, budget } = *spec;
        self.duration("delay", delay);
        self.plain("max_attempts", max_attempts);
        self.optional("adaptive_delay_quantile", adaptive_delay_quantile);
        self.optional_duration("delay_min", delay_min);
        self.optional_duration("delay_max", delay_max);
        self.within("budget", Some(&budget), Self::budget);
    }

    fn chaos(&mut self, spec: &ChaosSpec) {
        let ChaosSpec { latency_ratio, latency, latency_max, error_ratio, rejection_ratio } = *spec;
        self.plain("latency_ratio", latency_ratio);
        self.duration("latency", latency);
        self.optional_duration("latency_max", latency_max);
        self.plain("error_ratio", error_ratio);
        self.plain("rejection_ratio", rejection_ratio);
    }
}

/// Writes a duration in the largest unit that divides it, so that it parses to the same value: `90s`, `1500ms`, `10m`.
fn to_text(duration: Duration) -> String {
    const UNITS: [(u128, &str); 6] = [
        (3_600_000_000_000, "h"),
        (60_000_000_000, "m"),
        (1_000_000_000, "s"),
        (1_000_000, "ms"),
        (1_000, "us"),
        (1, "ns"),
    ];
    let nanos = duration.as_nanos();
    let fits = UNITS.iter().find(|(unit, _)| nanos > 0 && nanos.is_multiple_of(*unit));
    fits.map_or_else(|| "0s".to_owned(), |(unit, name)| format!("{}{name}", nanos / unit))
}
