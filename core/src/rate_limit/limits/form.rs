//! Limits in configuration files: a table by name, the key as `"tag:tenant"`, the cost as `"call"` or a number.

/// What precedes the name of the tag in a key.
pub(super) const TAG: &str = "tag:";

#[cfg(feature = "serde")]
mod serde_impls {
    use std::fmt;

    use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
    use serde::ser::{Serialize, Serializer};

    use super::super::{LimitCost, LimitKey, LimitSpec, Limits};
    use super::TAG;

    impl Serialize for Limits {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.collect_map(self.iter())
        }
    }

    impl<'de> Deserialize<'de> for Limits {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            deserializer.deserialize_map(LimitsVisitor)
        }
    }

    struct LimitsVisitor;

    impl<'de> Visitor<'de> for LimitsVisitor {
        type Value = Limits;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a table of limits by name")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut table: A) -> Result<Limits, A::Error> {
            let mut limits = Limits::default();
            while let Some((name, limit)) = table.next_entry::<String, LimitSpec>()? {
                limits.add(name, limit);
            }
            Ok(limits)
        }
    }

    impl Serialize for LimitKey {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.collect_str(self)
        }
    }

    impl<'de> Deserialize<'de> for LimitKey {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            deserializer.deserialize_str(KeyVisitor)
        }
    }

    struct KeyVisitor;

    impl Visitor<'_> for KeyVisitor {
        type Value = LimitKey;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("\"policy\", \"route\" or \"tag:<name>\"")
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<LimitKey, E> {
            match text {
                "policy" => Ok(LimitKey::Policy),
                "route" => Ok(LimitKey::Route),
                _ => text.strip_prefix(TAG).map(LimitKey::tag).ok_or_else(|| {
                    E::custom(format_args!("unknown key {text:?}, expected \"policy\", \"route\" or \"tag:<name>\""))
                }),
            }
        }
    }

    impl Serialize for LimitCost {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            match self {
                Self::Call => serializer.serialize_str("call"),
                Self::Fixed(permits) => serializer.serialize_u32(*permits),
            }
        }
    }

    impl<'de> Deserialize<'de> for LimitCost {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            deserializer.deserialize_any(CostVisitor)
        }
    }

    struct CostVisitor;

    impl Visitor<'_> for CostVisitor {
        type Value = LimitCost;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("\"call\" or a number of permits")
        }

        fn visit_u64<E: Error>(self, permits: u64) -> Result<LimitCost, E> {
            u32::try_from(permits).map(LimitCost::Fixed).map_err(|_| E::custom("a cost is at most 4,294,967,295"))
        }

        fn visit_i64<E: Error>(self, permits: i64) -> Result<LimitCost, E> {
            u64::try_from(permits)
                .map_err(|_| E::custom("a cost is not negative"))
                .and_then(|cost| self.visit_u64(cost))
        }

        /// Environment variables are text.
        fn visit_str<E: Error>(self, text: &str) -> Result<LimitCost, E> {
            match text.trim() {
                "call" => Ok(LimitCost::Call),
                number => number.parse().map(LimitCost::Fixed).map_err(|_| {
                    E::custom(format_args!("unknown cost {text:?}, expected \"call\" or a number of permits"))
                }),
            }
        }
    }

    #[cfg(test)]
    #[allow(clippy::unwrap_used)] // a failed expectation panics
    mod tests {
        use super::*;

        fn read(text: &str) -> Result<Limits, String> {
            serde_json::from_str(text).map_err(|error| error.to_string())
        }

        #[test]
        fn limits_are_a_table_by_name_and_are_written_as_they_are_read() {
            let text = r#"{"all": {"permits": 9, "per": "1s", "key": "policy", "cost": 1},
                "tenant": {"permits": 3, "per": "1m", "key": "tag:tenant", "missing": "skip", "overrides": {"acme": {"permits": 5}}}}"#;
            let limits = read(text).unwrap();
            assert_eq!(limits.get("all").unwrap().cost, LimitCost::Fixed(1));
            let tenant = limits.get("tenant").unwrap();
            assert_eq!((tenant.key.tag_name(), tenant.cost), (Some("tenant"), LimitCost::Call));
            assert_eq!(tenant.rate(Some("acme")).permits, 5);
            assert_eq!(read(&serde_json::to_string(&limits).unwrap()).unwrap(), limits);
        }

        #[test]
        fn what_is_no_key_and_no_cost_is_named_with_what_is_expected() {
            let of = |field: &str| read(&format!(r#"{{"a": {{"permits": 1, "per": "1s", {field}}}}}"#)).unwrap_err();
            assert!(of(r#""key": "tenant""#).contains(r#"expected "policy", "route" or "tag:<name>""#));
            assert!(of(r#""cost": "free""#).contains(r#"expected "call" or a number"#));
            assert!(of(r#""cost": -1"#).contains("not negative"));
            assert!(of(r#""cost": 4294967296"#).contains("at most"));
        }
    }
}

#[cfg(feature = "schema")]
mod schema_impls {
    use std::borrow::Cow;
    use std::collections::BTreeMap;

    use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

    use super::super::{LimitCost, LimitKey, LimitSpec, Limits};

    impl JsonSchema for Limits {
        fn inline_schema() -> bool {
            true
        }

        fn schema_name() -> Cow<'static, str> {
            "Limits".into()
        }

        fn json_schema(generator: &mut SchemaGenerator) -> Schema {
            BTreeMap::<String, LimitSpec>::json_schema(generator)
        }
    }

    impl JsonSchema for LimitKey {
        fn schema_name() -> Cow<'static, str> {
            "LimitKey".into()
        }

        fn json_schema(_: &mut SchemaGenerator) -> Schema {
            json_schema!({
                "description": "Which calls share a bucket: \"policy\", \"route\", or \"tag:tenant\" for those with the same value of a tag.",
                "type": "string",
                "pattern": "^(policy|route|tag:.+)$",
                "examples": ["policy", "route", "tag:tenant"],
            })
        }
    }

    impl JsonSchema for LimitCost {
        fn schema_name() -> Cow<'static, str> {
            "LimitCost".into()
        }

        fn json_schema(_: &mut SchemaGenerator) -> Schema {
            json_schema!({
                "description": "How many permits a call takes: \"call\" for as many as it names, or a number for every call.",
                "anyOf": [
                    { "type": "string", "enum": ["call"] },
                    { "type": "integer", "minimum": 1, "maximum": 1_000_000_000 },
                ],
            })
        }
    }
}
