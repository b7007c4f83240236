//! Policies from files and from the environment.

mod beside;
#[cfg(feature = "csv")]
mod budget;
mod document;
mod env;
mod fault;
#[cfg(feature = "json")]
mod json;
mod nearest;
mod read;
mod reader;
#[cfg(feature = "toml")]
mod toml;
mod tree;
#[cfg(feature = "yaml")]
mod yaml;

use std::collections::BTreeMap;

use phalanx_core::engine::Unknown;
use phalanx_core::levers::LeverSpec;
use phalanx_core::policy::Policy;
use phalanx_core::policy::validate::ConfigError;

use self::reader::Format;
pub use self::reader::Reader;
use crate::origin::{Origin, Origins};

/// What a module is told from outside: policies, and where every value of them came from.
#[derive(Clone, Debug)]
pub struct Config {
    policies: Vec<Policy>,
    default: Option<Policy>,
    levers: BTreeMap<String, LeverSpec>,
    unknown: Option<Unknown>,
    max_routes: Option<u32>,
    origins: Origins,
}

impl Config {
    /// Where to read from: files, a budget, the environment.
    pub fn reader() -> Reader {
        Reader::default()
    }

    /// Reads a text in TOML.
    ///
    /// # Errors
    /// Every mistake, each with its path and its line.
    #[cfg(feature = "toml")]
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        Self::from_text(Format::Toml, "toml", text)
    }

    /// Reads a text in YAML.
    ///
    /// # Errors
    /// Every mistake, each with its path and its line.
    #[cfg(feature = "yaml")]
    pub fn from_yaml(text: &str) -> Result<Self, ConfigError> {
        Self::from_text(Format::Yaml, "yaml", text)
    }

    /// Reads a text in JSON.
    ///
    /// # Errors
    /// Every mistake, each with its path.
    #[cfg(feature = "json")]
    pub fn from_json(text: &str) -> Result<Self, ConfigError> {
        Self::from_text(Format::Json, "json", text)
    }

    /// Reads a dependency budget in CSV.
    ///
    /// # Errors
    /// Every mistake, each with its column and its line.
    #[cfg(feature = "csv")]
    pub fn from_budget(text: &str) -> Result<Self, ConfigError> {
        Self::from_text(Format::Budget, "csv", text)
    }

    #[allow(dead_code)] // without any format there is no text
    fn from_text(format: Format, name: &str, text: &str) -> Result<Self, ConfigError> {
        let (mut tree, mut mistakes) = (tree::Node::table(Origin::BuiltIn), Vec::new());
        match format.parse(&name.into(), text) {
            Ok(source) => document::lay_over(&mut tree, source),
            Err(wrong) => mistakes = wrong,
        }
        document::read(tree, mistakes)
    }

    /// The policies, sorted by name.
    pub fn policies(&self) -> &[Policy] {
        &self.policies
    }

    /// The policy of every name that has none of its own.
    pub const fn default_policy(&self) -> Option<&Policy> {
        self.default.as_ref()
    }

    /// The levers it pulls, by policy; `*` for every one.
    pub const fn levers(&self) -> &BTreeMap<String, LeverSpec> {
        &self.levers
    }

    /// What a name without a policy means, if it says.
    pub const fn unknown(&self) -> Option<Unknown> {
        self.unknown
    }

    /// How many (policy, route) pairs are kept at a time, if it says.
    pub fn max_routes(&self) -> Option<usize> {
        self.max_routes.map(|routes| routes as usize)
    }
}
