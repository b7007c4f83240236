//! The simulated demos: each meets the expectations it prints, and what the README and the docs show of it is what it prints.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{example, run};

/// The README and every page of `docs`.
fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let docs = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let pages = docs.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    pages.chain([root.join("README.md")]).collect()
}

/// Runs a demo with `--check`, and looks for every line that a page shows below `$ cargo run --example NAME`.
fn check(name: &str) -> String {
    let mut demo = example(name);
    demo.arg("--check");
    let text = run(demo);
    let prompt = format!("$ cargo run --example {name}\n");
    let mut shown = 0;
    for page in pages() {
        let content = fs::read_to_string(&page).unwrap();
        for block in content.split(&prompt).skip(1) {
            for line in block.lines().take_while(|line| line.starts_with("  ")) {
                assert!(text.lines().any(|printed| printed == line), "{page:?} has {line:?}, {name} prints:\n{text}");
                shown += 1;
            }
        }
    }
    assert!(shown > 0, "no page shows what {name} prints, below {prompt:?}");
    text
}

#[test]
fn the_queue_demo_shows_fifo_answering_too_late_and_priorities_losing_nothing_critical() {
    let text = check("queue_demo");
    for sentence in ["demo: ", "simulated seconds", "FIFO, queue of 150", "met   critical calls lost: 0 of"] {
        assert!(text.contains(sentence), "no {sentence:?} in:\n{text}");
    }
}

#[test]
fn the_hedge_demo_shows_a_shorter_tail_and_capped_hedges() {
    let text = check("hedge_demo");
    for sentence in ["demo: ", "simulated seconds", "hedge after the p95", "met   hedges when everything is slow"] {
        assert!(text.contains(sentence), "no {sentence:?} in:\n{text}");
    }
}

#[test]
fn the_demo_of_tenants_gives_each_its_share_in_memory_and_as_processes_over_redis() {
    let text = check("tenants");
    for sentence in ["demo: ", "simulated time", "met   nor did all together", "met   pro: tenants that want more"] {
        assert!(text.contains(sentence), "no {sentence:?} in:\n{text}");
    }
    let mut fleet = example("tenants");
    fleet.arg("--spawn-redis");
    let text = run(fleet);
    for sentence in ["processes over one Redis", "met   no tenant used more", "met   nor did all together"] {
        assert!(text.contains(sentence), "no {sentence:?} in:\n{text}");
    }
}
