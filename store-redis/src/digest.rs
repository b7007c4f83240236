//! A latency digest shared by the fleet: counted in this process, summed up in Redis, read back.
//!
//! Every latency goes into the local digest, which also serves quantiles while Redis is unreachable. Every
//! `sync_interval` the new counts are flushed to Redis and the fleet's slices are fetched, by one script. A quantile is
//! computed in this process from the fetched slices and the counts not flushed yet, so it lags by at most one interval and
//! never costs a caller a round trip. A digest exists only where a stage of a policy reads a quantile, and one that was
//! neither fed nor read since the last round costs Redis nothing.
//!
//! Only what changed is sent: bins with new counts, and slices that another flush has changed. Each flush has a name, and
//! the stored digest has with each slice the name of the flush that changed it last. A replica sends the names of the
//! slices that it holds, and gets the others. Names are random, so no loss of data, failover or step of the server's clock
//! makes two states of a slice look the same.
//!
//! The fleet's slices follow the server's clock, the local ones this replica's. The conversion never makes a latency
//! look younger than it is, because an epoch must not contain latencies observed before it began: a latency counts as
//! observed at its earliest possible time, and an epoch begins at the latest time the server's clock can have shown.
//! The remaining error is the duration of a flush.
//!
//! Flushed and fetched counts are stored as non-empty bins only. Together with the local slices, a digest takes about
//! 10 kB for a dependency whose latencies vary by a factor of ten.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use phalanx_core::clock::Time;
use phalanx_core::estimate::bins::{BINS, Bins};
use phalanx_core::estimate::digest::{Digest, SLICES, slice_micros};
use phalanx_core::key::StateKey;
use phalanx_core::table::{Entry, Retention};
use phalanx_lua as lua;
use redis::Value;

use crate::dispatcher::{BatchSource, Outgoing, Queued, ScriptResult, Urgency};
use crate::keys::{Key, Kind};
use crate::store::inner::StoreInner;

/// The longest name of a flush, in bytes. Those of this release have 16.
const MAX_NAME: usize = 64;

/// The digest of one key: this replica's handle to the shared state.
#[derive(Clone, Debug)]
pub struct SharedDigest(pub(crate) Arc<Shared>);

#[derive(Debug)]
pub(crate) struct Shared {
    store: Arc<StoreInner>,
    redis_key: Key,
    local: Digest,
    /// Whether the digest was used since the last round.
    used: AtomicBool,
    queued: Queued,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// What has been flushed of each local slice.
    flushed: Vec<(u64, Counts)>,
    /// When it was flushed; counts that are new were observed later.
    flushed_at: Time,
    /// The fleet's slices, as last fetched.
    fetched: Option<Fetched>,
}

/// Non-empty bins with their counts. Those of local slices are in ascending order.
type Counts = Box<[(usize, u32)]>;

/// The fleet's slices at one moment.
#[derive(Debug)]
struct Fetched {
    /// When the request was sent and when the reply arrived, on this replica's clock, and the server's clock in
    /// between.
    asked: Time,
    at: Time,
    server_now: u64,
    slice_micros: u64,
    slices: Vec<FleetSlice>,
    /// Whether the reply left out a slice that this replica does not hold any more.
    lacks_a_slice: bool,
}

/// The latencies of all replicas in one slice of the server's clock.
#[derive(Clone, Debug)]
struct FleetSlice {
    number: u64,
    /// The name of the flush that changed it last.
    flush: Arc<str>,
    counts: Arc<[(usize, u32)]>,
}

impl Entry for SharedDigest {
    /// Redis holds the state, and the local counts are refilled within one window.
    fn retention(&self) -> Retention {
        if self.0.local.count(self.0.store.clock.now()) == 0 { Retention::Disposable } else { Retention::Relearnable }
    }
}

impl SharedDigest {
    pub(crate) fn new(store: Arc<StoreInner>, key: &StateKey, window: Duration) -> Self {
        Self(Arc::new(Shared {
            redis_key: store.keys.of(Kind::Digest, key),
            local: Digest::new(window),
            used: AtomicBool::new(false),
            queued: Queued::default(),
            state: Mutex::default(),
            store,
        }))
    }

