//! The configure demo: policies from a file, a variable that overrides it, and a lever that overrides both.

use crate::{example, run};

#[test]
fn the_configure_demo_prints_every_value_with_its_origin() {
    let mut configure = example("configure");
    configure.env("PHALANX__POLICIES__PAYMENTS__TIMEOUT", "500ms");
    let text = run(configure);
    for words in [
        "demo: ",
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
