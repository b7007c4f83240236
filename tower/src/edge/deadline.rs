//! The deadline of a request, parsed from untrusted headers.
//!
//! A client can send a timeout in milliseconds, a gRPC timeout (digits with a unit), or a deadline in RFC 3339. The
//! shortest one counts. A deadline depends on the clocks of client and server. If it lies further in the past than
//! `max_skew`, or is shorter than the client's own timeout by more than that, a clock is wrong and the deadline is ignored.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderName};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::{GRPC_TIMEOUT, REQUEST_DEADLINE, REQUEST_TIMEOUT};

/// The time that a request's headers ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestedTime {
    /// The time left, zero if the deadline has passed; none without a valid header.
    pub(crate) remaining: Option<Duration>,
    /// Number of malformed values.
    pub(crate) malformed: u64,
    /// Number of deadlines ignored because of a wrong clock.
    pub(crate) skewed: u64,
}

/// Parses all three headers. Reads the wall clock only if there is an `X-Request-Deadline`.
pub(crate) fn parse(headers: &HeaderMap, wall_clock: impl FnOnce() -> SystemTime, max_skew: Duration) -> RequestedTime {
    let mut requested = RequestedTime::default();
    requested.shorten_by_header(headers, &REQUEST_TIMEOUT, parse_millis);
    requested.shorten_by_header(headers, &GRPC_TIMEOUT, parse_grpc_timeout);
    if headers.contains_key(REQUEST_DEADLINE) {
        let now = date_of(wall_clock());
        for value in headers.get_all(REQUEST_DEADLINE) {
            match (parse_rfc3339(value.as_bytes()), now) {
                (None, _) => requested.malformed += 1,
                (Some(deadline), Some(now)) => requested.shorten_by_deadline(deadline - now, max_skew),
                (Some(_), None) => requested.skewed += 1,
            }
        }
    }
    requested
}

impl RequestedTime {
    fn shorten_by_header(&mut self, headers: &HeaderMap, name: &HeaderName, parse: impl Fn(&[u8]) -> Option<Duration>) {
        for value in headers.get_all(name) {
            match parse(value.as_bytes()) {
                Some(timeout) => self.shorten(timeout),
                None => self.malformed += 1,
            }
        }
    }

    fn shorten_by_deadline(&mut self, left: time::Duration, max_skew: Duration) {
        let max_skew = time::Duration::try_from(max_skew).unwrap_or(time::Duration::MAX);
        let timeout = self.remaining.map_or(time::Duration::ZERO, |own| own.try_into().unwrap_or(time::Duration::MAX));
        if timeout.saturating_sub(left) > max_skew {
            self.skewed += 1;
            return;
        }
        self.shorten(Duration::try_from(left).unwrap_or(Duration::ZERO)); // negative: the deadline has passed
    }

    fn shorten(&mut self, left: Duration) {
        self.remaining = Some(self.remaining.map_or(left, |own| own.min(left)));
    }
}

