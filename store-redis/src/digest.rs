//! Latencies of the fleet: counted here, summed there, read back.
//!
//! The replica's own digest takes every latency at local speed and is what answers while Redis is away. Every
//! `sync_interval` what is new in it is added to the fleet's, and the fleet's slices are read back; a quantile is
//! computed here, over those and what has not been told yet. So it is never more than one interval late, and never on
//! a caller's way.
//!
//! The fleet's slices are cut by the server's clock, the own ones by this replica's. What is translated is translated so
//! that a latency never looks younger than it is, or an epoch would hold what was seen before it: a latency counts as
//! seen at the earliest moment it can have been, and an epoch begins at the latest the server's clock can have shown. What
//! remains is the time that a telling is on its way.
//!
//! What was told and what was read back is kept as the bins that counted something: with the own slices, a digest of a
//! dependency whose latencies differ by a factor of ten takes some 10 kB.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use phalanx_core::clock::Time;
use phalanx_core::estimate::bins::{BINS, Bins};
use phalanx_core::estimate::digest::{Digest as Sketch, SLICES, slice_micros};
use phalanx_core::key::StateKey;
use phalanx_core::table::{Entry, Retention};
use phalanx_lua as lua;
use redis::Value;

use crate::fleet::Fleet;
use crate::keys::{Key, Kind};
use crate::lane::{Manifest, Passenger, Replied};

/// The digest of one key, as this replica holds it.
#[derive(Clone, Debug)]
pub struct Digest(pub(crate) Arc<Shared>);

#[derive(Debug)]
pub(crate) struct Shared {
    fleet: Arc<Fleet>,
    place: Key,
    own: Sketch,
    /// Whether anything was counted or read since the last round.
    used: AtomicBool,
    queued: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// What Redis has been told of each of the own slices.
    told: Vec<(u64, Counts)>,
    /// Up to when: what is new came later.
    told_at: Time,
    /// What Redis said.
    fleet: Option<Fetched>,
}

/// The bins that counted something, in order, and how much.
type Counts = Box<[(usize, u32)]>;

/// The fleet's slices, as they were.
#[derive(Debug)]
struct Fetched {
    /// When they were asked for and when they came, on this replica's clock, and what the server's showed meanwhile.
    asked: Time,
    at: Time,
    server_now: u64,
    slice_micros: u64,
    slices: Vec<(u64, Counts)>,
}

impl Entry for Digest {
    /// Redis keeps it, and it is learned again within a window.
    fn retention(&self) -> Retention {
        if self.0.own.count(self.0.fleet.clock.now()) == 0 { Retention::Disposable } else { Retention::Relearnable }
    }
}

impl Digest {
    pub(crate) fn new(fleet: Arc<Fleet>, key: &StateKey, window: Duration) -> Self {
        Self(Arc::new(Shared {
            place: fleet.keys.of(Kind::Digest, key),
            own: Sketch::new(window),
            used: AtomicBool::new(true), // a new replica starts with what the fleet knows
            queued: AtomicBool::new(false),
            state: Mutex::default(),
            fleet,
        }))
    }

    /// The name by which it is found again.
    pub(crate) fn id(&self) -> &str {
        &self.0.place.id
    }

    pub(crate) fn retune(&self, window: Duration) {
        if self.0.own.slice_micros() != slice_micros(window) {
            self.0.own.retune(window);
            *self.0.state.lock() = State::default();
        }
    }

    /// Adds one latency.
    #[inline]
    pub fn observe(&self, now: Time, latency: Duration) {
        self.0.use_it();
        self.0.own.observe(now, latency);
    }

    /// The fleet's quantile of what came after `since`; while Redis is away, this replica's own.
    pub fn quantile_since(&self, now: Time, since: Time, quantile: f64) -> Option<Duration> {
        let shared = &self.0;
        shared.use_it();
        let state = shared.state.lock();
        match &state.fleet {
            Some(fetched) if !shared.fleet.lane(shared.place.slot).latch.is_down() => {
                let mut bins = Bins::EMPTY;
                fetched.add_to(&mut bins, now, since);
                for (slice, own) in shared.own.slices_since(now, since) {
                    let untold = beyond(state.told_of(slice), own.counts());
                    untold.for_each(|(bin, count)| bins.count_in(bin, count));
                }
                bins.quantile(quantile)
            }
            _ => shared.own.quantile_since(now, since, quantile),
        }
    }
}

impl State {
    fn told_of(&self, slice: u64) -> &[(usize, u32)] {
        self.told.iter().find(|(told, _)| *told == slice).map_or(&[], |(_, counts)| counts)
    }
}

