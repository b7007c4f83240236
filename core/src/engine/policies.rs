//! The policies of an engine: by name, the default policy, the rule for unknown names, and the levers above them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::{PolicySet, UnknownPolicy};
use crate::key::MAX_NAME_BYTES;
use crate::levers::{self, EVERY_POLICY, LeverSpec};
use crate::pipeline::EffectivePolicy;
use crate::policy::validate::Mistake;
use crate::policy::{OnDegraded, Policy};

/// All policies and levers of an engine.
#[derive(Clone, Default)]
pub(super) struct Policies {
    named: HashMap<String, Versioned>,
    default: Option<Arc<Policy>>,
    unknown: UnknownPolicy,
    /// What policies without their own choice do while the shared store is away.
    on_degraded: OnDegraded,
    /// Levers of the configuration.
    configured: BTreeMap<String, Arc<LeverSpec>>,
    /// Levers pulled by hand. Each replaces the configured one of the same name.
    pulled: BTreeMap<String, Arc<LeverSpec>>,
}

#[derive(Clone)]
struct Versioned {
    policy: Arc<Policy>,
    version: u64,
}

impl Policies {
    /// Returns the policies of a set with the built-in ones, and every validation error.
    pub(super) fn new(set: PolicySet, unknown: UnknownPolicy, on_degraded: OnDegraded) -> (Self, Vec<Mistake>) {
        Self { unknown, on_degraded, ..Self::default() }.with_set(set)
    }

    /// Returns the policies with this set in place of the present one, and every validation error. A policy that does not
    /// change keeps its version, one without guards keeps those it had, and levers pulled by hand stay pulled.
    pub(super) fn with_set(&self, set: PolicySet) -> (Self, Vec<Mistake>) {
        let mut mistakes = Vec::new();
        let (unknown, on_degraded, pulled) = (self.unknown, self.on_degraded, self.pulled.clone());
        let mut new = Self { unknown, on_degraded, pulled, ..Self::default() };
        let mut seen = HashSet::new();
        for policy in set.policies {
            mistakes.extend(policy.mistakes());
            if !seen.insert(policy.name.clone()) {
                mistakes.push(policy_mistake(&policy.name, "two policies have this name"));
            }
            self.carry_over(policy, &mut new);
        }
        for policy in [Policy::occ(), Policy::transient()] {
            if !seen.contains(&policy.name) {
                self.carry_over(policy, &mut new);
            }
        }
        if let Some(policy) = set.default_policy {
            let policy = Policy { name: "default".to_owned(), ..policy };
            mistakes.extend(policy.mistakes());
            new.default = Some(Arc::new(policy));
        }
        for (name, lever) in set.levers {
            mistakes.extend(new.lever_mistakes(&name, &lever));
            new.configured.insert(name, Arc::new(lever));
        }
        (new, mistakes)
    }

    /// Returns the set that [`with_set`](Self::with_set) turns into the same policies. It contains the built-in ones.
    pub(super) fn to_set(&self) -> PolicySet {
        let mut policies: Vec<Policy> = self.named.values().map(|named| (*named.policy).clone()).collect();
        policies.sort_by(|a, b| a.name.cmp(&b.name));
        let levers = self.configured.iter().map(|(name, lever)| (name.clone(), (**lever).clone())).collect();
        PolicySet { policies, default_policy: self.default.as_deref().cloned(), levers }
    }

    /// Inserts a policy into `new`, with the version and guards that follow from the present one of its name.
    fn carry_over(&self, mut policy: Policy, new: &mut Self) {
        let name = policy.name.clone();
        let versioned = match self.named.get(&name) {
            None => Versioned { policy: Arc::new(policy), version: 1 },
            Some(old) => {
                old.carry_guards_to(&mut policy);
                if *old.policy == policy {
                    old.clone()
                } else {
                    Versioned { policy: Arc::new(policy), version: old.version + 1 }
                }
            }
        };
        new.named.insert(name, versioned);
    }

    /// Inserts a policy, or replaces the one of its name.
    pub(super) fn put(&mut self, mut policy: Policy) {
        let name = policy.name.clone();
        let old = self.named.get(&name);
        if let Some(old) = old {
            old.carry_guards_to(&mut policy);
        }
        let version = old.map_or(1, |old| old.version + 1);
        self.named.insert(name, Versioned { policy: Arc::new(policy), version });
    }

