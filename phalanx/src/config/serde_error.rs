//! Deserialization errors: serde's errors worded for the people who write configuration files.
//!
//! A file may contain a secret in the wrong place, so a message names what is expected and never repeats a value.

use std::fmt;

use serde::de::{self, Expected, Unexpected};

use super::suggest::{nearest, or_list};
use super::tree::Step;

/// One deserialization error, with the steps to it from the innermost outwards.
#[derive(Debug)]
pub(crate) struct SerdeError {
    pub(crate) steps: Vec<Step>,
    pub(crate) reason: String,
    /// The required field that is missing.
    pub(crate) missing: Option<&'static str>,
    /// The name that was probably meant.
    pub(crate) meant: Option<&'static str>,
}

impl SerdeError {
    pub(crate) fn new(reason: impl Into<String>) -> Self {
        Self { steps: Vec::new(), reason: reason.into(), missing: None, meant: None }
    }

    pub(crate) fn inside(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }
}

impl de::Error for SerdeError {
    fn custom<T: fmt::Display>(reason: T) -> Self {
        Self::new(reason.to_string())
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::new(format!("must be {}, not {}", wanted(expected), kind_of(found)))
    }

    fn invalid_value(_: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let wanted = wanted(expected);
        let range = if wanted == WHOLE { " that is not negative and not too large" } else { "" };
        Self::new(format!("must be {wanted}{range}"))
    }

    fn unknown_variant(variant: &str, expected: &'static [&'static str]) -> Self {
        let meant = nearest(variant, expected.iter().copied());
        let hint = meant.map_or_else(String::new, |meant| format!("; did you mean {meant}?"));
        let reason = format!("must be {}{hint}", or_list(expected.iter().copied()));
        Self { meant, ..Self::new(reason) }
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Self {
        // `name` is a field of a policy in code only; in a file it is the key of the table.
        let known = || expected.iter().copied().filter(|name| *name != "name");
        let meant = nearest(field, known());
        let reason = match meant {
            Some(meant) => format!("there is no such key; did you mean {meant}?"),
            None => format!("there is no such key; there are {}", known().collect::<Vec<_>>().join(", ")),
        };
        Self { meant, ..Self::new(reason) }
    }

    fn missing_field(field: &'static str) -> Self {
        Self { missing: Some(field), ..Self::new("is missing") }
    }
}

impl fmt::Display for SerdeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for SerdeError {}

const WHOLE: &str = "a whole number";

fn wanted(expected: &dyn Expected) -> String {
    let expected = expected.to_string();
    match expected.as_str() {
        "u8" | "u16" | "u32" | "u64" | "usize" => WHOLE.to_owned(),
        "f64" => "a number".to_owned(),
        "a boolean" => "true or false".to_owned(),
        "a string" => "text".to_owned(),
        "a sequence" => "a list".to_owned(),
        "a duration" => "a duration such as \"250ms\" or \"1m 30s\"".to_owned(),
        struct_or_map if struct_or_map.starts_with("struct ") || struct_or_map == "a map" => "a table".to_owned(),
        choice if choice.starts_with("enum ") || choice.contains("variant") => "one of its names".to_owned(),
        _ => expected,
    }
}

const fn kind_of(found: Unexpected<'_>) -> &'static str {
    match found {
        Unexpected::Bool(_) => "true or false",
        Unexpected::Unsigned(_) | Unexpected::Signed(_) => WHOLE,
        Unexpected::Float(_) => "a fraction",
        Unexpected::Seq => "a list",
        Unexpected::Map => "a table",
        _ => "text",
    }
}
