//! The code of the READMEs is that of an example that runs.

#[test]
fn the_readmes_lines_are_those_of_the_example() {
    let example: Vec<&str> = include_str!("../examples/tower_stack.rs").lines().map(str::trim).collect();
    let project = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md")).unwrap();
    let (_, section) = project.split_once("### Tower\n").unwrap();
    for readme in [section, include_str!("../README.md")] {
        let (_, block) = readme.split_once("```rust,no_run\n").unwrap();
        let (code, _) = block.split_once("```").unwrap();
        for line in code.lines().map(str::trim) {
            assert!(example.contains(&line), "not in examples/tower_stack.rs: {line}");
        }
    }
}
