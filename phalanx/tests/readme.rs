//! The README against the code: the table of rejections row by row, the code blocks line by line.

use phalanx::RejectionCode;

#[test]
fn the_readmes_table_of_rejections_is_the_codes() {
    let readme = include_str!("../README.md");
    let row = |code: RejectionCode| format!("| `{code}` | {} | {} | {} |", code.kind(), code.status(), code.meaning());
    let expected: Vec<String> = RejectionCode::ALL.into_iter().map(row).collect();
    let table = readme.lines().skip_while(|line| !line.starts_with("| code | kind"));
    let rows: Vec<&str> = table.skip(2).take_while(|line| line.starts_with('|')).collect();
    assert_eq!(rows, expected);
}

#[test]
fn the_readmes_code_is_that_of_an_example_that_compiles() {
    let lines = |text: &str| text.lines().map(|line| line.trim().to_owned()).collect::<Vec<_>>();
    let example = lines(concat!(
        include_str!("../examples/readme.rs"),
        include_str!("../examples/ports.rs"),
        include_str!("../examples/configure/main.rs"),
    ));
    let blocks: Vec<&str> = include_str!("../README.md").split("```rust\n").skip(1).collect();
    assert_eq!(blocks.len(), 8);
    for block in blocks {
        let code = lines(block.split("```").next().unwrap_or_default());
        let found = example.windows(code.len()).any(|window| window == code);
        assert!(found, "in no example:\n{}", code.join("\n"));
    }
}