    /// The name under which routes that find no room in the table share one state: the policy's own, or `*` for all names
    /// that are not configured, because callers may invent any number of those.
    pub(super) fn overflow_name<'a>(&self, name: &'a str) -> &'a str {
        let configured = self.is_named(name) || self.own_lever(name).is_some();
        if configured { name } else { EVERY_POLICY }
    }

    pub(super) fn is_named(&self, name: &str) -> bool {
        self.named.contains_key(name)
    }

    /// Returns the names that have a policy of their own, sorted.
    pub(super) fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = self.named.keys().cloned().collect();
        names.sort();
        names
    }

    pub(super) fn default_policy(&self) -> Option<Arc<Policy>> {
        self.default.clone()
    }

    pub(super) const fn unknown(&self) -> UnknownPolicy {
        self.unknown
    }

    pub(super) const fn on_degraded(&self) -> OnDegraded {
        self.on_degraded
    }

    /// Finds a policy by name, else the default policy, else by the rule for unknown names.
    pub(super) fn find(&self, name: &str) -> Option<EffectivePolicy> {
        let effective = |policy: Arc<Policy>, version| EffectivePolicy {
            on_degraded: policy.on_degraded.unwrap_or(self.on_degraded),
            lever: self.lever(name),
            policy,
            version,
        };
        if let Some(Versioned { policy, version }) = self.named.get(name).cloned() {
            return Some(effective(policy, version));
        }
        if name.len() > MAX_NAME_BYTES {
            return None;
        }
        let policy = match (&self.default, self.unknown) {
            (Some(policy), _) => Policy { name: name.to_owned(), ..(**policy).clone() },
            (None, UnknownPolicy::Passthrough) => Policy::named(name),
            (None, UnknownPolicy::Error) => return None,
        };
        Some(effective(Arc::new(policy), 1))
    }

    /// Returns the lever of this name, without the one of every policy.
    fn own_lever(&self, name: &str) -> Option<&Arc<LeverSpec>> {
        self.pulled.get(name).or_else(|| self.configured.get(name)).filter(|lever| lever.pulled().next().is_some())
    }

    /// Returns the lever above a policy: its own combined with the one of every policy.
    fn lever(&self, name: &str) -> Option<Arc<LeverSpec>> {
        match (self.own_lever(name), self.own_lever(EVERY_POLICY)) {
            (Some(own), Some(every)) => Some(Arc::new(own.combined_with(every))),
            (own, every) => own.or(every).cloned(),
        }
    }

    /// Returns all levers that are pulled, by name.
    pub(super) fn levers(&self) -> BTreeMap<String, Arc<LeverSpec>> {
        let names = self.pulled.keys().chain(self.configured.keys());
        names.filter_map(|name| Some((name.clone(), self.own_lever(name)?.clone()))).collect()
    }

    /// Returns every validation error of a lever.
    pub(super) fn lever_mistakes(&self, name: &str, lever: &LeverSpec) -> Vec<Mistake> {
        let mut mistakes = lever.mistakes(name);
        if name != EVERY_POLICY && self.find(name).is_none() {
            mistakes.push(Mistake::new(levers::path(name), "no policy has this name"));
        }
        mistakes
    }

    pub(super) fn pull(&mut self, name: &str, lever: LeverSpec) {
        self.pulled.insert(name.to_owned(), Arc::new(lever));
    }

    pub(super) fn release(&mut self, name: &str) -> bool {
        self.pulled.remove(name).is_some()
    }
}

impl Versioned {
    /// Guards are code: a policy without guards keeps those of the one it replaces.
    fn carry_guards_to(&self, policy: &mut Policy) {
        if policy.guards.is_empty() {
            policy.guards = self.policy.guards.clone();
        }
    }
}

/// Returns a validation error of a policy as a whole.
pub(super) fn policy_mistake(policy: &str, reason: &str) -> Mistake {
    Mistake::new(format!("policies.{}", policy.escape_debug()), reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_policy_takes_the_name_of_whoever_asks() {
        let set = PolicySet { default_policy: Some(Policy::named("vendor").idempotent()), ..PolicySet::default() };
        let (policies, mistakes) = Policies::new(set, UnknownPolicy::Error, OnDegraded::Local);
        assert!(mistakes.is_empty(), "{mistakes:?}");
        let default = policies.default_policy().unwrap();
        assert_eq!(*default, Policy::named("default").idempotent());
        assert_eq!(*policies.find("eu").unwrap().policy, Policy::named("eu").idempotent());
    }

    #[test]
    fn another_set_changes_neither_the_rules_nor_the_levers_pulled_by_hand() {
        let (mut policies, _) = Policies::new(PolicySet::default(), UnknownPolicy::Passthrough, OnDegraded::Closed);
        policies.pull(EVERY_POLICY, LeverSpec::force_open());
        let (policies, mistakes) = policies.with_set(PolicySet::default());
        assert!(mistakes.is_empty(), "{mistakes:?}");
        assert_eq!((policies.unknown(), policies.on_degraded()), (UnknownPolicy::Passthrough, OnDegraded::Closed));
        assert_eq!(policies.levers().into_keys().collect::<Vec<_>>(), [EVERY_POLICY]);
    }
}