    /// The id of the digest in the registry.
    pub(crate) fn id(&self) -> &str {
        &self.0.redis_key.id
    }

    pub(crate) fn retune(&self, window: Duration) {
        if self.0.local.slice_micros() != slice_micros(window) {
            self.0.local.retune(window);
            *self.0.state.lock() = State::default();
        }
    }

    /// Adds one latency.
    #[inline]
    pub fn observe(&self, now: Time, latency: Duration) {
        self.0.mark_used();
        self.0.local.observe(now, latency);
    }

    /// Returns whether the fleet's latencies were fetched, or cannot be: a quantile is then not this replica's alone.
    pub fn has_fleet_latencies(&self) -> bool {
        let shared = &self.0;
        shared.store.dispatcher(shared.redis_key.slot).latch.is_down() || shared.state.lock().fetched.is_some()
    }

    /// Returns the fleet's quantile of the latencies observed after `since`; this replica's own while degraded.
    pub fn quantile_since(&self, now: Time, since: Time, quantile: f64) -> Option<Duration> {
        let shared = &self.0;
        shared.mark_used();
        let state = shared.state.lock();
        match &state.fetched {
            Some(fetched) if !shared.store.dispatcher(shared.redis_key.slot).latch.is_down() => {
                let mut bins = Bins::EMPTY;
                fetched.add_to(&mut bins, now, since);
                for (slice, local) in shared.local.slices_since(now, since) {
                    let pending = unflushed(state.flushed_counts(slice), local.counts());
                    pending.for_each(|(bin, count)| bins.count_in(bin, count));
                }
                bins.quantile(quantile)
            }
            _ => shared.local.quantile_since(now, since, quantile),
        }
    }
}

impl State {
    fn flushed_counts(&self, slice: u64) -> &[(usize, u32)] {
        self.flushed.iter().find(|(flushed, _)| *flushed == slice).map_or(&[], |(_, counts)| counts)
    }
}

impl Fetched {
    /// Adds the slices that are inside the window at `now` and began after `since`.
    fn add_to(&self, bins: &mut Bins, now: Time, since: Time) {
        let server_now = self.server_now.saturating_add(now.since(self.at).as_micros() as u64);
        let oldest = (server_now / self.slice_micros).saturating_sub(SLICES - 1);
        let first = oldest.max(self.latest_server_time(since).div_ceil(self.slice_micros));
        for slice in self.slices.iter().filter(|slice| slice.number >= first) {
            slice.counts.iter().for_each(|(bin, count)| bins.count_in(*bin, *count));
        }
    }

    /// The slices as the scripts take them: what need not be returned.
    fn names(&self) -> String {
        self.slices.iter().map(|slice| format!("{} {};", slice.number, slice.flush)).collect()
    }

    /// The latest time that the server's clock can have shown at `moment` of this replica's clock. `Time::ZERO` is
    /// before any time of the server.
    fn latest_server_time(&self, moment: Time) -> u64 {
        let (later, earlier) = (moment.since(self.asked), self.asked.since(moment));
        let shown = self.server_now.saturating_add(later.as_micros() as u64);
        if moment == Time::ZERO { 0 } else { shown.saturating_sub(earlier.as_micros() as u64) }
    }

    /// Decodes a reply. Slices without bins are those of `held` that have not changed.
    fn decode(value: &Value, asked: Time, at: Time, slice_micros: u64, held: &[FleetSlice]) -> Option<Self> {
        let Value::Array(values) = value else { return None };
        let [Value::Int(now), Value::Int(_), parts @ ..] = &values[..] else { return None };
        let (mut slices, mut lacks_a_slice) = (Vec::new(), false);
        for part in parts.chunks(3).take(SLICES as usize) {
            let [Value::Int(number), Value::BulkString(flush), Value::BulkString(bins)] = part else { continue };
            let (Ok(number), Ok(flush)) = (u64::try_from(*number), str::from_utf8(flush)) else { continue };
            if flush.len() > MAX_NAME || !flush.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
                continue; // foreign: it is sent back with every request
            }
            let same = |slice: &&FleetSlice| slice.number == number && *slice.flush == *flush;
            match held.iter().find(same) {
                Some(slice) if bins.is_empty() => slices.push(slice.clone()),
                None if bins.is_empty() => lacks_a_slice = true,
                _ => slices.push(FleetSlice { number, flush: flush.into(), counts: unpack(bins).collect() }),
            }
        }
        let (server_now, slice_micros) = (u64::try_from(*now).ok()?, slice_micros.max(1));
        Some(Self { asked, at, server_now, slice_micros, slices, lacks_a_slice })
    }
}

