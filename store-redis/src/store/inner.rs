//! `StoreInner`: what all cells of one store share: options, keys, clock, dispatchers, membership, background task.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use phalanx_core::clock::{Clock, Time};
use phalanx_core::event::{EventKind, Observers};
use phalanx_core::key::StateKey;
use phalanx_core::lock::ReleaseNotifier;
use phalanx_core::rate_limit::LeaseTally;
use phalanx_core::rng::Rng;
use phalanx_lua::Script;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::background::Background;
use crate::dispatcher::Dispatcher;
use crate::invocation::{self, Invocation};
use crate::keys::{Key, Keys};
use crate::locks::SeenFences;
use crate::options::{DegradedShare, RedisOptions};
use crate::push_health::PushHealth;
use crate::store::shares::Shares;

/// Hash slots of a Cluster.
pub(crate) const SLOTS: usize = 16_384;

/// How often a config mismatch is reported for one key.
const MISMATCH_INTERVAL: Duration = Duration::from_secs(300);

/// The shared part of a store.
#[derive(Debug)]
pub(crate) struct StoreInner {
    pub(crate) options: RedisOptions,
    pub(crate) keys: Keys,
    /// The log of changes of each partition.
    pub(crate) logs: Box<[Key]>,
    pub(crate) channel: String,
    pub(crate) clock: Clock,
    /// The clock of leases, if `clock` is one that can be set: tokio's.
    lease_clock: Option<Clock>,
    pub(crate) rng: Rng,
    pub(crate) observers: Observers,
    pub(crate) time: invocation::TimeSource,
    /// Source of unique ids. Seeded only in simulations: two replicas with one seed would get the same id.
    pub(crate) identity: Rng,
    /// The id of this replica, and the owner of its leases.
    pub(crate) owner: u64,
    /// Live replicas, this one included; 0 while unknown.
    pub(crate) replicas: AtomicU32,
    /// Among how many replicas rates are divided while degraded.
    pub(crate) shares: Shares,
    /// How often the server has lost its data: what was known of a bucket before is void.
    pub(crate) state_losses: AtomicU64,
    /// Breakers that have bad news.
    pub(crate) troubled: Troubled,
    /// Breakers that this replica holds open on its own.
    pub(crate) odd_breakers: AtomicU32,
    /// Breakers of this replica that are half-open.
    pub(crate) half_open_breakers: AtomicU32,
    /// How far the server's clock is ahead of this replica's, in microseconds; `i64::MIN` while unknown.
    server_ahead: AtomicI64,
    /// One dispatcher, or one for each shard of a Cluster.
    pub(crate) dispatchers: Box<[Arc<Dispatcher>]>,
    /// The dispatcher of each slot; `None` if there is only one.
    pub(crate) dispatcher_of_slot: Option<Box<[AtomicU8]>>,
    /// Wakes the health checks: a latch tripped, or a connection was opened.
    pub(crate) wake: Arc<Notify>,
    pub(crate) background: Background,
    /// Wakes callers that wait for a lock.
    pub(crate) lock_releases: ReleaseNotifier,
    pub(crate) push_health: PushHealth,
    pub(crate) seen_fences: SeenFences,
    /// Wakes requests that wait for the answer of another one.
    pub(crate) request_ends: ReleaseNotifier,
    /// Whether pushes are received.
    pub(crate) subscribed: AtomicBool,
    pub(crate) leases: LeaseTotals,
    mismatches: Mutex<HashMap<StateKey, Time>>,
}

/// The parts of a [`StoreInner`].
pub(crate) struct StoreParts {
    pub(crate) options: RedisOptions,
    pub(crate) clock: Clock,
    pub(crate) rng: Rng,
    pub(crate) observers: Observers,
    pub(crate) time: invocation::TimeSource,
    pub(crate) dispatchers: Box<[Arc<Dispatcher>]>,
    pub(crate) wake: Arc<Notify>,
    pub(crate) background: Background,
    /// The seed of this replica's ids; random if `None`.
    pub(crate) identity_seed: Option<u64>,
}

