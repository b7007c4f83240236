//! The merge of code and file: a configuration is merged under what code configured, when a module is built and when a
//! running one is reconfigured. Code wins; a policy in code replaces a configured policy of the same name as a whole.

use phalanx_core::engine::{ConfigChange, EngineSpec, PolicySet};
use phalanx_core::policy::validate::ConfigError;

use super::Config;
use crate::ResilienceModule;
use crate::origin::{Origin, Origins};

impl Config {
    /// Returns what remains of this configuration under the code's, and adds its origins to theirs.
    pub(crate) fn merge_under(self, origins: &mut Origins) -> PolicySet {
        let Self { mut policies, default, mut levers, unknown: _, max_routes: _, redis: _, origins: own } = self;
        policies.retain(|policy| !origins.code.contains(&policy.name));
        levers.retain(|name, _| !origins.code_levers.contains_key(name));
        origins.given = own.given;
        origins.given.retain(|name, _| !origins.code.contains(name));
        origins.levers = own.levers;
        origins.levers.retain(|name, _| !origins.code_levers.contains_key(name));
        let default = default.filter(|_| !origins.code_default);
        origins.default = own.default.filter(|_| !origins.code_default);
        origins.unknown = origins.unknown.take().or(own.unknown);
        origins.max_routes = origins.max_routes.take().or(own.max_routes);
        PolicySet { policies, default_policy: default, levers }
    }
}

#[cfg(feature = "redis")]
impl Origins {
    /// Takes over the origin of an option in the table `redis`.
    pub(crate) fn take_over_redis(&mut self, config: &Config, path: &str) {
        self.redis.extend(config.origins.redis.get_key_value(path).map(|(path, from)| (path.clone(), from.clone())));
    }
}

impl ResilienceModule {
    /// Replaces the configuration from files while calls are running; state is kept as in [`retune`](Self::retune).
    ///
    /// Policies configured in code stay and win, including those changed or added since the module was built; so do levers
    /// pulled at runtime. `unknown`, `max_routes` and the table `redis` are fixed when a module is built.
    ///
    /// # Errors
    /// Returns every validation error, and an error for each policy in use that would become unknown. On error nothing
    /// changes.
    pub fn apply_config(&self, config: Config) -> Result<ConfigChange, ConfigError> {
        self.apply_config_unless(|| false, config)
    }

    /// As [`apply_config`](Self::apply_config), but changes nothing if the configuration is outdated by then.
    pub(crate) fn apply_config_unless(
        &self,
        outdated: impl FnOnce() -> bool,
        config: Config,
    ) -> Result<ConfigChange, ConfigError> {
        let rules = self.fixed_settings(&config);
        self.engine.change(|txn| {
            if outdated() {
                return Ok(ConfigChange::default());
            }
            let mut origins = self.origins.lock().clone();
            let before = (origins.unknown.clone(), origins.max_routes.clone());
            let present = txn.present();
            let mut plan = config.merge_under(&mut origins);
            plan.policies.extend(present.policies.into_iter().filter(|policy| origins.code.contains(&policy.name)));
            if origins.code_default {
                plan.default_policy = present.default_policy;
            }
            plan.levers.extend(origins.code_levers.clone());
            origins.unknown = rules.unknown.origin_in_force(before.0);
            origins.max_routes = rules.max_routes.origin_in_force(before.1);
            let change = txn.apply(plan).map_err(|error| origins.locate(error))?;
            // Inside the transaction: a change by the program comes before both policies and origins, or after both.
            *self.origins.lock() = origins;
            Ok(change)
        })
    }

    /// Compares a configuration with the settings that were fixed when the module was built.
    fn fixed_settings(&self, config: &Config) -> FixedSettings {
        let (unknown, routes) = (self.engine.unknown(), self.origins.lock().routes);
        let default = EngineSpec::default().max_routes;
        FixedSettings {
            unknown: Rule {
                in_force: config.unknown().unwrap_or_default() == unknown,
                origin: config.origins.unknown.clone(),
            },
            max_routes: Rule {
                in_force: config.max_routes().unwrap_or(default) == routes,
                origin: config.origins.max_routes.clone(),
            },
        }
    }
}

struct FixedSettings {
    unknown: Rule,
    max_routes: Rule,
}

/// A setting that a running module cannot change.
struct Rule {
    /// Whether the configured value equals the value in force.
    in_force: bool,
    origin: Option<Origin>,
}

impl Rule {
    /// Returns the origin of the value in force.
    fn origin_in_force(self, before: Option<Origin>) -> Option<Origin> {
        if before == Some(Origin::Code) || !self.in_force { before } else { self.origin }
    }
}
