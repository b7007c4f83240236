//! Provenance of configuration: which source each value in force came from (code, a file, an environment variable).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use phalanx_core::levers::LeverSpec;
use phalanx_core::policy::Policy;
use phalanx_core::policy::validate::ConfigError;

/// The source of a configured value.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// The program.
    Code,
    /// An environment variable.
    Variable(Arc<str>),
    /// A file.
    File {
        /// Its path as it was given.
        name: Arc<str>,
        /// The line, from 1, for formats whose parser reports it.
        line: Option<usize>,
    },
    /// No source: the default of the spec, or a built-in policy.
    BuiltIn,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code => f.write_str("code"),
            Self::Variable(name) => write!(f, "environment variable {name}"),
            Self::File { name, line: Some(line) } => write!(f, "{name}:{line}"),
            Self::File { name, line: None } => f.write_str(name),
            Self::BuiltIn => f.write_str("built in"),
        }
    }
}

/// Serializes the displayed text: descriptions are read by people, in JSON too.
#[cfg(feature = "serde")]
impl serde::Serialize for Origin {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The origins of one policy's configured values, by their path below the policy.
pub(crate) type Given = BTreeMap<String, Origin>;

/// The origins of all values of a module. Values that are not listed are built in.
#[derive(Clone, Debug, Default)]
#[cfg_attr(not(feature = "config"), allow(dead_code))] // some fields are read only by `config`
pub(crate) struct Origins {
    /// Policies configured in code; code replaces a whole policy.
    pub(crate) code: BTreeSet<String>,
    /// Policies configured by files and variables, value by value.
    pub(crate) given: BTreeMap<String, Given>,
    /// Levers configured in code when the module was built.
    pub(crate) code_levers: BTreeMap<String, LeverSpec>,
    /// Levers pulled through [`ResilienceModule::pull`](crate::ResilienceModule::pull) since.
    pub(crate) pulled: BTreeSet<String>,
    /// Levers configured by files and variables, value by value.
    pub(crate) levers: BTreeMap<String, Given>,
    /// Whether the default policy was configured in code.
    pub(crate) code_default: bool,
    /// The default policy configured by files and variables, value by value.
    pub(crate) default: Option<Given>,
    /// The origin of `unknown`.
    pub(crate) unknown: Option<Origin>,
    /// The value of `max_routes` in force.
    pub(crate) routes: usize,
    /// The origin of `max_routes`.
    pub(crate) max_routes: Option<Origin>,
    /// The origin of the module's `on_degraded`, which holds for policies without their own.
    pub(crate) on_degraded: Option<Origin>,
    /// The options of a module over Redis that are configured, value by value. Fixed when the module is built.
    pub(crate) redis: Given,
}

impl Origins {
    /// Origins of a set of policies that was configured in code.
    pub(crate) fn of_code(policies: &[Policy], default: bool, levers: &BTreeMap<String, LeverSpec>) -> Self {
        Self {
            code: policies.iter().map(|policy| policy.name.clone()).collect(),
            code_default: default,
            code_levers: levers.clone(),
            ..Self::default()
        }
    }

    /// Returns the origin of a policy's value.
    pub(crate) fn of(&self, policy: &str, path: &str) -> Origin {
        match self.given.get(policy) {
            Some(given) => given.get(path).cloned().unwrap_or(Origin::BuiltIn),
            None if self.code.contains(policy) => Origin::Code,
            None => Origin::BuiltIn,
        }
    }

    /// Returns the origin of a value of the default policy.
    pub(crate) fn of_default(&self, path: &str) -> Origin {
        match &self.default {
            Some(given) => given.get(path).cloned().unwrap_or(Origin::BuiltIn),
            None if self.code_default => Origin::Code,
            None => Origin::BuiltIn,
        }
    }

    /// Returns the origin of a value of a lever. Levers pulled at runtime count as code.
    pub(crate) fn of_lever(&self, name: &str, path: &str) -> Origin {
        if self.pulled.contains(name) || self.code_levers.contains_key(name) {
            return Origin::Code;
        }
        self.levers.get(name).and_then(|given| given.get(path)).cloned().unwrap_or(Origin::BuiltIn)
    }

    /// Adds origins to mistakes that only the whole module reveals, such as a lever of an unknown policy.
    pub(crate) fn locate(&self, mut error: ConfigError) -> ConfigError {
        let parts = [("policies", &self.given), ("levers", &self.levers)];
        let named =
            parts.into_iter().flat_map(|(part, given)| given.iter().map(move |(name, given)| (part, name, given)));
        let mut tables: HashMap<String, &Given> =
            named.map(|(part, name, given)| (format!("{part}.{}", name.escape_debug()), given)).collect();
        if let Some(default) = &self.default {
            tables.entry("policies.default".to_owned()).or_insert(default);
        }
        for mistake in error.mistakes.iter_mut().filter(|mistake| mistake.at.is_none()) {
            let path = mistake.path.as_str();
            // The name may contain dots, so the longest table that fits is meant.
            let starts = std::iter::once(path.len()).chain(path.rmatch_indices('.').map(|(at, _)| at));
            let table = starts.into_iter().find_map(|end| Some((*tables.get(&path[..end])?, &path[end..])));
            let origin = table.and_then(|(given, rest)| nearest(given, rest.trim_start_matches('.')));
            mistake.at = origin.map(ToString::to_string);
        }
        error
    }

    /// Notes that code replaced this policy.
    pub(crate) fn set_code(&mut self, policy: &str) {
        self.given.remove(policy);
        self.code.insert(policy.to_owned());
    }
}

/// Returns the origin of a value; if it is a default, that of a value beside it, or in the next table around it.
fn nearest<'a>(given: &'a Given, path: &str) -> Option<&'a Origin> {
    let inside =
        |table: &str| given.iter().find(|(key, _)| key.strip_prefix(table).is_some_and(|rest| rest.starts_with('.')));
    let tables = path.rmatch_indices('.').map(|(end, _)| &path[..end]);
    let around = || tables.into_iter().find_map(inside).map(|(_, origin)| origin);
    given.get(path).or_else(around).or_else(|| given.values().next())
}
