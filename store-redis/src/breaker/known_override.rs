//! The newest override that a replica knows of, and when it puts that back into Redis.

use std::time::Duration;

use phalanx_core::breaker::Override;
use phalanx_core::clock::Time;

use super::State;
use super::entry::{OverrideEntry, RELEASE_KEPT};

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
