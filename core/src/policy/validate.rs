//! Validation of policies: finds every mistake, each with its path and a reason.

mod check;
mod concurrency;
mod limits;

use std::fmt;
use std::time::Duration;

use self::check::{Check, MAX_COUNT};
use self::concurrency::{bulkhead, hedge};
use super::{DeadlineSpec, Policy};
use crate::breaker::BreakerSpec;
use crate::budget::BudgetSpec;
use crate::chaos::ChaosSpec;
use crate::clock::micros;
use crate::key::MAX_NAME_BYTES;
use crate::rate_limit::{Consistency, MAX_UNITS, Rate, RateLimitSpec};
use crate::retry::{Backoff, RetrySpec};
use crate::throttle::ThrottleSpec;

/// One mistake in a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// The path, as in `policies.vendor.retry.backoff.max`.
    pub path: String,
    /// What is wrong, and what would be valid.
    pub reason: String,
    /// The origin of the value, if known: `phalanx.toml:12`, `environment variable PHALANX__…`.
    pub at: Option<String>,
}

impl Mistake {
    /// Creates a mistake at a path.
    pub fn new(path: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { path: path.into(), reason: reason.into(), at: None }
    }

    /// Sets the origin of the value.
    #[must_use]
    pub fn located_at(mut self, at: impl fmt::Display) -> Self {
        self.at = Some(at.to_string());
        self
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [self.at.as_deref().unwrap_or_default(), &self.path];
        parts.into_iter().filter(|part| !part.is_empty()).try_for_each(|part| write!(f, "{part}: "))?;
        f.write_str(&self.reason)
    }
}

/// The error of an invalid configuration: every mistake in it. Nothing was applied.
#[derive(Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// The mistakes, in the order of the policies.
    pub mistakes: Vec<Mistake>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.mistakes.len();
        let plural = if count == 1 { "" } else { "s" };
        write!(f, "{count} mistake{plural} in the configuration")?;
        let mut mistakes = self.mistakes.iter();
        mistakes.try_for_each(|mistake| write!(f, "\n  {mistake}"))
    }
}

/// As displayed, because a `main` that returns the error prints it with `Debug`.
impl fmt::Debug for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for ConfigError {}

impl Policy {
    /// Returns every mistake; empty for a valid policy.
    pub fn mistakes(&self) -> Vec<Mistake> {
        let mut check = Check { path: format!("policies.{}", self.name.escape_debug()), found: Vec::new() };
        if self.name.is_empty() {
            check.add("name", "a policy needs a name");
        }
        if self.name.len() > MAX_NAME_BYTES {
            check.add("name", &format!("must be at most {MAX_NAME_BYTES} bytes long"));
        }
        if self.breaker.is_some() && self.throttle.is_some() {
            let reason = "a breaker and a throttle watch the same outcomes: choose one";
            check.add("throttle", reason);
        }
        check.optional_duration("timeout", self.timeout);
        check.within("deadline", self.deadline.as_ref(), deadline);
        check.within("rate_limit", self.rate_limit.as_ref(), rate_limit);
        limits::limits(&mut check, self);
        check.within("bulkhead", self.bulkhead.as_ref(), bulkhead);
        check.within("breaker", self.breaker.as_ref(), breaker);
        check.within("throttle", self.throttle.as_ref(), throttle);
        check.within("retry", self.retry.as_ref(), retry);
        check.within("hedge", self.hedge.as_ref(), hedge);
        check.within("chaos", self.chaos.as_ref(), chaos);
        if self.hedge.is_some() && !self.idempotent {
            check.add("idempotent", "a hedge runs the operation twice at a time: say idempotent = true if it may");
        }
        check.found
    }
}

fn deadline(check: &mut Check, spec: &DeadlineSpec) {
    check.optional_duration("total", spec.total);
    check.bounded("safety_margin", spec.safety_margin);
    check.bounded("failure_floor", spec.failure_floor);
    if spec.total.is_some_and(|total| spec.safety_margin >= total) {
        check.add("safety_margin", "must leave some of the total for the call");
    }
}

/// The shortest lease: a shorter one ends within the round trips that it is meant to save.
const MIN_LEASE: Duration = Duration::from_millis(1);

fn rate_limit(check: &mut Check, spec: &RateLimitSpec) {
    let before = check.found.len();
    check.calls("permits", spec.permits);
    check.duration("per", spec.per);
    if let Some(burst) = spec.burst {
        check.calls("burst", burst);
    }
    check.optional_duration("max_wait", spec.max_wait);
    check.optional_share("near_limit", Some(spec.near_limit));
    if check.found.len() > before {
        return;
    }
    // In lowest terms, so that every plausible rate is valid: 1,000,000 a day is one in 86,400 µs.
    let rate = Rate::of(spec);
    let waiting = micros(spec.max_wait.unwrap_or_default()).saturating_mul(rate.gain);
    let saved = spec.capacity().saturating_mul(rate.price);
    if saved.saturating_add(waiting) >= MAX_UNITS {
        let reason = "burst × per is too large to count exactly: choose a rounder rate";
        check.add("burst", reason);
    }
    if spec.consistency == Consistency::Leased && rate.lease_time() < MIN_LEASE {
        let reason = "the burst is too small for leases: a lease lasts an eighth of the time in which the burst is refilled, \
                      which must be at least 1ms; raise burst, or use \"exact\"";
        check.add("consistency", reason);
    }
}

