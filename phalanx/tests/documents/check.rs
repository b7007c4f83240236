//! Validates a value against a JSON Schema. It knows the keywords that our schema uses and panics at any other.

use regex::Regex;
use serde_json::Value;

use crate::walk::resolve;

/// The violations of the schema, each with its path; empty if the value is valid.
pub(crate) fn complaints(root: &Value, value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    judge(root, root, value, "", &mut found);
    found
}

fn judge(root: &Value, schema: &Value, value: &Value, path: &str, found: &mut Vec<String>) {
    for (keyword, rule) in schema.as_object().expect("a schema") {
        let fine = match keyword.as_str() {
            "$schema" | "$defs" | "title" | "description" | "default" | "examples" | "format" => true,
            "$ref" => {
                judge(root, resolve(root, schema), value, path, found);
                true
            }
            "anyOf" | "oneOf" => rule.as_array().unwrap().iter().any(|choice| {
                let mut objections = Vec::new();
                judge(root, choice, value, path, &mut objections);
                objections.is_empty()
            }),
            "type" => is_a(value, rule.as_str().expect("one type")),
            "const" => value == rule,
            "enum" => rule.as_array().unwrap().contains(value),
            "pattern" => value.as_str().is_none_or(|text| Regex::new(rule.as_str().unwrap()).unwrap().is_match(text)),
            "minimum" => number(value).is_none_or(|it| it >= number(rule).unwrap()),
            "maximum" => number(value).is_none_or(|it| it <= number(rule).unwrap()),
            "exclusiveMinimum" => number(value).is_none_or(|it| it > number(rule).unwrap()),
            "exclusiveMaximum" => number(value).is_none_or(|it| it < number(rule).unwrap()),
            "maxLength" => value.as_str().is_none_or(|text| text.chars().count() as u64 <= rule.as_u64().unwrap()),
            "minItems" => value.as_array().is_none_or(|items| items.len() as u64 >= rule.as_u64().unwrap()),
            "items" => {
                for item in value.as_array().into_iter().flatten() {
                    judge(root, rule, item, path, found);
                }
                true
            }
            "required" => rule.as_array().unwrap().iter().all(|key| value.get(key.as_str().unwrap()).is_some()),
            "properties" | "additionalProperties" => {
                for (key, below) in value.as_object().into_iter().flatten() {
                    let known = schema["properties"].get(key);
                    match (keyword.as_str(), known) {
                        ("properties", Some(known)) => judge(root, known, below, &format!("{path}.{key}"), found),
                        ("additionalProperties", None) if rule == &Value::Bool(false) => {
                            found.push(format!("{path}.{key}: unknown"));
                        }
                        ("additionalProperties", None) => judge(root, rule, below, &format!("{path}.{key}"), found),
                        _ => {}
                    }
                }
                true
            }
            other => panic!("the judge does not know {other}"),
        };
        if !fine {
            found.push(format!("{path}: {keyword}"));
        }
    }
}

fn is_a(value: &Value, kind: &str) -> bool {
    match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "number" => value.is_number(),
        "integer" => value.is_u64() || value.is_i64(),
        other => panic!("the judge does not know the type {other}"),
    }
}

fn number(value: &Value) -> Option<f64> {
    value.as_f64()
}
