//! The small examples, one per feature: each prints exactly the text in its own documentation.

use std::fs;
use std::path::Path;

use crate::{example, run};

/// The text block in the documentation at the top of an example.
fn documented_output(source: &str) -> String {
    let documentation = source.lines().map_while(|line| line.strip_prefix("//!"));
    let block = documentation.skip_while(|line| *line != " ```text").skip(1).take_while(|line| *line != " ```");
    block.map(|line| format!("{}\n", line.trim_start_matches(' '))).collect()
}

fn check(source: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
    let source = fs::read_to_string(&path).unwrap();
    let name = path.file_stem().unwrap().to_str().unwrap();
    let documented = documented_output(&source);
    assert!(!documented.is_empty(), "{name} documents no output");
    assert_eq!(run(example(name)), documented, "{name}");
    // A store is five traits with three dozen methods.
    let most = if name == "own_store" { 330 } else { 80 };
    assert!(source.lines().count() <= most, "{name} is no longer small");
    assert!(!source.contains("internal"), "{name} uses phalanx::internal");
}

macro_rules! prints_what_it_documents {
    ($($name:ident: $source:literal,)*) => {
        $(#[test]
        fn $name() {
            check($source);
        })*
    };
}

prints_what_it_documents! {
    attribute_prints_what_it_documents: "examples/attribute.rs",
    breaker_prints_what_it_documents: "examples/breaker.rs",
    breaker_recovery_prints_what_it_documents: "../testkit/examples/breaker_recovery.rs",
    bulkhead_prints_what_it_documents: "examples/bulkhead.rs",
    chaos_lever_prints_what_it_documents: "../testkit/examples/chaos_lever.rs",
    fallback_prints_what_it_documents: "examples/fallback.rs",
    hedge_prints_what_it_documents: "examples/hedge.rs",
    layer_prints_what_it_documents: "../tower/examples/layer.rs",
    own_store_prints_what_it_documents: "../testkit/examples/own_store.rs",
    rate_limit_prints_what_it_documents: "examples/rate_limit.rs",
    redis_outage_prints_what_it_documents: "../testkit/examples/redis_outage.rs",
    reload_prints_what_it_documents: "examples/reload.rs",
    retry_prints_what_it_documents: "examples/retry.rs",
    scripted_retry_prints_what_it_documents: "../testkit/examples/scripted_retry.rs",
    shared_state_prints_what_it_documents: "examples/shared_state.rs",
    testing_prints_what_it_documents: "examples/testing.rs",
}

#[test]
fn every_small_example_is_checked() {
    let here = include_str!("small.rs");
    for folder in ["examples", "../testkit/examples", "../tower/examples"] {
        for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            let larger = ["ports.rs", "readme.rs", "tower_stack.rs", "axum_edge.rs", "play_plan.rs"].contains(&name);
            if path.is_file() && !larger {
                assert!(here.contains(&format!("\"{folder}/{name}\"")), "{folder}/{name} is not checked");
            }
        }
    }
}
