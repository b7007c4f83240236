//! A configuration beside what the program says: the program wins, a policy whole over one of the same name.
//!
//! The same rule when a module is built and when a running one is given a new configuration.

use std::cell::Cell;

use phalanx_core::engine::{ConfigChange, EngineSpec, PolicySet};
use phalanx_core::policy::validate::ConfigError;
use phalanx_core::policy::{OnDegraded, Policy};

use super::Config;
use crate::ResilienceModule;
use crate::origin::{Given, Origin, Origins};

impl Config {
    /// What is left of it beside what the program gave. The origins are from now on those of both.
    pub(crate) fn beside(self, origins: &mut Origins) -> PolicySet {
        let Self { mut policies, default, mut levers, unknown: _, max_routes: _, origins: own } = self;
        let choice = origins.on_degraded;
        let choose = |policy: &mut Policy, given: &mut Given| {
            if choice != OnDegraded::default() && !given.contains_key("on_degraded") {
                policy.on_degraded = choice;
                given.insert("on_degraded".to_owned(), Origin::Code);
            }
        };
        policies.retain(|policy| !origins.code.contains(&policy.name));
        levers.retain(|name, _| !origins.code_levers.contains_key(name));
        origins.given = own.given;
        origins.given.retain(|name, _| !origins.code.contains(name));
        origins.levers = own.levers;
        origins.levers.retain(|name, _| !origins.code_levers.contains_key(name));
        for policy in &mut policies {
            choose(policy, origins.given.entry(policy.name.clone()).or_default());
        }
        let mut default = default.filter(|_| !origins.code_default);
        origins.default = own.default.filter(|_| !origins.code_default);
        if let (Some(policy), Some(given)) = (&mut default, &mut origins.default) {
            choose(policy, given);
        }
        origins.unknown = origins.unknown.take().or(own.unknown);
        origins.max_routes = origins.max_routes.take().or(own.max_routes);
        PolicySet { policies, default_policy: default, levers }
    }
}

impl ResilienceModule {
    /// Puts a configuration in the place of the present one while calls are running; state is kept as in
    /// [`retune`](Self::retune). What the program gave stays and wins, policies that it has changed or added since
    /// included, and so do levers pulled by hand. `unknown` and `max_routes` are settled when a module is built.
    ///
    /// # Errors
    /// Every mistake, and every policy that is in use and would mean nothing; nothing is changed then.
    pub fn apply_config(&self, config: Config) -> Result<ConfigChange, ConfigError> {
        self.apply_config_unless(|| false, config)
    }

    /// The same, unless it is out of date by the time it would be applied: nothing is changed then.
    pub(crate) fn apply_config_unless(
        &self,
        outdated: impl FnOnce() -> bool,
        config: Config,
    ) -> Result<ConfigChange, ConfigError> {
        let made = Cell::new(None);
        let rules = self.rules_of(&config);
        // Made while no other change can come between, and noted before another can: what the program says meanwhile is
        // neither undone nor taken for the file's.
        let note = || {
            if let Some(origins) = made.take() {
                *self.origins.lock() = origins;
            }
        };
        let revise = |present: PolicySet| {
            if outdated() {
                return present;
            }
            let mut origins = self.origins.lock().clone();
            let before = (origins.unknown.clone(), origins.max_routes.clone());
            let mut plan = config.beside(&mut origins);
            plan.policies.extend(present.policies.into_iter().filter(|policy| origins.code.contains(&policy.name)));
            if origins.code_default {
                plan.default_policy = present.default_policy;
            }
            plan.levers.extend(origins.code_levers.clone());
            origins.unknown = rules.unknown.still(before.0);
            origins.max_routes = rules.max_routes.still(before.1);
            made.set(Some(origins));
            plan
        };
        self.engine.noting(note).revise(revise).map_err(|error| match made.take() {
            Some(origins) => origins.place(error),
            None => error,
        })
    }

    /// What a configuration says of what was settled when the module was built.
    fn rules_of(&self, config: &Config) -> Rules {
        let (unknown, routes) = (self.engine.unknown(), self.origins.lock().routes);
        let default = EngineSpec::default().max_routes;
        Rules {
            unknown: Rule {
                in_force: config.unknown().unwrap_or_default() == unknown,
                said: config.origins.unknown.clone(),
            },
            max_routes: Rule {
                in_force: config.max_routes().unwrap_or(default) == routes,
                said: config.origins.max_routes.clone(),
            },
        }
    }
}

struct Rules {
    unknown: Rule,
    max_routes: Rule,
}

/// A rule that a running module does not change any more.
struct Rule {
    /// Whether what the configuration says is what holds.
    in_force: bool,
    said: Option<Origin>,
}

impl Rule {
    /// Who said what holds.
    fn still(self, before: Option<Origin>) -> Option<Origin> {
        if before == Some(Origin::Code) || !self.in_force { before } else { self.said }
    }
}