/// Decodes a reply and returns the counts of the window at `now` that were observed after `since`.
pub(crate) fn decode_counts(
    reply: &Value,
    slice_micros: u64,
    [asked, received, now, since]: [Time; 4],
) -> Option<Bins> {
    let mut bins = Bins::EMPTY;
    Fetched::decode(reply, asked, received, slice_micros, &[])?.add_to(&mut bins, now, since);
    Some(bins)
}

/// Decodes bins: six bytes each, the number of the bin and its count, big endian. What is behind a whole slice is ignored.
fn unpack(bytes: &[u8]) -> impl Iterator<Item = (usize, u32)> {
    bytes.as_chunks().0.iter().take(BINS).map(|&[high, low, a, b, c, d]: &[u8; 6]| {
        (u16::from_be_bytes([high, low]).into(), u32::from_be_bytes([a, b, c, d]))
    })
}

/// Encodes bins for [`unpack`].
fn pack(bins: &[(usize, u32)]) -> Vec<u8> {
    let bytes = |(bin, count): &(usize, u32)| {
        let ([high, low], [a, b, c, d]) = ((*bin as u16).to_be_bytes(), count.to_be_bytes());
        [high, low, a, b, c, d]
    };
    bins.iter().flat_map(bytes).collect()
}

/// The counts beyond those flushed. Both are in the order of the bins.
fn unflushed(
    flushed: &[(usize, u32)],
    counts: impl Iterator<Item = (usize, u32)>,
) -> impl Iterator<Item = (usize, u32)> {
    let mut flushed = flushed.iter().peekable();
    counts.filter_map(move |(bin, count)| {
        while flushed.next_if(|(other, _)| *other < bin).is_some() {}
        let known = flushed.next_if(|(other, _)| *other == bin).map_or(0, |(_, count)| *count);
        let new = count.saturating_sub(known);
        (new > 0).then_some((bin, new))
    })
}

impl Shared {
    pub(crate) fn is_degraded(&self) -> bool {
        self.store.dispatcher(self.redis_key.slot).latch.is_down()
    }

    #[inline]
    pub(crate) fn mark_used(self: &Arc<Self>) {
        self.store.ensure_background();
        if !self.used.load(Ordering::Relaxed) && !self.used.swap(true, Ordering::Relaxed) {
            self.store.background.digests.note_use(self);
        }
    }

    /// One round of the sync loop: flushes and fetches, if the digest was used or `force_poll` is set.
    pub(crate) fn tick(self: &Arc<Self>, force_poll: bool) {
        let dispatcher = self.store.dispatcher(self.redis_key.slot);
        if dispatcher.latch.is_down() {
            return; // `used` stays set for the first round after the outage
        }
        let used = self.used.swap(false, Ordering::Relaxed) || force_poll;
        if used && self.queued.mark(Urgency::Background) {
            dispatcher.enqueue(self.clone(), Urgency::Background);
        }
    }

