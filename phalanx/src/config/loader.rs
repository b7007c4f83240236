//! The loader: reads configuration sources and merges them in order of precedence.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use phalanx_core::policy::validate::{ConfigError, Mistake};

use super::tree::{Node, Value, unreadable};
use super::{Config, document, env};
use crate::origin::Origin;

/// The largest file that is read. A policy takes a few hundred bytes.
const MAX_BYTES: u64 = 1 << 20;

/// The sources of a configuration. Can be loaded repeatedly, as reloading does.
///
/// Sources are merged value by value: budgets first, then files in the order they were added, then variables.
///
/// # Examples
///
/// ```
/// use phalanx::config::Config;
///
/// let loader = Config::loader().vars([("PHALANX__POLICIES__SEARCH__TIMEOUT", "250ms"), ("HOME", "/root")]);
/// assert_eq!(loader.load()?.policies()[0].name, "search");
///
/// let misspelt = Config::loader().vars([("PHALANX__POLICIES__SEARCH__TIMEUOT", "250ms")]);
/// assert!(misspelt.load().unwrap_err().to_string().contains("did you mean timeout?"));
/// # Ok::<(), phalanx::ConfigError>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "nothing is read before `load`"]
pub struct Loader {
    budgets: Vec<PathBuf>,
    files: Vec<PathBuf>,
    variables: Variables,
}

#[derive(Clone, Debug, Default)]
enum Variables {
    #[default]
    None,
    /// The environment of this process at the time of loading.
    Process,
    Given(Vec<(OsString, OsString)>),
}

/// The format of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Toml,
    Yaml,
    Json,
    #[cfg(feature = "csv")]
    Budget,
}

impl Loader {
    /// Adds a file in TOML, YAML or JSON, chosen by its extension (`.toml`, `.yaml`, `.yml`, `.json`). Values of a later
    /// file override those of an earlier one.
    pub fn file(mut self, path: impl Into<PathBuf>) -> Self {
        self.files.push(path.into());
        self
    }

    /// Adds a dependency budget in CSV. Files and variables override its values.
    #[cfg(feature = "csv")]
    #[cfg_attr(docsrs, doc(cfg(feature = "csv")))]
    pub fn budget(mut self, path: impl Into<PathBuf>) -> Self {
        self.budgets.push(path.into());
        self
    }

    /// Adds the environment of this process (`PHALANX__POLICIES__PAYMENTS__TIMEOUT=2s`), which overrides all files.
    ///
    /// `PHALANX__LEVERS__ALL__RETRIES=false` is the lever of every policy, unless a policy is named `all`.
    pub fn env(mut self) -> Self {
        self.variables = Variables::Process;
        self
    }

    /// Adds these variables instead of the environment.
    pub fn vars<K: Into<OsString>, V: Into<OsString>>(mut self, variables: impl IntoIterator<Item = (K, V)>) -> Self {
        let own = variables.into_iter().map(|(name, value)| (name.into(), value.into()));
        self.variables = Variables::Given(own.collect());
        self
    }

    /// Returns the files that are read, budgets first.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.budgets.iter().chain(&self.files).map(PathBuf::as_path)
    }

    /// Reads and merges all sources.
    ///
    /// # Errors
    /// Returns every mistake of every source, each with its path and position.
    pub fn load(&self) -> Result<Config, ConfigError> {
        let mut sources: Vec<(&Path, Result<Format, String>)> = Vec::new();
        #[cfg(feature = "csv")]
        sources.extend(self.budgets.iter().map(|path| (path.as_path(), Ok(Format::Budget))));
        sources.extend(self.files.iter().map(|path| (path.as_path(), Format::of(path))));
        let mut tree = Node::table(Origin::BuiltIn);
        let mut mistakes = Vec::new();
        for (path, format) in sources {
            let name: Arc<str> = path.display().to_string().into();
            let text = format.and_then(|format| Ok((format, text_of(path)?)));
            let read = match text {
                Ok((format, text)) => format.parse(&name, &text),
                Err(reason) => Err(vec![unreadable(&Origin::File { name, line: None }, reason)]),
            };
            match read {
                Ok(source) => document::overlay(&mut tree, source),
                Err(found) => mistakes.extend(found),
            }
        }
        let variables = match &self.variables {
            Variables::None => Vec::new(),
            Variables::Process => std::env::vars_os().collect(),
            Variables::Given(own) => own.clone(),
        };
        let own = env::read(variables, &tree, &mut mistakes);
        document::overlay(&mut tree, own);
        document::read(tree, mistakes)
    }
}

impl Format {
    fn of(path: &Path) -> Result<Self, String> {
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        match extension.to_ascii_lowercase().as_str() {
            "toml" => Ok(Self::Toml),
            "yaml" | "yml" => Ok(Self::Yaml),
            "json" => Ok(Self::Json),
            _ => Err("must end in .toml, .yaml, .yml or .json".to_owned()),
        }
    }

    /// Parses a text; `name` is its name in mistakes.
    pub(crate) fn parse(self, name: &Arc<str>, text: &str) -> Result<Node, Vec<Mistake>> {
        let whole = Origin::File { name: name.clone(), line: None };
        if text.len() as u64 > MAX_BYTES {
            return Err(vec![unreadable(&whole, TOO_LARGE)]);
        }
        // Some editors write a byte order mark.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let tree = self.tree(name, text)?;
        match &tree.value {
            // A file that is being written is empty for a moment, and must not remove all policies.
            Value::Table(table) if table.is_empty() => Err(vec![unreadable(&whole, "is empty")]),
            Value::Table(_) => Ok(tree),
            _ => Err(vec![unreadable(&tree.at, "must be a table")]),
        }
    }
}

impl Format {
    fn tree(self, name: &Arc<str>, text: &str) -> Result<Node, Vec<Mistake>> {
        match self {
            #[cfg(feature = "toml")]
            Self::Toml => super::toml::parse(name, text),
            #[cfg(feature = "yaml")]
            Self::Yaml => super::yaml::parse(name, text),
            #[cfg(feature = "json")]
            Self::Json => super::json::parse(name, text),
            #[cfg(feature = "csv")]
            Self::Budget => super::budget::parse(name, text),
            #[allow(unreachable_patterns)] // with all format features
            other => {
                let _ = text;
                let reason = format!("needs the feature `{}` of phalanx", format!("{other:?}").to_lowercase());
                Err(vec![unreadable(&Origin::File { name: name.clone(), line: None }, reason)])
            }
        }
    }
}

const TOO_LARGE: &str = "is larger than 1 MiB";

/// Reads a file of bounded size. Pipes and devices are rejected, because reading them might block for ever.
///
/// # Errors
/// Returns why the file cannot be read.
pub fn text_of(path: &Path) -> Result<String, String> {
    let unreadable = |error: std::io::Error| format!("cannot be read: {error}");
    if !fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err("is not a file".to_owned());
    }
    let mut bytes = Vec::new();
    File::open(path).map_err(unreadable)?.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(TOO_LARGE.to_owned());
    }
    String::from_utf8(bytes).map_err(|_| "is not UTF-8".to_owned())
}