fn breaker(check: &mut Check, spec: &BreakerSpec) {
    let conditions = [
        spec.failure_ratio.is_some(),
        spec.consecutive_failures.is_some(),
        spec.slow_call_ratio.is_some(),
        spec.latency_quantile.is_some(),
    ];
    if !conditions.contains(&true) {
        let reason = "never trips: set failure_ratio, consecutive_failures, slow_call_ratio or latency_quantile";
        check.add_here(reason);
    }
    check.optional_share("failure_ratio", spec.failure_ratio);
    check.optional_share("slow_call_ratio", spec.slow_call_ratio);
    check.optional_duration("slow_call_threshold", spec.slow_call_threshold);
    if spec.slow_call_ratio.is_some() && spec.slow_call_threshold.is_none() {
        let reason = "slow_call_ratio needs to know what slow is";
        check.add("slow_call_threshold", reason);
    }
    if let Some(failures) = spec.consecutive_failures {
        check.count("consecutive_failures", failures.into());
    }
    check.optional_quantile("latency_quantile", spec.latency_quantile);
    check.optional_duration("latency_threshold", spec.latency_threshold);
    check.bounded("latency_duration", spec.latency_duration);
    if spec.latency_quantile.is_some() != spec.latency_threshold.is_some() {
        check.add("latency_threshold", "latency_quantile and latency_threshold go together");
    }
    check.duration("sampling_window", spec.sampling_window);
    check.calls("min_throughput", spec.min_throughput.into());
    check.duration("break_duration", spec.break_duration);
    check.at_least_one("break_multiplier", spec.break_multiplier);
    check.duration("max_break_duration", spec.max_break_duration);
    if spec.break_multiplier > 1.0 && spec.max_break_duration < spec.break_duration {
        check.add("max_break_duration", "must not be shorter than break_duration");
    }
    check.share_or_zero("break_jitter", spec.break_jitter);
    check.probes("half_open_max_calls", spec.half_open_max_calls);
    check.count("success_threshold", spec.success_threshold.into());
    check.optional_duration("probe_lease", spec.probe_lease);
    check.optional_share("quorum_share", spec.quorum_share);
    if let Some(replicas) = spec.quorum_replicas {
        check.count("quorum_replicas", replicas.into());
        if spec.quorum_share.is_some() {
            check.add("quorum_replicas", "not together with quorum_share: choose one");
        }
    }
    check.within("ramp", spec.ramp.as_ref(), |check, ramp| {
        check.duration("over", ramp.over);
        check.count("steps", ramp.steps.into());
    });
}

fn throttle(check: &mut Check, spec: &ThrottleSpec) {
    check.at_least_one("k", spec.k);
    check.duration("window", spec.window);
    check.calls("min_throughput", spec.min_throughput.into());
}

fn retry(check: &mut Check, spec: &RetrySpec) {
    check.count("max_attempts", spec.max_attempts.into());
    if spec.retry_on.is_empty() {
        let reason = "names no kind, so nothing would ever be tried again";
        check.add("retry_on", reason);
    }
    for kind in spec.retry_on.iter().filter(|kind| !kind.retryable()) {
        let able = "only concurrency, infrastructure and throttled can";
        check.add("retry_on", &format!("{kind} cannot be retried; {able}"));
    }
    check.within("backoff", Some(&spec.backoff), backoff);
    check.within("budget", spec.budget.as_ref(), budget);
}

fn backoff(check: &mut Check, spec: &Backoff) {
    check.duration("base", spec.base);
    check.duration("max", spec.max);
    if spec.max < spec.base {
        check.add("max", "must not be shorter than base");
    }
    check.at_least_one("multiplier", spec.multiplier);
}

fn budget(check: &mut Check, spec: &BudgetSpec) {
    check.share_or_zero("ratio", spec.ratio);
    if u64::from(spec.min_per_second) > MAX_COUNT {
        check.add("min_per_second", &format!("must be at most {MAX_COUNT}"));
    }
    if spec.ratio == 0.0 && spec.min_per_second == 0 {
        check.add_here("allows nothing: raise ratio or min_per_second");
    }
}

