//! The checks of several limits: their names, keys, costs and overrides, besides the rate of each.

use std::collections::HashSet;

use super::check::Check;
use super::{Policy, rate_limit};
use crate::key::MAX_ROUTE_BYTES;
use crate::rate_limit::{
    LimitCost, LimitKey, LimitSpec, MAX_LIMIT_NAME_BYTES, MAX_LIMITS, MissingTag, RateLimitSpec, SHORT_FORM,
};

/// The most overrides of one limit.
const MAX_OVERRIDES: usize = 10_000;

pub(super) fn limits(check: &mut Check, policy: &Policy) {
    let mut names = HashSet::new();
    for (name, spec) in policy.limits.iter() {
        check.within("limits", Some(spec), |check, spec| {
            if !is_name(name) {
                let reason =
                    format!("a name is 1 to {MAX_LIMIT_NAME_BYTES} letters, digits, '_', '-' or '.', all ASCII");
                check.add(&name.escape_debug().to_string(), &reason);
            }
            if name == SHORT_FORM {
                check.add(name, "is the name of the limit that `rate_limit` stands for: choose another");
            }
            if !names.insert(name) {
                check.add(name, "two limits have this name");
            }
            check.within(name, Some(spec), limit);
        });
    }
    let count = policy.limits.len() + usize::from(policy.rate_limit.is_some());
    if !policy.limits.is_empty() && count > MAX_LIMITS {
        check.add("limits", &format!("at most {MAX_LIMITS} limits, `rate_limit` included, can be decided together"));
    }
}

fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    (1..=MAX_LIMIT_NAME_BYTES).contains(&name.len()) && name.bytes().all(plain)
}

fn limit(check: &mut Check, spec: &LimitSpec) {
    let own = spec.rate(None);
    rate_limit(check, &own);
    cost(check, spec, &own);
    match &spec.key {
        LimitKey::Tag(tag) if !is_name(tag) => {
            let reason = format!("a tag is 1 to {MAX_LIMIT_NAME_BYTES} letters, digits, '_', '-' or '.', all ASCII");
            check.add("key", &reason);
        }
        LimitKey::Tag(_) => {}
        LimitKey::Policy | LimitKey::Route => {
            if spec.missing != MissingTag::Share {
                check.add("missing", "needs a key by a tag: no call lacks its policy or its route");
            }
        }
    }
    if spec.key == LimitKey::Policy && (!spec.overrides.is_empty() || spec.resolver.is_some()) {
        check.add("overrides", "needs a key by route or by a tag: all calls of the policy share one bucket");
    }
    if spec.overrides.len() > MAX_OVERRIDES {
        check.add("overrides", &format!("must be at most {MAX_OVERRIDES}; `resolver` in code has no bound"));
    }
    for (value, rate) in &spec.overrides {
        let path = format!("overrides.{}", value.escape_debug());
        if value.len() > MAX_ROUTE_BYTES {
            check.add("overrides", &format!("a value is at most {MAX_ROUTE_BYTES} bytes long"));
        }
        check.within(&path, Some(rate), |check, rate| {
            let rate = spec.with(*rate);
            rate_limit(check, &rate);
            cost(check, spec, &rate);
        });
    }
}

/// A fixed cost must fit into the burst: otherwise the limit would reject every call.
fn cost(check: &mut Check, spec: &LimitSpec, rate: &RateLimitSpec) {
    match spec.cost {
        LimitCost::Call => {}
        LimitCost::Fixed(0) => check.add("cost", "must be at least 1: a limit that takes nothing limits nothing"),
        LimitCost::Fixed(permits) if u64::from(permits) > rate.capacity() => {
            check.add("cost", "is above the burst, so that every call would be rejected");
        }
        LimitCost::Fixed(_) => {}
    }
}

impl RateLimitSpec {
    /// Returns whether it has no mistakes.
    pub(crate) fn is_valid(&self) -> bool {
        let mut check = Check { path: String::new(), found: Vec::new() };
        rate_limit(&mut check, self);
        check.found.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::rate_limit::RateOverride;

    fn mistakes(policy: &Policy) -> Vec<(String, String)> {
        policy.mistakes().into_iter().map(|mistake| (mistake.path, mistake.reason)).collect()
    }

    fn paths(limit: LimitSpec) -> Vec<String> {
        mistakes(&Policy::named("p").limit("a", limit)).into_iter().map(|(path, _)| path).collect()
    }

    #[test]
    fn each_limit_is_checked_as_the_short_form_is() {
        assert_eq!(
            paths(LimitSpec::new(0, Duration::ZERO)),
            ["policies.p.limits.a.permits", "policies.p.limits.a.per"]
        );
        let valid = LimitSpec::per_second(10).key(LimitKey::tag("tenant")).cost(LimitCost::Fixed(10));
        assert!(paths(valid).is_empty());
    }

    #[test]
    fn two_limits_of_one_name_and_names_that_are_no_labels_are_mistakes() {
        let limit = || LimitSpec::per_second(1);
        let twice = Policy::named("p").limit("a", limit()).limit("a", limit());
        assert_eq!(mistakes(&twice), [("policies.p.limits.a".to_owned(), "two limits have this name".to_owned())]);
        for name in ["", "a b", "ü", "rate_limit", &"n".repeat(65)] {
            assert_eq!(Policy::named("p").limit(name, limit()).mistakes().len(), 1, "{name:?}");
        }
    }

    #[test]
    fn at_most_eight_limits_are_decided_together() {
        let policy =
            (0..8).fold(Policy::named("p"), |policy, i| policy.limit(format!("l{i}"), LimitSpec::per_second(1)));
        assert!(policy.mistakes().is_empty());
        let nine = policy.rate_limit(RateLimitSpec::per_second(1));
        assert_eq!(mistakes(&nine)[0].0, "policies.p.limits");
    }

    #[test]
    fn a_cost_of_nothing_or_above_the_burst_is_a_mistake() {
        let cost = |permits| LimitSpec::per_second(10).cost(LimitCost::Fixed(permits));
        for permits in [0, 11, u32::MAX] {
            assert_eq!(paths(cost(permits)), ["policies.p.limits.a.cost"], "{permits}");
        }
        let small = cost(10).rate_for("eu", RateOverride::permits(9));
        assert_eq!(paths(small), ["policies.p.limits.a.overrides.eu.cost"]);
    }

    #[test]
    fn a_key_that_cannot_differ_has_no_overrides_and_no_missing_tag() {
        let of = |key| LimitSpec::per_second(10).key(key);
        assert_eq!(paths(of(LimitKey::tag(""))), ["policies.p.limits.a.key"]);
        assert_eq!(paths(of(LimitKey::Route).missing(MissingTag::Reject)), ["policies.p.limits.a.missing"]);
        let policy = of(LimitKey::Policy).rate_for("eu", RateOverride::permits(1));
        assert_eq!(paths(policy), ["policies.p.limits.a.overrides"]);
        let wrong = of(LimitKey::Route).rate_for("eu", RateOverride::permits(0));
        assert_eq!(paths(wrong), ["policies.p.limits.a.overrides.eu.permits"]);
    }
}
