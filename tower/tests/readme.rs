//! The README's table of features lists the features of the manifest. Its code is compiled and run as a doc test.

#![allow(clippy::unwrap_used)] // a failed test panics, also in helpers

use std::collections::BTreeSet;

/// Returns the features of `Cargo.toml`, without `default`.
fn manifest_features() -> BTreeSet<&'static str> {
    let manifest = include_str!("../Cargo.toml");
    let section = manifest.split_once("\n[features]\n").unwrap().1.split("\n[").next().unwrap();
    let names = section.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(" = "));
    names.map(|(name, _)| name).filter(|name| *name != "default").collect()
}

#[test]
fn the_readme_lists_exactly_the_features_of_the_manifest() {
    let (_, table) = include_str!("../README.md").split_once("| feature | adds |\n|---|---|\n").unwrap();
    let rows: Vec<&str> = table.lines().take_while(|line| line.starts_with('|')).collect();
    let listed: BTreeSet<&str> = rows.iter().map(|row| row.split('`').nth(1).unwrap()).collect();
    assert_eq!(listed.len(), rows.len(), "a feature is listed twice");
    assert_eq!(listed, manifest_features());
    assert!(listed.len() >= 7, "{listed:?}");
}
