//! The name that was probably meant.

/// The nearest of the names, if it is near: one slip for every three letters, and never more than three.
pub(crate) fn nearest<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // A name that long is no slip of the pen, and comparing costs the product of the lengths.
    const LONGEST: usize = 64;
    if name.len() > LONGEST {
        return None;
    }
    let folded = name.to_lowercase().replace('-', "_");
    let slips = |candidate: &str| strsim::damerau_levenshtein(&folded, candidate);
    let found = names.into_iter().map(|candidate| (slips(candidate), candidate)).min_by_key(|(slips, _)| *slips);
    found.filter(|(slips, candidate)| *slips <= (candidate.len() / 3).clamp(1, 3)).map(|(_, candidate)| candidate)
}

/// `a, b or c`.
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
    fn a_slip_is_recognised_and_another_word_is_not() {
        let names = ["timeout", "retry", "rate_limit", "k"];
        let of = |name| nearest(name, names);
        assert_eq!(of("timeuot"), Some("timeout"));
        assert_eq!(of("Rate-Limit"), Some("rate_limit"));
        assert_eq!(of("retries"), None);
        assert_eq!(of("circuit"), None);
        assert_eq!(of(&"timeout".repeat(100)), None);
    }
}
