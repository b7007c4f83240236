//! Files in TOML. The parser rejects duplicate keys by itself, and goes on after a mistake.
//!
//! It also rejects to nest without end, but it counts brackets and the dots of one key apart: eighty of each inside one
//! another make a tree so deep that dropping it takes more stack than a thread has. So depth is judged before there is a
//! tree, by the words the parser's own lexer sees.

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

/// Reads a document.
pub(crate) fn parse(name: &Arc<str>, text: &str) -> Result<Node, Vec<Mistake>> {
    let lines = Lines::of(name, text);
    if let Some(place) = too_deep(text) {
        return Err(vec![unreadable(&lines.at(place..place), TOO_DEEP)]);
    }
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

const TOO_DEEP: &str = "is nested too deeply";

/// Where more than [`MAX_DEPTH`] brackets are open, or a key has more than so many dots. A bracket is closed only by its
/// own kind, so what is malformed counts as deeper than it is, never as less deep.
fn too_deep(text: &str) -> Option<usize> {
    use TokenKind::{
        Atom, BasicString, Dot, LeftCurlyBracket, LeftSquareBracket, LiteralString, MlBasicString, MlLiteralString,
        RightCurlyBracket, RightSquareBracket, Whitespace,
    };
    let (mut open, mut dots) = (Vec::new(), 0);
    for token in Source::new(text).lex() {
        match token.kind() {
            Dot => dots += 1,
            // Of these a key is made, a bad one too, and it ends with anything else.
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
