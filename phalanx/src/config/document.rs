//! What a configuration may say, and everything that is wrong with what it says.

use std::collections::BTreeMap;

use phalanx_core::engine::UnknownPolicy;
use phalanx_core::key::MAX_NAME_BYTES;
use phalanx_core::levers::LeverSpec;
use phalanx_core::policy::Policy;
use phalanx_core::policy::validate::{ConfigError, Mistake};

use super::Config;
use super::de::Mistakes;
use super::tree::{Node, Step, Table, Value};
use crate::origin::{Origin, Origins};

/// More than any service has, and few enough to be held and compared. Of levers there are no more than of policies.
pub(crate) const MAX_POLICIES: usize = 10_000;

/// Each is kept in memory; a program may ask for more, a file may not.
pub(crate) const MAX_ROUTES: u32 = 1_000_000;

/// The top level.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Document {
    default: Option<Policy>,
    policies: BTreeMap<String, Policy>,
    levers: BTreeMap<String, LeverSpec>,
    unknown: Option<UnknownPolicy>,
    max_routes: Option<u32>,
}

/// One source over those before it. A deadline may be its total alone; both forms become the long one, so that the two
/// can be laid over one another.
pub(crate) fn lay_over(lower: &mut Node, mut upper: Node) {
    for (_, policy) in policies_of(&mut upper) {
        if let Some(deadline) = policy.get_mut("deadline").filter(|deadline| deadline.as_table().is_none()) {
            let at = deadline.at.clone();
            let total = std::mem::replace(deadline, Node::new(Value::Nothing, at));
            deadline.value = Value::Table(Table::from([("total".to_owned(), total)]));
        }
    }
    lower.overlay(upper);
}

/// Reads what all sources say together. `before` are the mistakes of those that could not be read at all.
pub(crate) fn read(mut tree: Node, before: Vec<Mistake>) -> Result<Config, ConfigError> {
    let mut mistakes = Mistakes::after(before);
    tidy(&mut tree, &mut mistakes);
    let whole = tree.clone();
    // What cannot be read in spite of everything is nothing; the reason is among the mistakes.
    let Document { default, policies, levers, unknown, max_routes } = mistakes.read(&mut tree).unwrap_or_default();
    let policies: Vec<_> = policies.into_iter().map(|(name, policy)| Policy { name, ..policy }).collect();
    let default = default.map(|policy| Policy { name: "default".to_owned(), ..policy });
    if let Some(policy) = &default {
        judge(policy.mistakes(), &policy_path(policy), &whole, vec![Step::key("default")], &mut mistakes);
    }
    for policy in &policies {
        let way = vec![Step::key("policies"), Step::key(&policy.name)];
        judge(policy.mistakes(), &policy_path(policy), &whole, way, &mut mistakes);
    }
    for (name, lever) in &levers {
        let way = vec![Step::key("levers"), Step::key(name)];
        judge(lever.mistakes(name), &format!("levers.{}", name.escape_debug()), &whole, way, &mut mistakes);
    }
    if max_routes.is_some_and(|routes| !(1..=MAX_ROUTES).contains(&routes)) {
        let reason = format!("must be between 1 and {MAX_ROUTES}");
        mistakes.note(&whole, vec![Step::key("max_routes")], &reason);
    }
    mistakes.into_result()?;
    Ok(Config { policies, default, levers, unknown, max_routes, origins: origins_of(&whole) })
}

/// What is easier seen in the tree than in what is read from it.
fn tidy(tree: &mut Node, mistakes: &mut Mistakes) {
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
    for (mut way, policy) in policies_of(tree) {
        if let Some(name) = policy.remove("name") {
            way.push(Step::key("name"));
            mistakes.note_at(name.at, way, "there is no such key: a policy's name is the key it stands under");
        }
    }
}

/// Every policy of a tree that is a table at all, with the way to it.
fn policies_of(tree: &mut Node) -> Vec<(Vec<Step>, &mut Table)> {
    let mut found = Vec::new();
    for (key, node) in tree.as_table_mut().into_iter().flatten() {
        let way = vec![Step::key(key)];
        match (key.as_str(), node.as_table_mut()) {
            ("default", Some(policy)) => found.push((way, policy)),
            ("policies", Some(named)) => found.extend(named.iter_mut().filter_map(|(name, node)| {
                let way = vec![Step::key(key), Step::key(name)];
                Some((way, node.as_table_mut()?))
            })),
            _ => {}
        }
    }
    found
}

fn policy_path(policy: &Policy) -> String {
    format!("policies.{}", policy.name.escape_debug())
}

/// What is wrong with something that could be read: the place is looked up. `own_path` is what all paths begin with.
fn judge(wrong: Vec<Mistake>, own_path: &str, tree: &Node, way: Vec<Step>, mistakes: &mut Mistakes) {
    for mistake in wrong {
        if mistakes.are_too_many() {
            return;
        }
        // Below it there are only our own names, and none has a dot.
        let rest = mistake.path.strip_prefix(own_path).unwrap_or_default();
        let rest = rest.split('.').filter(|field| !field.is_empty()).map(Step::key);
        let way: Vec<_> = way.iter().cloned().chain(rest).collect();
        if !mistakes.excuse(&way) {
            mistakes.note(tree, way, &mistake.reason);
        }
    }
}

fn origins_of(tree: &Node) -> Origins {
    let top = |key: &str| tree.get(&Step::key(key));
    let named = |key: &str| {
        let table = top(key).and_then(Node::as_table).into_iter().flatten();
        table.map(|(name, node)| (name.clone(), node.given())).collect()
    };
    Origins {
        given: named("policies"),
        levers: named("levers"),
        default: top("default").map(Node::given),
        unknown: top("unknown").map(|node| node.at.clone()),
        max_routes: top("max_routes").map(|node| node.at.clone()),
        ..Origins::default()
    }
}