impl Fetched {
    /// Adds the slices that are inside the window now and began after `since`.
    fn add_to(&self, bins: &mut Bins, now: Time, since: Time) {
        let server_now = self.server_now.saturating_add(now.since(self.at).as_micros() as u64);
        let oldest = (server_now / self.slice_micros).saturating_sub(SLICES - 1);
        let first = oldest.max(self.on_the_server(since).div_ceil(self.slice_micros));
        for (_, slice) in self.slices.iter().filter(|(slice, _)| *slice >= first) {
            slice.iter().for_each(|(bin, count)| bins.count_in(*bin, *count));
        }
    }

    /// The latest that the server's clock can have shown at a moment of this replica's. The beginning of this replica's
    /// clock is no moment of the server's, but before all of them.
    fn on_the_server(&self, moment: Time) -> u64 {
        let (later, earlier) = (moment.since(self.asked), self.asked.since(moment));
        let shown = self.server_now.saturating_add(later.as_micros() as u64);
        if moment == Time::ZERO { 0 } else { shown.saturating_sub(earlier.as_micros() as u64) }
    }

    fn read(value: &Value, asked: Time, at: Time, slice_micros: u64) -> Option<Self> {
        let Value::Array(values) = value else { return None };
        let [Value::Int(now), Value::Int(_), Value::Int(_), slices @ ..] = &values[..] else { return None };
        let slice = |pair: &[Value]| match pair {
            [Value::Int(slice), Value::BulkString(bytes)] => Some((u64::try_from(*slice).ok()?, unpack(bytes))),
            _ => None,
        };
        Some(Self {
            asked,
            at,
            slice_micros: slice_micros.max(1),
            server_now: u64::try_from(*now).ok()?,
            slices: slices.chunks(2).take(SLICES as usize).filter_map(slice).collect(),
        })
    }
}

/// Counters as they lie in Redis: 32 bits each, the highest byte first; what is missing at the end is zero.
fn unpack(bytes: &[u8]) -> Counts {
    let words = bytes.chunks_exact(4).take(BINS);
    let counts = words.map(|word| word.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte)));
    counts.enumerate().filter(|(_, count)| *count > 0).collect()
}

/// What was counted beyond what was told. Both are in the order of the bins.
fn beyond(told: &[(usize, u32)], counts: impl Iterator<Item = (usize, u32)>) -> impl Iterator<Item = (usize, u32)> {
    let mut told = told.iter().peekable();
    counts.filter_map(move |(bin, count)| {
        while told.next_if(|(other, _)| *other < bin).is_some() {}
        let known = told.next_if(|(other, _)| *other == bin).map_or(0, |(_, count)| *count);
        let new = count.saturating_sub(known);
        (new > 0).then_some((bin, new))
    })
}

impl Shared {
    #[inline]
    fn use_it(&self) {
        self.fleet.keep();
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
    }

    /// The regular round.
    pub(crate) fn tick(self: &Arc<Self>, whoever: bool) {
        let lane = self.fleet.lane(self.place.slot);
        if lane.latch.is_down() {
            return; // and is used still when Redis is back
        }
        let used = self.used.swap(false, Ordering::Relaxed) || whoever;
        if used && !self.queued.swap(true, Ordering::AcqRel) {
            lane.call_out(self.clone());
        }
    }

    /// What is new in each slice: its age in microseconds, and bins with their counts. It counts as told from here on:
    /// if the telling is lost it is not repeated, because it may have happened.
    fn news(&self, now: Time) -> Vec<(u64, Vec<(usize, u32)>)> {
        let mut state = self.state.lock();
        let length = self.own.slice_micros();
        let slices: Vec<_> = self.own.slices(now).collect();
        let told_at = std::mem::replace(&mut state.told_at, now);
        state.told.retain(|(told, _)| slices.iter().any(|(slice, _)| slice == told));
        let mut news = Vec::new();
        for (slice, own) in slices {
            let counts: Counts = own.counts().collect();
            let fresh: Vec<_> = beyond(state.told_of(slice), counts.iter().copied()).collect();
            state.told.retain(|(told, _)| *told != slice);
            state.told.push((slice, counts));
            // The earliest that it can have been seen, so that no epoch there holds what came before it.
            let first = slice.saturating_mul(length);
            let earliest = told_at.as_micros().clamp(first, first.saturating_add(length - 1));
            if !fresh.is_empty() {
                news.push((now.as_micros().saturating_sub(earliest), fresh));
            }
        }
        news
    }

