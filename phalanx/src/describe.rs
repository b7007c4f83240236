//! A whole module as data: every policy that is in force, value by value, and where each value came from.

use std::collections::BTreeSet;
use std::fmt;

use phalanx_core::engine::UnknownPolicy;
use phalanx_core::policy::Policy;

pub use phalanx_core::breaker::{BreakerView, Phase, Seen, Transition};
pub use phalanx_core::bulkhead::{BulkheadView, LimitChange};
pub use phalanx_core::kind::Outcome;
pub use phalanx_core::pipeline::{Description, StageDescription};

use crate::ResilienceModule;
pub use crate::origin::Origin;

/// What a module does, and on whose word. Prints as the file that would say the same, with a comment on every line.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ModuleDescription {
    /// The policies, sorted by name.
    pub policies: Vec<PolicyDescription>,
    /// The policy of every name that has none of its own.
    pub default: Option<PolicyDescription>,
    /// The levers that are pulled, sorted by name; `*` is for every policy.
    pub levers: Vec<LeverDescription>,
    /// Names in use that have no policy of their own, sorted: the default policy holds for them, or the rule.
    pub without_policy: Vec<String>,
    /// What a name without a policy means, if there is no default policy either: `"error"` or `"passthrough"`.
    pub unknown: ValueDescription,
    /// How many (policy, route) pairs are kept at a time.
    pub max_routes: ValueDescription,
}

/// What one policy says.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct PolicyDescription {
    /// The name calls refer to.
    pub name: String,
    /// Its values, stage by stage. What is not set is not there.
    pub values: Vec<ValueDescription>,
    /// The names of its guards, which are code.
    pub guards: Vec<String>,
}

/// A lever that is pulled.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct LeverDescription {
    /// The policy, or `*`.
    pub name: String,
    /// What is pulled, and why.
    pub values: Vec<ValueDescription>,
}

/// One value.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ValueDescription {
    /// Its path, below the policy if it is one's: `retry.backoff.max`.
    pub path: String,
    /// As it is written in a TOML file: `3`, `"250ms"`, `["throttled"]`.
    pub value: String,
    /// Who gave it.
    pub from: Origin,
}

impl ResilienceModule {
    /// Every policy that is in force, value by value, and where each value came from.
    pub fn describe(&self) -> ModuleDescription {
        let engine = &self.engine;
        let origins = self.origins.lock().clone();
        let policies: Vec<_> = engine
            .named_policies()
            .iter()
            .map(|policy| PolicyDescription::of(policy, |path| origins.of(&policy.name, path)))
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
            default: default.map(|policy| PolicyDescription::of(&policy, |path| origins.of_default(path))),
            levers: levers.collect(),
            without_policy: used.into_iter().filter(|name| !named(name)).collect(),
            unknown: rule("unknown", format!("{unknown:?}"), origins.unknown.clone()),
            max_routes: rule("max_routes", origins.routes.to_string(), origins.max_routes.clone()),
            policies,
        }
    }
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

    /// One of its values, by its path below the policy.
    pub fn value(&self, path: &str) -> Option<&ValueDescription> {
        self.values.iter().find(|value| value.path == path)
    }
}

impl ModuleDescription {
    /// A policy, by its name.
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
            let meaning = if self.default.is_some() { "default policy" } else { "rule for unknown names" };
            write!(f, "\n# by the {meaning}: {}", names.join(", "))?;
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

/// A name as a key of TOML: in quotes where it has to be.
fn key(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    if !name.is_empty() && name.bytes().all(plain) { name.to_owned() } else { format!("{name:?}") }
}
