//! The README against the code: the table of refusals row by row.

use phalanx::Code;

#[test]
fn the_readmes_table_of_refusals_is_the_codes() {
    let readme = include_str!("../README.md");
    let row = |code: Code| format!("| `{code}` | {} | {} | {} |", code.kind(), code.status(), code.meaning());
    let expected: Vec<String> = Code::ALL.into_iter().map(row).collect();
    let table = readme.lines().skip_while(|line| !line.starts_with("| code | kind"));
    let rows: Vec<&str> = table.skip(2).take_while(|line| line.starts_with('|')).collect();
    assert_eq!(rows, expected);
}
