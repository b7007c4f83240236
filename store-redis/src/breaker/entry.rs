//! The override of a breaker as an entry of the fleet: what it is, its sequence, who set it, why, and until when.
//!
//! Entries are ordered by their sequence, and those with one sequence by their author, whatever the epoch of the breaker.
//! A release is an entry too, so that no replica that missed it brings back what it released. The time that is left
//! travels with an entry and runs on each replica's clock; of two ends of one entry the earlier one counts.

use std::sync::Arc;
use std::time::Duration;

use phalanx_core::breaker::{Override, OverrideRequest};
use phalanx_core::clock::Time;

use super::codec::{exact, override_number, override_of};

/// The text of no entry.
pub(crate) const NO_ENTRY: &str = "0 0 0 -1 - -";

/// How long a release is kept, and an override after its end. A replica that has not heard from Redis for longer forgets
/// what it knows instead of putting it back.
pub(crate) const RELEASE_KEPT: Duration = Duration::from_secs(7 * 24 * 3_600);

/// The highest sequence: one that grows from here is still exact in a script.
const MAX_SEQUENCE: u64 = 1 << 52;
const MAX_AUTHOR_BYTES: usize = 64;
const MAX_REASON_BYTES: usize = 200;

/// An entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OverrideEntry {
    pub(crate) sequence: u64,
    /// The number of the override in scripts; 0 is a release. A later release may use more numbers than this one knows.
    value: u64,
    /// The replica that made the entry.
    author: u64,
    /// When it ends, on this replica's clock; [`Time::NEVER`] if it is to be released.
    until: Time,
    /// Author and reason as words of a text.
    name: Arc<str>,
    reason: Arc<str>,
}

impl OverrideEntry {
    /// Makes an entry of a request.
    pub(crate) fn of(request: &OverrideRequest, author: u64, sequence: u64, now: Time) -> Self {
        let value = u64::from(override_number(request.value));
        let lasts = if value == 0 { Some(RELEASE_KEPT) } else { request.lasts };
        Self {
            sequence,
            value,
            author,
            until: lasts.map_or(Time::NEVER, |lasts| now.after(lasts)),
            name: word(&request.author, MAX_AUTHOR_BYTES).into(),
            reason: word(&request.reason, MAX_REASON_BYTES).into(),
        }
    }

    /// Decodes the text of a reply or a message; `None` if there is no entry, or if no script has written it.
    pub(crate) fn decode(text: &str, now: Time) -> Option<Self> {
        let mut words = text.split(' ');
        let mut number = || words.next()?.parse::<i64>().ok();
        let [sequence, value, author, left] = [number()?, number()?, number()?, number()?];
        let until = if left < 0 { Time::NEVER } else { now.after(Duration::from_micros(exact(left)?)) };
        let (name, reason) = (words.next()?, words.next()?);
        let sequence = exact(sequence).filter(|sequence| (1..=MAX_SEQUENCE).contains(sequence))?;
        let (value, author) = (exact(value)?, exact(author)?);
        Some(Self { sequence, value, author, until, name: name.into(), reason: reason.into() })
    }

    /// Encodes it for a script.
    pub(crate) fn text(&self, now: Time) -> String {
        let Self { sequence, value, author, name, reason, .. } = self;
        let left = if self.until == Time::NEVER { -1 } else { self.until.since(now).as_micros() as i64 };
        format!("{sequence} {value} {author} {left} {name} {reason}")
    }

    /// Returns the override that is in force.
    pub(crate) fn in_force(&self, now: Time) -> Option<Override> {
        if now < self.until { override_of(i64::try_from(self.value).ok()?).flatten() } else { None }
    }

    /// Returns when an override ends by itself.
    pub(crate) const fn until(&self) -> Time {
        self.until
    }

    pub(crate) fn is_newer_than(&self, other: &Self) -> bool {
        (self.sequence, self.author) > (other.sequence, other.author)
    }

    /// Takes over the earlier end of the same entry.
    pub(crate) fn shorten(&mut self, other: &Self) {
        self.until = self.until.min(other.until);
    }

    /// Returns whether no replica claims it any more.
    pub(crate) fn is_forgotten(&self, now: Time) -> bool {
        let kept = if self.value == 0 { Duration::ZERO } else { RELEASE_KEPT };
        self.until != Time::NEVER && now >= self.until.after(kept)
    }
}

/// Encodes a text as one word: everything but letters, digits and a few signs becomes `%` and two digits.
fn word(text: &str, longest: usize) -> String {
    let mut end = text.len().min(longest);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let mut encoded = String::new();
    for byte in text[..end].bytes() {
        if byte.is_ascii_alphanumeric() || b"._@:/,".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    if encoded.is_empty() { "-".to_owned() } else { encoded }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::from_micros(1_000_000);

    fn entry(text: &str) -> OverrideEntry {
        OverrideEntry::decode(text, NOW).unwrap()
    }

    #[test]
    fn an_entry_is_decoded_as_it_was_encoded() {
        let request = OverrideRequest::new(Some(Override::Open)).by("ops@example.com").because("50 % errors");
        let made = OverrideEntry::of(&request.lasting(Duration::from_secs(60)), 42, 7, NOW);
        assert_eq!(made.text(NOW), "7 1 42 60000000 ops@example.com 50%20%25%20errors");
        assert_eq!(entry(&made.text(NOW)), made);
        let released = OverrideEntry::of(&OverrideRequest::default(), 42, 8, NOW);
        assert_eq!(released.text(NOW), "8 0 42 604800000000 - -");
        assert_eq!(OverrideEntry::decode(NO_ENTRY, NOW), None);
    }

    #[test]
    fn a_long_reason_is_cut_between_two_letters() {
        let request = OverrideRequest::new(Some(Override::Open)).because("é".repeat(200));
        let text = OverrideEntry::of(&request, 1, 1, NOW).text(NOW);
        assert!(text.ends_with("%C3%A9") && text.len() < 620, "{text}");
    }

    #[test]
    fn entries_are_ordered_by_sequence_and_then_by_author() {
        assert!(entry("8 0 1 5 - -").is_newer_than(&entry("7 1 9 -1 - -")));
        assert!(entry("7 0 9 5 - -").is_newer_than(&entry("7 1 8 -1 - -")));
        assert!(!entry("7 1 9 -1 - -").is_newer_than(&entry("7 1 9 5 - -")), "the same entry");
    }

    #[test]
    fn an_override_ends_by_itself_and_is_kept_like_a_release() {
        let entry = entry("7 1 9 5 - - of a later release");
        let (end, week) = (Time::from_micros(1_000_005), RELEASE_KEPT);
        assert_eq!((entry.in_force(NOW), entry.in_force(end)), (Some(Override::Open), None));
        assert!(!entry.is_forgotten(end) && entry.is_forgotten(end.after(week)));
    }

    #[test]
    fn an_override_of_a_later_release_is_claimed_but_not_applied() {
        let entry = entry("7 9 9 -1 - -");
        assert_eq!((entry.in_force(NOW), entry.text(NOW).as_str()), (None, "7 9 9 -1 - -"));
    }

    #[test]
    fn other_texts_are_no_entry() {
        for text in ["", "1", "1 1 1 1 -", "x 1 1 1 - -", "9007199254740993 1 1 -1 - -", "4503599627370497 1 1 -1 - -"]
        {
            assert_eq!(OverrideEntry::decode(text, NOW), None, "{text}");
        }
    }
}
