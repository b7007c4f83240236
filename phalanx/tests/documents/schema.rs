//! The schema against the specs: the same keys, the same ranges, and the file in `docs` is the generated one.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use phalanx::config::Config;
use phalanx::policy::LeverSpec;
use phalanx::{Kind, Policy};
use serde_json::{Value, json};

use crate::check::complaints;
use crate::{docs, read, toml_as_json, walk};

#[test]
fn the_schema_in_the_documents_is_the_one_of_the_specs() {
    let (path, schema) = (docs().join("phalanx.schema.json"), phalanx::config::schema());
    if std::env::var_os("PHALANX_RENEW_DOCS").is_some() {
        std::fs::write(&path, serde_json::to_string_pretty(&schema).unwrap() + "\n").unwrap();
    }
    let kept: Value = serde_json::from_str(&read(&path)).unwrap();
    let advice = "renew it: PHALANX_RENEW_DOCS=1 cargo test -p phalanx --all-features --test documents";
    assert!(kept == schema, "docs/phalanx.schema.json differs from the specs; {advice}");
}

#[test]
fn no_object_accepts_unknown_keys() {
    let schema = phalanx::config::schema();
    for (path, object) in walk::objects(&schema) {
        assert_eq!(object["additionalProperties"], json!(false), "{path:?}");
    }
    let typo = json!({ "policies": { "p": { "retry": { "max_attempts": 3, "backof": {} } } } });
    assert_eq!(complaints(&schema, &typo), [".policies.p.retry.backof: unknown"]);
}

#[test]
fn every_key_has_a_description() {
    for (path, key) in walk::keys(&phalanx::config::schema()) {
        let described = key["description"].as_str().is_some_and(|text| text.len() > 10 && !text.contains("[`"));
        assert!(described, "{path}: {key}");
    }
}

