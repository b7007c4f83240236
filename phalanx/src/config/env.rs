//! Variables of the environment: `PHALANX__POLICIES__PAYMENTS__RETRY__MAX_ATTEMPTS=2`.
//!
//! Two underscores are a step down. Case does not matter, and in a policy's name every character that a variable cannot
//! have is an underscore: `PAYMENT_GATEWAY` is also `payment-gateway`, and so is the lever of it. The lever of every
//! policy, `*`, is `PHALANX__LEVERS__ALL__…`, unless a file or a variable has a policy or a lever called `all`. A list is
//! its words with commas between them. Everything that begins with `PHALANX__` is meant for us, so a name that leads nowhere is a mistake.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;

use phalanx_core::levers::EVERY_POLICY;
use phalanx_core::policy::validate::Mistake;

use super::tree::{Escaped, MAX_DEPTH, Node, Step, Table, Value, unreadable};
use crate::origin::Origin;

const PREFIX: &str = "PHALANX__";

/// What stands for [`EVERY_POLICY`], which no variable can be called.
const ALL: &str = "all";

/// The tree of all variables that are ours, with the names that the tree below it has.
pub(crate) fn read(variables: Vec<(OsString, OsString)>, below: &Node, mistakes: &mut Vec<Mistake>) -> Node {
    let ours = |(name, value): (OsString, OsString)| {
        let name = name.into_string().ok().filter(|name| name.starts_with(PREFIX))?;
        Some((name, value))
    };
    // Sorted, so that mistakes come in an order, and the shorter of two ways first.
    let variables: BTreeMap<String, OsString> = variables.into_iter().filter_map(ours).collect();
    let begins_so = |name: &String| name.to_lowercase().starts_with("phalanx__policies__all__");
    let all = if variables.keys().any(begins_so) { ALL } else { EVERY_POLICY };
    let mut tree = Node::table(Origin::BuiltIn);
    for (name, value) in variables {
        let at = Origin::Variable(Escaped(&name).to_string().into());
        let placed = match value.into_string() {
            Ok(value) => way_of(&name, below, all).and_then(|way| place(&mut tree, &way, value, &at)),
            Err(_) => Err("is not UTF-8".to_owned()),
        };
        if let Err(reason) = placed {
            mistakes.push(unreadable(&at, reason));
        }
    }
    tree
}

/// The way to what a variable means. `all` is what the lever of that name is, if nothing below has it.
fn way_of(variable: &str, below: &Node, all: &str) -> Result<Vec<String>, String> {
    let mut way: Vec<_> = variable[PREFIX.len()..].split("__").map(str::to_lowercase).collect();
    if way.iter().any(String::is_empty) {
        return Err("two underscores are a step down, and a step has no name here".to_owned());
    }
    if way.len() > MAX_DEPTH {
        return Err("is nested too deeply".to_owned());
    }
    // What people name themselves; everything else has names of ours.
    let tables: &[_] = match way.first().map(String::as_str) {
        Some("policies") => &["policies"],
        // A lever has the name of its policy, which need not have one yet.
        Some("levers") => &["policies", "levers"],
        _ => &[],
    };
    if let ([_, name, ..], [_, ..]) = (way.as_mut_slice(), tables) {
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
    // So that a total and the other fields can both be given.
    if way.last().is_some_and(|last| last == "deadline") {
        way.push("total".to_owned());
    }
    Ok(way)
}

/// A policy's name as a variable can have it.
fn folded(name: &str) -> String {
    let fold = |letter: char| if letter.is_alphanumeric() { letter } else { '_' };
    name.chars().map(fold).collect::<String>().to_lowercase()
}

fn place(tree: &mut Node, way: &[String], value: String, at: &Origin) -> Result<(), String> {
    let [inner @ .., last] = way else { return Err("names nothing".to_owned()) };
    let mut node = tree;
    for key in inner {
        node = table_of(node)?.entry(key.clone()).or_insert_with(|| Node::table(at.clone()));
    }
    match table_of(node)?.entry(last.clone()) {
        Entry::Occupied(twin) => Err(contradiction(&twin.get().at)),
        Entry::Vacant(place) => {
            place.insert(Node::new(Value::Loose(value), at.clone()));
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
