//! The value types of the JSON Schema of a configuration file: durations as text, counts, shares, factors.
//!
//! These types have no values. They replace the type of a field (`schemars(with = …)`), because the schema can be more
//! precise than `f64`: the same ranges that [`Policy::mistakes`](crate::policy::Policy::mistakes) checks. Rules that depend
//! on two fields, and the longest duration, are in that check only.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use crate::kind::Kind;

/// The pattern of a duration: numbers with units, as in `250ms`, `1.5s` or `1m 30s`.
pub const DURATION: &str = r"^\s*([0-9]+(\.[0-9]+)?\s*(ns|nsec|nanos|us|µs|usec|ms|msec|millis|s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?)\s*)+$|^0$";

/// A duration, by the name `Duration`.
pub(crate) struct DurationText;

impl JsonSchema for DurationText {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A duration of at most 24 hours: \"250ms\", \"2s\", \"1m 30s\".",
            "type": "string",
            "pattern": DURATION,
            "examples": ["250ms", "2s", "1m 30s"],
        })
    }
}

/// Values within a range, inlined where they are used.
macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident = $schema:tt;)+) => {$(
        $(#[$doc])*
        pub(crate) struct $name;

        impl JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!($schema)
            }
        }
    )+};
}

numbers! {
    /// The overrides that a lever can set.
    LeverForce = { "type": "string", "enum": ["open", "closed"] };
    /// At least one.
    Count = { "type": "integer", "minimum": 1, "maximum": 1_000_000 };
    /// A number of probes, at least one.
    Probes = { "type": "integer", "minimum": 1, "maximum": 100 };
    /// A number of calls, at least one.
    Calls = { "type": "integer", "minimum": 1, "maximum": 1_000_000_000 };
    /// At least zero.
    CountOrZero = { "type": "integer", "minimum": 0, "maximum": 1_000_000 };
    /// At least two.
    AtLeastTwo = { "type": "integer", "minimum": 2, "maximum": 1_000_000 };
    /// Above 0 and at most 1.
    Share = { "type": "number", "exclusiveMinimum": 0, "maximum": 1 };
    /// From 0 to 1.
    ShareOrZero = { "type": "number", "minimum": 0, "maximum": 1 };
    /// Between 0 and 1, both excluded.
    Between = { "type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1 };
    /// At least 1.
    Factor = { "type": "number", "minimum": 1, "maximum": 1_000_000 };
    /// Above 0.
    Positive = { "type": "number", "exclusiveMinimum": 0, "maximum": 1_000_000 };
}

/// Removes the examples from a description: they are Rust code, and the schema is about files.
pub(crate) fn without_examples(schema: &mut Schema) {
    let description = schema.get("description").and_then(|text| text.as_str());
    if let Some((summary, _)) = description.and_then(|text| text.split_once("\n\n# Examples")) {
        let summary = summary.to_owned();
        schema.insert("description".to_owned(), summary.into());
    }
}

/// A list of at least one retryable kind.
pub(crate) fn retryable_kinds(_: &mut SchemaGenerator) -> Schema {
    let kinds: Vec<_> = Kind::ALL.into_iter().filter(|kind| kind.retryable()).map(Kind::name).collect();
    json_schema!({ "type": "array", "items": { "enum": kinds }, "minItems": 1 })
}
