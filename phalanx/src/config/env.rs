//! Environment variables: `PHALANX__POLICIES__PAYMENTS__RETRY__MAX_ATTEMPTS=2`.
//!
//! Two underscores separate the keys. Case does not matter, and in the name of a policy or a lever an underscore stands for
//! every character that a variable cannot contain: `PAYMENT_GATEWAY` also matches `payment-gateway`. The lever of every
//! policy, `*`, is `PHALANX__LEVERS__ALL__…`, unless a source has a policy or a lever named `all`. Lists are separated by
//! commas. A variable that begins with `PHALANX__` and matches no key is a mistake.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;

use phalanx_core::levers::EVERY_POLICY;
use phalanx_core::policy::validate::Mistake;

use super::tree::{Escaped, MAX_DEPTH, Node, Step, Table, Value, unreadable};
use crate::origin::Origin;

const PREFIX: &str = "PHALANX__";

/// The spelling of [`EVERY_POLICY`] in a variable, which cannot contain `*`.
const ALL: &str = "all";

/// Parses the variables with our prefix into a tree. Names are resolved against the tree `below` of files and budgets.
pub(crate) fn read(variables: Vec<(OsString, OsString)>, below: &Node, mistakes: &mut Vec<Mistake>) -> Node {
    let ours = |(name, value): (OsString, OsString)| {
        let name = name.into_string().ok().filter(|name| name.starts_with(PREFIX))?;
        Some((name, value))
    };
    // Sorted, so that mistakes have a stable order, and the shorter of two nested names comes first.
    let variables: BTreeMap<String, OsString> = variables.into_iter().filter_map(ours).collect();
    let configures_all = |name: &String| name.to_lowercase().starts_with("phalanx__policies__all__");
    let all = if variables.keys().any(configures_all) { ALL } else { EVERY_POLICY };
    let mut tree = Node::table(Origin::BuiltIn);
    for (name, value) in variables {
        let at = Origin::Variable(Escaped(&name).to_string().into());
        let inserted = match value.into_string() {
            Ok(value) => keys_of(&name, below, all).and_then(|keys| insert(&mut tree, &keys, value, &at)),
            Err(_) => Err("is not UTF-8".to_owned()),
        };
        if let Err(reason) = inserted {
            mistakes.push(unreadable(&at, reason));
        }
    }
    tree
}

/// Returns the keys that a variable names. `all` is the meaning of the lever `all` if no source has that name.
fn keys_of(variable: &str, below: &Node, all: &str) -> Result<Vec<String>, String> {
    let mut keys: Vec<_> = variable[PREFIX.len()..].split("__").map(str::to_lowercase).collect();
    if keys.iter().any(String::is_empty) {
        return Err("two underscores separate keys, and a key is empty here".to_owned());
    }
    if keys.len() > MAX_DEPTH {
        return Err("is nested too deeply".to_owned());
    }
    // Tables whose keys are names of policies; all other keys are field names.
    let tables: &[_] = match keys.first().map(String::as_str) {
        Some("policies") => &["policies"],
        // A lever has the name of its policy, whether or not a lever is configured yet.
        Some("levers") => &["policies", "levers"],
        _ => &[],
    };
    if let ([_, name, ..], [_, ..]) = (keys.as_mut_slice(), tables) {
        let known = tables.iter().filter_map(|table| below.get(&Step::key(table))?.as_table()).flatten();
        let meant: BTreeSet<_> = known.map(|(known, _)| known).filter(|known| folded(known) == *name).collect();
        let mut meant = meant.into_iter();
        match (meant.next(), meant.next()) {
            (Some(one), Some(other)) => {
                return Err(format!("could mean {} or {}", Escaped(one), Escaped(other)));
            }
            (Some(one), None) => name.clone_from(one),
            (None, _) if tables.contains(&"levers") && name == ALL => all.clone_into(name),
            (None, _) => {}
        }
    }
    // The short form of a deadline is its total, so that the other fields can be set too.
    if keys.last().is_some_and(|last| last == "deadline") {
        keys.push("total".to_owned());
    }
    Ok(keys)
}

/// Folds a policy's name to the characters that a variable can contain.
fn folded(name: &str) -> String {
    let fold = |letter: char| if letter.is_alphanumeric() { letter } else { '_' };
    name.chars().map(fold).collect::<String>().to_lowercase()
}

fn insert(tree: &mut Node, keys: &[String], value: String, at: &Origin) -> Result<(), String> {
    let [inner @ .., last] = keys else { return Err("names no key".to_owned()) };
    let mut node = tree;
    for key in inner {
        node = table_of(node)?.entry(key.clone()).or_insert_with(|| Node::table(at.clone()));
    }
    match table_of(node)?.entry(last.clone()) {
        Entry::Occupied(other) => Err(contradiction(&other.get().at)),
        Entry::Vacant(entry) => {
            entry.insert(Node::new(Value::Loose(value), at.clone()));
            Ok(())
        }
    }
}

fn table_of(node: &mut Node) -> Result<&mut Table, String> {
    let Node { value, at } = node;
    if let Value::Table(table) = value { Ok(table) } else { Err(contradiction(at)) }
}

fn contradiction(other: &Origin) -> String {
    format!("contradicts {other}")
}
