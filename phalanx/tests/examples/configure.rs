//! Policies from a file, a variable above it, and a lever above both.

use crate::{cargo, run};

#[test]
fn the_configure_example_shows_what_is_in_force_and_who_said_so() {
    let mut example = cargo("configure");
    example.env("PHALANX__POLICIES__PAYMENTS__TIMEOUT", "500ms");
    let text = run(example);
    for words in [
        "timeout = \"500ms\"",
        "PHALANX__POLICIES__PAYMENTS__TIMEOUT",
        "phalanx.toml:8",
        "built in",
        "lever of payments: force_open",
        "(forced_open)",
        "lever of payments: hedging_off",
    ] {
        assert!(text.contains(words), "no {words:?} in\n{text}");
    }
}
