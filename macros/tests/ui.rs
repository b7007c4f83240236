//! Compile-time diagnostics: every mistake has its own message, and valid signatures compile.

#[test]
fn mistakes_have_their_own_messages_and_valid_signatures_compile() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/ui/pass/*.rs");
    cases.compile_fail("tests/ui/*.rs");
}
