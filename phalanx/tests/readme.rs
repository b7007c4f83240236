//! The table of rejection codes in `docs/errors.md` against `RejectionCode`, row by row.

#![allow(clippy::unwrap_used)] // a panic fails the test

use std::path::Path;

use phalanx::RejectionCode;

/// `PHALANX_RENEW_DOCS=1` rewrites the table first.
#[test]
fn the_table_of_rejection_codes_matches_the_code() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/errors.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let row = |code: RejectionCode| format!("| `{code}` | {} | {} | {} |", code.kind(), code.status(), code.meaning());
    let expected: Vec<String> = RejectionCode::ALL.into_iter().map(row).collect();
    let lines: Vec<&str> = page.lines().collect();
    let first = lines.iter().position(|line| line.starts_with("| code | kind")).unwrap() + 2;
    let count = lines[first..].iter().take_while(|line| line.starts_with('|')).count();
    let rows = &lines[first..first + count];
    if std::env::var_os("PHALANX_RENEW_DOCS").is_some() {
        let expected = expected.iter().map(String::as_str);
        let renewed: Vec<&str> =
            lines[..first].iter().copied().chain(expected).chain(lines[first + count..].iter().copied()).collect();
        std::fs::write(&path, renewed.join("\n") + "\n").unwrap();
        return;
    }
    let advice = "renew it: PHALANX_RENEW_DOCS=1 cargo test -p phalanx --all-features --test readme";
    assert!(rows == expected, "docs/errors.md differs from RejectionCode; {advice}\n{expected:#?}");
}
