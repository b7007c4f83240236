//! Config changes while calls are running: one transaction for one policy, a whole policy set, or a lever.
//!
//! ```text
//!   engine.change(|txn| { txn.retune(policy)?; txn.pull("vendor", lever)?; Ok(()) })
//!     1 lock     one change at a time; calls on new routes and new ports wait, calls on existing ones do not
//!     2 closure  changes a copy of the policies; an error drops the copy, so nothing changes
//!     3 commit   the copy replaces the policies
//!     4 routes   every route whose policy or lever changed is recompiled over the same state
//!     5 emit     `Retuned` per route and `Lever` per lever, with no lock held
//! ```
//!
//! Breakers, buckets and bulkheads keep their state and take the new settings; calls in flight finish under the old ones.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Engine;
use super::policies::{Policies, policy_mistake};
use super::ports::{PolicyNames, blanket_retry};
use crate::event::EventKind;
use crate::levers::LeverSpec;
use crate::pipeline::RouteEntry;
use crate::policy::Policy;
use crate::policy::validate::{ConfigError, Mistake};
use crate::store::Store;

/// All policies and levers of a configuration.
///
/// # Examples
/// ```
/// use phalanx_core::engine::PolicySet;
/// use phalanx_core::levers::LeverSpec;
/// use phalanx_core::policy::Policy;
///
/// let set = PolicySet {
///     policies: vec![Policy::named("vendor")],
///     levers: [("vendor".to_owned(), LeverSpec::force_open())].into(),
///     ..PolicySet::default()
/// };
/// assert!(set.default_policy.is_none());
/// ```
#[derive(Clone, Debug, Default)]
pub struct PolicySet {
    /// The policies, by name, besides the built-in ones.
    pub policies: Vec<Policy>,
    /// The policy of every name that has none of its own.
    pub default_policy: Option<Policy>,
    /// The levers, by policy; `*` for every policy.
    pub levers: BTreeMap<String, LeverSpec>,
}

/// What a config change changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigChange {
    /// Names whose policy was added, changed or removed, sorted.
    pub policies: Vec<String>,
    /// Whether the policy of names that have none of their own changed.
    pub default_policy: bool,
    /// Names whose lever was pulled, changed or released, sorted.
    pub levers: Vec<String>,
}

impl ConfigChange {
    /// Returns the number of changes.
    pub fn count(&self) -> usize {
        self.policies.len() + usize::from(self.default_policy) + self.levers.len()
    }
}

impl<S: Store> Engine<S> {
    /// Changes policies and levers in one transaction: all or nothing. If `make` returns an error, nothing changes.
    ///
    /// Other changes wait until `make` returns, so it may also record, before another change is made, what it did. It must
    /// be quick and must not use the engine, which is locked meanwhile.
    ///
    /// # Errors
    /// Returns the error of `make`.
    pub fn change<T>(
        &self,
        make: impl FnOnce(&mut ConfigTxn<'_, S>) -> Result<T, ConfigError>,
    ) -> Result<T, ConfigError> {
        let shared = &self.0;
        let one_at_a_time = shared.changing.lock();
        let mut policies = shared.policies.write();
        let before = policies.levers();
        let ports = shared.ports.lock();
        let mut txn = ConfigTxn { engine: self, policies: policies.clone(), ports: &ports };
        let made = make(&mut txn)?;
        let new = txn.policies;
        *policies = new.clone();
        drop(policies);
        // A call that looked up an old policy did so before the write lock was taken, so its route is in the table by now.
        let retuned: Vec<_> = self.routes().into_iter().filter(|route| route.follow(&new)).collect();
        drop(ports);
        drop(one_at_a_time); // an observer may make a change itself
        for route in retuned {
            let stages = route.latest();
            shared.observers.emit(&stages.key, EventKind::Retuned { version: stages.version });
        }
        let after = new.levers();
        for policy in changed_levers(&before, &after) {
            let lever = after.get(&policy).map(Arc::as_ref);
            shared.observers.emit_all(EventKind::Lever { policy: &policy, lever });
        }
        Ok(made)
    }

    /// Returns the levers that are pulled, by policy; `*` for every policy.
    pub fn levers(&self) -> BTreeMap<String, LeverSpec> {
        let levers = self.0.policies.read().levers();
        levers.into_iter().map(|(name, lever)| (name, (*lever).clone())).collect()
    }
}

/// A config change being made: see [`Engine::change`].
pub struct ConfigTxn<'a, S: Store> {
    engine: &'a Engine<S>,
    policies: Policies,
    ports: &'a PolicyNames,
}

