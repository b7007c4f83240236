//! Deserialization: a serde `Deserializer` over the configuration tree that reports every mistake.
//!
//! When serde fails, the mistake is noted, the value is removed, and the rest is deserialized again.

use phalanx_core::policy::validate::{ConfigError, Mistake};
use serde::de::value::{StrDeserializer, StringDeserializer};
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess, SeqAccess, Unexpected,
    VariantAccess, Visitor,
};

use super::serde_error::SerdeError;
use super::tree::{Node, Step, Value, path_of};
use crate::origin::Origin;

/// Reading stops after this many mistakes.
pub(crate) const MAX_MISTAKES: usize = 100;

/// The mistakes of a configuration.
#[derive(Debug, Default)]
pub(crate) struct Mistakes {
    /// Mistakes of sources that could not be parsed into the tree.
    before: Vec<Mistake>,
    found: Vec<(Origin, Mistake)>,
    /// The steps to the mistakes, to leave out mistakes that only follow from them.
    noted: Vec<Vec<Step>>,
}

impl Mistakes {
    /// Starts with the mistakes of sources that could not be parsed.
    pub(crate) fn after(before: Vec<Mistake>) -> Self {
        Self { before, ..Self::default() }
    }

    /// Returns all mistakes as an error, in the order of their positions.
    pub(crate) fn into_result(mut self) -> Result<(), ConfigError> {
        let truncated = self.are_too_many();
        self.found.sort_by(|(a, _), (b, _)| sort_key(a).cmp(&sort_key(b)));
        let mut mistakes = self.before;
        mistakes.extend(self.found.into_iter().map(|(_, mistake)| mistake));
        if truncated {
            mistakes.truncate(MAX_MISTAKES);
            mistakes.push(Mistake::new("", format!("there may be more mistakes: these are the first {MAX_MISTAKES}")));
        }
        if mistakes.is_empty() { Ok(()) } else { Err(ConfigError { mistakes }) }
    }

    /// Notes a mistake at the origin of its value, or of the nearest enclosing one.
    pub(crate) fn note(&mut self, tree: &Node, steps: Vec<Step>, reason: &str) {
        let at = tree.nearest(&steps).at.clone();
        self.note_at(at, steps, reason);
    }

    pub(crate) fn note_at(&mut self, at: Origin, steps: Vec<Step>, reason: &str) {
        let mistake = Mistake::new(path_of(&steps), reason).located_at(&at);
        self.found.push((at, mistake));
        self.noted.push(steps);
    }

    pub(crate) fn are_too_many(&self) -> bool {
        self.before.len() + self.found.len() >= MAX_MISTAKES
    }

    /// Returns whether an error at these steps may only follow from a mistake noted there or below.
    pub(crate) fn explain(&self, steps: &[Step]) -> bool {
        self.noted.iter().any(|noted| noted.starts_with(steps))
    }

    /// Deserializes a tree, noting and removing invalid values until the rest is valid.
    pub(crate) fn read<T: DeserializeOwned>(&mut self, tree: &mut Node) -> Option<T> {
        loop {
            let mut error = match T::deserialize(&*tree) {
                Ok(read) => return Some(read),
                Err(error) => error,
            };
            error.steps.reverse();
            let mut steps = error.steps.clone();
            // A field is also missing when its key was misspelt or its value was invalid; that is noted already.
            steps.extend(error.missing.map(|field| Step::Key(field.to_owned())));
            if error.missing.is_none() || !self.noted.contains(&steps) {
                self.note(tree, steps.clone(), &error.reason);
            }
            if let (Some(meant), [table @ .., _]) = (error.meant, steps.as_slice()) {
                self.noted.push(table.iter().cloned().chain([Step::Key(meant.to_owned())]).collect());
            }
            if self.are_too_many() || !tree.remove(&error.steps) {
                return None;
            }
        }
    }
}

/// Orders mistakes: files by name and line, then variables.
fn sort_key(at: &Origin) -> (bool, &str, usize) {
    match at {
        Origin::File { name, line } => (false, name, line.unwrap_or(0)),
        Origin::Variable(name) => (true, name, 0),
        _ => (false, "", 0),
    }
}

