//! The fleet, only shorter: the circuit's whole story.

use crate::{cargo, run};

#[test]
fn the_fleet_example_shows_the_circuit_opening_and_closing() {
    let mut example = cargo("fleet");
    example.args(["--seconds", "3"]);
    let text = run(example);
    for sentence in ["opened the circuit", "the circuit closed", "While dead it was spared"] {
        assert!(text.contains(sentence), "no {sentence:?} in:\n{text}");
    }
}
