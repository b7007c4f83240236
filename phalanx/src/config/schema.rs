//! The JSON Schema of a file, so that an editor knows every key, and says what is wrong before the program does.
//!
//! It is made from the specs themselves: what the documentation of a field says is what the schema says. Keys that nobody
//! knows are rejected, as the reader rejects them. A schema sees one value at a time; what two values must be to each other
//! (a timeout shorter than a deadline), only the reader checks.

use std::collections::BTreeMap;

use phalanx_core::engine::UnknownPolicy;
use phalanx_core::levers::LeverSpec;
use phalanx_core::policy::Policy;
use schemars::generate::SchemaSettings;
use schemars::transform::{Transform, transform_subschemas};
use schemars::{JsonSchema, Schema};
use serde_json::Value;

use super::document::MAX_ROUTES;

/// What a service does about its dependencies, by name.
#[derive(JsonSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)] // its fields are read by the schema alone
struct Document {
    /// The policy of every name that has none of its own. Nothing of it is inherited by policies that have a name.
    #[schemars(default, with = "Policy")]
    default: Option<Policy>,
    /// The policies, by name.
    #[schemars(default)]
    policies: BTreeMap<String, Policy>,
    /// What an operator wants for now, above whatever the policies say: by the name of a policy, `*` for every one.
    #[schemars(default)]
    levers: BTreeMap<String, LeverSpec>,
    /// What a name means that has no policy, if there is no `default` either. Default `error`.
    #[schemars(default)]
    unknown: UnknownPolicy,
    /// How many (policy, route) pairs are kept at a time; at least 1, at most 1,000,000. Default 10,000.
    #[schemars(default = "ten_thousand", range(min = 1, max = MAX_ROUTES))]
    max_routes: usize,
}

fn ten_thousand() -> usize {
    phalanx_core::engine::EngineSpec::default().max_routes
}

/// The schema of a whole document, whatever its format (JSON Schema, draft 2020-12).
///
/// Most editors take it from a comment: `#:schema phalanx.schema.json` in TOML,
/// `# yaml-language-server: $schema=phalanx.schema.json` in YAML.
pub fn schema() -> Value {
    let settings = SchemaSettings::draft2020_12().with_transform(AsWritten);
    let mut schema = settings.into_generator().into_root_schema_for::<Document>();
    schema.insert("title".to_owned(), "Phalanx".into());
    schema.into()
}

/// From what Rust can say to what a file says.
///
/// * An option is a key that may be left out, and never `null`.
/// * The name of a policy is the key of its table, and not in it.
/// * The lines of a doc comment are one paragraph.
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
