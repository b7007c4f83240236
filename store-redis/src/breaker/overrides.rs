//! The override of a breaker as an entry of the fleet: what it is, its sequence, who set it, why, and until when; and the
//! newest one that a replica knows of, with the time at which it puts that back into Redis.
//!
//! Entries are ordered by their sequence, and those with one sequence by their author, whatever the epoch of the breaker.
//! A release is an entry too, so that no replica that missed it brings back what it released. The time that is left
//! travels with an entry and runs on each replica's clock; of two ends of one entry the earlier one counts.

use std::sync::Arc;
use std::time::Duration;

use phalanx_core::breaker::{Override, OverrideRequest};
use phalanx_core::clock::Time;

use super::State;
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

/// Replicas that put back one override do so within this time, each at a moment of its own, until one was faster.
pub(super) const PUT_BACK_WITHIN: Duration = Duration::from_secs(1);

/// The newest known override.
#[derive(Clone, Debug)]
pub(super) struct KnownOverride {
    pub(super) entry: OverrideEntry,
    /// When Redis last held it, or when it was set here.
    confirmed: Time,
    /// It was set before the first contact with Redis, so it gets its sequence then.
    unordered: bool,
    put_back_at: Option<Time>,
}

impl KnownOverride {
    /// An override that Redis holds.
    pub(super) const fn confirmed(entry: OverrideEntry, now: Time) -> Self {
        Self { entry, confirmed: now, unordered: false, put_back_at: None }
    }

    /// An override that was set here and that Redis does not hold yet.
    pub(super) const fn unsent(entry: OverrideEntry, unordered: bool, now: Time) -> Self {
        Self { entry, confirmed: now, unordered, put_back_at: Some(now) }
    }

    /// Compares it with what Redis holds, at this time of the server.
    pub(super) fn meet(
        &mut self,
        shown: Option<OverrideEntry>,
        at: u64,
        now: Time,
        put_back_at: impl FnOnce() -> Time,
    ) {
        if std::mem::take(&mut self.unordered) {
            let stored = shown.map_or(0, |shown| shown.sequence);
            self.entry.sequence = (stored + 1).max(at);
            self.put_back_at = Some(now);
            return;
        }
        match shown {
            Some(shown) if shown.is_newer_than(&self.entry) => *self = Self::confirmed(shown, now),
            Some(shown) if !self.entry.is_newer_than(&shown) => {
                self.entry.shorten(&shown);
                (self.confirmed, self.put_back_at) = (now, None);
            }
            _ if self.put_back_at.is_none() => self.put_back_at = Some(put_back_at()),
            _ => {}
        }
    }

    /// Returns whether it is not claimed any more: its time is over, or this replica was without Redis for so long that it
    /// may have been released and the release forgotten.
    pub(super) fn is_forgotten(&self, now: Time) -> bool {
        self.entry.is_forgotten(now) || now.since(self.confirmed) > RELEASE_KEPT
    }
}

impl State {
    /// Returns the override in force.
    pub(super) fn overridden(&self, now: Time) -> Option<Override> {
        let known = self.known_override.as_ref().filter(|known| !known.is_forgotten(now))?;
        known.entry.in_force(now)
    }

    /// Returns when the override in force ends by itself.
    pub(super) fn override_ends(&self) -> Time {
        self.known_override.as_ref().map_or(Time::NEVER, |known| known.entry.until())
    }

    /// Returns the entry that this replica claims.
    pub(super) fn claimed_override(&self, now: Time) -> Option<&OverrideEntry> {
        let known = self.known_override.as_ref()?;
        (!known.unordered && !known.is_forgotten(now)).then_some(&known.entry)
    }

    /// Returns whether it is time to put the override back.
    pub(super) fn puts_back(&self, now: Time) -> bool {
        let known = self.known_override.as_ref();
        known.is_some_and(|known| known.put_back_at.is_some_and(|at| now >= at) && !known.is_forgotten(now))
    }

    /// Puts the override back at this moment.
    pub(super) fn put_back_override(&mut self, at: Time) {
        if let Some(known) = &mut self.known_override {
            known.put_back_at = Some(at);
        }
    }

    /// Redis is being asked: the reply shows whether it holds the override.
    pub(super) fn stop_putting_back(&mut self) {
        if let Some(known) = &mut self.known_override {
            known.put_back_at = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::from_micros(1_000_000);
    const LATER: Time = Time::from_micros(1_500_000);

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

    fn met(known: KnownOverride, shown: Option<&str>) -> KnownOverride {
        let mut known = known;
        known.meet(shown.map(entry), 90, NOW, || LATER);
        known
    }

    #[test]
    fn an_override_that_redis_has_lost_is_put_back_later_until_it_holds_it() {
        let known = KnownOverride::confirmed(entry("7 1 9 -1 - -"), NOW);
        let lost = met(known.clone(), None);
        assert_eq!(lost.put_back_at, Some(LATER));
        assert_eq!(met(known, Some("6 0 9 5 - -")).put_back_at, Some(LATER), "an older one");
        assert_eq!(met(lost, Some("7 1 9 -1 - -")).put_back_at, None);
    }

    #[test]
    fn a_newer_entry_replaces_it() {
        let known = met(KnownOverride::unsent(entry("7 1 9 -1 - -"), false, NOW), Some("8 0 1 5 - -"));
        assert_eq!((known.entry, known.put_back_at), (entry("8 0 1 5 - -"), None));
    }

    #[test]
    fn an_override_from_before_the_first_contact_goes_above_what_redis_holds() {
        for (shown, sequence) in [(None, 90), (Some("7 0 1 5 - -"), 90), (Some("300 0 1 5 - -"), 301)] {
            let known = met(KnownOverride::unsent(entry("1 1 9 -1 - -"), true, NOW), shown);
            assert_eq!((known.entry.sequence, known.put_back_at), (sequence, Some(NOW)));
        }
    }

    #[test]
    fn a_replica_that_was_without_redis_for_longer_than_releases_are_kept_forgets() {
        let known = KnownOverride::confirmed(entry("7 1 9 -1 - -"), NOW);
        let week = NOW.after(RELEASE_KEPT);
        assert!(!known.is_forgotten(week) && known.is_forgotten(week.after(Duration::from_micros(1))));
    }
}