fn chaos(check: &mut Check, spec: &ChaosSpec) {
    check.share_or_zero("latency_ratio", spec.latency_ratio);
    check.bounded("latency", spec.latency);
    check.optional_duration("latency_max", spec.latency_max);
    if spec.latency_max.is_some_and(|most| most < spec.latency) {
        check.add("latency_max", "must not be shorter than latency");
    }
    if spec.latency_ratio > 0.0 && spec.latency.is_zero() && spec.latency_max.is_none() {
        check.add("latency", "latency_ratio needs to know how late");
    }
    check.share_or_zero("error_ratio", spec.error_ratio);
    check.share_or_zero("rejection_ratio", spec.rejection_ratio);
    if [spec.latency_ratio, spec.error_ratio, spec.rejection_ratio] == [0.0; 3] {
        check.add_here("injects nothing: set latency_ratio, error_ratio or rejection_ratio");
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::kind::Kind;

    fn paths(policy: &Policy) -> Vec<String> {
        let mistakes = policy.mistakes();
        mistakes.into_iter().map(|mistake| mistake.path).collect()
    }

    #[test]
    fn the_share_at_which_a_limit_is_nearly_used_up_is_above_0_and_at_most_1() {
        for (share, valid) in [(0.8, true), (1.0, true), (0.0, false), (1.01, false), (-0.5, false), (f64::NAN, false)]
        {
            let policy = Policy::named("p").rate_limit(RateLimitSpec::per_second(1).near_limit(share));
            let paths: Vec<_> = policy.mistakes().into_iter().map(|mistake| mistake.path).collect();
            assert_eq!(paths.is_empty(), valid, "{share}: {paths:?}");
        }
    }

    #[test]
    fn the_built_in_policies_are_valid() {
        assert_eq!(Policy::occ().mistakes(), []);
        assert_eq!(Policy::transient().mistakes(), []);
    }

    #[test]
    fn a_policy_with_ten_mistakes_reports_ten_paths() {
        let mut breaker = BreakerSpec::failure_ratio(f64::NAN).min_throughput(0);
        breaker.break_multiplier = -1.0;
        breaker.half_open_max_calls = 0;
        let retry = RetrySpec::attempts(0)
            .on([Kind::Validation])
            .backoff(Backoff::constant(Duration::from_secs(2)).max(Duration::from_secs(1)));
        let policy = Policy::named("vendor")
            .timeout(Duration::ZERO)
            .rate_limit(RateLimitSpec::new(0, Duration::ZERO))
            .breaker(breaker)
            .retry(retry);
        let expected = [
            "timeout",
            "rate_limit.permits",
            "rate_limit.per",
            "breaker.failure_ratio",
            "breaker.min_throughput",
            "breaker.break_multiplier",
            "breaker.half_open_max_calls",
            "retry.max_attempts",
            "retry.retry_on",
            "retry.backoff.max",
        ];
        let expected = expected.map(|path| format!("policies.vendor.{path}"));
        assert_eq!(paths(&policy), expected);
    }

    #[test]
    fn numbers_out_of_range_are_rejected() {
        for ratio in [f64::NAN, f64::INFINITY, -0.1, 0.0, 1.1] {
            let policy = Policy::named("p").breaker(BreakerSpec::failure_ratio(ratio));
            assert_eq!(paths(&policy), ["policies.p.breaker.failure_ratio"], "{ratio}");
        }
        for k in [f64::NAN, 0.0, f64::INFINITY] {
            let policy = Policy::named("p").throttle(ThrottleSpec::default().k(k));
            assert_eq!(paths(&policy), ["policies.p.throttle.k"], "{k}");
        }
        let policy = Policy::named("p").timeout(Duration::MAX);
        assert_eq!(paths(&policy), ["policies.p.timeout"]);
        let policy = Policy::named("p").rate_limit(RateLimitSpec::per_second(u64::MAX));
        assert_eq!(paths(&policy), ["policies.p.rate_limit.permits"]);
        let leased = |burst| {
            let spec = RateLimitSpec::per_second(10_000).burst(burst).consistency(Consistency::Leased);
            paths(&Policy::named("p").rate_limit(spec))
        };
        assert_eq!(leased(80), ["policies.p.rate_limit.consistency"], "of 994 µs, in seven slots");
        assert!(leased(82).is_empty());
        let awkward = RateLimitSpec::new(999_999_937, Duration::from_secs(86_399));
        let policy = Policy::named("p").rate_limit(awkward);
        assert_eq!(paths(&policy), ["policies.p.rate_limit.burst"]);
    }

    #[test]
    fn counts_have_an_upper_bound() {
        use crate::bulkhead::{AdaptiveSpec, BulkheadSpec, GradientSpec};
        let many = 1_000_001;
        let ms = Duration::from_millis(1);
        let mut breaker = BreakerSpec::consecutive_failures(many).probes(many, many).ramp(ms, many);
        breaker.min_throughput = u32::MAX;
        let budget = BudgetSpec::ratio(0.1).min_per_second(many);
        let adaptive = AdaptiveSpec::threshold(ms).min_concurrency(many);
        let policy = Policy::named("p")
            .rate_limit(RateLimitSpec::new(1_000_000_001, ms).burst(1_000_000_001))
            .bulkhead(BulkheadSpec::adaptive(many, adaptive).queue(many))
            .breaker(breaker)
            .retry(RetrySpec::attempts(many).budget(budget))
            .hedge(crate::hedge::HedgeSpec::after(ms).max_attempts(many).budget(budget))
            .idempotent();
        let expected = [
            "rate_limit.permits",
            "rate_limit.burst",
            "bulkhead.max_concurrency",
            "bulkhead.max_queue",
            "bulkhead.adaptive.min_concurrency",
            "breaker.consecutive_failures",
            "breaker.min_throughput",
            "breaker.half_open_max_calls",
            "breaker.success_threshold",
            "breaker.ramp.steps",
            "retry.max_attempts",
            "retry.budget.min_per_second",
            "hedge.max_attempts",
            "hedge.budget.min_per_second",
        ];
        assert_eq!(paths(&policy), expected.map(|path| format!("policies.p.{path}")));
        let gradient = GradientSpec::default().min_concurrency(many).long_window(many);
        let policy = Policy::named("p").bulkhead(BulkheadSpec::gradient(many, gradient));
        assert_eq!(policy.mistakes().len(), 3);
    }

    #[test]
    fn durations_have_an_upper_bound() {
        let long = Duration::from_secs(24 * 3_600) + Duration::from_micros(1);
        let mut breaker = BreakerSpec::slow_call_ratio(0.5, long).or_latency(0.5, long, long).window(long);
        (breaker.break_duration, breaker.max_break_duration, breaker.probe_lease) = (long, long, Some(long));
        breaker.ramp = Some(crate::breaker::RampSpec { over: long, steps: 1 });
        let policy = Policy::named("p")
            .deadline(DeadlineSpec::total(long * 2).safety_margin(long).failure_floor(long))
            .rate_limit(RateLimitSpec::new(1, long).max_wait(long))
            .breaker(breaker)
            .retry(RetrySpec::attempts(2).backoff(Backoff::constant(long).max(long)))
            .timeout(long);
        assert_eq!(policy.mistakes().len(), 1 + 3 + 2 + 8 + 2);
        assert!(policy.mistakes().iter().all(|mistake| mistake.reason == "must be at most 24 hours"));
    }

    #[test]
    fn a_mistake_is_displayed_with_its_origin_if_known() {
        let mistake = Mistake::new("policies.p.timeout", "is too long");
        assert_eq!(mistake.to_string(), "policies.p.timeout: is too long");
        assert_eq!(mistake.located_at("phalanx.toml:3").to_string(), "phalanx.toml:3: policies.p.timeout: is too long");
        assert_eq!(Mistake::new("", "is too large").located_at("a.json").to_string(), "a.json: is too large");
    }

    #[test]
    fn a_breaker_and_a_throttle_exclude_each_other() {
        let policy = Policy::named("p").breaker(BreakerSpec::failure_ratio(0.5)).throttle(ThrottleSpec::default());
        assert_eq!(paths(&policy), ["policies.p.throttle"]);
    }

    #[test]
    fn chaos_that_injects_nothing_or_out_of_range_is_a_mistake() {
        let ms = Duration::from_millis(1);
        let path = |chaos| paths(&Policy::named("p").chaos(chaos));
        assert_eq!(path(ChaosSpec::default()), ["policies.p.chaos"]);
        assert_eq!(path(ChaosSpec::default().errors(1.5)), ["policies.p.chaos.error_ratio"]);
        assert_eq!(path(ChaosSpec::default().rejections(f64::NAN)), ["policies.p.chaos.rejection_ratio"]);
        assert_eq!(path(ChaosSpec::default().latency(0.5, Duration::ZERO)), ["policies.p.chaos.latency"]);
        assert_eq!(path(ChaosSpec::default().latency_between(0.5, 2 * ms, ms)), ["policies.p.chaos.latency_max"]);
        assert!(path(ChaosSpec::default().latency_between(0.5, Duration::ZERO, ms).errors(0.1)).is_empty());
    }

    #[test]
    fn every_kind_that_cannot_be_retried_is_named() {
        let policy = Policy::named("p").retry(RetrySpec::attempts(2).on(Kind::ALL));
        assert_eq!(policy.mistakes().len(), Kind::ALL.len() - 3);
    }

    #[test]
    fn a_breaker_that_cannot_trip_is_a_mistake() {
        let policy = Policy::named("p").breaker(BreakerSpec::default());
        assert_eq!(paths(&policy), ["policies.p.breaker"]);
    }
}