    fn hear(&self, reply: Replied, asked: Time, length: u64) {
        let now = self.fleet.clock.now();
        let fetched = reply.ok().and_then(|value| Fetched::read(&value, asked, now, length));
        let mut state = self.state.lock();
        match fetched {
            // Of another window: it was retuned meanwhile.
            Some(_) if self.own.slice_micros() != length => {}
            Some(fetched) => state.fleet = Some(fetched),
            None => self.used.store(true, Ordering::Relaxed), // once more, in the next round
        }
    }
}

impl Passenger for Shared {
    fn board(self: Arc<Self>, manifest: &mut Manifest) {
        self.queued.store(false, Ordering::Release);
        let (now, length) = (self.fleet.clock.now(), self.own.slice_micros());
        let news = self.news(now);
        if !news.is_empty() {
            let mut call = self.fleet.call(&lua::DIGEST_FLUSH, &[&self.place]);
            call.arg(length).arg(news.len());
            for (age, bins) in &news {
                call.arg(*age).arg(bins.len());
                for (bin, count) in bins {
                    call.arg(*bin).arg(*count);
                }
            }
            manifest.add(call, |_| {});
        }
        let mut call = self.fleet.call(&lua::DIGEST_READ, &[&self.place]);
        call.arg(length);
        manifest.add(call, move |reply| self.hear(reply, now, length));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SLICE: u64 = 1_000;

    fn at(micros: u64) -> Time {
        Time::from_micros(micros)
    }

    /// A reply that was asked for at 500 and came at 700, when the server's clock showed 90,300; one latency a slice.
    fn fetched() -> Fetched {
        let mut reply = vec![Value::Int(90_300), Value::Int(90), Value::Int(0)];
        for slice in 86..=90 {
            reply.extend([Value::Int(slice), Value::BulkString(vec![0, 0, 0, 1])]);
        }
        Fetched::read(&Value::Array(reply), at(500), at(700), SLICE).unwrap()
    }

    fn count(now: u64, since: Time) -> u64 {
        let mut bins = Bins::EMPTY;
        fetched().add_to(&mut bins, at(now), since);
        bins.count()
    }

    #[test]
    fn an_epoch_begins_at_the_latest_that_the_servers_clock_can_have_shown() {
        // It showed 90,300 no earlier than 500, so at 200 it showed 90,000 at the latest.
        assert_eq!(count(700, at(200)), 1);
        assert_eq!(count(700, at(201)), 0);
        assert_eq!(count(700, at(700)), 0);
        assert_eq!(count(700, at(1)), 1);
    }

    #[test]
    fn the_beginning_of_the_clock_is_before_everything_and_the_window_slides_all_the_same() {
        assert_eq!(count(700, Time::ZERO), 5);
        assert_eq!(count(1_399, Time::ZERO), 5);
        assert_eq!(count(1_400, Time::ZERO), 4);
        assert_eq!(count(700, Time::NEVER), 0);
    }

    proptest! {
        #[test]
        fn what_is_beyond_is_what_was_counted_less_what_was_told(
            told in prop::collection::btree_map(0_usize..50, 1_u32..9, 0..50),
            more in prop::collection::btree_map(0_usize..50, 1_u32..9, 0..50),
        ) {
            let mut counts = told.clone();
            more.iter().for_each(|(bin, more)| *counts.entry(*bin).or_default() += more);
            let told: Vec<_> = told.into_iter().collect();
            let beyond: Vec<_> = beyond(&told, counts.into_iter()).collect();
            prop_assert_eq!(beyond, more.into_iter().collect::<Vec<_>>());
        }
    }

    fn any_value() -> impl Strategy<Value = Value> {
        prop_oneof![
            any::<i64>().prop_map(Value::Int),
            (0_i64..100).prop_map(Value::Int),
            prop::collection::vec(any::<u8>(), 0..6_000).prop_map(Value::BulkString),
            Just(Value::Nil),
        ]
    }

    proptest! {
        #[test]
        fn a_reply_of_anything_is_read_without_harm(
            values in prop::collection::vec(any_value(), 0..16), now in any::<u64>(), since in any::<u64>(), length in any::<u64>(),
        ) {
            if let Some(fetched) = Fetched::read(&Value::Array(values), at(500), at(700), length) {
                prop_assert!(fetched.slices.len() <= SLICES as usize);
                let mut bins = Bins::EMPTY;
                fetched.add_to(&mut bins, at(now), at(since));
                bins.quantile(0.5);
            }
        }
    }
}
