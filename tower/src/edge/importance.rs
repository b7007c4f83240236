//! How much a request would be missed, read from a header that anybody can write: it may lower, and raise only where
//! the peer is trusted.

use http::{HeaderMap, HeaderValue};
use phalanx::Criticality;

use super::CRITICALITY;

/// The name in headers.
pub(crate) const fn name(criticality: Criticality) -> HeaderValue {
    HeaderValue::from_static(match criticality {
        Criticality::BestEffort => "best_effort",
        Criticality::Degraded => "degraded",
        Criticality::Normal => "normal",
        Criticality::Critical => "critical",
    })
}

/// What a header's value means; case and `-` for `_` do not matter.
pub(crate) fn parse(text: &[u8]) -> Option<Criticality> {
    use Criticality::{BestEffort, Critical, Degraded, Normal};
    [BestEffort, Degraded, Normal, Critical].into_iter().find(|criticality| {
        let (name, same) = (name(*criticality), |a: u8, b: u8| a.eq_ignore_ascii_case(&b) || (a == b'-' && b == b'_'));
        text.len() == name.len() && text.iter().zip(name.as_bytes()).all(|(a, b)| same(*a, *b))
    })
}

/// What a request's headers come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claimed {
    pub(crate) criticality: Criticality,
    /// Whether more was claimed than is allowed.
    pub(crate) rejected: bool,
    /// Values that could not be read.
    pub(crate) garbled: u64,
}

/// Reads the header. Of several values the lowest counts; `most` is what an untrusted request has at best and one that
/// says nothing has anyway.
pub(crate) fn read(headers: &HeaderMap, most: Criticality, trusted: impl FnOnce() -> bool) -> Claimed {
    let mut claimed: Option<Criticality> = None;
    let mut garbled = 0;
    for value in headers.get_all(CRITICALITY) {
        match parse(value.as_bytes()) {
            Some(criticality) => claimed = Some(claimed.map_or(criticality, |own| own.min(criticality))),
            None => garbled += 1,
        }
    }
    let claimed = claimed.unwrap_or(most);
    let rejected = claimed > most && !trusted();
    Claimed { criticality: if rejected { most } else { claimed }, rejected, garbled }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn claimed(values: &[&[u8]], trusted: bool) -> Claimed {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(CRITICALITY, HeaderValue::from_bytes(value).unwrap());
        }
        read(&headers, Criticality::Normal, || trusted)
    }

    #[test]
    fn names_are_read_back_whatever_their_case() {
        assert_eq!(parse(b"Best-Effort"), Some(Criticality::BestEffort));
        assert_eq!(parse(b"CRITICAL"), Some(Criticality::Critical));
        assert_eq!(parse(b"vital"), None);
        assert_eq!(parse(b""), None);
    }

    /// FAULTS H4.
    #[test]
    fn a_stranger_lowers_and_does_not_raise() {
        let criticality = |value: &[u8], trusted| claimed(&[value], trusted).criticality;
        assert_eq!(criticality(b"degraded", false), Criticality::Degraded);
        assert_eq!(criticality(b"critical", false), Criticality::Normal);
        assert_eq!(criticality(b"critical", true), Criticality::Critical);
        assert!(claimed(&[b"critical"], false).rejected && !claimed(&[b"critical"], true).rejected);
        assert_eq!(claimed(&[b"critical", b"best_effort"], true).criticality, Criticality::BestEffort);
    }

    proptest! {
        #[test]
        fn no_bytes_raise_an_untrusted_request(value in proptest::collection::vec(any::<u8>(), 0..20)) {
            prop_assume!(HeaderValue::from_bytes(&value).is_ok());
            prop_assert!(claimed(&[&value], false).criticality <= Criticality::Normal);
        }
    }
}
