//! TOML files. The parser rejects duplicate keys and continues after a syntax error.
//!
//! It also limits nesting, but counts brackets and the dots of one key separately: eighty of each make a tree so deep that
//! dropping it overflows the stack. So depth is checked on the tokens, before a tree is built.

use std::ops::Range;
use std::sync::Arc;

use ::toml::Spanned;
use ::toml::de::{DeTable, DeValue};
use phalanx_core::policy::validate::Mistake;
use toml_parser::Source;
use toml_parser::lexer::TokenKind;

use super::de::MAX_MISTAKES;
use super::tree::{MAX_DEPTH, Node, Table, Value, unreadable};
use crate::origin::Origin;

/// Parses a document.
pub(crate) fn parse(name: &Arc<str>, text: &str) -> Result<Node, Vec<Mistake>> {
    let lines = Lines::of(name, text);
    if let Some(offset) = too_deep(text) {
        return Err(vec![unreadable(&lines.at(offset..offset), TOO_DEEP)]);
    }
    let (document, errors) = DeTable::parse_recoverable(text);
    let mut mistakes: Vec<Mistake> = Vec::new();
    for error in errors {
        if mistakes.len() >= MAX_MISTAKES {
            break;
        }
        let at = lines.at(error.span().unwrap_or(0..0));
        // Further errors on the same line follow from the first one.
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

const TOO_DEEP: &str = "is nested too deeply";

/// Returns the offset where more than `MAX_DEPTH` brackets are open, or a key has more than `MAX_DEPTH` dots. A bracket
/// is closed only by its own kind, so a malformed text counts as deeper than it is, never as less deep.
pub fn too_deep(text: &str) -> Option<usize> {
    use TokenKind::{
        Atom, BasicString, Dot, LeftCurlyBracket, LeftSquareBracket, LiteralString, MlBasicString, MlLiteralString,
        RightCurlyBracket, RightSquareBracket, Whitespace,
    };
    let (mut open, mut dots) = (Vec::new(), 0);
    for token in Source::new(text).lex() {
        match token.kind() {
            Dot => dots += 1,
            // The tokens of a key, malformed keys included. Any other token ends the key.
            Atom | BasicString | LiteralString | MlBasicString | MlLiteralString | Whitespace => {}
            other => {
                dots = 0;
                match other {
                    LeftSquareBracket => open.push(RightSquareBracket),
                    LeftCurlyBracket => open.push(RightCurlyBracket),
                    _ if open.last() == Some(&other) => drop(open.pop()),
                    _ => {}
                }
            }
        }
        if open.len() > MAX_DEPTH || dots > MAX_DEPTH {
            return Some(token.span().start());
        }
    }
    None
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
            return Err(unreadable(&at, TOO_DEEP));
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
            Err(_) => return Err(unreadable(&at, "is not a number")),
        },
        DeValue::Datetime(_) => return Err(unreadable(&at, "dates and times are not supported")),
    };
    Ok(Node::new(value, at))
}

/// The offsets at which the lines of a text begin.
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
