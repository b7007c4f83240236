//! The criticality of a request, parsed from an untrusted header. It can lower the server's default, and raise it only
//! if the peer is trusted.

use http::{HeaderMap, HeaderValue};
use phalanx::Criticality;

use super::CRITICALITY;

/// Returns the header value of a criticality.
pub(crate) const fn header_value(criticality: Criticality) -> HeaderValue {
    HeaderValue::from_static(match criticality {
        Criticality::BestEffort => "best_effort",
        Criticality::Degraded => "degraded",
        Criticality::Normal => "normal",
        Criticality::Critical => "critical",
    })
}

/// Parses a header value, ignoring case and accepting `-` for `_`.
pub(crate) fn parse(text: &[u8]) -> Option<Criticality> {
    use Criticality::{BestEffort, Critical, Degraded, Normal};
    [BestEffort, Degraded, Normal, Critical].into_iter().find(|criticality| {
        let (name, same) =
            (header_value(*criticality), |a: u8, b: u8| a.eq_ignore_ascii_case(&b) || (a == b'-' && b == b'_'));
        text.len() == name.len() && text.iter().zip(name.as_bytes()).all(|(a, b)| same(*a, *b))
    })
}

/// The criticality that a request gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GrantedCriticality {
    pub(crate) criticality: Criticality,
    /// Whether the request asked for more than it got.
    pub(crate) upgrade_rejected: bool,
    /// Number of malformed values.
    pub(crate) malformed: u64,
}

/// Parses the header. Of several values the lowest counts. `default` applies without a valid header, and is the maximum
/// for untrusted peers.
pub(crate) fn grant(
    headers: &HeaderMap,
    default: Criticality,
    is_trusted: impl FnOnce() -> bool,
) -> GrantedCriticality {
    let mut requested: Option<Criticality> = None;
    let mut malformed = 0;
    for value in headers.get_all(CRITICALITY) {
        match parse(value.as_bytes()) {
            Some(criticality) => requested = Some(requested.map_or(criticality, |own| own.min(criticality))),
            None => malformed += 1,
        }
    }
    let requested = requested.unwrap_or(default);
    let upgrade_rejected = requested > default && !is_trusted();
    let criticality = if upgrade_rejected { default } else { requested };
    GrantedCriticality { criticality, upgrade_rejected, malformed }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn granted(values: &[&[u8]], trusted: bool) -> GrantedCriticality {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(CRITICALITY, HeaderValue::from_bytes(value).unwrap());
        }
        grant(&headers, Criticality::Normal, || trusted)
    }

    #[test]
    fn names_are_parsed_in_any_case() {
        assert_eq!(parse(b"Best-Effort"), Some(Criticality::BestEffort));
        assert_eq!(parse(b"CRITICAL"), Some(Criticality::Critical));
        assert_eq!(parse(b"vital"), None);
        assert_eq!(parse(b""), None);
    }

    #[test]
    fn an_untrusted_peer_lowers_the_criticality_and_does_not_raise_it() {
        let criticality = |value: &[u8], trusted| granted(&[value], trusted).criticality;
        assert_eq!(criticality(b"degraded", false), Criticality::Degraded);
        assert_eq!(criticality(b"critical", false), Criticality::Normal);
        assert_eq!(criticality(b"critical", true), Criticality::Critical);
        assert!(granted(&[b"critical"], false).upgrade_rejected && !granted(&[b"critical"], true).upgrade_rejected);
        assert_eq!(granted(&[b"critical", b"best_effort"], true).criticality, Criticality::BestEffort);
    }

    proptest! {
        #[test]
        fn no_header_value_raises_an_untrusted_request(value in proptest::collection::vec(any::<u8>(), 0..20)) {
            prop_assume!(HeaderValue::from_bytes(&value).is_ok());
            prop_assert!(granted(&[&value], false).criticality <= Criticality::Normal);
        }
    }
}