impl StoreInner {
    pub(crate) fn new(parts: StoreParts) -> Self {
        let options = parts.options;
        let keys = Keys::of_options(&options);
        let many = parts.dispatchers.len() > 1;
        let identity = parts.identity_seed.map_or_else(Rng::from_entropy, Rng::seeded);
        Self {
            channel: keys.channel(),
            logs: keys.logs().into(),
            keys,
            lease_clock: (parts.time == invocation::TimeSource::Server && !parts.clock.is_monotonic())
                .then(Clock::tokio),
            clock: parts.clock,
            owner: identity.next() >> 11, // 53 bits, exact in a double
            identity,
            rng: parts.rng,
            observers: parts.observers,
            time: parts.time,
            replicas: AtomicU32::new(0),
            shares: Shares::new(options.expected_replicas),
            state_losses: AtomicU64::new(0),
            troubled: Troubled::new(),
            odd_breakers: AtomicU32::new(0),
            half_open_breakers: AtomicU32::new(0),
            server_ahead: AtomicI64::new(i64::MIN),
            dispatchers: parts.dispatchers,
            dispatcher_of_slot: many.then(|| (0..SLOTS).map(|_| AtomicU8::new(0)).collect()),
            wake: parts.wake,
            background: parts.background,
            lock_releases: ReleaseNotifier::default(),
            push_health: PushHealth::default(),
            seen_fences: SeenFences::default(),
            request_ends: ReleaseNotifier::default(),
            subscribed: AtomicBool::new(false),
            leases: LeaseTotals::default(),
            mismatches: Mutex::default(),
            options,
        }
    }

    /// Returns the dispatcher of a slot.
    #[inline]
    pub(crate) fn dispatcher(&self, slot: u16) -> &Arc<Dispatcher> {
        let dispatcher = match &self.dispatcher_of_slot {
            None => 0,
            Some(dispatcher_of_slot) => {
                usize::from(dispatcher_of_slot[usize::from(slot) % SLOTS].load(Ordering::Relaxed))
            }
        };
        &self.dispatchers[dispatcher.min(self.dispatchers.len() - 1)]
    }

    /// Whether the connection is one to a Cluster.
    pub(crate) const fn is_cluster(&self) -> bool {
        self.dispatcher_of_slot.is_some()
    }

    /// Returns the dispatchers that have slots assigned.
    pub(crate) fn dispatchers_in_use(&self) -> &[Arc<Dispatcher>] {
        let highest = self
            .dispatcher_of_slot
            .iter()
            .flatten()
            .map(|dispatcher| dispatcher.load(Ordering::Relaxed))
            .max()
            .unwrap_or(0);
        &self.dispatchers[..=usize::from(highest).min(self.dispatchers.len() - 1)]
    }

    /// Returns the time by the clock of leases, where `now` has just been read from the store's.
    #[inline]
    pub(crate) fn lease_time(&self, now: Time) -> Time {
        self.lease_clock.as_ref().map_or(now, Clock::now)
    }

    /// Returns the time by the clock of leases.
    pub(crate) fn lease_now(&self) -> Time {
        self.lease_clock.as_ref().unwrap_or(&self.clock).now()
    }

    /// Records what the server's clock showed in a reply that has just arrived.
    pub(crate) fn note_server_time(&self, at: u64, now: Time) {
        let ahead = i64::try_from(at).unwrap_or(0).saturating_sub_unsigned(now.as_micros());
        self.server_ahead.store(ahead, Ordering::Relaxed);
    }

    /// Returns what the server's clock shows, not later than it does; `None` before the first reply.
    pub(crate) fn server_time(&self, now: Time) -> Option<u64> {
        let ahead = self.server_ahead.load(Ordering::Relaxed);
        (ahead != i64::MIN).then(|| now.as_micros().saturating_add_signed(ahead))
    }

    /// Counts the breakers of this replica that are half-open.
    pub(crate) fn count_half_open(&self, was: bool, is: bool) {
        match (was, is) {
            (false, true) => drop(self.half_open_breakers.fetch_add(1, Ordering::Relaxed)),
            (true, false) => drop(self.half_open_breakers.fetch_sub(1, Ordering::Relaxed)),
            _ => {}
        }
    }

    /// Builds a call of `script` on `keys`.
    pub(crate) fn invocation(&self, script: &'static Script, keys: &[&Key]) -> Invocation {
        let slot = keys.first().map_or(0, |key| key.slot);
        Invocation::new(script, self.time, slot, keys.iter().map(|key| key.text.as_str()))
    }

    /// Starts the background task, if it is not running.
    pub(crate) fn ensure_background(self: &Arc<Self>) {
        self.background.ensure(self);
    }

    /// Among how many replicas a rate is divided while degraded.
    pub(crate) fn degraded_sharers(&self) -> u32 {
        match self.options.degraded_share {
            DegradedShare::Auto => self.shares.divisor(),
            DegradedShare::Fixed(replicas) => replicas.max(1),
            DegradedShare::Full => 1,
        }
    }

