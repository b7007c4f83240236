//! Latencies of the fleet: counted here, summed there, read back.
//!
//! The replica's own digest takes every latency at local speed and is what answers while Redis is away. Every
//! `sync_interval` what is new in it is added to the fleet's, and the fleet's slices are read back; a quantile is
//! computed here, over those and what has not been told yet. So it is never more than one interval late, and never on
//! a caller's way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use phalanx_core::clock::Time;
use phalanx_core::estimate::digest::{BINS, Digest as Sketch, SLICES, quantile_of, slice_micros};
use phalanx_core::key::StateKey;
use phalanx_core::table::{Entry, Worth};
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
    told: Vec<(u64, Box<[u32; BINS]>)>,
    /// What Redis said.
    fleet: Option<Fetched>,
}

/// The fleet's slices, as they were.
#[derive(Debug)]
struct Fetched {
    /// When they came, on this replica's clock, and what the server's showed.
    at: Time,
    server_now: u64,
    slices: Vec<(u64, Box<[u32; BINS]>)>,
}

impl Entry for Digest {
    /// Redis keeps it, and it is learned again within a window.
    fn worth(&self) -> Worth {
        if self.0.own.count(self.0.fleet.clock.now()) == 0 { Worth::Nothing } else { Worth::Something }
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

    /// The fleet's quantile; while Redis is away, this replica's own.
    pub fn quantile(&self, now: Time, quantile: f64) -> Option<Duration> {
        let shared = &self.0;
        shared.use_it();
        let state = shared.state.lock();
        match &state.fleet {
            Some(fetched) if !shared.fleet.lane(shared.place.slot).latch.is_down() => {
                let mut bins = [0_u64; BINS];
                fetched.add_to(&mut bins, now, shared.own.slice_micros());
                for (slice, own) in shared.own.slices(now) {
                    add_untold(&mut bins, own, state.told_of(slice));
                }
                quantile_of(&bins, quantile)
            }
            _ => shared.own.quantile(now, quantile),
        }
    }
}

impl State {
    fn told_of(&self, slice: u64) -> Option<&[u32; BINS]> {
        self.told.iter().find(|(told, _)| *told == slice).map(|(_, bins)| &**bins)
    }
}

impl Fetched {
    /// Adds the slices that are inside the window now.
    fn add_to(&self, bins: &mut [u64; BINS], now: Time, slice_micros: u64) {
        let server_now = self.server_now.saturating_add(now.since(self.at).as_micros() as u64);
        let oldest = (server_now / slice_micros.max(1)).saturating_sub(SLICES - 1);
        for (_, slice) in self.slices.iter().filter(|(slice, _)| *slice >= oldest) {
            for (sum, bin) in bins.iter_mut().zip(slice.iter()) {
                *sum += u64::from(*bin);
            }
        }
    }

    fn read(value: &Value, at: Time) -> Option<Self> {
        let Value::Array(values) = value else { return None };
        let [Value::Int(now), Value::Int(_), Value::Int(_), slices @ ..] = &values[..] else { return None };
        let slice = |pair: &[Value]| match pair {
            [Value::Int(slice), Value::BulkString(bytes)] => Some((u64::try_from(*slice).ok()?, unpack(bytes))),
            _ => None,
        };
        Some(Self {
            at,
            server_now: u64::try_from(*now).ok()?,
            slices: slices.chunks(2).take(SLICES as usize).filter_map(slice).collect(),
        })
    }
}

/// Counters as they lie in Redis: 32 bits each, the highest byte first; what is missing at the end is zero.
fn unpack(bytes: &[u8]) -> Box<[u32; BINS]> {
    let mut bins = Box::new([0; BINS]);
    for (bin, word) in bins.iter_mut().zip(bytes.chunks_exact(4)) {
        *bin = word.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte));
    }
    bins
}

fn add_untold(bins: &mut [u64; BINS], own: &[AtomicU32], told: Option<&[u32; BINS]>) {
    for (index, (sum, bin)) in bins.iter_mut().zip(own).enumerate() {
        let told = told.map_or(0, |told| told[index]);
        *sum += u64::from(bin.load(Ordering::Relaxed).saturating_sub(told));
    }
}

impl Shared {
    #[inline]
    fn use_it(&self) {
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
    }

    /// The regular round.
    pub(crate) fn tick(self: &Arc<Self>, whoever: bool) {
        let used = self.used.swap(false, Ordering::Relaxed) || whoever;
        if used && !self.fleet.lane(self.place.slot).latch.is_down() && !self.queued.swap(true, Ordering::AcqRel) {
            self.fleet.lane(self.place.slot).call_out(self.clone());
        }
    }

    /// What is new in each slice: its age in microseconds, and bins with their counts. It counts as told from here on:
    /// if the telling is lost it is not repeated, because it may have happened.
    fn news(&self, now: Time) -> Vec<(u64, Vec<(usize, u32)>)> {
        let mut state = self.state.lock();
        let length = self.own.slice_micros();
        let slices: Vec<_> = self.own.slices(now).collect();
        state.told.retain(|(told, _)| slices.iter().any(|(slice, _)| slice == told));
        let mut news = Vec::new();
        for (slice, own) in slices {
            let counts = own.iter().map(|bin| bin.load(Ordering::Relaxed));
            let place = match state.told.iter().position(|(told, _)| *told == slice) {
                Some(place) => place,
                None => {
                    state.told.push((slice, Box::new([0; BINS])));
                    state.told.len() - 1
                }
            };
            let told = &mut state.told[place].1;
            let fresh = counts.zip(told.iter_mut()).enumerate().filter_map(|(bin, (count, told))| {
                let new = count.saturating_sub(*told);
                *told = count;
                (new > 0).then_some((bin, new))
            });
            let fresh: Vec<_> = fresh.collect();
            // None within the present slice; of an older one, the time since it ended.
            let age = (now.as_micros() + 1).saturating_sub((slice + 1).saturating_mul(length));
            if !fresh.is_empty() {
                news.push((age, fresh));
            }
        }
        news
    }

    fn hear(&self, reply: Replied) {
        let fetched = reply.ok().and_then(|value| Fetched::read(&value, self.fleet.clock.now()));
        if let Some(fetched) = fetched {
            self.state.lock().fleet = Some(fetched);
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
        manifest.add(call, move |reply| self.hear(reply));
    }
}
