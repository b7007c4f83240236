//! `docs/reference.toml` against the schema: it has every key, and its defaults are those of the schema.

use std::collections::{BTreeMap, BTreeSet};

use phalanx::config::Config;
use phalanx::policy::UnknownPolicy;
use phalanx::{Policy, ResilienceModule};
use serde_json::Value;

use crate::check::complaints;
use crate::{docs, read, toml_as_json, walk};

/// A key of the reference: its path with `*` for names that users choose, its value, and its comment.
struct Line {
    path: String,
    value: Value,
    comment: String,
}

impl Line {
    /// Returns whether the value is an example rather than the default.
    fn is_an_example(&self) -> bool {
        self.comment.starts_with("example")
    }
}

fn text() -> String {
    read(docs().join("reference.toml"))
}

fn lines() -> Vec<Line> {
    let text = text();
    let (mut table, mut lines) = (String::new(), Vec::new());
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(name) = line.strip_prefix('[') {
            let steps: Vec<_> = name.trim_end_matches(']').split('.').collect();
            let before = [""].into_iter().chain(steps.iter().copied());
            let chosen = |before: &str| ["policies", "levers", "limits", "overrides"].contains(&before);
            let steps = before.zip(&steps).map(|(before, step)| if chosen(before) { "*" } else { step });
            table = steps.collect::<Vec<_>>().join(".");
            continue;
        }
        let (written, comment) = line.split_once('#').unwrap_or_else(|| panic!("{line} has no comment"));
        let (key, value) = toml_as_json(written).as_object().unwrap().clone().into_iter().next().unwrap();
        lines.push(Line { path: walk::join(&table, &key), value, comment: comment.trim().to_owned() });
    }
    lines
}

#[test]
fn the_reference_is_valid_by_the_schema() {
    assert_eq!(complaints(&phalanx::config::schema(), &toml_as_json(&text())), [""; 0]);
}

#[test]
fn the_reference_can_be_loaded_and_built() {
    let config = Config::from_toml(&text()).unwrap();
    let names: Vec<_> = config.policies().iter().map(|policy| policy.name.as_str()).collect();
    assert_eq!(names, ["payments", "reports", "search"]);
    assert_eq!((config.default_policy().is_some(), config.levers().len()), (true, 2));
    assert_eq!((config.unknown(), config.max_routes()), (Some(UnknownPolicy::Error), Some(10_000)));
    let module = ResilienceModule::in_memory().config(config).build().unwrap();
    assert_eq!(module.levers().len(), 2);
}

#[test]
fn every_key_is_in_the_reference() {
    let schema = phalanx::config::schema();
    let written: BTreeSet<String> = lines().into_iter().map(|line| line.path).collect();
    let tables = |path: &String| written.iter().any(|other| other.starts_with(&format!("{path}.")));
    let missing: Vec<_> = walk::keys(&schema)
        .into_keys()
        // What `default` may contain is what any policy may.
        .filter(|path| !path.starts_with("default."))
        .filter(|path| !written.contains(path) && !tables(path))
        .collect();
    assert_eq!(missing, [""; 0]);
}

#[test]
fn a_value_is_the_default_or_is_marked_as_an_example() {
    let schema = phalanx::config::schema();
    let keys = walk::keys(&schema);
    let mut shown: BTreeMap<String, bool> = BTreeMap::new();
    for line in lines() {
        let default = keys.get(&line.path).unwrap_or_else(|| panic!("{} is no key", line.path)).get("default");
        assert_eq!(Some(&line.value) != default, line.is_an_example(), "{}: {default:?}", line.path);
        *shown.entry(line.path).or_default() |= default.is_none() || !line.comment.starts_with("example");
    }
    let hidden: Vec<_> = shown.into_iter().filter(|(_, shown)| !shown).map(|(path, _)| path).collect();
    assert_eq!(hidden, [""; 0], "keys that have a default, and only examples are shown");
}

#[test]
fn a_required_key_is_marked_as_required() {
    let schema = phalanx::config::schema();
    let objects = walk::objects(&schema);
    for line in lines() {
        let (table, key) = line.path.rsplit_once('.').unwrap_or(("", &line.path));
        let required = objects[table]["required"].as_array().is_some_and(|keys| keys.contains(&key.into()));
        assert_eq!(line.comment.contains("required"), required, "{}", line.path);
    }
}

/// The required keys at every level, with the values of the reference, and every table, even an empty one.
fn only_what_is_required(objects: &BTreeMap<String, &Value>, path: &str, given: &Value) -> Value {
    let Some(given) = given.as_object() else { return given.clone() };
    // A table by name has no keys of its own.
    let own = objects.get(path);
    let required = own.and_then(|own| own["required"].as_array().cloned()).unwrap_or_default();
    let keep = |(key, value): (&String, &Value)| {
        let below = walk::join(path, if own.is_some() { key } else { "*" });
        let table = value.is_object().then(|| only_what_is_required(objects, &below, value));
        table.or(required.contains(&key.as_str().into()).then(|| value.clone())).map(|value| (key.clone(), value))
    };
    given.iter().filter_map(keep).collect::<serde_json::Map<_, _>>().into()
}

#[test]
fn the_defaults_of_the_schema_are_those_of_a_policy_with_nothing_but_what_is_required() {
    let schema = phalanx::config::schema();
    let (keys, objects) = (walk::keys(&schema), walk::objects(&schema));
    let mut compared = BTreeSet::new();
    for (name, given) in toml_as_json(&text())["policies"].as_object().unwrap() {
        let least = only_what_is_required(&objects, "policies.*", given);
        let policy: Policy = serde_json::from_value(least.clone()).unwrap_or_else(|error| panic!("{name}: {error}"));
        let written = serde_json::to_value(policy).unwrap();
        for (path, key) in keys.iter().filter_map(|(path, key)| Some((path.strip_prefix("policies.*.")?, key))) {
            let pointer = format!("/{}", path.replace('.', "/"));
            let (real, before) = (written.pointer(&pointer), least.pointer(&pointer));
            let table = written.pointer(pointer.rsplit_once('/').unwrap().0);
            if table.is_none_or(Value::is_null) || before.is_some() {
                continue; // its table is absent, or the key is required
            }
            assert_eq!(real, key.get("default"), "{name}: {path}");
            compared.insert(path.to_owned());
        }
    }
    assert!(compared.len() >= 50, "{}: {compared:?}", compared.len());
}
