//! YAML files: scalars, lists and tables in a single document.
//!
//! Anchors, aliases and tags are rejected: configurations do not need them, and with them a small file can expand to a large
//! tree. Scalars follow the core schema of YAML 1.2 without octal and hexadecimal numbers: `no` and `0x10` are strings.

use std::sync::Arc;

use phalanx_core::policy::validate::Mistake;
use saphyr_parser::{Event, Parser, ScalarStyle};

use super::tree::{Escaped, MAX_DEPTH, Node, Table, Value, unreadable};
use crate::origin::Origin;

/// Parses a document.
pub(crate) fn parse(name: &Arc<str>, text: &str) -> Result<Node, Vec<Mistake>> {
    let mut tree = Tree::default();
    let at = |line: usize| Origin::File { name: name.clone(), line: Some(line.max(1)) };
    for event in Parser::new_from_str(text) {
        let read = match event {
            Ok((event, span)) => {
                let at = at(span.start.line());
                tree.on_event(event, &at).map_err(|reason| unreadable(&at, reason))
            }
            Err(error) => Err(unreadable(&at(error.marker().line()), error.info())),
        };
        read.map_err(|mistake| vec![mistake])?;
    }
    // An empty file has no events.
    Ok(tree.root.unwrap_or_else(|| Node::table(at(1))))
}

/// The tree so far: the open tables and lists, the innermost last.
#[derive(Default)]
struct Tree {
    open: Vec<Open>,
    root: Option<Node>,
    documents: usize,
}

enum Open {
    /// The table, the key whose value comes next with its position, and the position of the table.
    Table(Table, Option<(String, Origin)>, Origin),
    List(Vec<Node>, Origin),
}

impl Tree {
    fn on_event(&mut self, event: Event<'_>, at: &Origin) -> Result<(), String> {
        match event {
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => Ok(()),
            Event::DocumentStart(_) => {
                self.documents += 1;
                if self.documents > 1 { Err("a second document begins".to_owned()) } else { Ok(()) }
            }
            Event::Alias(_) => Err("aliases are not allowed".to_owned()),
            Event::Scalar(_, _, anchor, tag) if anchor > 0 || tag.is_some() => rejected(anchor),
            Event::SequenceStart(anchor, tag) | Event::MappingStart(anchor, tag) if anchor > 0 || tag.is_some() => {
                rejected(anchor)
            }
            Event::Scalar(text, style, ..) => self.scalar(&text, style, at),
            Event::SequenceStart(..) => self.open(Open::List(Vec::new(), at.clone())),
            Event::MappingStart(..) => self.open(Open::Table(Table::new(), None, at.clone())),
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(Open::Table(table, _, at)) => self.put(Node::new(Value::Table(table), at)),
                Some(Open::List(list, at)) => self.put(Node::new(Value::List(list), at)),
                None => Err("ends a list or table that was not begun".to_owned()),
            },
        }
    }

    fn open(&mut self, open: Open) -> Result<(), String> {
        if let Some(Open::Table(_, None, _)) = self.open.last() {
            return Err("a key must be a scalar".to_owned());
        }
        if self.open.len() >= MAX_DEPTH {
            return Err("is nested too deeply".to_owned());
        }
        self.open.push(open);
        Ok(())
    }

    fn scalar(&mut self, text: &str, style: ScalarStyle, at: &Origin) -> Result<(), String> {
        if let Some(Open::Table(table, key @ None, _)) = self.open.last_mut() {
            if table.contains_key(text) {
                return Err(format!("the key {} is given twice", Escaped(text)));
            }
            *key = Some((text.to_owned(), at.clone()));
            return Ok(());
        }
        let value = if style == ScalarStyle::Plain { plain(text) } else { Value::Text(text.to_owned()) };
        self.put(Node::new(value, at.clone()))
    }

    /// Adds a finished node to the innermost open table or list. In a table its position is that of its key.
    fn put(&mut self, node: Node) -> Result<(), String> {
        match self.open.last_mut() {
            None => self.root = Some(node),
            Some(Open::List(list, _)) => list.push(node),
            Some(Open::Table(table, key, _)) => {
                let Some((key, at)) = key.take() else { return Err("a value has no key".to_owned()) };
                table.insert(key, Node { at, ..node });
            }
        }
        Ok(())
    }
}

fn rejected(anchor: usize) -> Result<(), String> {
    Err(if anchor > 0 { "anchors are not allowed" } else { "tags are not allowed" }.to_owned())
}

/// Resolves a scalar without quotes.
fn plain(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "true" | "True" | "TRUE" => return Value::Bool(true),
        "false" | "False" | "FALSE" => return Value::Bool(false),
        ".nan" | ".NaN" | ".NAN" => return Value::Float(f64::NAN),
        _ => {}
    }
    let unsigned = text.trim_start_matches(['-', '+']);
    if matches!(unsigned, ".inf" | ".Inf" | ".INF") {
        return Value::Float(f64::INFINITY);
    }
    // Rust parses "infinity" as a number, YAML does not.
    if !unsigned.starts_with(|first: char| first.is_ascii_digit() || first == '.') {
        return Value::Text(text.to_owned());
    }
    if let Ok(integer) = text.parse() {
        return Value::Integer(integer);
    }
    text.parse().map_or_else(|_| Value::Text(text.to_owned()), Value::Float)
}
