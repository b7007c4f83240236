//! The table of cargo features in the crate's documentation lists exactly the features of `Cargo.toml`.

#![allow(clippy::unwrap_used)] // a test may

use std::collections::BTreeMap;

const CARGO_TOML: &str = include_str!("../Cargo.toml");
const CRATE_DOCS: &str = include_str!("../src/lib.rs");

/// The features of `Cargo.toml`, each with whether it is a default.
fn features() -> BTreeMap<String, bool> {
    let cargo_toml: toml::Table = CARGO_TOML.parse().unwrap();
    let features = cargo_toml["features"].as_table().unwrap();
    let default = features["default"].as_array().unwrap();
    let named = features.keys().filter(|name| *name != "default");
    named.map(|name| (name.clone(), default.contains(&name.as_str().into()))).collect()
}

/// The rows of the table: name, and whether the column `default` says yes.
fn documented() -> BTreeMap<String, bool> {
    let section = CRATE_DOCS.split("//! # ").find(|section| section.starts_with("Cargo features")).unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("//! | `"));
    rows.map(|row| {
        let mut cells = row.split('|').map(str::trim);
        (cells.next().unwrap().trim_matches('`').to_owned(), cells.next().unwrap() == "yes")
    })
    .collect()
}

#[test]
fn the_documented_features_are_those_of_cargo_toml() {
    assert_eq!(documented(), features());
}
