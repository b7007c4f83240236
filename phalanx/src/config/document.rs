//! The document: the top level of a configuration, and its validation as a whole.

use std::collections::BTreeMap;

use phalanx_core::engine::UnknownPolicy;
use phalanx_core::key::MAX_NAME_BYTES;
use phalanx_core::levers::LeverSpec;
use phalanx_core::policy::Policy;
use phalanx_core::policy::validate::{ConfigError, Mistake};

use super::Config;
use super::de::Mistakes;
use super::redis_settings::RedisSettings;
use super::tree::{Node, Step, Table, Value};
use crate::origin::{Origin, Origins};

/// Bounds memory and the cost of comparing configurations. The same bound applies to levers.
pub(crate) const MAX_POLICIES: usize = 10_000;

/// Each route is kept in memory. Code may configure more, a file may not.
pub(crate) const MAX_ROUTES: u32 = 1_000_000;

/// The top level of a document.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Document {
    default: Option<Policy>,
    policies: BTreeMap<String, Policy>,
    levers: BTreeMap<String, LeverSpec>,
    unknown: Option<UnknownPolicy>,
    max_routes: Option<u32>,
    redis: RedisSettings,
}

/// Merges one source over those before it. `deadline = "2s"` is short for a table with `total`; it is expanded first, so
/// that both forms can be merged.
pub(crate) fn overlay(lower: &mut Node, mut upper: Node) {
    for (_, policy) in policies_of(&mut upper) {
        if let Some(deadline) = policy.get_mut("deadline").filter(|deadline| deadline.as_table().is_none()) {
            let at = deadline.at.clone();
            let total = std::mem::replace(deadline, Node::new(Value::Null, at));
            deadline.value = Value::Table(Table::from([("total".to_owned(), total)]));
        }
    }
    lower.overlay(upper);
}

/// Reads the merged sources. `before` are the mistakes of sources that could not be parsed.
pub(crate) fn read(mut tree: Node, before: Vec<Mistake>) -> Result<Config, ConfigError> {
    let mut mistakes = Mistakes::after(before);
    check_names(&mut tree, &mut mistakes);
    let whole = tree.clone();
    // An unreadable document counts as empty; the reason is among the mistakes.
    let Document { default, policies, levers, unknown, max_routes, redis } =
        mistakes.read(&mut tree).unwrap_or_default();
    let policies: Vec<_> = policies.into_iter().map(|(name, policy)| Policy { name, ..policy }).collect();
    let default = default.map(|policy| Policy { name: "default".to_owned(), ..policy });
    if let Some(policy) = &default {
        note_all(policy.mistakes(), &policy_path(policy), &whole, vec![Step::key("default")], &mut mistakes);
    }
    for policy in &policies {
        let steps = vec![Step::key("policies"), Step::key(&policy.name)];
        note_all(policy.mistakes(), &policy_path(policy), &whole, steps, &mut mistakes);
    }
    for (name, lever) in &levers {
        let steps = vec![Step::key("levers"), Step::key(name)];
        note_all(lever.mistakes(name), &format!("levers.{}", name.escape_debug()), &whole, steps, &mut mistakes);
    }
    if max_routes.is_some_and(|routes| !(1..=MAX_ROUTES).contains(&routes)) {
        let reason = format!("must be between 1 and {MAX_ROUTES}");
        mistakes.note(&whole, vec![Step::key("max_routes")], &reason);
    }
    note_all(redis.mistakes(), "redis", &whole, vec![Step::key("redis")], &mut mistakes);
    mistakes.into_result()?;
    Ok(Config { policies, default, levers, unknown, max_routes, redis, origins: origins_of(&whole) })
}

/// Checks and removes what serde would not report well: too many or too long names, and `name` keys in policies.
fn check_names(tree: &mut Node, mistakes: &mut Mistakes) {
    for key in ["policies", "levers"] {
        let named = tree.as_table_mut().and_then(|top| top.get_mut(key)).and_then(Node::as_table_mut);
        let Some(named) = named else { continue };
        if named.len() > MAX_POLICIES {
            let at = named.values().next().map_or(Origin::BuiltIn, |first| first.at.clone());
            named.clear();
            mistakes.note_at(at, vec![Step::key(key)], &format!("must be at most {MAX_POLICIES}"));
        }
        named.retain(|name, node| {
            let short = name.len() <= MAX_NAME_BYTES;
            if !short && !mistakes.are_too_many() {
                let reason = format!("a name must be at most {MAX_NAME_BYTES} bytes long");
                mistakes.note_at(node.at.clone(), vec![Step::key(key), Step::key(name)], &reason);
            }
            short
        });
    }
    for (mut steps, policy) in policies_of(tree) {
        if let Some(name) = policy.remove("name") {
            steps.push(Step::key("name"));
            mistakes.note_at(name.at, steps, "there is no such key: a policy's name is the key of its table");
        }
    }
}

/// Returns every policy of a tree that is a table, with the steps to it.
fn policies_of(tree: &mut Node) -> Vec<(Vec<Step>, &mut Table)> {
    let mut found = Vec::new();
    for (key, node) in tree.as_table_mut().into_iter().flatten() {
        let steps = vec![Step::key(key)];
        match (key.as_str(), node.as_table_mut()) {
            ("default", Some(policy)) => found.push((steps, policy)),
            ("policies", Some(named)) => found.extend(named.iter_mut().filter_map(|(name, node)| {
                let steps = vec![Step::key(key), Step::key(name)];
                Some((steps, node.as_table_mut()?))
            })),
            _ => {}
        }
    }
    found
}

fn policy_path(policy: &Policy) -> String {
    format!("policies.{}", policy.name.escape_debug())
}

/// Notes validation errors at the position of their value in the tree. `own_path` is the common prefix of their paths.
fn note_all(found: Vec<Mistake>, own_path: &str, tree: &Node, steps: Vec<Step>, mistakes: &mut Mistakes) {
    for mistake in found {
        if mistakes.are_too_many() {
            return;
        }
        // Below the policy all keys are field names, which contain no dot.
        let rest = mistake.path.strip_prefix(own_path).unwrap_or_default();
        let rest = rest.split('.').filter(|field| !field.is_empty()).map(Step::key);
        let steps: Vec<_> = steps.iter().cloned().chain(rest).collect();
        if !mistakes.explain(&steps) {
            mistakes.note(tree, steps, &mistake.reason);
        }
    }
}

fn origins_of(tree: &Node) -> Origins {
    let top = |key: &str| tree.get(&Step::key(key));
    let named = |key: &str| {
        let table = top(key).and_then(Node::as_table).into_iter().flatten();
        table.map(|(name, node)| (name.clone(), node.origins())).collect()
    };
    Origins {
        given: named("policies"),
        levers: named("levers"),
        default: top("default").map(Node::origins),
        unknown: top("unknown").map(|node| node.at.clone()),
        max_routes: top("max_routes").map(|node| node.at.clone()),
        redis: top("redis").map(Node::origins).unwrap_or_default(),
        ..Origins::default()
    }
}
