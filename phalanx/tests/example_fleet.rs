//! The fleet example as a newcomer runs it, only shorter: it must end by itself and show the circuit's whole story.

use std::process::Command;

#[test]
fn the_fleet_example_shows_the_circuit_opening_and_closing() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut example = Command::new(cargo);
    example.args(["run", "--quiet", "--locked", "--example", "fleet", "--", "--seconds", "3"]);
    let output = example.current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("cargo runs");
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}{errors}");
    for sentence in ["opened the circuit", "the circuit closed", "While dead it was spared"] {
        assert!(text.contains(sentence), "no {sentence:?} in:\n{text}");
    }
    assert!(!text.contains('\u{1b}'), "escape codes in a pipe:\n{text}");
}
