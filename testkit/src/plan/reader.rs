//! What both formats of a plan share: mistakes with their lines, names, durations.

use std::time::Duration;

use humantime_serde::re::humantime::{format_duration, parse_duration};
use phalanx::config::Config;
use phalanx::internal::files::{Escaped, nearest};
use phalanx::policy::Mistake;

use super::{MAX_EXPECTED, MAX_ID_CHARS, PlanError, Target};

/// Reading stops after this many mistakes.
pub(super) const MAX_MISTAKES: usize = 100;

/// The largest plan.
pub(super) const MAX_BYTES: usize = 1 << 20;

/// The mistakes of one file, by line.
pub(super) struct Mistakes<'a> {
    name: &'a str,
    found: Vec<(u64, Mistake)>,
}

impl<'a> Mistakes<'a> {
    pub(super) const fn of(name: &'a str) -> Self {
        Self { name, found: Vec::new() }
    }

    pub(super) fn note(&mut self, line: u64, path: &str, reason: impl Into<String>) {
        let mistake = Mistake::new(path, reason).located_at(format_args!("{}:{line}", self.name));
        self.found.push((line, mistake));
    }

    /// Notes a mistake about the whole file.
    pub(super) fn note_file(&mut self, reason: &str) {
        self.found.push((0, Mistake::new("", reason).located_at(self.name)));
    }

    pub(super) fn are_too_many(&self) -> bool {
        self.found.len() >= MAX_MISTAKES
    }

    pub(super) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    pub(super) fn count(&self) -> usize {
        self.found.len()
    }

    /// Returns all mistakes as an error, in the order of their lines.
    pub(super) fn into_error(mut self) -> PlanError {
        let truncated = self.are_too_many();
        self.found.sort_by_key(|(line, _)| *line);
        let mut mistakes: Vec<_> = self.found.into_iter().map(|(_, mistake)| mistake).collect();
        if truncated {
            mistakes.truncate(MAX_MISTAKES);
            mistakes.push(Mistake::new("", format!("there may be more mistakes: these are the first {MAX_MISTAKES}")));
        }
        PlanError { mistakes }
    }
}

/// Parses a duration: `250ms`, `1m 30s`.
pub(super) fn duration(text: &str) -> Option<Duration> {
    parse_duration(text.trim()).ok()
}

/// Formats a duration as it is parsed.
pub(super) fn span(duration: Duration) -> String {
    format_duration(duration).to_string()
}

/// Returns what is wrong with the name of a step, which is also a file name.
pub(super) fn id_mistake(id: &str) -> Option<String> {
    let allowed = |it: char| it.is_ascii_alphanumeric() || matches!(it, '-' | '_' | '.');
    let fine = (1..=MAX_ID_CHARS).contains(&id.chars().count()) && id.chars().all(allowed) && !id.starts_with('.');
    (!fine).then(|| format!("must be 1 to {MAX_ID_CHARS} letters, digits, '-', '_' or '.', and not begin with '.'"))
}

/// Returns the mistake of a step with too many expectations.
pub(super) fn too_many_expected() -> String {
    format!("a step has at most {MAX_EXPECTED} expectations")
}

/// Parses a target. A name with a slash may be a policy's own; otherwise the slash separates policy and route.
pub(super) fn target(text: &str, policies: &Config) -> Result<Target, String> {
    let text = text.trim();
    if text == "*" {
        return if policies.policies().is_empty() {
            Err("the policy file has no policies".to_owned())
        } else {
            Ok(Target::All)
        };
    }
    let whole = policies.policies().iter().any(|policy| policy.name == text);
    let (policy, route) = match text.split_once('/') {
        Some((policy, route)) if !whole => (policy, Some(route.to_owned())),
        _ => (text, None),
    };
    match unknown_policy(policy, policies) {
        Some(reason) => Err(reason),
        None => Ok(Target::Policy { policy: policy.to_owned(), route }),
    }
}

/// Returns why no policy has this name, with the nearest one that has; none if one has.
pub(super) fn unknown_policy(name: &str, policies: &Config) -> Option<String> {
    const SHOWN: usize = 10;
    let names = || policies.policies().iter().map(|policy| policy.name.as_str());
    if names().any(|known| known == name) {
        return None;
    }
    let unknown = format!("there is no policy {}", Escaped(name));
    if let Some(meant) = nearest(name, names()) {
        return Some(format!("{unknown}; did you mean {}?", Escaped(meant)));
    }
    let mut known: Vec<String> = names().take(SHOWN).map(|name| Escaped(name).to_string()).collect();
    if policies.policies().len() > SHOWN {
        known.push("…".to_owned());
    }
    Some(format!("{unknown}; there are {}", if known.is_empty() { "none".to_owned() } else { known.join(", ") }))
}