    /// Emits that another replica uses a different spec for this key, at most once per [`MISMATCH_INTERVAL`].
    pub(crate) fn report_mismatch(&self, key: &StateKey) {
        const MAX_REPORTED_KEYS: usize = 1_024;
        let now = self.clock.now();
        let mut reported = self.mismatches.lock();
        let due = reported.get(key).is_none_or(|last| now.since(*last) >= MISMATCH_INTERVAL);
        if due && (reported.len() < MAX_REPORTED_KEYS || reported.contains_key(key)) {
            reported.insert(key.clone(), now);
            drop(reported); // observers run outside the lock
            self.observers.emit(key, EventKind::ConfigMismatch);
        }
    }
}

/// What happened to the permits that this replica has leased since the start.
#[derive(Debug, Default)]
pub(crate) struct LeaseTotals {
    drawn: AtomicU64,
    returned: AtomicU64,
    expired: AtomicU64,
}

impl LeaseTotals {
    /// Adds what happened to the permits of one bucket between two tallies.
    pub(crate) fn add(&self, before: LeaseTally, after: LeaseTally) {
        self.drawn.fetch_add(after.drawn - before.drawn, Ordering::Relaxed);
        self.returned.fetch_add(after.returned - before.returned, Ordering::Relaxed);
        self.expired.fetch_add(after.expired - before.expired, Ordering::Relaxed);
    }

    pub(crate) fn tally(&self) -> LeaseTally {
        let [drawn, returned, expired] =
            [&self.drawn, &self.returned, &self.expired].map(|total| total.load(Ordering::Relaxed));
        LeaseTally { drawn, returned, expired }
    }
}

/// How many breakers of this replica had bad news in this second or the one before.
#[derive(Debug)]
pub(crate) struct Troubled {
    start: Instant,
    seconds: Mutex<Seconds>,
}

#[derive(Debug, Default)]
struct Seconds {
    current: u64,
    in_current: u32,
    in_last: u32,
}

impl Troubled {
    fn new() -> Self {
        Self { start: Instant::now(), seconds: Mutex::default() }
    }

    /// Notes bad news of a breaker, `last_noted` being the second of its last, and returns how many breakers have some.
    pub(crate) fn note(&self, last_noted: &mut u64) -> u32 {
        let now = self.start.elapsed().as_secs() + 1;
        let mut seconds = self.seconds.lock();
        if now != seconds.current {
            seconds.in_last = if now == seconds.current + 1 { seconds.in_current } else { 0 };
            (seconds.current, seconds.in_current) = (now, 0);
        }
        if *last_noted != now {
            *last_noted = now;
            seconds.in_current += 1;
        }
        seconds.in_current.max(seconds.in_last)
    }
}

/// Cells by their id in pushed messages, in the order of the ids: a walk visits them in the same order in every run.
#[derive(Debug)]
pub(crate) struct Registry<T> {
    cells: Mutex<Cells<T>>,
    /// Cells that were used since the last round, each once.
    in_use: Mutex<Vec<Weak<T>>>,
}

#[derive(Debug)]
struct Cells<T> {
    by_id: BTreeMap<String, Weak<T>>,
    /// At this number of entries, those of dropped cells are removed.
    sweep_at: usize,
}

impl<T> Default for Registry<T> {
    fn default() -> Self {
        let cells = Mutex::new(Cells { by_id: BTreeMap::new(), sweep_at: 64 });
        Self { cells, in_use: Mutex::default() }
    }
}

impl<T> Registry<T> {
    pub(crate) fn put(&self, name: &str, cell: &Arc<T>) {
        let mut cells = self.cells.lock();
        if cells.by_id.len() >= cells.sweep_at {
            cells.by_id.retain(|_, cell| cell.strong_count() > 0);
            cells.sweep_at = 2 * cells.by_id.len().max(32);
        }
        cells.by_id.insert(name.to_owned(), Arc::downgrade(cell));
    }

    pub(crate) fn get(&self, name: &str) -> Option<Arc<T>> {
        self.cells.lock().by_id.get(name)?.upgrade()
    }

    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        self.cells.lock().by_id.values().filter_map(Weak::upgrade).collect()
    }

    /// Notes a cell for the next round. The cell calls it once until that round has visited it.
    pub(crate) fn note_use(&self, cell: &Arc<T>) {
        self.in_use.lock().push(Arc::downgrade(cell));
    }

    /// Takes the cells that were noted since the last call.
    pub(crate) fn take_in_use(&self) -> Vec<Arc<T>> {
        let noted = std::mem::take(&mut *self.in_use.lock());
        noted.iter().filter_map(Weak::upgrade).collect()
    }
}
