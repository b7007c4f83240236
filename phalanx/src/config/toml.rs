//! Files in TOML. The parser refuses duplicate keys and nesting without end by itself, and goes on after a mistake.

use std::ops::Range;
use std::sync::Arc;

use ::toml::Spanned;
use ::toml::de::{DeTable, DeValue};
use phalanx_core::policy::validate::Mistake;

use super::read::MAX_MISTAKES;
use super::tree::{MAX_DEPTH, Node, Table, Value, unreadable};
use crate::origin::Origin;

/// Reads a document.
pub(crate) fn parse(name: &Arc<str>, text: &str) -> Result<Node, Vec<Mistake>> {
    let lines = Lines::of(name, text);
    let (document, errors) = DeTable::parse_recoverable(text);
    let mut mistakes: Vec<Mistake> = Vec::new();
    for error in errors {
        if mistakes.len() >= MAX_MISTAKES {
            break;
        }
        let at = lines.at(error.span().unwrap_or(0..0));
        // Of what one line makes a parser say, the first is the cause.
        if mistakes.last().is_none_or(|last| last.at.as_deref() != Some(at.to_string().as_str())) {
            mistakes.push(unreadable(&at, error.message()));
        }
    }
    if !mistakes.is_empty() {
        return Err(mistakes);
    }
    let at = lines.at(0..0);
    table(&lines, document.into_inner(), 1)
        .map(|table| Node::new(Value::Table(table), at))
        .map_err(|mistake| vec![mistake])
}

fn table(lines: &Lines, table: DeTable<'_>, depth: usize) -> Result<Table, Mistake> {
    let entry = |(key, value): (Spanned<_>, _)| {
        let at = lines.at(key.span());
        Ok((String::from(key.into_inner()), Node { at, ..node(lines, value, depth)? }))
    };
    table.into_iter().map(entry).collect()
}

fn node(lines: &Lines, value: Spanned<DeValue<'_>>, depth: usize) -> Result<Node, Mistake> {
    let at = lines.at(value.span());
    let value = match value.into_inner() {
        DeValue::Table(_) | DeValue::Array(_) if depth >= MAX_DEPTH => {
            return Err(unreadable(&at, "is nested too deeply"));
        }
        DeValue::Table(inner) => Value::Table(table(lines, inner, depth + 1)?),
        DeValue::Array(list) => {
            Value::List(list.into_iter().map(|item| node(lines, item, depth + 1)).collect::<Result<_, _>>()?)
        }
        DeValue::String(text) => Value::Text(text.into_owned()),
        DeValue::Boolean(bool) => Value::Bool(bool),
        DeValue::Integer(integer) => match i128::from_str_radix(integer.as_str(), integer.radix()) {
            Ok(integer) => Value::Integer(integer),
            Err(_) => return Err(unreadable(&at, "is a number too large to read")),
        },
        DeValue::Float(float) => match float.as_str().parse() {
            Ok(float) => Value::Float(float),
            Err(_) => return Err(unreadable(&at, "is no number")),
        },
        DeValue::Datetime(_) => return Err(unreadable(&at, "no value here is a date or a time of day")),
    };
    Ok(Node::new(value, at))
}

/// Where the lines of a text begin.
struct Lines {
    name: Arc<str>,
    starts: Vec<usize>,
}

impl Lines {
    fn of(name: &Arc<str>, text: &str) -> Self {
        let starts = std::iter::once(0).chain(text.match_indices('\n').map(|(newline, _)| newline + 1)).collect();
        Self { name: name.clone(), starts }
    }

    fn at(&self, span: Range<usize>) -> Origin {
        let line = self.starts.partition_point(|start| *start <= span.start);
        Origin::File { name: self.name.clone(), line: Some(line.max(1)) }
    }
}
