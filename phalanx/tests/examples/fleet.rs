//! The fleet demo in three seconds: the breaker opens and closes for all replicas.

use crate::{example, run};

#[test]
fn the_fleet_demo_shows_the_breaker_opening_and_closing() {
    let mut fleet = example("fleet");
    fleet.args(["--seconds", "3"]);
    let text = run(fleet);
    for sentence in ["demo: ", "opened the breaker", "the breaker closed", "While it failed, the breaker rejected"] {
        assert!(text.contains(sentence), "no {sentence:?} in:\n{text}");
    }
}
