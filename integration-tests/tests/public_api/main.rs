//! The public surface of every published crate, compared with the snapshots in `docs/api/`, so that a change of the
//! surface is seen in review.
//!
//! The lint `unreachable_pub` is denied in this workspace, so every unrestricted `pub` in the sources is reachable from
//! outside: the snapshot is all of them, module by module, without bodies, private fields and documentation.
//! `PHALANX_RENEW_DOCS=1 cargo test -p phalanx-integration-tests --test public_api` writes the snapshots anew.

#![allow(clippy::unwrap_used)] // a failed test panics, also in helpers

mod render;

use std::fs;
use std::path::{Path, PathBuf};

use syn::{Item, UseTree, Visibility};

/// The published crates: folder and library name.
const CRATES: [(&str, &str); 9] = [
    ("core", "phalanx_core"),
    ("lifecycle", "phalanx_lifecycle"),
    ("lua", "phalanx_lua"),
    ("macros", "phalanx_macros"),
    ("phalanx", "phalanx"),
    ("store-memory", "phalanx_store_memory"),
    ("store-redis", "phalanx_store_redis"),
    ("testkit", "phalanx_testkit"),
    ("tower", "phalanx_tower"),
];

/// The most names that the root of `phalanx` may show: types, functions, macros and modules.
const MAX_ROOT_NAMES: usize = 50;

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[test]
fn the_public_api_is_the_one_in_the_snapshots() {
    let renew = std::env::var_os("PHALANX_RENEW_DOCS").is_some();
    let mut differing = Vec::new();
    for (folder, library) in CRATES {
        let surface = render::surface(&workspace().join(folder).join("src/lib.rs"), library);
        let snapshot = workspace().join("docs/api").join(format!("{library}.rs.txt"));
        if renew {
            fs::write(&snapshot, &surface).unwrap();
        }
        let kept = fs::read_to_string(&snapshot).unwrap_or_default();
        if let Some(difference) = first_difference(&kept, &surface) {
            differing.push(format!("{}: {difference}", snapshot.display()));
        }
    }
    assert!(
        differing.is_empty(),
        "the public API differs from its snapshot; if that is meant, list it in CHANGELOG.md and renew the snapshots \
         with PHALANX_RENEW_DOCS=1:\n{}",
        differing.join("\n")
    );
}

fn first_difference(kept: &str, found: &str) -> Option<String> {
    if kept == found {
        return None;
    }
    let differs = kept.lines().zip(found.lines()).position(|(old, new)| old != new);
    let line = differs.unwrap_or_else(|| kept.lines().count().min(found.lines().count()));
    let at = |text: &str| text.lines().nth(line).unwrap_or("(end of file)").to_owned();
    Some(format!("line {}: snapshot `{}`, source `{}`", line + 1, at(kept), at(found)))
}

#[test]
fn the_root_of_phalanx_shows_about_45_names() {
    let source = fs::read_to_string(workspace().join("phalanx/src/lib.rs")).unwrap();
    let names = root_names(&syn::parse_file(&source).unwrap().items);
    assert!(names.len() <= MAX_ROOT_NAMES, "{} names: {names:?}", names.len());
    for name in ["ResilienceModule", "Resilience", "Policy", "Error", "resilient", "prelude", "standalone", "store"] {
        assert!(names.iter().any(|shown| shown == name), "{name} is not among {names:?}");
    }
}

/// The names that documentation lists at the root of a crate: hidden items do not count.
fn root_names(items: &[Item]) -> Vec<String> {
    let mut names = Vec::new();
    for item in items.iter().filter(|item| !render::is_hidden(render::attributes(item))) {
        match item {
            Item::Use(item) if matches!(item.vis, Visibility::Public(_)) => used_names(&item.tree, &mut names),
            other => names.extend(render::public_name(other)),
        }
    }
    names.sort();
    names
}

fn used_names(tree: &UseTree, names: &mut Vec<String>) {
    match tree {
        UseTree::Path(path) => used_names(&path.tree, names),
        UseTree::Name(name) => names.push(name.ident.to_string()),
        UseTree::Rename(renamed) => names.push(renamed.rename.to_string()),
        UseTree::Group(group) => group.items.iter().for_each(|tree| used_names(tree, names)),
        UseTree::Glob(_) => names.push("*".to_owned()),
    }
}

#[test]
fn a_change_of_a_signature_a_field_or_a_variant_is_seen_and_a_private_one_is_not() {
    let surface = |source: &str| render::items("x", &syn::parse_file(source).unwrap().items);
    let old = surface("pub struct A { pub b: u32, c: u8 } impl A { pub fn d(&self) -> u32 { self.b } fn e(&self) {} }");
    let same = surface("/// Doc.\npub struct A { pub b: u32, z: u16 } impl A { pub fn d(&self) -> u32 { 7 } }");
    assert_eq!(old, same);
    for other in [
        "pub struct A { pub b: u64, c: u8 } impl A { pub fn d(&self) -> u32 { self.b } }",
        "pub struct A { pub b: u32 } impl A { pub fn d(&mut self) -> u32 { self.b } }",
        "pub struct A { pub b: u32 } impl A { pub fn d(&self) -> u32 { 7 } } impl Clone for A {}",
        "#[derive(Clone)] pub struct A { pub b: u32 } impl A { pub fn d(&self) -> u32 { 7 } }",
        "pub(crate) struct A { pub b: u32 }",
    ] {
        assert_ne!(old, surface(other), "{other}");
    }
    assert_ne!(surface("pub enum A { B }"), surface("pub enum A { B, C(u8) }"));
    assert_ne!(surface("pub trait A { fn b(&self); }"), surface("pub trait A { fn b(&self) {} }"));
}