/// The names that an error message of serde lists after `expected`.
fn expected(message: &str) -> BTreeSet<String> {
    let (_, names) = message.split_once("expected ").unwrap_or_else(|| panic!("{message}"));
    names.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn the_schema_has_the_keys_that_the_specs_read() {
    let schema = phalanx::config::schema();
    for (path, object) in walk::objects(&schema) {
        if path == "levers.*" {
            let rejection = serde_json::from_value::<LeverSpec>(json!({ "?": 0 })).unwrap_err().to_string();
            let described: BTreeSet<String> = object["properties"].as_object().unwrap().keys().cloned().collect();
            assert_eq!(described, expected(&rejection), "{path}");
        }
        let Some(path) = path.strip_prefix("policies.*") else { continue };
        // An invalid key at the end of the path: the error lists the valid ones.
        let steps = path.split('.').skip(1).collect::<Vec<_>>();
        let nested = steps.iter().rev().fold(json!({ "?": 0 }), |inner, step| json!({ *step: inner }));
        let rejection = serde_json::from_value::<Policy>(nested).unwrap_err().to_string();
        let mut read = expected(&rejection);
        read.remove("name"); // in a file, the key of the policy's table
        let described: BTreeSet<String> = object["properties"].as_object().unwrap().keys().cloned().collect();
        assert_eq!(described, read, "{path}");
    }
}

#[test]
fn the_ranges_of_the_schema_are_those_of_the_specs() {
    let schema = phalanx::config::schema();
    let keys = walk::keys(&schema);
    let reference = toml_as_json(&read(docs().join("reference.toml")));
    let mut checked = 0;
    for (name, policy) in reference["policies"].as_object().unwrap() {
        for (path, rule) in keys.iter().filter_map(|(path, rule)| Some((path.strip_prefix("policies.*.")?, *rule))) {
            let pointer = format!("/{}", path.replace('.', "/"));
            if policy.pointer(&pointer).is_none_or(|value| !value.is_number()) {
                continue;
            }
            let mistaken = |value: Value| {
                let mut policy = policy.clone();
                *policy.pointer_mut(&pointer).unwrap() = value;
                if path == "bulkhead.fleet_max_concurrency" {
                    policy["bulkhead"]["max_concurrency"] = json!(1); // never above it
                }
                let Ok(policy) = serde_json::from_value::<Policy>(policy) else { return true };
                let policy = Policy { name: name.clone(), ..policy };
                policy.mistakes().iter().any(|mistake| mistake.path == format!("policies.{name}.{path}"))
            };
            let whole = rule["type"] == "integer";
            let edge = |word: &str| rule[word].as_f64();
            let step = if whole { 1.0 } else { 1e-9 };
            let value = |number: f64| if whole { json!(number as i64) } else { json!(number) };
            let least = edge("minimum").map(|it| (it, it - step));
            let above = edge("exclusiveMinimum").map(|it| (it + step, it));
            let most = edge("maximum").map(|it| (it, it + step));
            let below = edge("exclusiveMaximum").map(|it| (it - step, it));
            let edges: Vec<_> = [least, above, most, below].into_iter().flatten().collect();
            assert_eq!(edges.len(), 2, "{path}: {rule}");
            for (inside, outside) in edges {
                assert!(!mistaken(value(inside)), "{path} may be {inside}");
                assert!(mistaken(value(outside)), "{path} may not be {outside}");
            }
            checked += 1;
        }
    }
    assert!(checked >= 30, "{checked}");
}

#[test]
fn the_schema_and_the_loader_accept_the_same_max_routes() {
    let schema = phalanx::config::schema();
    for (routes, allowed) in [(0, false), (1, true), (1_000_000, true), (1_000_001, false)] {
        let taken = complaints(&schema, &json!({ "max_routes": routes })).is_empty();
        let read = Config::from_toml(&format!("max_routes = {routes}")).is_ok();
        assert_eq!((taken, read), (allowed, allowed), "{routes}");
    }
}

#[test]
fn the_schema_and_the_loader_accept_the_same_durations() {
    let schema = phalanx::config::schema();
    let mut texts: Vec<String> = ["250ms", "1.5s", "1m 30s", "1m30s", "2 hours", "1day", "0", "10us", "5µs", "3 min"]
        .into_iter()
        .chain(["", "5", "s", "5 parsecs", "-1s", "1,5s", "forever", "1s!", "1s 5"])
        .map(str::to_owned)
        .collect();
    // And what we write ourselves.
    for millis in [0, 1, 999, 1_000, 61_001, 3_600_000, 86_399_999] {
        let policy = Policy::named("p").timeout(Duration::from_millis(millis));
        texts.push(serde_json::to_value(policy).unwrap()["timeout"].as_str().unwrap().to_owned());
    }
    for text in texts {
        let timeout = json!({ "timeout": text });
        let read = serde_json::from_value::<Policy>(timeout.clone()).is_ok();
        let taken = complaints(&schema, &json!({ "default": timeout })).is_empty();
        assert_eq!(read, taken, "{text:?}");
    }
}

#[test]
fn the_schema_accepts_only_retryable_kinds() {
    let schema = phalanx::config::schema();
    for kind in Kind::ALL {
        let document = json!({ "default": { "retry": { "max_attempts": 2, "retry_on": [kind] } } });
        assert_eq!(complaints(&schema, &document).is_empty(), kind.retryable(), "{kind}");
    }
}

/// The schema accepts what the loader accepts. The loader rejects more, because a schema cannot express every rule.
#[test]
fn the_schema_accepts_the_files_that_the_loader_accepts() {
    let schema = phalanx::config::schema();
    let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/config");
    for name in ["full.toml", "plain.toml"] {
        let text = read(files.join(name));
        assert!(Config::from_toml(&text).is_ok(), "{name}");
        assert_eq!(complaints(&schema, &toml_as_json(&text)), [""; 0], "{name}");
    }
    let full: Value = serde_json::from_str(&read(files.join("full.json"))).unwrap();
    assert_eq!(complaints(&schema, &full), [""; 0]);
    let mut judged = 0;
    for entry in std::fs::read_dir(files.join("hostile")).unwrap() {
        let path = entry.unwrap().path();
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        let document = match path.extension().and_then(|it| it.to_str()) {
            Some("toml") => text.parse::<toml::Table>().ok().and_then(|table| serde_json::to_value(table).ok()),
            Some("json") => serde_json::from_str(&text).ok(),
            _ => None,
        };
        // An empty file and duplicate keys are valid once they are parsed.
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let harmless = ["empty.toml", "only_comments.toml", "duplicate_key.json"].contains(&name.as_str());
        if let Some(document) = document.filter(|_| !harmless) {
            assert_ne!(complaints(&schema, &document), [""; 0], "{name}");
            judged += 1;
        }
    }
    assert!(judged >= 10, "{judged}");
}
