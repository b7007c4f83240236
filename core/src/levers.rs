//! Levers: what an operator sets above a policy during an incident.
//!
//! A lever is compiled into the stages of its policy, like a change of the policy itself: calls in flight finish under the
//! old stages, calls that start afterwards use the new ones, and a lever that is not pulled costs nothing. It holds for
//! this process. To override a breaker for the whole fleet, use
//! [`Pipeline::force`](crate::pipeline::Pipeline::force).

use crate::breaker::Override;
use crate::bulkhead::BulkheadSpec;
use crate::policy::Policy;
use crate::policy::validate::Mistake;

/// The name that means every policy.
pub const EVERY_POLICY: &str = "*";

/// The maximum length of a reason: it goes into log lines.
const MAX_REASON_BYTES: usize = 512;

/// A lever: restrictions of a policy for the time of an incident.
///
/// # Examples
/// ```
/// use phalanx_core::levers::LeverSpec;
///
/// let lever = LeverSpec::force_open().without_retries().reason("vendor outage, incident 4711");
/// assert_eq!(lever.pulled().collect::<Vec<_>>(), ["force_open", "retries_off"]);
/// assert_eq!(lever.mistakes("vendor"), []);
///
/// // A limit of zero is not a lever: force the policy open instead.
/// let invalid = LeverSpec::default().max_concurrency(0);
/// assert_eq!(invalid.mistakes("vendor")[0].path, "levers.vendor.max_concurrency");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(
    feature = "schema",
    schemars(description = "A lever: restrictions of a policy for the time of an incident.")
)]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields, default))]
pub struct LeverSpec {
    /// `open` rejects every call with `forced_open`, whether or not the policy has a breaker; `closed` skips breaker and
    /// throttle, which record nothing meanwhile. No other override is valid in a lever. Default none.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    #[cfg_attr(feature = "schema", schemars(with = "Option<crate::schema::LeverForce>"))]
    pub force: Option<Override>,
    /// Whether slow attempts are hedged. Default true: as the policy configures.
    pub hedging: bool,
    /// Whether failed attempts are retried. Default true: as the policy configures.
    pub retries: bool,
    /// The maximum of calls at a time, at least 1, also where the policy has no bulkhead. Default none.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub max_concurrency: Option<u32>,
    /// Whether the faults of the policy's `chaos` are injected; no effect on a policy without `chaos`. Needs the cargo
    /// feature `chaos`. Default false.
    pub chaos: bool,
    /// Why the lever is pulled, for logs and descriptions: at most 512 bytes. Default none.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    #[cfg_attr(feature = "schema", schemars(length(max = 512)))]
    pub reason: Option<String>,
}

impl Default for LeverSpec {
    fn default() -> Self {
        Self { force: None, hedging: true, retries: true, max_concurrency: None, chaos: false, reason: None }
    }
}

impl LeverSpec {
    /// Returns a lever that rejects every call with `forced_open`.
    pub fn force_open() -> Self {
        Self { force: Some(Override::Open), ..Self::default() }
    }

    /// Returns a lever that skips breaker and throttle.
    pub fn force_closed() -> Self {
        Self { force: Some(Override::Closed), ..Self::default() }
    }

    /// Switches hedging off.
    #[must_use]
    pub fn without_hedging(mut self) -> Self {
        self.hedging = false;
        self
    }

    /// Switches retries off.
    #[must_use]
    pub fn without_retries(mut self) -> Self {
        self.retries = false;
        self
    }

    /// Limits the calls at a time.
    #[must_use]
    pub fn max_concurrency(mut self, calls: u32) -> Self {
        self.max_concurrency = Some(calls);
        self
    }

    /// Injects the faults of the policy's [`ChaosSpec`](crate::chaos::ChaosSpec).
    #[must_use]
    pub fn with_chaos(mut self) -> Self {
        self.chaos = true;
        self
    }

    /// Sets the reason.
    #[must_use]
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(reason.into());
        self
    }

    /// Returns what is pulled, under the names that logs and gauges use.
    pub fn pulled(&self) -> impl Iterator<Item = &'static str> {
        let force = self.force.map(|force| match force {
            Override::Open => "force_open",
            Override::Closed => "force_closed",
            Override::Disabled => "force_disabled",
            Override::MetricsOnly => "force_metrics_only",
        });
        let hedging = (!self.hedging).then_some("hedging_off");
        let retries = (!self.retries).then_some("retries_off");
        let limit = self.max_concurrency.map(|_| "max_concurrency");
        let chaos = self.chaos.then_some("chaos");
        [force, hedging, retries, limit, chaos].into_iter().flatten()
    }

    /// Returns every validation error, as the lever of this policy.
    pub fn mistakes(&self, policy: &str) -> Vec<Mistake> {
        let mistake = |field: &str, reason: String| Mistake::new(format!("{}.{field}", path(policy)), reason);
        let force = self.force.filter(|force| !matches!(force, Override::Open | Override::Closed));
        let force = force.map(|force| mistake("force", format!("must be open or closed, not {}", force.name())));
        let none = self.max_concurrency == Some(0);
        let none =
            none.then(|| mistake("max_concurrency", "must be at least 1; force = \"open\" rejects every call".into()));
        let absent = (self.chaos && !cfg!(feature = "chaos"))
            .then(|| mistake("chaos", "this binary is built without the cargo feature `chaos`".into()));
        let long = self.reason.as_ref().is_some_and(|reason| reason.len() > MAX_REASON_BYTES);
        let long = long.then(|| mistake("reason", format!("must be at most {MAX_REASON_BYTES} bytes long")));
        force.into_iter().chain(none).chain(absent).chain(long).collect()
    }

    /// Combines a policy's own lever with the one of every policy: whatever either pulls is pulled, the lower limit holds,
    /// and the policy's own `force` wins.
    pub(crate) fn combined_with(&self, every: &Self) -> Self {
        Self {
            force: self.force.or(every.force),
            hedging: self.hedging && every.hedging,
            retries: self.retries && every.retries,
            max_concurrency: self.max_concurrency.into_iter().chain(every.max_concurrency).min(),
            chaos: self.chaos || every.chaos,
            reason: self.reason.as_ref().or(every.reason.as_ref()).cloned(),
        }
    }

    /// Returns the policy with the lever applied.
    pub(crate) fn applied_to(&self, policy: &Policy) -> Policy {
        let mut policy = policy.clone();
        policy.retry = policy.retry.filter(|_| self.retries);
        policy.hedge = policy.hedge.filter(|_| self.hedging);
        if let Some(most) = self.max_concurrency {
            policy.bulkhead = Some(capped(policy.bulkhead, most));
        }
        if self.force == Some(Override::Closed) {
            (policy.breaker, policy.throttle) = (None, None);
        }
        policy
    }
}

