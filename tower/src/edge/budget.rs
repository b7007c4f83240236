//! How long a request may take, read from headers that anybody can write.
//!
//! Three ways to say it: milliseconds, gRPC's digits with a unit, and a moment in RFC 3339. Of several the shortest
//! counts. A moment is only as good as the two clocks it lies between: one that is further in the past, or further from
//! what the client says in milliseconds, than clocks may differ is a wrong clock rather than a deadline.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderName};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::{GRPC_TIMEOUT, REQUEST_DEADLINE, REQUEST_TIMEOUT};

/// What a request's headers ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    /// The time the client has left, zero if none; nothing if it does not say, or not so that it can be understood.
    pub(crate) budget: Option<Duration>,
    /// Values that could not be read.
    pub(crate) garbled: u64,
    /// Moments that only a wrong clock explains.
    pub(crate) skewed: u64,
}

/// Reads all three headers. The time of day is asked for only if a moment is to be read.
pub(crate) fn read(headers: &HeaderMap, wall: impl FnOnce() -> SystemTime, max_skew: Duration) -> Asked {
    let mut asked = Asked::default();
    asked.shorten(headers, &REQUEST_TIMEOUT, millis);
    asked.shorten(headers, &GRPC_TIMEOUT, grpc);
    if headers.contains_key(REQUEST_DEADLINE) {
        let now = OffsetDateTime::from(wall());
        for value in headers.get_all(REQUEST_DEADLINE) {
            match moment(value.as_bytes()) {
                None => asked.garbled += 1,
                Some(deadline) => asked.shorten_to(deadline - now, max_skew),
            }
        }
    }
    asked
}

impl Asked {
    fn shorten(&mut self, headers: &HeaderMap, name: &HeaderName, read: impl Fn(&[u8]) -> Option<Duration>) {
        for value in headers.get_all(name) {
            match read(value.as_bytes()) {
                Some(budget) => self.budget = Some(self.budget.map_or(budget, |own| own.min(budget))),
                None => self.garbled += 1,
            }
        }
    }

    /// Takes the time until a moment, if the clocks allow it.
    fn shorten_to(&mut self, left: time::Duration, max_skew: Duration) {
        let skew = time::Duration::try_from(max_skew).unwrap_or(time::Duration::MAX);
        let relative = self.budget.map_or(time::Duration::ZERO, |own| own.try_into().unwrap_or(time::Duration::MAX));
        if relative.saturating_sub(left) > skew {
            self.skewed += 1;
            return;
        }
        let left = Duration::try_from(left).unwrap_or(Duration::ZERO); // past
        self.budget = Some(self.budget.map_or(left, |own| own.min(left)));
    }
}

