//! A configuration beside what the program says: the program wins, a policy whole over one of the same name.
//!
//! The same rule when a module is built and when a running one is given a new configuration.

use phalanx_core::engine::{Applied, Plan};
use phalanx_core::policy::validate::ConfigError;
use phalanx_core::policy::{OnDegraded, Policy};

use super::Config;
use crate::ResilienceModule;
use crate::origin::{Given, Origin, Origins};

impl Config {
    /// What is left of it beside what the program gave. The origins are from now on those of both.
    pub(crate) fn beside(self, origins: &mut Origins) -> Plan {
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
        // Both are settled when a module is built.
        origins.unknown = origins.unknown.take().or(own.unknown);
        origins.max_routes = origins.max_routes.take().or(own.max_routes);
        Plan { policies, default_policy: default, levers }
    }
}

impl ResilienceModule {
    /// Puts a configuration in the place of the present one while calls are running; state is kept as in
    /// [`retune`](Self::retune). What the program gave stays and wins, policies that it has changed or added since
    /// included, and so do levers pulled by hand. `unknown` and `max_routes` are settled when a module is built.
    ///
    /// # Errors
    /// Every mistake, and every policy that is in use and would mean nothing; nothing is changed then.
    pub fn apply_config(&self, config: Config) -> Result<Applied, ConfigError> {
        // Not locked meanwhile: observers are told of the change, and may want a description.
        let mut origins = self.origins.lock().clone();
        let mut plan = config.beside(&mut origins);
        let code = self.engine.named_policies().into_iter().filter(|policy| origins.code.contains(&policy.name));
        plan.policies.extend(code.map(|policy| (*policy).clone()));
        if origins.code_default {
            plan.default_policy = self.engine.default_policy().map(|policy| (*policy).clone());
        }
        plan.levers.extend(origins.code_levers.clone());
        let applied = self.engine.apply(plan).map_err(|error| origins.place(error))?;
        *self.origins.lock() = origins;
        Ok(applied)
    }
}
