//! JSON files. The parser reports the line of a syntax error but not of a value, so the position of a value is its path.

use std::fmt;
use std::sync::Arc;

use phalanx_core::policy::validate::Mistake;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::tree::{Escaped, MAX_DEPTH, Node, Table, Value, unreadable};
use crate::origin::Origin;

/// Parses a document.
pub(crate) fn parse(name: &Arc<str>, text: &str) -> Result<Node, Vec<Mistake>> {
    let mut parser = serde_json::Deserializer::from_str(text);
    let at = Origin::File { name: name.clone(), line: None };
    let tree = Tree { at, depth: 1 }.deserialize(&mut parser).and_then(|tree| parser.end().map(|()| tree));
    tree.map_err(|error| {
        let reason = error.to_string();
        let reason = reason.rsplit_once(" at line ").map_or(reason.as_str(), |(reason, _)| reason);
        let line = Some(error.line()).filter(|line| *line > 0);
        vec![unreadable(&Origin::File { name: name.clone(), line }, reason)]
    })
}

/// Visits one node.
#[derive(Clone)]
struct Tree {
    at: Origin,
    depth: usize,
}

impl Tree {
    fn node<E>(self, value: Value) -> Result<Node, E> {
        Ok(Node::new(value, self.at))
    }

    fn deeper<E: Error>(&self) -> Result<Self, E> {
        if self.depth > MAX_DEPTH {
            return Err(E::custom("is nested too deeply"));
        }
        Ok(Self { at: self.at.clone(), depth: self.depth + 1 })
    }
}

impl<'de> DeserializeSeed<'de> for Tree {
    type Value = Node;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Tree {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, bool: bool) -> Result<Node, E> {
        self.node(Value::Bool(bool))
    }

    fn visit_i64<E>(self, integer: i64) -> Result<Node, E> {
        self.node(Value::Integer(integer.into()))
    }

    fn visit_u64<E>(self, integer: u64) -> Result<Node, E> {
        self.node(Value::Integer(integer.into()))
    }

    fn visit_f64<E>(self, float: f64) -> Result<Node, E> {
        self.node(Value::Float(float))
    }

    fn visit_str<E>(self, text: &str) -> Result<Node, E> {
        self.node(Value::Text(text.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        self.node(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
        let (deeper, mut list) = (self.deeper()?, Vec::new());
        while let Some(node) = items.next_element_seed(deeper.clone())? {
            list.push(node);
        }
        self.node(Value::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Node, A::Error> {
        let (deeper, mut table) = (self.deeper()?, Table::new());
        while let Some(key) = entries.next_key::<String>()? {
            if table.contains_key(&key) {
                return Err(A::Error::custom(format_args!("the key {} is given twice", Escaped(&key))));
            }
            table.insert(key, entries.next_value_seed(deeper.clone())?);
        }
        self.node(Value::Table(table))
    }
}
