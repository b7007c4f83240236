//! What every name means: the policies by name, the default, the rule for names that have neither, and the levers above
//! them all.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::{PolicySet, UnknownPolicy};
use crate::key::MAX_NAME_BYTES;
use crate::levers::{self, EVERY_POLICY, LeverSpec};
use crate::pipeline::Said;
use crate::policy::Policy;
use crate::policy::validate::Mistake;

/// All policies and levers of an engine.
#[derive(Clone, Default)]
pub(super) struct Policies {
    named: HashMap<String, Versioned>,
    default: Option<Arc<Policy>>,
    unknown: UnknownPolicy,
    /// As configured.
    given: BTreeMap<String, Arc<LeverSpec>>,
    /// Pulled since, by hand. They stand in the place of the configured ones of the same name.
    pulled: BTreeMap<String, Arc<LeverSpec>>,
}

#[derive(Clone)]
struct Versioned {
    policy: Arc<Policy>,
    version: u64,
}

impl Policies {
    /// The policies of a plan with the built-in ones, and everything that is wrong with them.
    pub(super) fn new(plan: PolicySet, unknown: UnknownPolicy) -> (Self, Vec<Mistake>) {
        Self { unknown, ..Self::default() }.planned(plan)
    }

    /// What a plan makes of them. A policy that it does not change keeps its version, one that it brings without guards
    /// keeps those it had, and levers pulled by hand stay pulled.
    pub(super) fn planned(&self, plan: PolicySet) -> (Self, Vec<Mistake>) {
        let mut mistakes = Vec::new();
        let (unknown, pulled) = (self.unknown, self.pulled.clone());
        let mut new = Self { unknown, pulled, ..Self::default() };
        let mut seen = HashSet::new();
        for policy in plan.policies {
            mistakes.extend(policy.mistakes());
            if !seen.insert(policy.name.clone()) {
                mistakes.push(wrong(&policy.name, "two policies have this name"));
            }
            self.hand_on(policy, &mut new);
        }
        for policy in [Policy::occ(), Policy::transient()] {
            if !seen.contains(&policy.name) {
                self.hand_on(policy, &mut new);
            }
        }
        if let Some(policy) = plan.default_policy {
            let policy = Policy { name: "default".to_owned(), ..policy };
            mistakes.extend(policy.mistakes());
            new.default = Some(Arc::new(policy));
        }
        for (name, lever) in plan.levers {
            mistakes.extend(new.lever_mistakes(&name, &lever));
            new.given.insert(name, Arc::new(lever));
        }
        (new, mistakes)
    }

    /// The plan they are: what [`planned`](Self::planned) makes the same of again. Built-in policies are in it too.
    pub(super) fn plan(&self) -> PolicySet {
        let mut policies: Vec<Policy> = self.named.values().map(|known| (*known.policy).clone()).collect();
        policies.sort_by(|a, b| a.name.cmp(&b.name));
        let levers = self.given.iter().map(|(name, lever)| (name.clone(), (**lever).clone())).collect();
        PolicySet { policies, default_policy: self.default.as_deref().cloned(), levers }
    }

    fn hand_on(&self, mut policy: Policy, new: &mut Self) {
        let name = policy.name.clone();
        let versioned = match self.named.get(&name) {
            None => Versioned { policy: Arc::new(policy), version: 1 },
            Some(old) => {
                old.hand_guards_to(&mut policy);
                if *old.policy == policy {
                    old.clone()
                } else {
                    Versioned { policy: Arc::new(policy), version: old.version + 1 }
                }
            }
        };
        new.named.insert(name, versioned);
    }

    /// Puts a policy in the place of the one of its name.
    pub(super) fn put(&mut self, mut policy: Policy) {
        let name = policy.name.clone();
        let old = self.named.get(&name);
        if let Some(old) = old {
            old.hand_guards_to(&mut policy);
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

    /// The names that have a policy of their own, sorted.
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

    /// By name, else the default, else whatever the unknown rule says.
    pub(super) fn find(&self, name: &str) -> Option<Said> {
        let lever = self.lever(name);
        if let Some(Versioned { policy, version }) = self.named.get(name).cloned() {
            return Some(Said { policy, version, lever });
        }
        if name.len() > MAX_NAME_BYTES {
            return None;
        }
        let policy = match (&self.default, self.unknown) {
            (Some(policy), _) => Policy { name: name.to_owned(), ..(**policy).clone() },
            (None, UnknownPolicy::Passthrough) => Policy::named(name),
            (None, UnknownPolicy::Error) => return None,
        };
        Some(Said { policy: Arc::new(policy), version: 1, lever })
    }

    /// The lever of one name, as it was pulled: not together with the one of every policy.
    fn own_lever(&self, name: &str) -> Option<&Arc<LeverSpec>> {
        self.pulled.get(name).or_else(|| self.given.get(name)).filter(|lever| lever.pulled().next().is_some())
    }

    /// What is wanted of a policy, by its own lever and by that of every policy.
    fn lever(&self, name: &str) -> Option<Arc<LeverSpec>> {
        match (self.own_lever(name), self.own_lever(EVERY_POLICY)) {
            (Some(own), Some(every)) => Some(Arc::new(own.beside(every))),
            (own, every) => own.or(every).cloned(),
        }
    }

    /// All levers that are pulled, by name.
    pub(super) fn levers(&self) -> BTreeMap<String, Arc<LeverSpec>> {
        let names = self.pulled.keys().chain(self.given.keys());
        names.filter_map(|name| Some((name.clone(), self.own_lever(name)?.clone()))).collect()
    }

    /// Everything that is wrong with a lever.
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
    /// Guards are code: a policy that brings none keeps those it had.
    fn hand_guards_to(&self, policy: &mut Policy) {
        if policy.guards.is_empty() {
            policy.guards = self.policy.guards.clone();
        }
    }
}

/// A mistake about a policy as a whole.
pub(super) fn wrong(policy: &str, reason: &str) -> Mistake {
    Mistake::new(format!("policies.{}", policy.escape_debug()), reason)
}
