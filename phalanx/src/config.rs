//! Configuration from files and the environment: policies in TOML, YAML or JSON, dependency budgets in CSV, variables.
//!
//! A [`Loader`] reads all sources into a [`Config`]; [`ModuleBuilder::config`](crate::ModuleBuilder::config) merges it
//! under what code configures.
//!
//! # Examples
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
//!     .file(&path) // for example phalanx.toml
//!     .vars([("PHALANX__POLICIES__PAYMENTS__TIMEOUT", "2s")]) // .env() in a service
//!     .load()?; // reports every mistake at once, each with its file and line
//! let module = ResilienceModule::in_memory().config(config).build()?;
//!
//! let described = module.describe(); // the values in force and where they came from
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
//! unknown = "error"                  # how to treat calls that name an unknown policy: "error" or "passthrough"
//! max_routes = 10_000                # (policy, route) pairs kept at a time
//!
//! [redis]                            # for modules over Redis
//! expected_replicas = 20             # the autoscaler's maximum
//! service = "shop"                   # whose replicas share state
//!
//! [default]                          # the policy of names without their own; other policies inherit nothing from it
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
//! [levers."*"]                       # pulled from the start, for one policy or for all
//! hedging = false
//! ```
//!
//! Keys are the fields of [`Policy`] and of the specs in it, and of [`LeverSpec`]; durations are written like `"250ms"` or
//! `"1m 30s"`. YAML and JSON have the same structure.
//!
//! # Precedence
//!
//! Code, then variables, then files (a later one over an earlier one), then budgets; then the default policy, then
//! `unknown`. Variables, files and budgets are merged value by value. A policy configured in code replaces a configured
//! one of the same name as a whole. [`ResilienceModule::describe`](crate::ResilienceModule::describe) shows the result.
//!
//! # Variables
//!
//! `PHALANX__POLICIES__PAYMENTS__RETRY__MAX_ATTEMPTS=2`: two underscores separate the keys, case does not matter, and
//! `PAYMENT_GATEWAY` also matches the policy `payment-gateway`. A list is separated by commas:
//! `infrastructure,throttled`. A variable that begins with `PHALANX__` and matches no key is a mistake.
//!
//! # A dependency budget
//!
//! ```text
//! dep,role,max_attempts,per_attempt_timeout_ms,breaker_threshold_p95_ms,notes
//! tax,important,2,200,300,hedge_reads=true
//! ```
//!
//! | column | sets |
//! |---|---|
//! | `dep` | the policy's name |
//! | `per_attempt_timeout_ms` | `timeout` |
//! | `max_attempts` | above 1: `retry` on `infrastructure` and `throttled`, with waits of 100–200 ms, 200–400 ms, 400–800 ms … at most 2 s |
//! | `breaker_threshold_p95_ms` | a `breaker` that opens when the p95 latency stays above it for 5 s |
//! | `role` | the failure ratio that opens the breaker, and the break: `critical` 0.5, 5 s; `important` 0.5, 15 s; `optional` 0.25, 30 s |
//! | `notes` | `hedge_reads=true`: `idempotent`, and a `hedge` after the p95; other notes are ignored |
//!
//! # Untrusted files
//!
//! A file is at most 1 MiB, nested at most 16 levels deep, with at most 10,000 policies. Unknown keys (with a suggestion),
//! duplicate keys and values out of range are mistakes; so are anchors, aliases and tags in YAML, which make a small file
//! expand to a large tree. A message names the position and what is expected and never repeats a value, which might be a
//! secret. Nothing of a file with a mistake is applied.
//!
//! # A reload
//!
//! With the feature `reload`, `ResilienceModule::watch_config` applies changes while calls are running. From a change of a
//! file to the events that observers receive:
//!
//! ```text
//!   a file, a link or a folder on the path to it is replaced
//!     │
//!   reload/watch.rs      the folders on the path are watched; other file names in them are ignored
//!     │  signal
//!   reload/debounce.rs   waits until there has been no change for 100 ms (at most 1 s)
//!     │
//!   reload.rs            the thread `phalanx-config`; stops here if the content is the same as before
//!     │
//!   loader.rs            reads every source: budgets, files, variables
//!     │                    budget.rs · toml.rs · yaml.rs · json.rs · env.rs   each text into a tree
//!     │                    tree.rs                                            trees merged value by value
//!   document.rs          tree to policies through de.rs; collects mistakes (serde_error.rs, suggest.rs)
//!     │
//!   merge.rs             merges the configuration under what code configured; one change of the engine, all or nothing
//!     │
//!   reload.rs            emits ConfigApplied, or ConfigRejected with the mistakes; the old configuration stays in force
//! ```