impl<S: Store> ConfigTxn<'_, S> {
    /// Returns the present policies, built-in ones included, and the configured levers. Levers pulled by hand are not part
    /// of it.
    pub fn present(&self) -> PolicySet {
        self.policies.to_set()
    }

    /// Changes a policy. Guards are code: a policy without guards keeps those it had.
    ///
    /// # Errors
    /// Returns every validation error, or an error if no policy has this name, or if it would retry a whole port.
    pub fn retune(&mut self, policy: Policy) -> Result<(), ConfigError> {
        self.put(policy, true)
    }

    /// Adds a policy.
    ///
    /// # Errors
    /// Returns every validation error, or an error if a policy has this name already.
    #[allow(clippy::should_implement_trait)] // not an addition of transactions
    pub fn add(&mut self, policy: Policy) -> Result<(), ConfigError> {
        self.put(policy, false)
    }

    fn put(&mut self, policy: Policy, exists: bool) -> Result<(), ConfigError> {
        let mut mistakes = policy.mistakes();
        if self.policies.is_named(&policy.name) != exists {
            let reason = if exists { "no policy has this name" } else { "a policy has this name already" };
            mistakes.push(policy_mistake(&policy.name, reason));
        }
        if self.ports.contains(&policy.name) {
            mistakes.extend(blanket_retry(&policy.name, &policy));
        }
        fail_on(mistakes)?;
        self.policies.put(policy);
        Ok(())
    }

    /// Replaces all policies and configured levers. A name that the set does not contain is treated like any unknown name
    /// from now on. Levers pulled by hand stay pulled.
    ///
    /// # Errors
    /// Returns every validation error of every policy and lever, and an error for every policy that is in use and would
    /// no longer exist, or would retry a whole port.
    pub fn apply(&mut self, set: PolicySet) -> Result<ConfigChange, ConfigError> {
        let (new, mut mistakes) = self.policies.with_set(set);
        let routes = self.engine.routes();
        let in_use: BTreeSet<_> = routes.iter().map(|route| route.latest().policy.name.clone()).collect();
        let lost = in_use.iter().filter(|name| new.find(name).is_none());
        mistakes.extend(lost.map(|name| policy_mistake(name, "is in use, and without it the name would mean nothing")));
        mistakes.extend(new.blanket_retries(self.ports));
        fail_on(mistakes)?;
        let change = self.policies.difference(&new);
        self.policies = new;
        Ok(change)
    }

    /// Pulls a lever of a policy, or of every policy (`*`). It replaces one pulled before, and the configured one until it
    /// is released.
    ///
    /// # Errors
    /// Returns every validation error, or an error if no policy has this name.
    pub fn pull(&mut self, policy: &str, lever: LeverSpec) -> Result<(), ConfigError> {
        fail_on(self.policies.lever_mistakes(policy, &lever))?;
        self.policies.pull(policy, lever);
        Ok(())
    }

    /// Releases a lever that was pulled by hand; the configured one holds again. Returns false if none was pulled.
    pub fn release(&mut self, policy: &str) -> bool {
        self.policies.release(policy)
    }
}

impl<S: Store> RouteEntry<S> {
    /// Recompiles this route if its policy or lever changed; returns whether the policy changed.
    fn follow(&self, policies: &Policies) -> bool {
        let old = self.latest().effective_policy();
        let Some(mut new) = policies.find(&old.policy.name) else { return false };
        // The default policy has no version of its own, and a policy that is added again starts at 1: the version of a
        // route only grows.
        let changed = new.policy != old.policy || new.version > old.version;
        new.version = if changed { new.version.max(old.version + 1) } else { old.version };
        if changed || new.lever != old.lever {
            self.recompile(&new);
        }
        changed
    }
}

impl Policies {
    /// Returns a mistake for every policy that guards a port and would retry the whole of it.
    fn blanket_retries(&self, ports: &PolicyNames) -> Vec<Mistake> {
        let of_port = |name: &String| {
            // Ports without a policy of their own are under the default policy, whose mistake is reported once.
            let configured = if self.is_named(name) { name } else { "default" };
            Some((configured.to_owned(), blanket_retry(configured, &self.find(name)?.policy)?))
        };
        let mistakes: BTreeMap<String, Mistake> = ports.iter().filter_map(of_port).collect();
        mistakes.into_values().collect()
    }

    fn difference(&self, new: &Self) -> ConfigChange {
        let names: BTreeSet<_> = self.names().into_iter().chain(new.names()).collect();
        let own = |policies: &Self, name: &str| policies.find(name).filter(|_| policies.is_named(name));
        let policy = |policies: &Self, name: &str| own(policies, name).map(|found| found.policy);
        let unnamed = |policies: &Self| policies.find("").map(|found| found.policy);
        ConfigChange {
            policies: names.into_iter().filter(|name| policy(self, name) != policy(new, name)).collect(),
            default_policy: unnamed(self) != unnamed(new),
            levers: changed_levers(&self.levers(), &new.levers()),
        }
    }
}

/// Returns the names whose lever differs.
fn changed_levers(before: &BTreeMap<String, Arc<LeverSpec>>, after: &BTreeMap<String, Arc<LeverSpec>>) -> Vec<String> {
    let names: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    names.into_iter().filter(|name| before.get(*name) != after.get(*name)).cloned().collect()
}

fn fail_on(mistakes: Vec<Mistake>) -> Result<(), ConfigError> {
    if mistakes.is_empty() { Ok(()) } else { Err(ConfigError { mistakes }) }
}
