//! Every mistake is told in words, and what should compile does.

#[test]
fn every_mistake_is_told_in_words() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/ui/pass/*.rs");
    cases.compile_fail("tests/ui/*.rs");
}