/// Returns the bulkhead with at most `most` slots; where there is none, one without a queue.
fn capped(spec: Option<BulkheadSpec>, most: u32) -> BulkheadSpec {
    let mut spec = spec.unwrap_or(BulkheadSpec::fixed(most));
    spec.max_concurrency = spec.max_concurrency.min(most);
    let most = spec.max_concurrency;
    spec.adaptive = spec.adaptive.map(|adaptive| adaptive.min_concurrency(adaptive.min_concurrency.min(most)));
    spec.gradient = spec.gradient.map(|gradient| gradient.min_concurrency(gradient.min_concurrency.min(most)));
    spec
}

/// Returns the path of a policy's lever in a configuration file.
pub(crate) fn path(policy: &str) -> String {
    format!("levers.{}", policy.escape_debug())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::bulkhead::AdaptiveSpec;

    #[test]
    fn combined_levers_pull_what_either_pulls_and_keep_the_lower_limit() {
        let every = LeverSpec::force_closed().without_retries().max_concurrency(5).reason("all");
        let own = LeverSpec::force_open().without_hedging().max_concurrency(9).with_chaos();
        let both = own.combined_with(&every);
        let pulled: Vec<_> = both.pulled().collect();
        assert_eq!(pulled, ["force_open", "hedging_off", "retries_off", "max_concurrency", "chaos"]);
        assert_eq!((both.max_concurrency, both.reason.as_deref()), (Some(5), Some("all")));
        assert_eq!(LeverSpec::default().combined_with(&LeverSpec::default()), LeverSpec::default());
    }

    #[test]
    fn a_forced_lever_pulls_only_what_its_name_says() {
        assert_eq!(LeverSpec::force_open().pulled().collect::<Vec<_>>(), ["force_open"]);
        assert_eq!(LeverSpec::force_closed().pulled().collect::<Vec<_>>(), ["force_closed"]);
    }

    #[test]
    fn a_limit_below_the_minimum_of_an_adaptive_bulkhead_lowers_the_minimum_too() {
        let adaptive = AdaptiveSpec::threshold(Duration::from_millis(100)).min_concurrency(10);
        let policy = Policy::named("p").bulkhead(BulkheadSpec::adaptive(20, adaptive).queue(5));
        let capped = LeverSpec::default().max_concurrency(3).applied_to(&policy);
        let bulkhead = capped.bulkhead.unwrap();
        assert_eq!((bulkhead.max_concurrency, bulkhead.min_concurrency(), bulkhead.max_queue), (3, 3, 5));
        assert_eq!(capped.mistakes(), []);
        let raised = LeverSpec::default().max_concurrency(50).applied_to(&policy);
        assert_eq!(raised.bulkhead, policy.bulkhead, "a lever never raises a limit of the policy");
    }

    #[test]
    fn a_lever_accepts_the_overrides_open_and_closed_only() {
        for (force, valid) in [
            (Override::Open, true),
            (Override::Closed, true),
            (Override::Disabled, false),
            (Override::MetricsOnly, false),
        ] {
            let mistakes = LeverSpec { force: Some(force), ..LeverSpec::default() }.mistakes("p");
            assert_eq!(mistakes.is_empty(), valid, "{force:?}: {mistakes:?}");
        }
    }

    #[test]
    fn chaos_is_a_mistake_in_a_build_without_the_feature() {
        let paths: Vec<_> = LeverSpec::default().with_chaos().mistakes("p").into_iter().map(|it| it.path).collect();
        let expected = if cfg!(feature = "chaos") { vec![] } else { vec!["levers.p.chaos".to_owned()] };
        assert_eq!(paths, expected);
    }

    #[test]
    fn an_invalid_lever_is_reported_with_its_path() {
        let lever = LeverSpec::default().max_concurrency(0).reason("x".repeat(600));
        let mistakes = lever.mistakes("pay\nments");
        let paths: Vec<_> = mistakes.iter().map(|mistake| mistake.path.as_str()).collect();
        assert_eq!(paths, [r"levers.pay\nments.max_concurrency", r"levers.pay\nments.reason"]);
    }
}
