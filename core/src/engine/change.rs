//! Changes while calls are running: of one policy, of all of them at once, of a lever.
//!
//! Each is all or nothing. Living circuits, buckets and slots keep their state and follow the new numbers; calls in
//! flight finish under the old ones. One change at a time, so that all routes hear of them in the same order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Engine;
use super::policies::{Policies, wrong};
use crate::event::EventKind;
use crate::levers::LeverSpec;
use crate::pipeline::Slot;
use crate::policy::Policy;
use crate::policy::validate::{ConfigError, Mistake};
use crate::store::Store;

/// Everything a configuration says about policies.
#[derive(Clone, Debug, Default)]
pub struct PolicySet {
    /// The policies, by name, besides the built-in ones.
    pub policies: Vec<Policy>,
    /// For every name that has no policy of its own.
    pub default_policy: Option<Policy>,
    /// Levers, by policy; `*` for every one.
    pub levers: BTreeMap<String, LeverSpec>,
}

/// What a plan changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigChange {
    /// Names whose policy is new, another, or gone, sorted.
    pub policies: Vec<String>,
    /// Whether names without a policy of their own mean something else now.
    pub default_policy: bool,
    /// Names whose lever was pulled, changed or released, sorted.
    pub levers: Vec<String>,
}

impl ConfigChange {
    /// How many things are not what they were.
    pub fn count(&self) -> usize {
        self.policies.len() + usize::from(self.default_policy) + self.levers.len()
    }
}

impl<S: Store> Engine<S> {
    /// Changes a policy. Guards are code: unless the new policy brings its own, it keeps those it had.
    ///
    /// # Errors
    /// Every mistake of the policy, or that there is none of this name; nothing is changed then.
    pub fn retune(&self, policy: Policy) -> Result<(), ConfigError> {
        self.noting(|| {}).retune(policy)
    }

    /// Adds a policy.
    ///
    /// # Errors
    /// Every mistake of the policy, or that there is one of this name; nothing is changed then.
    pub fn add(&self, policy: Policy) -> Result<(), ConfigError> {
        self.noting(|| {}).add(policy)
    }

    /// Puts a whole configuration in the place of the present one. A policy that the plan does not name any more means
    /// from now on what any name without a policy means.
    ///
    /// # Errors
    /// Every mistake of every policy and lever, and every policy that is in use and would mean nothing; nothing is
    /// changed then.
    pub fn apply(&self, plan: PolicySet) -> Result<ConfigChange, ConfigError> {
        self.noting(|| {}).apply(plan)
    }

    /// Pulls a lever of a policy, or of every one (`*`), in the place of what was pulled or configured before.
    ///
    /// # Errors
    /// Every mistake of the lever, or that no policy has this name; nothing is changed then.
    pub fn pull(&self, policy: &str, lever: LeverSpec) -> Result<(), ConfigError> {
        self.noting(|| {}).pull(policy, lever)
    }

    /// Releases what was pulled. A lever that is configured holds again. False if nothing was pulled.
    pub fn release(&self, policy: &str) -> bool {
        self.noting(|| {}).release(policy)
    }

    /// The levers that are pulled, by policy; `*` for every one.
    pub fn levers(&self) -> BTreeMap<String, LeverSpec> {
        let levers = self.0.policies.read().levers();
        levers.into_iter().map(|(name, lever)| (name, (*lever).clone())).collect()
    }

    /// One change, for somebody who keeps a record of changes: `note` is called if it is made, before another can be. It
    /// must not ask the engine.
    pub fn noting<F: FnOnce()>(&self, note: F) -> Noting<'_, S, F> {
        Noting { engine: self, note }
    }

    /// Makes a change, lets all routes follow, and tells the observers.
    fn change<T, E>(&self, make: impl FnOnce(&mut Policies) -> Result<T, E>, note: impl FnOnce()) -> Result<T, E> {
        let shared = &self.0;
        let one_at_a_time = shared.retuning.lock();
        let mut policies = shared.policies.write();
        let before = policies.levers();
        let made = make(&mut policies)?;
        note();
        let (after, now) = (policies.levers(), policies.clone());
        drop(policies);
        // Whoever looked the old policy up did so before we had the lock, and has a slot by now.
        let retuned: Vec<_> = self.slots().into_iter().filter(|slot| slot.follow(&now)).collect();
        drop(one_at_a_time); // an observer may want to change something itself
        for slot in retuned {
            let stages = slot.latest();
            shared.observers.emit(&stages.key, EventKind::Retuned { version: stages.version });
        }
        for policy in differing(&before, &after) {
            let lever = after.get(&policy).map(Arc::as_ref);
            shared.observers.emit_all(EventKind::Lever { policy: &policy, lever });
        }
        Ok(made)
    }
}

/// A change that is noted if it is made. As the methods of the same names of [`Engine`].
#[must_use = "nothing is changed yet"]
pub struct Noting<'a, S: Store, F> {
    engine: &'a Engine<S>,
    note: F,
}