#[cfg(feature = "csv")]
mod budget;
mod de;
mod document;
mod env;
#[cfg(feature = "json")]
mod json;
mod loader;
mod merge;
mod redis_settings;
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
use self::redis_settings::RedisSettings;
#[cfg(feature = "reload")]
#[cfg_attr(docsrs, doc(cfg(feature = "reload")))]
pub use self::reload::ConfigWatcher;
#[cfg(feature = "schema")]
#[cfg_attr(docsrs, doc(cfg(feature = "schema")))]
pub use self::schema::schema;
use crate::origin::{Origin, Origins};

/// What readers of other files reuse: the fault plans of `phalanx-testkit`. Not covered by semantic versioning.
#[doc(hidden)]
pub mod files {
    pub use super::loader::text_of;
    pub use super::suggest::nearest;
    #[cfg(feature = "toml")]
    pub use super::toml::too_deep;
    pub use super::tree::Escaped;
}

/// Policies, levers and limits from outside the program, with the origin of every value.
///
/// # Examples
///
/// ```
/// # #[cfg(feature = "toml")]
/// # fn main() -> Result<(), phalanx::ConfigError> {
/// use phalanx::config::Config;
///
/// let config = Config::from_toml("[policies.search]\ntimeout = '250ms'")?;
/// assert_eq!(config.policies()[0].name, "search");
///
/// let error = Config::from_toml("[policies.search]\ntimeuot = '250ms'").unwrap_err();
/// assert!(error.to_string().contains("did you mean timeout?"));
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "toml"))]
/// # fn main() {}
/// ```
#[derive(Clone, Debug)]
pub struct Config {
    policies: Vec<Policy>,
    default: Option<Policy>,
    levers: BTreeMap<String, LeverSpec>,
    unknown: Option<UnknownPolicy>,
    max_routes: Option<u32>,
    redis: RedisSettings,
    origins: Origins,
}

impl Config {
    /// Creates a loader without sources.
    pub fn loader() -> Loader {
        Loader::default()
    }

    /// Parses a TOML document.
    ///
    /// # Errors
    /// Returns every mistake, each with its path and line.
    #[cfg(feature = "toml")]
    #[cfg_attr(docsrs, doc(cfg(feature = "toml")))]
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        Self::from_text(Format::Toml, "toml", text)
    }

    /// Parses a YAML document.
    ///
    /// # Errors
    /// Returns every mistake, each with its path and line.
    #[cfg(feature = "yaml")]
    #[cfg_attr(docsrs, doc(cfg(feature = "yaml")))]
    pub fn from_yaml(text: &str) -> Result<Self, ConfigError> {
        Self::from_text(Format::Yaml, "yaml", text)
    }

    /// Parses a JSON document.
    ///
    /// # Errors
    /// Returns every mistake, each with its path.
    #[cfg(feature = "json")]
    #[cfg_attr(docsrs, doc(cfg(feature = "json")))]
    pub fn from_json(text: &str) -> Result<Self, ConfigError> {
        Self::from_text(Format::Json, "json", text)
    }

    /// Parses a dependency budget in CSV.
    ///
    /// # Errors
    /// Returns every mistake, each with its column and line.
    #[cfg(feature = "csv")]
    #[cfg_attr(docsrs, doc(cfg(feature = "csv")))]
    pub fn from_budget(text: &str) -> Result<Self, ConfigError> {
        Self::from_text(Format::Budget, "csv", text)
    }

    #[allow(dead_code)] // unused without a format feature
    fn from_text(format: Format, name: &str, text: &str) -> Result<Self, ConfigError> {
        let (mut tree, mut mistakes) = (tree::Node::table(Origin::BuiltIn), Vec::new());
        match format.parse(&name.into(), text) {
            Ok(source) => document::overlay(&mut tree, source),
            Err(found) => mistakes = found,
        }
        document::read(tree, mistakes)
    }

    /// Returns the policies, sorted by name.
    pub fn policies(&self) -> &[Policy] {
        &self.policies
    }

    /// Returns the policy of names without their own.
    pub const fn default_policy(&self) -> Option<&Policy> {
        self.default.as_ref()
    }

    /// Returns the levers by policy; `*` applies to every policy.
    pub const fn levers(&self) -> &BTreeMap<String, LeverSpec> {
        &self.levers
    }

    /// Returns how to treat calls that name an unknown policy, if configured.
    pub const fn unknown(&self) -> Option<UnknownPolicy> {
        self.unknown
    }

    /// Returns how many (policy, route) pairs are kept at a time, if configured.
    pub fn max_routes(&self) -> Option<usize> {
        self.max_routes.map(|routes| routes as usize)
    }

    /// Returns the most replicas that the fleet can have, if configured. It takes effect when a module over Redis is built.
    pub const fn expected_replicas(&self) -> Option<u32> {
        self.redis.expected_replicas
    }

    /// Returns the service whose replicas share state, if configured. It takes effect when a module over Redis is built.
    pub fn service(&self) -> Option<&str> {
        self.redis.service.as_deref()
    }
}
