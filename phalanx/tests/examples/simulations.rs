//! The simulations: each keeps the promises it prints, and what the README shows of it is what it says.

use crate::{cargo, run};

fn check(example: &str) -> String {
    let mut program = cargo(example);
    program.arg("--check");
    let text = run(program);
    let after = format!("$ cargo run --example {example}\n");
    let readme = include_str!("../../README.md").split(&after).nth(1).expect("a block of the README");
    for line in readme.lines().take_while(|line| line.starts_with("  ")) {
        assert!(text.lines().any(|seen| seen == line), "the README has {line:?}, the example says:\n{text}");
    }
    text
}

#[test]
fn the_queue_example_shows_fifo_answering_too_late_and_priorities_losing_nothing_critical() {
    let text = check("queue");
    for sentence in ["simulated seconds", "FIFO, 150 places", "kept   critical lost 0 of"] {
        assert!(text.contains(sentence), "no {sentence:?} in:\n{text}");
    }
}

#[test]
fn the_hedge_example_shows_the_tail_cut_and_the_copies_capped() {
    let text = check("hedge");
    for sentence in ["simulated seconds", "a copy after the p95", "kept   copies when all is slow"] {
        assert!(text.contains(sentence), "no {sentence:?} in:\n{text}");
    }
}