impl<'de> Deserializer<'de> for &'de Node {
    type Error = SerdeError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SerdeError> {
        match &self.value {
            Value::Table(table) => visitor.visit_map(Entries { entries: table.iter(), entry: None }),
            Value::List(list) => visitor.visit_seq(Items { items: list.iter().enumerate() }),
            Value::Text(text) | Value::Loose(text) => visitor.visit_str(text),
            Value::Bool(bool) => visitor.visit_bool(*bool),
            Value::Float(float) => visitor.visit_f64(*float),
            Value::Integer(integer) => integer_of(*integer, visitor),
            Value::Null => Err(SerdeError::new("has no value: give it one, or leave the key out")),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SerdeError> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, SerdeError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, SerdeError> {
        match &self.value {
            Value::Text(text) | Value::Loose(text) => visitor.visit_enum(VariantName(text)),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SerdeError> {
        match &self.value {
            Value::Loose(text) => match text.trim().to_ascii_lowercase().as_str() {
                "true" => visitor.visit_bool(true),
                "false" => visitor.visit_bool(false),
                _ => self.deserialize_any(visitor),
            },
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_u32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SerdeError> {
        self.deserialize_u64(visitor)
    }

    fn deserialize_u64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SerdeError> {
        match &self.value {
            Value::Loose(text) => match text.trim().parse() {
                Ok(integer) => integer_of(integer, visitor),
                Err(_) => self.deserialize_any(visitor),
            },
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SerdeError> {
        match &self.value {
            Value::Loose(text) => match text.trim().parse() {
                Ok(float) => visitor.visit_f64(float),
                Err(_) => self.deserialize_any(visitor),
            },
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SerdeError> {
        match &self.value {
            Value::Loose(text) => visitor.visit_seq(CommaList(text.split(','))),
            _ => self.deserialize_any(visitor),
        }
    }

    serde::forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u8 u16 u128 f32 char str string bytes byte_buf unit unit_struct tuple tuple_struct map
        struct identifier ignored_any
    }
}

fn integer_of<'de, V: Visitor<'de>>(integer: i128, visitor: V) -> Result<V::Value, SerdeError> {
    use serde::de::Error as _;
    match (u64::try_from(integer), i64::try_from(integer)) {
        (Ok(integer), _) => visitor.visit_u64(integer),
        (_, Ok(integer)) => visitor.visit_i64(integer),
        _ => Err(SerdeError::invalid_value(Unexpected::Other("integer"), &visitor)),
    }
}

struct Entries<'de> {
    entries: std::collections::btree_map::Iter<'de, String, Node>,
    entry: Option<(&'de String, &'de Node)>,
}

impl<'de> MapAccess<'de> for Entries<'de> {
    type Error = SerdeError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, SerdeError> {
        self.entry = self.entries.next();
        let Some((key, _)) = self.entry else { return Ok(None) };
        let name: StrDeserializer<'_, SerdeError> = key.as_str().into_deserializer();
        seed.deserialize(name).map(Some).map_err(|error| error.inside(Step::Key(key.clone())))
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, SerdeError> {
        let Some((key, node)) = self.entry.take() else { return Err(SerdeError::new("a value without a key")) };
        seed.deserialize(node).map_err(|error| error.inside(Step::Key(key.clone())))
    }
}

struct Items<'de> {
    items: std::iter::Enumerate<std::slice::Iter<'de, Node>>,
}

impl<'de> SeqAccess<'de> for Items<'de> {
    type Error = SerdeError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, SerdeError> {
        let Some((index, node)) = self.items.next() else { return Ok(None) };
        seed.deserialize(node).map(Some).map_err(|error| error.inside(Step::Index(index)))
    }
}

/// A list in a variable, separated by commas.
struct CommaList<'de>(std::str::Split<'de, char>);

impl<'de> SeqAccess<'de> for CommaList<'de> {
    type Error = SerdeError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, SerdeError> {
        let Some(item) = self.0.next() else { return Ok(None) };
        let item: StringDeserializer<SerdeError> = item.trim().to_owned().into_deserializer();
        // The variable is one value, so an error of an item is an error of the list.
        seed.deserialize(item).map(Some)
    }
}

/// The name of an enum variant.
struct VariantName<'de>(&'de str);

impl<'de> EnumAccess<'de> for VariantName<'de> {
    type Error = SerdeError;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), SerdeError> {
        let name: StrDeserializer<'_, SerdeError> = self.0.trim().into_deserializer();
        Ok((seed.deserialize(name)?, self))
    }
}

impl<'de> VariantAccess<'de> for VariantName<'de> {
    type Error = SerdeError;

    fn unit_variant(self) -> Result<(), SerdeError> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, _: T) -> Result<T::Value, SerdeError> {
        Err(SerdeError::new("must be a table"))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, _: V) -> Result<V::Value, SerdeError> {
        Err(SerdeError::new("must be a table"))
    }

    fn struct_variant<V: Visitor<'de>>(self, _: &'static [&'static str], _: V) -> Result<V::Value, SerdeError> {
        Err(SerdeError::new("must be a table"))
    }
}
