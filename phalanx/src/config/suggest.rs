//! Suggestions for misspelt names: "did you mean …?".

/// Returns the most similar name, if it is similar enough: at most one edit per three letters, and at most three edits.
pub fn nearest<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Comparing costs the product of the lengths, so long names get no suggestion.
    const MAX_NAME_LEN: usize = 64;
    if name.len() > MAX_NAME_LEN {
        return None;
    }
    let folded = name.to_lowercase().replace('-', "_");
    let edits = |candidate: &str| strsim::damerau_levenshtein(&folded, candidate);
    let found = names.into_iter().map(|candidate| (edits(candidate), candidate)).min_by_key(|(edits, _)| *edits);
    found.filter(|(edits, candidate)| *edits <= (candidate.len() / 3).clamp(1, 3)).map(|(_, candidate)| candidate)
}

/// Joins names: `a, b or c`.
pub(crate) fn or_list<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<_> = names.into_iter().collect();
    match names.as_slice() {
        [] => "nothing".to_owned(),
        [only] => (*only).to_owned(),
        [others @ .., last] => format!("{} or {last}", others.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelling_gets_a_suggestion_and_a_different_name_does_not() {
        let names = ["timeout", "retry", "rate_limit", "k"];
        let suggestion = |name| nearest(name, names);
        assert_eq!(suggestion("timeuot"), Some("timeout"));
        assert_eq!(suggestion("Rate-Limit"), Some("rate_limit"));
        assert_eq!(suggestion("retries"), None);
        assert_eq!(suggestion("circuit"), None);
        assert_eq!(suggestion(&"timeout".repeat(100)), None);
    }
}