/// Up to `most` digits, and nothing else.
fn digits(text: &[u8], most: usize) -> Option<u64> {
    let plausible = (1..=most).contains(&text.len()) && text.iter().all(u8::is_ascii_digit);
    plausible.then(|| text.iter().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0')))
}

/// Whole milliseconds, in at most ten digits: 115 days.
pub(crate) fn millis(text: &[u8]) -> Option<Duration> {
    digits(text, 10).map(Duration::from_millis)
}

/// gRPC's own form: at most eight digits and a unit.
pub(crate) fn grpc(text: &[u8]) -> Option<Duration> {
    let (unit, number) = text.split_last()?;
    let number = digits(number, 8)?;
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

fn moment(text: &[u8]) -> Option<OffsetDateTime> {
    const LONGEST: usize = 40; // 2026-11-18T01:25:59.123456789+00:00 has 35
    let text = std::str::from_utf8(text).ok().filter(|text| text.len() <= LONGEST)?;
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

    fn asked(pairs: &[(&HeaderName, &[u8])]) -> Asked {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_bytes(value).unwrap());
        }
        read(&headers, || SystemTime::UNIX_EPOCH + Duration::from_secs(NOW), SKEW)
    }

    fn budget(name: &HeaderName, value: &str) -> Option<Duration> {
        asked(&[(name, value.as_bytes())]).budget
    }

    #[test]
    fn each_of_the_three_ways_is_read() {
        let secs = |n| Some(Duration::from_secs(n));
        assert_eq!(budget(&REQUEST_TIMEOUT, "1500"), Some(Duration::from_millis(1_500)));
        assert_eq!(budget(&REQUEST_TIMEOUT, "9999999999"), Some(Duration::from_millis(9_999_999_999)));
        assert_eq!(budget(&GRPC_TIMEOUT, "2S"), secs(2));
        assert_eq!(budget(&GRPC_TIMEOUT, "99999999H"), secs(99_999_999 * 3_600));
        assert_eq!(budget(&GRPC_TIMEOUT, "5u"), Some(Duration::from_micros(5)));
        assert_eq!(budget(&REQUEST_DEADLINE, "2001-09-09T01:46:42.5Z"), Some(Duration::from_millis(2_500)));
        assert_eq!(budget(&REQUEST_DEADLINE, "2001-09-09T03:46:42+02:00"), secs(2));
    }

    #[test]
    fn zero_and_a_moment_that_is_past_leave_nothing() {
        assert_eq!(budget(&REQUEST_TIMEOUT, "0"), Some(Duration::ZERO));
        assert_eq!(budget(&GRPC_TIMEOUT, "0n"), Some(Duration::ZERO));
        assert_eq!(budget(&REQUEST_DEADLINE, "2001-09-09T01:46:30Z"), Some(Duration::ZERO));
    }

    #[test]
    fn what_makes_no_sense_is_no_header_and_is_counted() {
        for value in ["", "-1", "+5", "1.5", "1e3", " 5", "0x10", "12345678901", "٣", "5s", "soon"] {
            let read = asked(&[(&REQUEST_TIMEOUT, value.as_bytes())]);
            assert_eq!(read, Asked { budget: None, garbled: 1, skewed: 0 }, "{value:?}");
        }
        for value in ["", "S", "5", "5s", "-5S", "123456789S", "5 S"] {
            assert_eq!(asked(&[(&GRPC_TIMEOUT, value.as_bytes())]).garbled, 1, "{value:?}");
        }
        for value in ["", "now", "2001-09-09", "1000000002", "2001-13-09T01:46:40Z", "2001-09-09T01:46:42"] {
            assert_eq!(asked(&[(&REQUEST_DEADLINE, value.as_bytes())]).garbled, 1, "{value:?}");
        }
    }

    #[test]
    fn of_several_the_shortest_counts() {
        let all: [(&HeaderName, &[u8]); 4] = [
            (&REQUEST_TIMEOUT, b"9000"),
            (&REQUEST_TIMEOUT, b"garbage"),
            (&GRPC_TIMEOUT, b"3S"),
            (&REQUEST_DEADLINE, b"2001-09-09T01:46:44Z"),
        ];
        assert_eq!(asked(&all), Asked { budget: Some(Duration::from_secs(3)), garbled: 1, skewed: 0 });
    }

    #[test]
    fn a_clock_that_is_wrong_by_more_than_the_limit_is_not_believed() {
        let ago = asked(&[(&REQUEST_DEADLINE, b"2001-09-09T01:45:00Z")]); // 100 s ago
        assert_eq!(ago, Asked { budget: None, garbled: 0, skewed: 1 });
        let apart = asked(&[(&REQUEST_TIMEOUT, b"90000"), (&REQUEST_DEADLINE, b"2001-09-09T01:46:42Z")]);
        assert_eq!(apart, Asked { budget: Some(Duration::from_secs(90)), garbled: 0, skewed: 1 });
    }

    fn value() -> impl Strategy<Value = Vec<u8>> {
        let text = prop_oneof![
            "[0-9]{0,12}[HMSmun]?",
            "[0-9]{4}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-6][0-9](\\.[0-9]{0,12})?(Z|[+-][0-2][0-9]:[0-5][0-9])",
        ];
        prop_oneof![proptest::collection::vec(any::<u8>(), 0..80), text.prop_map(String::into_bytes)]
    }

    proptest! {
        /// FAULTS H3. That a header never lengthens what the server allows, the layer's own test says.
        #[test]
        fn any_bytes_are_read_or_counted_and_another_header_only_ever_shortens(
            first in value(), second in value(), which in 0_usize..3, other in 0_usize..3,
        ) {
            let names = [&REQUEST_TIMEOUT, &GRPC_TIMEOUT, &REQUEST_DEADLINE];
            let sane = |bytes: &[u8]| HeaderValue::from_bytes(bytes).is_ok();
            prop_assume!(sane(&first) && sane(&second));
            let one = asked(&[(names[which], &first)]);
            prop_assert_eq!(u64::from(one.budget.is_some()) + one.garbled + one.skewed, 1);
            let both = asked(&[(names[which], &first), (names[other], &second)]);
            // Two clocks that contradict each other: milliseconds win over the moment, which may be the shorter one.
            if let (Some(one), 0) = (one.budget, both.skewed) {
                prop_assert!(both.budget.is_some_and(|both| both <= one));
            }
        }
    }
}
