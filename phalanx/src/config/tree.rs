//! The configuration tree that every format is parsed into: tables, lists and values, each with its origin.
//!
//! Trees are merged value by value, so a later source overrides single values of an earlier one. Depth is bounded.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use phalanx_core::policy::validate::Mistake;

use crate::origin::{Given, Origin};

/// The deepest nesting of tables and lists. A policy needs five levels.
pub(crate) const MAX_DEPTH: usize = 16;

/// A value and its origin.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node {
    pub(crate) value: Value,
    pub(crate) at: Origin,
}

#[derive(Clone, Debug, PartialEq)]
#[allow(dead_code)] // without a format feature there is only loose text
pub(crate) enum Value {
    Table(Table),
    List(Vec<Node>),
    Text(String),
    /// Text from an untyped source, such as a variable. It is parsed as whatever type is expected.
    Loose(String),
    Integer(i128),
    Float(f64),
    Bool(bool),
    /// A key without a value.
    Null,
}

pub(crate) type Table = BTreeMap<String, Node>;

/// One step of the path to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Key(String),
    Index(usize),
}

impl Step {
    pub(crate) fn key(key: &str) -> Self {
        Self::Key(key.to_owned())
    }
}

impl Node {
    pub(crate) const fn new(value: Value, at: Origin) -> Self {
        Self { value, at }
    }

    pub(crate) fn table(at: Origin) -> Self {
        Self::new(Value::Table(Table::new()), at)
    }

    pub(crate) fn as_table(&self) -> Option<&Table> {
        if let Value::Table(table) = &self.value { Some(table) } else { None }
    }

    pub(crate) fn as_table_mut(&mut self) -> Option<&mut Table> {
        if let Value::Table(table) = &mut self.value { Some(table) } else { None }
    }

    pub(crate) fn get(&self, step: &Step) -> Option<&Self> {
        match (&self.value, step) {
            (Value::Table(table), Step::Key(key)) => table.get(key),
            (Value::List(list), Step::Index(index)) => list.get(*index),
            _ => None,
        }
    }

    /// Returns the node at the end of the steps, or the last one on the path that exists.
    pub(crate) fn nearest<'a>(&'a self, steps: impl IntoIterator<Item = &'a Step>) -> &'a Self {
        let mut node = self;
        for step in steps {
            match node.get(step) {
                Some(inner) => node = inner,
                None => break,
            }
        }
        node
    }

    /// Removes the node at the end of the steps. Returns false if there is none, or there are no steps.
    pub(crate) fn remove(&mut self, steps: &[Step]) -> bool {
        match (&mut self.value, steps) {
            (Value::Table(table), [Step::Key(key)]) => table.remove(key).is_some(),
            (Value::List(list), [Step::Index(index)]) if *index < list.len() => {
                list.remove(*index);
                true
            }
            (Value::Table(table), [Step::Key(key), rest @ ..]) => table.get_mut(key).is_some_and(|it| it.remove(rest)),
            (Value::List(list), [Step::Index(index), rest @ ..]) => {
                list.get_mut(*index).is_some_and(|it| it.remove(rest))
            }
            _ => false,
        }
    }

    /// Merges another tree over this one: tables are joined, everything else is replaced.
    pub(crate) fn overlay(&mut self, upper: Self) {
        match (&mut self.value, upper.value) {
            (Value::Table(lower), Value::Table(upper)) => {
                for (key, node) in upper {
                    match lower.get_mut(&key) {
                        Some(below) => below.overlay(node),
                        None => drop(lower.insert(key, node)),
                    }
                }
            }
            (_, value) => *self = Self::new(value, upper.at),
        }
    }

    /// Returns the origin of every value, by its path. A list is one value.
    pub(crate) fn origins(&self) -> Given {
        let mut origins = Given::new();
        self.collect_origins(&mut String::new(), &mut origins);
        origins
    }

    fn collect_origins(&self, path: &mut String, origins: &mut Given) {
        let Value::Table(table) = &self.value else {
            origins.insert(path.clone(), self.at.clone());
            return;
        };
        for (key, node) in table {
            let outer = path.len();
            if outer > 0 {
                path.push('.');
            }
            path.push_str(key);
            node.collect_origins(path, origins);
            path.truncate(outer);
        }
    }
}

/// Formats steps as a dotted path, without indices. Keys come from files, so they are escaped and shortened.
pub(crate) fn path_of<'a>(steps: impl IntoIterator<Item = &'a Step>) -> String {
    let mut path = String::new();
    for step in steps {
        if let Step::Key(key) = step {
            let dot = if path.is_empty() { "" } else { "." };
            let _ = write!(path, "{dot}{}", Escaped(key));
        }
    }
    path
}

/// Displays an untrusted name so that it is safe in a log line: escaped and shortened.
pub struct Escaped<'a>(pub &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MAX_CHARS: usize = 128;
        // Escaped first, then shortened: escaping makes it longer.
        let mut escaped = self.0.escape_debug();
        escaped.by_ref().take(MAX_CHARS).try_for_each(|letter| f.write_char(letter))?;
        if escaped.next().is_some() { f.write_char('…') } else { Ok(()) }
    }
}

/// A mistake about a whole source, or one line of it.
pub(crate) fn unreadable(at: &Origin, reason: impl Into<String>) -> Mistake {
    Mistake::new("", reason).located_at(at)
}