    /// The new counts of each slice: age in microseconds, bins with counts. They count as flushed from here on: a lost
    /// flush is not retried, because it may have run.
    fn take_unflushed(&self, now: Time) -> Vec<(u64, Vec<(usize, u32)>)> {
        let mut state = self.state.lock();
        let length = self.local.slice_micros();
        let slices: Vec<_> = self.local.slices(now).collect();
        let flushed_at = std::mem::replace(&mut state.flushed_at, now);
        state.flushed.retain(|(flushed, _)| slices.iter().any(|(slice, _)| slice == flushed));
        let mut runs = Vec::new();
        for (slice, local) in slices {
            let counts: Counts = local.counts().collect();
            let fresh: Vec<_> = unflushed(state.flushed_counts(slice), counts.iter().copied()).collect();
            state.flushed.retain(|(flushed, _)| *flushed != slice);
            state.flushed.push((slice, counts));
            // The earliest time of observation, so that no epoch contains latencies from before it began.
            let first = slice.saturating_mul(length);
            let earliest = flushed_at.as_micros().clamp(first, first.saturating_add(length - 1));
            if !fresh.is_empty() {
                runs.push((now.as_micros().saturating_sub(earliest), fresh));
            }
        }
        runs
    }

    fn apply_reply(self: &Arc<Self>, reply: ScriptResult, asked: Time, length: u64) {
        let now = self.store.clock.now();
        let mut state = self.state.lock();
        let fetched = reply.ok().and_then(|value| {
            let held = state.fetched.as_ref().map_or(&[][..], |fetched| &fetched.slices);
            Fetched::decode(&value, asked, now, length, held)
        });
        match fetched {
            // The window was retuned meanwhile.
            Some(_) if self.local.slice_micros() != length => {}
            Some(fetched) => {
                if fetched.lacks_a_slice {
                    self.mark_used();
                }
                state.fetched = Some(fetched);
            }
            None => self.mark_used(), // fetch again in the next round
        }
    }
}

impl BatchSource for Shared {
    fn fill(self: Arc<Self>, outgoing: &mut Outgoing) {
        self.queued.clear();
        let (now, length) = (self.store.clock.now(), self.local.slice_micros());
        let runs = self.take_unflushed(now);
        let held = self.state.lock().fetched.as_ref().map_or_else(String::new, Fetched::names);
        let script = if runs.is_empty() { &lua::DIGEST_READ } else { &lua::DIGEST_FLUSH };
        let mut call = self.store.invocation(script, &[&self.redis_key]);
        call.arg(length);
        if !runs.is_empty() {
            call.arg(format!("{:016x}", self.store.identity.next()));
        }
        call.arg(format!(";{held}"));
        for (age, bins) in &runs {
            call.arg(*age).arg(pack(bins));
        }
        outgoing.add(call, move |reply| self.apply_reply(reply, now, length));
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

    /// A reply requested at 500 and received at 700, while the server's clock showed 90,300; one latency per slice.
    fn fetched() -> Fetched {
        let slices: Vec<_> = (86..=90).map(|slice| (slice, "f", pack(&[(0, 1)]))).collect();
        decode(&slices, &[]).unwrap()
    }

    /// Decodes a reply with these slices: number, name of the flush, bins.
    fn decode(slices: &[(i64, &str, Vec<u8>)], held: &[FleetSlice]) -> Option<Fetched> {
        let mut reply = vec![Value::Int(90_300), Value::Int(0)];
        for (slice, flush, bins) in slices {
            reply.extend([Value::Int(*slice), Value::BulkString(flush.as_bytes().to_vec())]);
            reply.push(Value::BulkString(bins.clone()));
        }
        Fetched::decode(&Value::Array(reply), at(500), at(700), SLICE, held)
    }

    /// The number, the flush and the counts of a slice.
    type Parts<'a> = (u64, &'a str, &'a [(usize, u32)]);

    fn slices(fetched: &Fetched) -> Vec<Parts<'_>> {
        fetched.slices.iter().map(|slice| (slice.number, &*slice.flush, &*slice.counts)).collect()
    }

