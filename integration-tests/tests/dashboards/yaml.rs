//! Reads YAML into a JSON value: the subset used by this repository, with anchors and merges (`<<: *name`). All scalars are
//! strings.

use std::collections::HashMap;

use saphyr_parser::{Event, Parser};
use serde_json::{Map, Value};

use crate::files;

/// Reads a file of this repository.
pub(crate) fn file(relative: &str) -> Value {
    read(&files::text(relative)).unwrap_or_else(|error| panic!("{relative}: {error}"))
}

/// Reads the first document of a text.
pub(crate) fn read(text: &str) -> Result<Value, String> {
    let mut reader = Reader { parser: Parser::new_from_str(text), anchors: HashMap::new() };
    loop {
        match reader.next()? {
            Event::StreamStart | Event::DocumentStart(_) | Event::Nothing => {}
            Event::StreamEnd => return Ok(Value::Null),
            first => return reader.node(first),
        }
    }
}

struct Reader<'a> {
    parser: Parser<'a, saphyr_parser::StrInput<'a>>,
    anchors: HashMap<usize, Value>,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<Event<'a>, String> {
        let (event, _) =
            self.parser.next_event().ok_or("the text ends too early")?.map_err(|error| error.to_string())?;
        Ok(event)
    }

    fn node(&mut self, event: Event<'a>) -> Result<Value, String> {
        let (value, anchor) = match event {
            Event::Scalar(text, _, anchor, _) => (Value::String(text.into_owned()), anchor),
            Event::SequenceStart(anchor, _) => (self.sequence()?, anchor),
            Event::MappingStart(anchor, _) => (self.mapping()?, anchor),
            Event::Alias(anchor) => return self.anchors.get(&anchor).cloned().ok_or("an unknown alias".to_owned()),
            other => return Err(format!("{other:?} where a value was expected")),
        };
        if anchor > 0 {
            self.anchors.insert(anchor, value.clone());
        }
        Ok(value)
    }

    fn sequence(&mut self) -> Result<Value, String> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                Event::SequenceEnd => return Ok(Value::Array(items)),
                event => items.push(self.node(event)?),
            }
        }
    }

    fn mapping(&mut self) -> Result<Value, String> {
        let (mut own, mut merged) = (Map::new(), Map::new());
        loop {
            let key = match self.next()? {
                Event::MappingEnd => break,
                Event::Scalar(key, ..) => key.into_owned(),
                other => return Err(format!("{other:?} where a key was expected")),
            };
            let event = self.next()?;
            let value = self.node(event)?;
            match (key.as_str(), value) {
                ("<<", Value::Object(map)) => merged.extend(map),
                ("<<", other) => return Err(format!("merges {other}")),
                (_, value) if own.contains_key(&key) => return Err(format!("{key} twice, also as {value}")),
                (_, value) => drop(own.insert(key, value)),
            }
        }
        merged.extend(own); // own keys win over merged ones
        Ok(Value::Object(merged))
    }
}

#[test]
fn merges_aliases_and_blocks_are_read() {
    let read =
        read("base: &b {image: x, init: true}\nown:\n  <<: *b\n  image: y\n  run: |\n    a\n    b\nlist: [1, 'two']\n");
    let expected = serde_json::json!({
        "base": {"image": "x", "init": "true"},
        "own": {"image": "y", "init": "true", "run": "a\nb\n"},
        "list": ["1", "two"],
    });
    assert_eq!(read.unwrap(), expected);
    assert!(super::yaml::read("a: 1\na: 2\n").is_err(), "duplicate keys are an error");
    assert!(super::yaml::read("a: [1\n").is_err());
}
