//! What every format is read into: values in tables and lists, each with the place it stands at.
//!
//! Trees are laid over one another value by value, so a file can change one number of another, and a variable one of
//! both. Everything that could grow without bound has a bound here.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use phalanx_core::policy::validate::Mistake;

use crate::origin::{Given, Origin};

/// Tables and lists inside one another. A policy needs five.
pub(crate) const MAX_DEPTH: usize = 16;

/// A value and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node {
    pub(crate) value: Value,
    pub(crate) at: Origin,
}

#[derive(Clone, Debug, PartialEq)]
#[allow(dead_code)] // without any format there is only loose text
pub(crate) enum Value {
    Table(Table),
    List(Vec<Node>),
    Text(String),
    /// Text of a place that knows nothing else, such as a variable: it is whatever is asked for.
    Loose(String),
    Integer(i128),
    Float(f64),
    Bool(bool),
    /// `null`: a key without a value.
    Nothing,
}

pub(crate) type Table = BTreeMap<String, Node>;

/// The way to a node.
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

    /// What stands at the end of a way, or the nearest thing to it that is there.
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

    /// Takes out what stands at the end of a way; false if there is nothing, or the way has no steps.
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

    /// Lays another tree over this one: tables are joined, everything else is replaced.
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

    /// Every value in it, by its path, with where it came from. A list is one value.
    pub(crate) fn given(&self) -> Given {
        let mut given = Given::new();
        self.list(&mut String::new(), &mut given);
        given
    }

    fn list(&self, path: &mut String, given: &mut Given) {
        let Value::Table(table) = &self.value else {
            given.insert(path.clone(), self.at.clone());
            return;
        };
        for (key, node) in table {
            let outer = path.len();
            if outer > 0 {
                path.push('.');
            }
            path.push_str(key);
            node.list(path, given);
            path.truncate(outer);
        }
    }
}

/// A way as people write it, as far as it has names; they are the file's, so they are escaped, and cut where they are too
/// long to be names.
pub(crate) fn path_of<'a>(steps: impl IntoIterator<Item = &'a Step>) -> String {
    let mut path = String::new();
    for step in steps {
        if let Step::Key(key) = step {
            let dot = if path.is_empty() { "" } else { "." };
            let _ = write!(path, "{dot}{}", FastAnswer(key));
        }
    }
    path
}

/// A name that a stranger chose, fit for a line of a log.
pub(crate) struct FastAnswer<'a>(pub(crate) &'a str);

impl fmt::Display for FastAnswer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const LONGEST: usize = 128;
        // Escaped first, then cut: what is escaped is longer.
        let mut escaped = self.0.escape_debug();
        escaped.by_ref().take(LONGEST).try_for_each(|letter| f.write_char(letter))?;
        if escaped.next().is_some() { f.write_char('…') } else { Ok(()) }
    }
}

/// Something wrong with a file as a whole, or with a line of it.
pub(crate) fn unreadable(at: &Origin, reason: impl Into<String>) -> Mistake {
    Mistake::new("", reason).located_at(at)
}