impl<S: Store, F: FnOnce()> Noting<'_, S, F> {
    /// Changes a policy.
    ///
    /// # Errors
    /// As for [`Engine::retune`].
    pub fn retune(self, policy: Policy) -> Result<(), ConfigError> {
        self.put(policy, true)
    }

    /// Adds a policy.
    ///
    /// # Errors
    /// As for [`Engine::add`].
    #[allow(clippy::should_implement_trait)] // the engine's own word for it
    pub fn add(self, policy: Policy) -> Result<(), ConfigError> {
        self.put(policy, false)
    }

    fn put(self, policy: Policy, known: bool) -> Result<(), ConfigError> {
        let mut mistakes = policy.mistakes();
        let put = |policies: &mut Policies| {
            if policies.is_named(&policy.name) != known {
                let reason = if known { "no policy has this name" } else { "a policy has this name already" };
                mistakes.push(wrong(&policy.name, reason));
            }
            reject_if_any(mistakes)?;
            policies.put(policy);
            Ok(())
        };
        self.engine.change(put, self.note)
    }

    /// Puts a whole configuration in the place of the present one.
    ///
    /// # Errors
    /// As for [`Engine::apply`].
    pub fn apply(self, plan: PolicySet) -> Result<ConfigChange, ConfigError> {
        self.revise(|_| plan)
    }

    /// The same with a plan that is made of the present one, and of nothing that may be out of date: other changes wait
    /// meanwhile. So it must be quick, and must not ask the engine.
    ///
    /// # Errors
    /// As for [`Engine::apply`].
    pub fn revise(self, make: impl FnOnce(PolicySet) -> PolicySet) -> Result<ConfigChange, ConfigError> {
        let engine = self.engine;
        let revise = |policies: &mut Policies| {
            let (new, mut mistakes) = policies.planned(make(policies.plan()));
            let in_use: BTreeSet<_> = engine.slots().iter().map(|slot| slot.latest().policy.name.clone()).collect();
            let lost = in_use.iter().filter(|name| new.find(name).is_none());
            mistakes.extend(lost.map(|name| wrong(name, "is in use, and without it the name would mean nothing")));
            reject_if_any(mistakes)?;
            let applied = policies.difference(&new);
            *policies = new;
            Ok(applied)
        };
        engine.change(revise, self.note)
    }

    /// Pulls a lever.
    ///
    /// # Errors
    /// As for [`Engine::pull`].
    pub fn pull(self, policy: &str, lever: LeverSpec) -> Result<(), ConfigError> {
        let pull = |policies: &mut Policies| {
            reject_if_any(policies.lever_mistakes(policy, &lever))?;
            policies.pull(policy, lever);
            Ok(())
        };
        self.engine.change(pull, self.note)
    }

    /// Releases what was pulled.
    pub fn release(self, policy: &str) -> bool {
        let release = |policies: &mut Policies| if policies.release(policy) { Ok(()) } else { Err(()) };
        self.engine.change(release, self.note).is_ok()
    }
}

impl<S: Store> Slot<S> {
    /// Does what its name means now, if that is something else; whether its policy is another one.
    fn follow(&self, policies: &Policies) -> bool {
        let old = self.latest().said();
        let Some(mut new) = policies.find(&old.policy.name) else { return false };
        // What it is by default has no version of its own, and one that comes back begins anew: here they only grow.
        let another = new.policy != old.policy || new.version > old.version;
        new.version = if another { new.version.max(old.version + 1) } else { old.version };
        if another || new.lever != old.lever {
            self.retune(new);
        }
        another
    }
}

impl Policies {
    /// What is not the same in another.
    fn difference(&self, new: &Self) -> ConfigChange {
        let names: BTreeSet<_> = self.names().into_iter().chain(new.names()).collect();
        let own = |policies: &Self, name: &str| policies.find(name).filter(|_| policies.is_named(name));
        let policy = |policies: &Self, name: &str| own(policies, name).map(|said| said.policy);
        let nobody = |policies: &Self| policies.find("").map(|said| said.policy);
        ConfigChange {
            policies: names.into_iter().filter(|name| policy(self, name) != policy(new, name)).collect(),
            default_policy: nobody(self) != nobody(new),
            levers: differing(&self.levers(), &new.levers()),
        }
    }
}

/// The names that do not mean the same in both.
fn differing(before: &BTreeMap<String, Arc<LeverSpec>>, after: &BTreeMap<String, Arc<LeverSpec>>) -> Vec<String> {
    let names: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    names.into_iter().filter(|name| before.get(*name) != after.get(*name)).cloned().collect()
}

fn reject_if_any(mistakes: Vec<Mistake>) -> Result<(), ConfigError> {
    if mistakes.is_empty() { Ok(()) } else { Err(ConfigError { mistakes }) }
}
