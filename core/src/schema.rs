//! What the values of a file may be, for its JSON Schema: durations as text, counts, shares, factors.
//!
//! These types are never made. They stand in for a field's own type (`schemars(with = …)`), because the schema can say more
//! than `f64`: the same ranges that [`Policy::mistakes`](crate::policy::Policy::mistakes) checks. What depends on two
//! fields, and how long a duration may be, only that check knows.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use crate::kind::Kind;

/// What a duration looks like: numbers with units, as in `250ms`, `1.5s` or `1m 30s`.
pub const DURATION: &str = r"^\s*([0-9]+(\.[0-9]+)?\s*(ns|nsec|nanos|us|µs|usec|ms|msec|millis|s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?)\s*)+$|^0$";

/// A duration, by the name `Duration`.
pub(crate) struct DurationText;

impl JsonSchema for DurationText {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A length of time as people write it, at most 24 hours: \"250ms\", \"2s\", \"1m 30s\".",
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
    /// Calls that others are only compared with.
    Calls = { "type": "integer", "minimum": 1, "maximum": 1_000_000_000 };
    /// None is fine too.
    CountOrZero = { "type": "integer", "minimum": 0, "maximum": 1_000_000 };
    /// Where the first one counts, and another must follow.
    AtLeastTwo = { "type": "integer", "minimum": 2, "maximum": 1_000_000 };
    /// Some of it, or all.
    Share = { "type": "number", "exclusiveMinimum": 0, "maximum": 1 };
    /// None of it, some, or all.
    ShareOrZero = { "type": "number", "minimum": 0, "maximum": 1 };
    /// Strictly between nothing and all.
    Between = { "type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1 };
    /// Something that must not shrink what it is multiplied with.
    Factor = { "type": "number", "minimum": 1, "maximum": 1_000_000 };
    /// Anything above zero.
    Positive = { "type": "number", "exclusiveMinimum": 0, "maximum": 1_000_000 };
}

/// The kinds that may be tried again, at least one of them.
pub(crate) fn retryable_kinds(_: &mut SchemaGenerator) -> Schema {
    let kinds: Vec<_> = Kind::ALL.into_iter().filter(|kind| kind.retryable()).map(Kind::name).collect();
    json_schema!({ "type": "array", "items": { "enum": kinds }, "minItems": 1 })
}
