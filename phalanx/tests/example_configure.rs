//! The configure example as a newcomer runs it.

#![cfg(all(feature = "toml", feature = "reload"))]

use std::process::Command;

#[test]
fn the_configure_example_shows_what_is_in_force_and_who_said_so() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut example = Command::new(cargo);
    // All features, so that what `make test` has built is not built again.
    example.args(["run", "--quiet", "--locked", "--all-features", "--example", "configure"]);
    example.env("PHALANX__POLICIES__PAYMENTS__TIMEOUT", "500ms");
    let output = example.current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("cargo runs");
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}{errors}");
    for line in [
        "timeout = \"500ms\"",
        "PHALANX__POLICIES__PAYMENTS__TIMEOUT",
        "phalanx.toml:8",
        "built in",
        "lever of payments: force_open",
        "forced_open",
        "lever of payments: hedging_off",
    ] {
        assert!(text.contains(line), "no {line:?} in\n{text}");
    }
}
