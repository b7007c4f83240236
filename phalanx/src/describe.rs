//! A module as data: every policy in force, value by value, with the origin of each value.
//!
//! [`ResilienceModule::describe`] returns it; the views of single breakers and bulkheads, and the description of one
//! [`Pipeline`](crate::Pipeline), are here too. For dashboards, admin endpoints and tests.

use std::collections::BTreeSet;
use std::fmt;

use phalanx_core::engine::UnknownPolicy;
use phalanx_core::policy::Policy;

pub use phalanx_core::breaker::{BreakerView, Phase, Seen, Transition};
pub use phalanx_core::bulkhead::{BulkheadView, LimitChange};
pub use phalanx_core::kind::Outcome;
pub use phalanx_core::pipeline::{Description, StageDescription};
pub use phalanx_core::top_keys::TopKey;

use crate::ResilienceModule;
use crate::backend::Backend;
pub use crate::origin::Origin;
use crate::origin::Origins;

/// The configuration in force and where it came from. Displays as a TOML document with the origin in a comment on each line.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use phalanx::describe::Origin;
/// use phalanx::{Policy, ResilienceModule};
///
/// let payments = Policy::named("payments").timeout(Duration::from_millis(250));
/// let description = ResilienceModule::in_memory().policy(payments).build()?.describe();
/// let timeout = description.policy("payments").unwrap().value("timeout").unwrap();
/// assert_eq!((timeout.value.as_str(), &timeout.from), ("\"250ms\"", &Origin::Code));
/// assert!(description.to_string().contains("[policies.payments]"));
/// # Ok::<(), phalanx::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ModuleDescription {
    /// The policies, sorted by name.
    pub policies: Vec<PolicyDescription>,
    /// The policy of names without their own.
    pub default: Option<PolicyDescription>,
    /// The pulled levers, sorted by name; `*` applies to every policy.
    pub levers: Vec<LeverDescription>,
    /// Names in use without their own policy, sorted: the default policy applies to them, or `unknown`.
    pub without_policy: Vec<String>,
    /// How calls that name an unknown policy are treated without a default policy: `"error"` or `"passthrough"`.
    pub unknown: ValueDescription,
    /// How many (policy, route) pairs are kept at a time.
    pub max_routes: ValueDescription,
    /// The options of a module over Redis that files may set; empty for a module in memory.
    pub redis: Vec<ValueDescription>,
}

/// One policy.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct PolicyDescription {
    /// The name calls refer to.
    pub name: String,
    /// Its values, stage by stage. Values that are not set are absent.
    pub values: Vec<ValueDescription>,
    /// The names of its guards. Guards exist in code only.
    pub guards: Vec<String>,
}

/// A pulled lever.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct LeverDescription {
    /// The policy, or `*`.
    pub name: String,
    /// Its values, with the reason.
    pub values: Vec<ValueDescription>,
}

/// One value and its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ValueDescription {
    /// Its path, relative to the policy or lever: `retry.backoff.max`.
    pub path: String,
    /// The value in TOML syntax: `3`, `"250ms"`, `["throttled"]`.
    pub value: String,
    /// Where it came from.
    pub from: Origin,
}

impl ResilienceModule {
    /// Describes every policy in force, value by value, with the origin of each value.
    pub fn describe(&self) -> ModuleDescription {
        let engine = &self.engine;
        let origins = self.origins.lock().clone();
        let module_wide = ValueDescription {
            path: "on_degraded".to_owned(),
            value: format!("{:?}", engine.on_degraded().name()),
            from: origins.on_degraded.clone().unwrap_or(Origin::BuiltIn),
        };
        let policies: Vec<_> = engine
            .named_policies()
            .iter()
            .map(|policy| PolicyDescription::of(policy, |path| origins.of(&policy.name, path)).or(&module_wide))
            .collect();
        let default = engine.default_policy();
        let levers = engine.levers().into_iter().map(|(name, lever)| LeverDescription {
            values: described(lever.values(), |path| origins.of_lever(&name, path)),
            name,
        });
        let used: BTreeSet<_> = engine.pipelines().iter().map(|pipeline| pipeline.key().policy().to_owned()).collect();
        let named = |name: &String| policies.binary_search_by(|policy| policy.name.cmp(name)).is_ok();
        let unknown = match engine.unknown() {
            UnknownPolicy::Error => "error",
            UnknownPolicy::Passthrough => "passthrough",
        };
        let rule = |path: &str, value: String, from: Option<Origin>| {
            let from = from.unwrap_or(Origin::BuiltIn);
            ValueDescription { path: path.to_owned(), value, from }
        };
        ModuleDescription {
            default: default
                .map(|policy| PolicyDescription::of(&policy, |path| origins.of_default(path)).or(&module_wide)),
            levers: levers.collect(),
            without_policy: used.into_iter().filter(|name| !named(name)).collect(),
            unknown: rule("unknown", format!("{unknown:?}"), origins.unknown.clone()),
            max_routes: rule("max_routes", origins.routes.to_string(), origins.max_routes.clone()),
            redis: redis_options(engine.store(), &origins),
            policies,
        }
    }
}

