//! Walks through a schema: every key by its path, with its description.

use std::collections::BTreeMap;

use serde_json::Value;

/// Follows a `$ref`; returns any other node as it is.
pub(crate) fn resolve<'a>(root: &'a Value, node: &'a Value) -> &'a Value {
    match node["$ref"].as_str() {
        Some(pointer) => resolve(root, root.pointer(pointer.trim_start_matches('#')).expect("a reference that points")),
        None => node,
    }
}

/// Every object of a schema that has keys, by its path; `*` is a name that the user chooses.
pub(crate) fn objects(root: &Value) -> BTreeMap<String, &Value> {
    let mut found = BTreeMap::new();
    visit(root, root, String::new(), &mut found);
    found
}

/// Every key of a schema by its path, as its object describes it.
pub(crate) fn keys(root: &Value) -> BTreeMap<String, &Value> {
    let mut found = BTreeMap::new();
    for (path, object) in objects(root) {
        let properties = object["properties"].as_object().expect("an object with keys");
        found.extend(properties.iter().map(|(key, value)| (join(&path, key), value)));
    }
    found
}

/// Appends a key to a path.
pub(crate) fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

fn visit<'a>(root: &'a Value, node: &'a Value, path: String, found: &mut BTreeMap<String, &'a Value>) {
    let node = resolve(root, node);
    for choice in node["anyOf"].as_array().into_iter().flatten() {
        visit(root, choice, path.clone(), found);
    }
    if let Some(properties) = node["properties"].as_object() {
        found.insert(path.clone(), node);
        for (key, below) in properties {
            visit(root, below, join(&path, key), found);
        }
    }
    if node["additionalProperties"].is_object() {
        visit(root, &node["additionalProperties"], join(&path, "*"), found);
    }
}
