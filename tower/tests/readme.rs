//! The code of the README is that of an example that runs. The blocks of `docs/http.md` are compiled by
//! `integration-tests/src/pages.rs`.

#[test]
fn the_readmes_lines_are_those_of_the_example() {
    let example: Vec<&str> = include_str!("../examples/tower_stack.rs").lines().map(str::trim).collect();
    let (_, block) = include_str!("../README.md").split_once("```rust,no_run\n").unwrap();
    let (code, _) = block.split_once("```").unwrap();
    for line in code.lines().map(str::trim) {
        assert!(example.contains(&line), "not in examples/tower_stack.rs: {line}");
    }
}
