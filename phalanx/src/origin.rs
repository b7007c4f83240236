//! Where a value came from, and where all values of a module came from.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use phalanx_core::levers::LeverSpec;
use phalanx_core::policy::validate::ConfigError;
use phalanx_core::policy::{OnDegraded, Policy};

/// Who gave a value.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// The program.
    Code,
    /// A variable of the environment.
    Variable(Arc<str>),
    /// A file.
    File {
        /// Its path as it was given.
        name: Arc<str>,
        /// The line, from 1, where the format tells.
        line: Option<usize>,
    },
    /// Nobody: the spec's own default, or a policy that is always there.
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

/// As it is displayed: a description is for people, also in JSON.
#[cfg(feature = "serde")]
impl serde::Serialize for Origin {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The values of one policy that somebody gave, by their path below it.
pub(crate) type Given = BTreeMap<String, Origin>;

/// Where everything in a module came from. What is not mentioned is built in.
#[derive(Clone, Debug, Default)]
#[cfg_attr(not(feature = "config"), allow(dead_code))] // some of it only files ask for
pub(crate) struct Origins {
    /// Policies that the program gave, whole.
    pub(crate) code: BTreeSet<String>,
    /// Policies that files and variables gave, value by value.
    pub(crate) given: BTreeMap<String, Given>,
    /// Levers that the program pulled when the module was built.
    pub(crate) code_levers: BTreeMap<String, LeverSpec>,
    /// Levers that the program has pulled since.
    pub(crate) pulled: BTreeSet<String>,
    /// Levers that files and variables pulled, value by value.
    pub(crate) levers: BTreeMap<String, Given>,
    /// The program gave the default policy.
    pub(crate) code_default: bool,
    /// Files and variables gave the default policy, value by value.
    pub(crate) default: Option<Given>,
    /// The rule for names without a policy.
    pub(crate) unknown: Option<Origin>,
    /// How many routes are kept.
    pub(crate) routes: usize,
    /// Who said how many.
    pub(crate) max_routes: Option<Origin>,
    /// What the program says for every policy that does not: what to do when the shared store is away.
    pub(crate) on_degraded: OnDegraded,
}

impl Origins {
    /// All of it was given by the program.
    pub(crate) fn of_code(policies: &[Policy], default: bool, levers: &BTreeMap<String, LeverSpec>) -> Self {
        Self {
            code: policies.iter().map(|policy| policy.name.clone()).collect(),
            code_default: default,
            code_levers: levers.clone(),
            ..Self::default()
        }
    }

    /// Where a policy's value came from.
    pub(crate) fn of(&self, policy: &str, path: &str) -> Origin {
        match self.given.get(policy) {
            Some(given) => given.get(path).cloned().unwrap_or(Origin::BuiltIn),
            None if self.code.contains(policy) => Origin::Code,
            None => Origin::BuiltIn,
        }
    }

    /// Where a value of the default policy came from.
    pub(crate) fn of_default(&self, path: &str) -> Origin {
        match &self.default {
            Some(given) => given.get(path).cloned().unwrap_or(Origin::BuiltIn),
            None if self.code_default => Origin::Code,
            None => Origin::BuiltIn,
        }
    }

    /// Where a value of a lever came from. The hand is the program's too.
    pub(crate) fn of_lever(&self, name: &str, path: &str) -> Origin {
        if self.pulled.contains(name) || self.code_levers.contains_key(name) {
            return Origin::Code;
        }
        self.levers.get(name).and_then(|given| given.get(path)).cloned().unwrap_or(Origin::BuiltIn)
    }

    /// Mistakes that only a whole module shows, such as a lever of nobody, with the place of what they are about.
    pub(crate) fn place(&self, mut error: ConfigError) -> ConfigError {
        let parts = [("policies", &self.given), ("levers", &self.levers)];
        let named =
            parts.into_iter().flat_map(|(part, given)| given.iter().map(move |(name, given)| (part, name, given)));
        let places: HashMap<String, &Origin> = named
            .filter_map(|(part, name, given)| Some((format!("{part}.{}", name.escape_debug()), given.values().next()?)))
            .collect();
        for mistake in error.mistakes.iter_mut().filter(|mistake| mistake.at.is_none()) {
            mistake.at = places.get(&mistake.path).map(ToString::to_string);
        }
        error
    }

    /// The program gives this policy, whole.
    pub(crate) fn now_code(&mut self, policy: &str) {
        self.given.remove(policy);
        self.code.insert(policy.to_owned());
    }
}
