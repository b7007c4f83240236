//! What all cells of one store share: where Redis is, whose keys these are, how many replicas live, who listens.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use phalanx_core::clock::{Clock, Time};
use phalanx_core::event::{EventKind, Observers};
use phalanx_core::key::StateKey;
use phalanx_core::lock::ReleaseNotifier;
use phalanx_core::rng::Rng;
use phalanx_lua::Script;
use tokio::sync::Notify;

use crate::invocation::{self, Invocation};
use crate::keeper::Keeping;
use crate::keys::{Key, Keys};
use crate::lane::Lane;
use crate::options::{DegradedShare, RedisOptions};

/// Slots of a Cluster.
const SLOTS: usize = 16_384;

/// How often a mixed fleet is told of, for one key.
const MISMATCH_EVERY: Duration = Duration::from_secs(300);

/// The shared part of a store.
#[derive(Debug)]
pub(crate) struct Fleet {
    pub(crate) options: RedisOptions,
    pub(crate) keys: Keys,
    pub(crate) channel: String,
    pub(crate) clock: Clock,
    pub(crate) rng: Rng,
    pub(crate) observers: Observers,
    pub(crate) time: invocation::Time,
    /// Names that no other replica has: never seeded, or two replicas with one seed would be one.
    pub(crate) identity: Rng,
    /// This replica among all: the owner of its leases.
    pub(crate) owner: u64,
    /// Replicas that are alive, this one included; 0 while unknown.
    pub(crate) replicas: AtomicU32,
    /// One lane, or one for each shard of a Cluster.
    pub(crate) lanes: Box<[Arc<Lane>]>,
    /// Which lane leads to a slot; none where there is one lane only.
    pub(crate) lane_of: Option<Box<[AtomicU8]>>,
    /// Wakes the keeper: a latch fell, or a connection is wanted.
    pub(crate) wake: Arc<Notify>,
    pub(crate) keeping: Keeping,
    /// For those who wait for a lock.
    pub(crate) bells: ReleaseNotifier,
    mismatches: Mutex<HashMap<StateKey, Time>>,
}

/// What a [`Fleet`] is made of.
pub(crate) struct Parts {
    pub(crate) options: RedisOptions,
    pub(crate) clock: Clock,
    pub(crate) rng: Rng,
    pub(crate) observers: Observers,
    pub(crate) time: invocation::Time,
    pub(crate) lanes: Box<[Arc<Lane>]>,
    pub(crate) wake: Arc<Notify>,
    pub(crate) keeping: Keeping,
}

impl Fleet {
    pub(crate) fn new(parts: Parts) -> Self {
        let options = parts.options;
        let keys = Keys::new(options.prefix.as_deref(), &options.environment, options.key_secret.clone());
        let many = parts.lanes.len() > 1;
        let identity = Rng::from_entropy();
        Self {
            channel: keys.channel(),
            keys,
            clock: parts.clock,
            owner: identity.next() >> 11, // what a double holds exactly
            identity,
            rng: parts.rng,
            observers: parts.observers,
            time: parts.time,
            replicas: AtomicU32::new(0),
            lanes: parts.lanes,
            lane_of: many.then(|| (0..SLOTS).map(|_| AtomicU8::new(0)).collect()),
            wake: parts.wake,
            keeping: parts.keeping,
            bells: ReleaseNotifier::default(),
            mismatches: Mutex::default(),
            options,
        }
    }

    /// The lane that leads to a slot.
    #[inline]
    pub(crate) fn lane(&self, slot: u16) -> &Arc<Lane> {
        let lane = match &self.lane_of {
            None => 0,
            Some(lane_of) => usize::from(lane_of[usize::from(slot) % SLOTS].load(Ordering::Relaxed)),
        };
        &self.lanes[lane.min(self.lanes.len() - 1)]
    }

    /// The lanes that lead somewhere.
    pub(crate) fn lanes_in_use(&self) -> &[Arc<Lane>] {
        let highest = self.lane_of.iter().flatten().map(|lane| lane.load(Ordering::Relaxed)).max().unwrap_or(0);
        &self.lanes[..=usize::from(highest).min(self.lanes.len() - 1)]
    }

    /// A script on some keys.
    pub(crate) fn call(&self, script: &'static Script, keys: &[&Key]) -> Invocation {
        let [first, second] = [keys.first(), keys.get(1)].map(|key| key.map_or("", |key| key.text.as_str()));
        let texts = [first, second];
        Invocation::new(script, self.time, &texts[..keys.len().min(2)])
    }

    /// Sees to it that somebody keeps the connections and tells what is owed.
    pub(crate) fn keep(self: &Arc<Self>) {
        self.keeping.ensure(self);
    }

    /// Among how many replicas a rate is shared while Redis is away.
    pub(crate) fn sharers(&self) -> u32 {
        match self.options.degraded_share {
            DegradedShare::Auto => self.replicas.load(Ordering::Relaxed).max(1),
            DegradedShare::Fixed(replicas) => replicas.max(1),
            DegradedShare::Full => 1,
        }
    }

    /// Tells that another replica holds a key under other numbers; not with every call.
    pub(crate) fn tell_mismatch(&self, key: &StateKey) {
        const MOST: usize = 1_024;
        let now = self.clock.now();
        let mut told = self.mismatches.lock();
        let due = told.get(key).is_none_or(|last| now.since(*last) >= MISMATCH_EVERY);
        if due && (told.len() < MOST || told.contains_key(key)) {
            told.insert(key.clone(), now);
            drop(told); // an observer may take its time
            self.observers.emit(key, EventKind::ConfigMismatch);
        }
    }
}

/// Cells by the name that pushed messages use for them.
#[derive(Debug)]
pub(crate) struct ByName<T>(Mutex<HashMap<String, Weak<T>>>);

impl<T> Default for ByName<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> ByName<T> {
    pub(crate) fn put(&self, name: &str, cell: &Arc<T>) {
        let mut cells = self.0.lock();
        if cells.len() == cells.capacity() {
            cells.retain(|_, cell| cell.strong_count() > 0);
        }
        cells.insert(name.to_owned(), Arc::downgrade(cell));
    }

    pub(crate) fn get(&self, name: &str) -> Option<Arc<T>> {
        self.0.lock().get(name)?.upgrade()
    }

    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        self.0.lock().values().filter_map(Weak::upgrade).collect()
    }
}