    #[test]
    fn a_slice_without_bins_is_the_one_that_is_held_under_this_name() {
        let first = decode(&[(88, "a", pack(&[(7, 1)])), (89, "b", pack(&[(8, 2)]))], &[]).unwrap();
        assert_eq!(format!(";{}", first.names()), ";88 a;89 b;");
        let next = [(88, "a", Vec::new()), (89, "c", pack(&[(9, 3)])), (90, "c", pack(&[(1, 1)]))];
        let second = decode(&next, &first.slices).unwrap();
        let counts: [&[(usize, u32)]; 3] = [&[(7, 1)], &[(9, 3)], &[(1, 1)]];
        assert_eq!(slices(&second), [(88, "a", counts[0]), (89, "c", counts[1]), (90, "c", counts[2])]);
        assert!(!second.lacks_a_slice);
        // The name of another slice, and another name: this replica does not hold it, and fetches it again.
        let third = decode(&[(87, "a", Vec::new()), (89, "b", Vec::new()), (90, "c", Vec::new())], &second.slices);
        let third = third.unwrap();
        assert_eq!(slices(&third), [(90, "c", counts[2])]);
        assert!(third.lacks_a_slice);
        let longest = "a".repeat(64);
        let too_long = format!("{longest}a");
        let foreign = ["a;", "a b", "ä", &too_long].map(|name| (90, name, pack(&[(1, 1)])));
        assert!(decode(&foreign, &[]).unwrap().slices.is_empty(), "no script stores such names");
        assert_eq!(decode(&[(90, &longest, pack(&[(1, 1)]))], &[]).unwrap().slices.len(), 1);
        let empty = decode(&[], &third.slices).unwrap();
        assert!(empty.slices.is_empty() && !empty.lacks_a_slice, "the data was lost");
    }

    #[test]
    fn bins_are_six_bytes_and_a_part_of_one_is_ignored() {
        let bins = [(0, 1), (1_103, u32::MAX), (258, 0x0102_0304)];
        let bytes = pack(&bins);
        assert_eq!(bytes[12..], [1, 2, 1, 2, 3, 4]);
        assert_eq!(unpack(&bytes).collect::<Vec<_>>(), bins);
        assert_eq!(unpack(&bytes[..17]).collect::<Vec<_>>(), bins[..2]);
        assert_eq!(unpack(&vec![0; 6 * BINS + 6]).count(), BINS);
    }

    fn count(now: u64, since: Time) -> u64 {
        let mut bins = Bins::EMPTY;
        fetched().add_to(&mut bins, at(now), since);
        bins.count()
    }

    #[test]
    fn an_epoch_begins_at_the_latest_possible_time_of_the_server() {
        // The server showed 90,300 no earlier than 500, so at 200 it showed at most 90,000.
        assert_eq!(count(700, at(200)), 1);
        assert_eq!(count(700, at(201)), 0);
        assert_eq!(count(700, at(700)), 0);
        assert_eq!(count(700, at(1)), 1);
    }

    #[test]
    fn time_zero_precedes_all_slices_and_the_window_still_slides() {
        assert_eq!(count(700, Time::ZERO), 5);
        assert_eq!(count(1_399, Time::ZERO), 5);
        assert_eq!(count(1_400, Time::ZERO), 4);
        assert_eq!(count(700, Time::NEVER), 0);
    }

    proptest! {
        #[test]
        fn unflushed_counts_are_all_counts_minus_the_flushed_ones(
            flushed in prop::collection::btree_map(0_usize..50, 1_u32..9, 0..50),
            more in prop::collection::btree_map(0_usize..50, 1_u32..9, 0..50),
        ) {
            let mut counts = flushed.clone();
            more.iter().for_each(|(bin, more)| *counts.entry(*bin).or_default() += more);
            let flushed: Vec<_> = flushed.into_iter().collect();
            let unflushed: Vec<_> = unflushed(&flushed, counts.into_iter()).collect();
            prop_assert_eq!(unflushed, more.into_iter().collect::<Vec<_>>());
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
        fn arbitrary_replies_are_decoded_without_panic(
            values in prop::collection::vec(any_value(), 0..16), now in any::<u64>(), since in any::<u64>(), length in any::<u64>(),
        ) {
            if let Some(fetched) = Fetched::decode(&Value::Array(values), at(500), at(700), length, &[]) {
                prop_assert!(fetched.slices.len() <= SLICES as usize);
                let mut bins = Bins::EMPTY;
                fetched.add_to(&mut bins, at(now), at(since));
                bins.quantile(0.5);
            }
        }
    }
}