/// Parses one to `max_digits` ASCII digits and nothing else.
fn parse_digits(text: &[u8], max_digits: usize) -> Option<u64> {
    let valid = (1..=max_digits).contains(&text.len()) && text.iter().all(u8::is_ascii_digit);
    valid.then(|| text.iter().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0')))
}

/// Parses whole milliseconds of at most ten digits (115 days).
pub(crate) fn parse_millis(text: &[u8]) -> Option<Duration> {
    parse_digits(text, 10).map(Duration::from_millis)
}

/// Parses a gRPC timeout: at most eight digits and a unit.
pub(crate) fn parse_grpc_timeout(text: &[u8]) -> Option<Duration> {
    let (unit, number) = text.split_last()?;
    let number = parse_digits(number, 8)?;
    match unit {
        b'H' => Some(Duration::from_secs(number * 3_600)),
        b'M' => Some(Duration::from_secs(number * 60)),
        b'S' => Some(Duration::from_secs(number)),
        b'm' => Some(Duration::from_millis(number)),
        b'u' => Some(Duration::from_micros(number)),
        b'n' => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

/// Returns the date of a wall clock; none for years that RFC 3339 cannot write, which no deadline can be compared with.
fn date_of(wall_clock: SystemTime) -> Option<OffsetDateTime> {
    let epoch = OffsetDateTime::UNIX_EPOCH;
    match wall_clock.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => epoch.checked_add(since.try_into().ok()?),
        Err(before) => epoch.checked_sub(before.duration().try_into().ok()?),
    }
}

fn parse_rfc3339(text: &[u8]) -> Option<OffsetDateTime> {
    const MAX_BYTES: usize = 40; // 2026-11-18T01:25:59.123456789+00:00 has 35
    let text = std::str::from_utf8(text).ok().filter(|text| text.len() <= MAX_BYTES)?;
    OffsetDateTime::parse(text, &Rfc3339).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use proptest::prelude::*;

    const SKEW: Duration = Duration::from_secs(60);
    /// 2001-09-09T01:46:40Z.
    const NOW: u64 = 1_000_000_000;

    fn requested(pairs: &[(&HeaderName, &[u8])]) -> RequestedTime {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_bytes(value).unwrap());
        }
        parse(&headers, || SystemTime::UNIX_EPOCH + Duration::from_secs(NOW), SKEW)
    }

    fn remaining(name: &HeaderName, value: &str) -> Option<Duration> {
        requested(&[(name, value.as_bytes())]).remaining
    }

    #[test]
    fn each_of_the_three_headers_is_parsed() {
        let secs = |n| Some(Duration::from_secs(n));
        assert_eq!(remaining(&REQUEST_TIMEOUT, "1500"), Some(Duration::from_millis(1_500)));
        assert_eq!(remaining(&REQUEST_TIMEOUT, "9999999999"), Some(Duration::from_millis(9_999_999_999)));
        assert_eq!(remaining(&GRPC_TIMEOUT, "2S"), secs(2));
        assert_eq!(remaining(&GRPC_TIMEOUT, "99999999H"), secs(99_999_999 * 3_600));
        assert_eq!(remaining(&GRPC_TIMEOUT, "5u"), Some(Duration::from_micros(5)));
        assert_eq!(remaining(&REQUEST_DEADLINE, "2001-09-09T01:46:42.5Z"), Some(Duration::from_millis(2_500)));
        assert_eq!(remaining(&REQUEST_DEADLINE, "2001-09-09T03:46:42+02:00"), secs(2));
    }

    #[test]
    fn zero_and_a_past_deadline_leave_no_time() {
        assert_eq!(remaining(&REQUEST_TIMEOUT, "0"), Some(Duration::ZERO));
        assert_eq!(remaining(&GRPC_TIMEOUT, "0n"), Some(Duration::ZERO));
        assert_eq!(remaining(&REQUEST_DEADLINE, "2001-09-09T01:46:30Z"), Some(Duration::ZERO));
    }

    #[test]
    fn malformed_values_are_ignored_and_counted() {
        for value in ["", "-1", "+5", "1.5", "1e3", " 5", "0x10", "12345678901", "٣", "5s", "soon"] {
            let parsed = requested(&[(&REQUEST_TIMEOUT, value.as_bytes())]);
            assert_eq!(parsed, RequestedTime { remaining: None, malformed: 1, skewed: 0 }, "{value:?}");
        }
        for value in ["", "S", "5", "5s", "-5S", "123456789S", "5 S"] {
            assert_eq!(requested(&[(&GRPC_TIMEOUT, value.as_bytes())]).malformed, 1, "{value:?}");
        }
        for value in ["", "now", "2001-09-09", "1000000002", "2001-13-09T01:46:40Z", "2001-09-09T01:46:42"] {
            assert_eq!(requested(&[(&REQUEST_DEADLINE, value.as_bytes())]).malformed, 1, "{value:?}");
        }
    }

    #[test]
    fn of_several_headers_the_shortest_time_counts() {
        let all: [(&HeaderName, &[u8]); 4] = [
            (&REQUEST_TIMEOUT, b"9000"),
            (&REQUEST_TIMEOUT, b"garbage"),
            (&GRPC_TIMEOUT, b"3S"),
            (&REQUEST_DEADLINE, b"2001-09-09T01:46:44Z"),
        ];
        let parsed = requested(&all);
        assert_eq!(parsed, RequestedTime { remaining: Some(Duration::from_secs(3)), malformed: 1, skewed: 0 });
    }

    #[test]
    fn a_deadline_beyond_the_allowed_clock_skew_is_ignored() {
        let ago = requested(&[(&REQUEST_DEADLINE, b"2001-09-09T01:45:00Z")]); // 100 s ago
        assert_eq!(ago, RequestedTime { remaining: None, malformed: 0, skewed: 1 });
        let apart = requested(&[(&REQUEST_TIMEOUT, b"90000"), (&REQUEST_DEADLINE, b"2001-09-09T01:46:42Z")]);
        assert_eq!(apart, RequestedTime { remaining: Some(Duration::from_secs(90)), malformed: 0, skewed: 1 });
    }

    #[test]
    fn a_wall_clock_beyond_all_dates_makes_every_deadline_skewed() {
        let (mut headers, century) = (HeaderMap::new(), Duration::from_secs(100 * 31_557_600));
        headers.insert(REQUEST_DEADLINE, HeaderValue::from_static("2001-09-09T01:46:42Z"));
        let epoch = SystemTime::UNIX_EPOCH;
        for wall_clock in [epoch + 81 * century, epoch - 121 * century] {
            let parsed = parse(&headers, || wall_clock, SKEW);
            assert_eq!(parsed, RequestedTime { remaining: None, malformed: 0, skewed: 1 });
        }
        assert_eq!(date_of(epoch - Duration::from_secs(1)).map(OffsetDateTime::unix_timestamp), Some(-1));
    }

    fn value() -> impl Strategy<Value = Vec<u8>> {
        let text = prop_oneof![
            "[0-9]{0,12}[HMSmun]?",
            "[0-9]{4}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-6][0-9](\\.[0-9]{0,12})?(Z|[+-][0-2][0-9]:[0-5][0-9])",
        ];
        prop_oneof![proptest::collection::vec(any::<u8>(), 0..80), text.prop_map(String::into_bytes)]
    }

    proptest! {
        /// `tests/edge.rs` checks that a header never lengthens the server's own deadline.
        #[test]
        fn any_bytes_are_parsed_or_counted_and_a_second_header_only_shortens_the_time(
            first in value(), second in value(), which in 0_usize..3, other in 0_usize..3,
        ) {
            let names = [&REQUEST_TIMEOUT, &GRPC_TIMEOUT, &REQUEST_DEADLINE];
            let valid = |bytes: &[u8]| HeaderValue::from_bytes(bytes).is_ok();
            prop_assume!(valid(&first) && valid(&second));
            let one = requested(&[(names[which], &first)]);
            prop_assert_eq!(u64::from(one.remaining.is_some()) + one.malformed + one.skewed, 1);
            let both = requested(&[(names[which], &first), (names[other], &second)]);
            // A deadline that contradicts a timeout is ignored even if it is the shorter one.
            if let (Some(one), 0) = (one.remaining, both.skewed) {
                prop_assert!(both.remaining.is_some_and(|both| both <= one));
            }
        }
    }
}
