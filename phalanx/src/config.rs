//! Policies from files and from the environment: TOML, YAML or JSON, a dependency budget in CSV, variables.
//!
//! ```
//! # #[cfg(feature = "toml")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use phalanx::ResilienceModule;
//! use phalanx::config::Config;
//!
//! # let folder = std::env::temp_dir().join(format!("phalanx-doc-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder)?;
//! # let path = folder.join("phalanx.toml");
//! # std::fs::write(&path, r#"
//! # [policies.payments]
//! # timeout = "1s"
//! # retry = { max_attempts = 3, backoff = { base = "50ms" } }
//! # [policies.payments.breaker]
//! # failure_ratio = 0.5
//! # "#)?;
//! let config = Config::loader()
//!     .file(&path) // phalanx.toml, say
//!     .vars([("PHALANX__POLICIES__PAYMENTS__TIMEOUT", "2s")]) // .env() in a service
//!     .load()?; // every mistake at once, each with its place
//! let module = ResilienceModule::in_memory().config(config).build()?;
//!
//! let described = module.describe(); // what is in force, and who said so
//! let timeout = described.policy("payments").and_then(|payments| payments.value("timeout"));
//! assert_eq!(timeout.unwrap().value, "\"2s\"");
//! assert_eq!(timeout.unwrap().from.to_string(), "environment variable PHALANX__POLICIES__PAYMENTS__TIMEOUT");
//! # std::fs::remove_dir_all(folder)?;
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "toml"))]
//! # fn main() {}
//! ```
//!
//! # A document
//!
//! ```toml
//! unknown = "error"                  # what a name without a policy means: "error" or "passthrough"
//! max_routes = 10_000                # (policy, route) pairs kept at a time
//!
//! [default]                          # the policy of names that have none of their own; nothing is inherited from it
//! timeout = "2s"
//!
//! [policies.payments]                # the name is the key
//! timeout = "250ms"
//! deadline = "2s"                    # or a table: { total = "2s", safety_margin = "50ms" }
//! retry = { max_attempts = 3, retry_on = ["infrastructure", "throttled"] }
//! rate_limit = { permits = 100, per = "1s", burst = 200 }
//!
//! [policies.payments.breaker]
//! failure_ratio = 0.5
//! break_duration = "30s"
//!
//! [levers."*"]                       # pulled from the beginning, for one policy or for all
//! hedging = false
//! ```
//!
//! Keys are the fields of [`Policy`] and of the specs in it, and of [`LeverSpec`]; durations read like `"250ms"` or
//! `"1m 30s"`. YAML and JSON say the same in their way.
//!
//! # Who wins
//!
//! Code, then variables, then files (a later one over an earlier one), then budgets; then the default policy, then the
//! rule for unknown names. Variables, files and budgets lie over one another value by value. A policy that code gives wins
//! whole. [`ResilienceModule::describe`](crate::ResilienceModule::describe) shows the outcome.
//!
//! # Variables
//!
//! `PHALANX__POLICIES__PAYMENTS__RETRY__MAX_ATTEMPTS=2`: two underscores are a step down, case does not matter, and
//! `PAYMENT_GATEWAY` also finds the policy `payment-gateway`. A list has commas: `infrastructure,throttled`. What begins
//! with `PHALANX__` and leads nowhere is a mistake.
//!
//! # A dependency budget
//!
//! ```text
//! dep,role,max_attempts,per_attempt_timeout_ms,breaker_threshold_p95_ms,notes
//! tax,important,2,200,300,hedge_reads=true
//! ```
//!
//! | column | becomes |
//! |---|---|
//! | `dep` | the policy's name |
//! | `per_attempt_timeout_ms` | `timeout` |
//! | `max_attempts` | above 1: `retry`, on `infrastructure` and `throttled`, waiting 100–200 ms, 200–400 ms, 400–800 ms … at most 2 s |
//! | `breaker_threshold_p95_ms` | a `breaker` that opens when the p95 is over it for 5 s |
//! | `role` | what else opens it, and for how long: `critical` half of the calls failing, 5 s; `important` half, 15 s; `optional` a quarter, 30 s |
//! | `notes` | `hedge_reads=true`: `idempotent`, and a `hedge` after the p95; other notes are for people |
//!
//! # Files of strangers
//!
//! A file is at most 1 MiB, nested at most 16 deep, with at most 10,000 policies. Unknown and duplicate keys are
//! mistakes, with the nearest name that there is; so are numbers outside of what makes sense, and in YAML everything that
//! makes a small file large (anchors, aliases, tags). A message says where and what is expected, and never repeats a
//! value. Nothing of a file with a mistake is applied.

#[cfg(feature = "csv")]
mod budget;
mod de;
mod document;
mod env;
#[cfg(feature = "json")]
mod json;
mod loader;
mod merge;
#[cfg(feature = "reload")]
mod reload;
#[cfg(feature = "schema")]
mod schema;
mod serde_error;
mod suggest;
#[cfg(feature = "toml")]
mod toml;
mod tree;
#[cfg(feature = "yaml")]
mod yaml;

use std::collections::BTreeMap;

use phalanx_core::engine::UnknownPolicy;
use phalanx_core::levers::LeverSpec;
use phalanx_core::policy::Policy;
use phalanx_core::policy::validate::ConfigError;

use self::loader::Format;
pub use self::loader::Loader;
#[cfg(feature = "reload")]
pub use self::reload::ConfigWatcher;
#[cfg(feature = "schema")]
pub use self::schema::schema;
use crate::origin::{Origin, Origins};

/// What a module is told from outside: policies, and where every value of them came from.
#[derive(Clone, Debug)]
pub struct Config {
    policies: Vec<Policy>,
    default: Option<Policy>,
    levers: BTreeMap<String, LeverSpec>,
    unknown: Option<UnknownPolicy>,
    max_routes: Option<u32>,
    origins: Origins,
}

impl Config {
    /// Where to read from: files, a budget, the environment.
    pub fn loader() -> Loader {
        Loader::default()
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
    pub const fn unknown(&self) -> Option<UnknownPolicy> {
        self.unknown
    }

    /// How many (policy, route) pairs are kept at a time, if it says.
    pub fn max_routes(&self) -> Option<usize> {
        self.max_routes.map(|routes| routes as usize)
    }
}
