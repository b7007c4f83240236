//! The JSON Schema of a configuration file, for completion and validation in editors.
//!
//! It is generated from the specs, and the descriptions are their doc comments. Unknown keys are rejected, as by the
//! loader. A schema validates one value at a time; relations between values (a timeout shorter than a deadline) are
//! checked only by the loader.

use std::collections::BTreeMap;

use phalanx_core::engine::UnknownPolicy;
use phalanx_core::levers::LeverSpec;
use phalanx_core::policy::Policy;
use schemars::generate::SchemaSettings;
use schemars::transform::{Transform, transform_subschemas};
use schemars::{JsonSchema, Schema};
use serde_json::Value;

use super::document::MAX_ROUTES;
use super::redis_settings::RedisSettings;

/// Policies of a service for its dependencies, by name.
#[derive(JsonSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)] // its fields are read only by the schema generator
struct Document {
    /// The policy of names without their own. Other policies inherit nothing from it.
    #[schemars(default, with = "Policy")]
    default: Option<Policy>,
    /// The policies, by name.
    #[schemars(default)]
    policies: BTreeMap<String, Policy>,
    /// Temporary operator settings that override the policies: by the name of a policy, `*` for every policy.
    #[schemars(default)]
    levers: BTreeMap<String, LeverSpec>,
    /// How to treat a call that names an unknown policy, without a `default` policy. Default `error`.
    #[schemars(default)]
    unknown: UnknownPolicy,
    /// How many (policy, route) pairs are kept at a time; at least 1, at most 1,000,000. Default 10,000.
    #[schemars(default = "ten_thousand", range(min = 1, max = MAX_ROUTES))]
    max_routes: usize,
    /// Options of a module over Redis. They are fixed when the module is built; a module in memory ignores them.
    #[schemars(default, with = "RedisSettings")]
    redis: Option<RedisSettings>,
}

fn ten_thousand() -> usize {
    phalanx_core::engine::EngineSpec::default().max_routes
}

/// Returns the JSON Schema (draft 2020-12) of a configuration document in any format.
///
/// Most editors read its path from a comment: `#:schema phalanx.schema.json` in TOML,
/// `# yaml-language-server: $schema=phalanx.schema.json` in YAML.
///
/// # Examples
///
/// ```
/// let schema = phalanx::config::schema();
/// assert_eq!(schema["properties"]["max_routes"]["maximum"], 1_000_000);
/// ```
pub fn schema() -> Value {
    let settings = SchemaSettings::draft2020_12().with_transform(AsWritten);
    let mut schema = settings.into_generator().into_root_schema_for::<Document>();
    schema.insert("title".to_owned(), "Phalanx".into());
    schema.into()
}

/// Adapts the generated schema to what a file may contain.
///
/// * An `Option` is a key that may be left out, never `null`.
/// * The lines of a doc comment become one paragraph.
#[derive(Clone, Debug)]
struct AsWritten;

impl Transform for AsWritten {
    fn transform(&mut self, schema: &mut Schema) {
        transform_subschemas(self, schema);
        let Some(keys) = schema.as_object_mut() else { return };
        if let Some(Value::Array(types)) = keys.get_mut("type") {
            types.retain(|name| name != "null");
            if let [only] = types.as_slice() {
                let only = only.clone();
                keys.insert("type".to_owned(), only);
            }
        }
        if let Some(Value::Array(choices)) = keys.get_mut("anyOf") {
            choices.retain(|choice| choice.get("type") != Some(&"null".into()));
            if let [Value::Object(only)] = choices.as_mut_slice() {
                let only = std::mem::take(only);
                keys.remove("anyOf");
                for (key, value) in only {
                    keys.entry(key).or_insert(value);
                }
            }
        }
        if keys.get("default") == Some(&Value::Null) {
            keys.remove("default");
        }
        if let Some(Value::String(description)) = keys.get_mut("description") {
            *description = description.replace("\n\n", "\u{0}").replace('\n', " ").replace('\u{0}', "\n\n");
        }
    }
}
