//! The simulated examples as a newcomer runs them: each must end by itself and keep the promises it prints, and what the
//! README shows of it is what it says.

#![allow(clippy::expect_used)] // a panic is how a test says no, in its helpers too

use std::process::Command;

fn run(example: &str) -> String {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["run", "--quiet", "--locked", "--example", example, "--", "--check"]);
    let output = command.current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("cargo runs");
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}{errors}");
    assert!(!text.contains('\u{1b}'), "escape codes in a pipe:\n{text}");
    let after = format!("$ cargo run --example {example}\n");
    let readme = include_str!("../README.md").split(&after).nth(1).expect("a block of the README");
    for line in readme.lines().take_while(|line| line.starts_with("  ")) {
        assert!(text.lines().any(|seen| seen == line), "the README has {line:?}, the example says:\n{text}");
    }
    text.into_owned()
}

#[test]
fn the_queue_example_shows_fifo_answering_too_late_and_priorities_losing_nothing_critical() {
    let text = run("queue");
    for sentence in ["simulated seconds", "FIFO, 150 places", "kept   critical lost 0 of"] {
        assert!(text.contains(sentence), "no {sentence:?} in:\n{text}");
    }
}

#[test]
fn the_hedge_example_shows_the_tail_cut_and_the_copies_capped() {
    let text = run("hedge");
    for sentence in ["simulated seconds", "a copy after the p95", "kept   copies when all is slow"] {
        assert!(text.contains(sentence), "no {sentence:?} in:\n{text}");
    }
}