/// Returns the options of the store that files may set.
#[cfg(feature = "redis")]
fn redis_options(store: &Backend, origins: &Origins) -> Vec<ValueDescription> {
    let Some(store) = store.shared() else { return Vec::new() };
    let value = |path: &str, value: String| {
        let from = origins.redis.get(path).cloned().unwrap_or(Origin::BuiltIn);
        ValueDescription { path: path.to_owned(), value, from }
    };
    let replicas = store.expected_replicas().map(|replicas| value("expected_replicas", replicas.to_string()));
    replicas.into_iter().chain([value("service", format!("{:?}", store.service()))]).collect()
}

#[cfg(not(feature = "redis"))]
const fn redis_options(_: &Backend, _: &Origins) -> Vec<ValueDescription> {
    Vec::new()
}

fn described(values: Vec<(String, String)>, origin: impl Fn(&str) -> Origin) -> Vec<ValueDescription> {
    let value = |(path, value): (String, String)| ValueDescription { from: origin(&path), path, value };
    values.into_iter().map(value).collect()
}

impl PolicyDescription {
    fn of(policy: &Policy, origin: impl Fn(&str) -> Origin) -> Self {
        Self {
            name: policy.name.clone(),
            values: described(policy.values(), origin),
            guards: policy.guards.iter().map(|guard| guard.name().to_owned()).collect(),
        }
    }

    /// Adds a value of the module, unless the policy has its own.
    fn or(mut self, module_wide: &ValueDescription) -> Self {
        if self.value(&module_wide.path).is_none() {
            self.values.push(module_wide.clone());
        }
        self
    }

    /// Returns a value by its path below the policy.
    pub fn value(&self, path: &str) -> Option<&ValueDescription> {
        self.values.iter().find(|value| value.path == path)
    }
}

impl ModuleDescription {
    /// Returns a policy by its name.
    pub fn policy(&self, name: &str) -> Option<&PolicyDescription> {
        self.policies.iter().find(|policy| policy.name == name)
    }
}

impl fmt::Display for ValueDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self { path, value, from }, width) = (self, 48);
        write!(f, "{:<width$} # {from}", format!("{path} = {value}"))
    }
}

impl fmt::Display for ModuleDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n{}", self.unknown, self.max_routes)?;
        if !self.without_policy.is_empty() {
            let names: Vec<_> = self.without_policy.iter().map(|name| name.escape_debug().to_string()).collect();
            let rule = if self.default.is_some() { "default policy" } else { "rule for unknown names" };
            write!(f, "\n# by the {rule}: {}", names.join(", "))?;
        }
        if !self.redis.is_empty() {
            table(f, "redis", &self.redis)?;
        }
        if let Some(default) = &self.default {
            table(f, "default", &default.values)?;
            guards(f, default)?;
        }
        for policy in &self.policies {
            table(f, &format!("policies.{}", key(&policy.name)), &policy.values)?;
            guards(f, policy)?;
        }
        let mut levers = self.levers.iter();
        levers.try_for_each(|lever| table(f, &format!("levers.{}", key(&lever.name)), &lever.values))
    }
}

fn table(f: &mut fmt::Formatter<'_>, name: &str, values: &[ValueDescription]) -> fmt::Result {
    write!(f, "\n\n[{name}]")?;
    values.iter().try_for_each(|value| write!(f, "\n{value}"))
}

fn guards(f: &mut fmt::Formatter<'_>, policy: &PolicyDescription) -> fmt::Result {
    policy.guards.iter().try_for_each(|guard| write!(f, "\n# guard {}: code", guard.escape_debug()))
}

/// Formats a name as a TOML key, quoted where necessary.
fn key(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    if !name.is_empty() && name.bytes().all(plain) { name.to_owned() } else { format!("{name:?}") }
}
