//! The background task of a store: keeps the connection, checks its health, syncs pending state, receives pushes, sends
//! heartbeats, closes blocks of leased permits and renews shares of slots.
//!
//! One task with six concurrent loops, spawned when the store joins, else on the runtime of the first caller that needs
//! Redis. If that runtime ends, the next caller starts the task on its own. When the store is dropped, the task leaves the membership and
//! ends.

pub(crate) mod catch_up;
pub(crate) mod changes;
mod connect;
mod health;
mod leases;
mod listen;
mod slots;
mod slowness;
mod sync_loop;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use phalanx_core::task;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::breaker;
use crate::bucket;
use crate::digest;
use crate::slots as slot_cells;
use crate::store::inner::{Registry, StoreInner};
use crate::tally;
use crate::wire::RedisWire;

/// The background task and the cells it works for.
#[derive(Debug)]
pub(crate) struct Background {
    /// The wire to a real Redis; `None` in tests that bring their own.
    wire: Option<Arc<RedisWire>>,
    running: Arc<AtomicBool>,
    stopped: AtomicBool,
    stop: Notify,
    left: Notify,
    /// Where round trips run that are started outside a runtime.
    runtime: Arc<Mutex<Option<Handle>>>,
    pub(crate) breakers: Registry<breaker::Shared>,
    pub(crate) digests: Registry<digest::Shared>,
    pub(crate) tallies: Registry<tally::Shared>,
    /// Buckets with leased permits.
    pub(crate) leases: Registry<bucket::Shared>,
    /// Notified when a bucket without leased permits has got some.
    pub(crate) lease_drawn: Notify,
    /// Keys of which this replica holds a share of the slots.
    pub(crate) slots: Registry<slot_cells::Shared>,
    /// Notified when a cell of these was noted.
    pub(crate) share_taken: Notify,
    pub(crate) catch_up: catch_up::CatchUp,
    pub(crate) changes: changes::Changes,
    /// The generation token of the last heartbeat. A different token means that the server lost its data.
    generation: Mutex<Option<String>>,
}

impl Background {
    pub(crate) fn new(wire: Option<Arc<RedisWire>>, runtime: Arc<Mutex<Option<Handle>>>) -> Self {
        Self {
            wire,
            running: Arc::new(AtomicBool::new(false)),
            stopped: AtomicBool::new(false),
            stop: Notify::new(),
            left: Notify::new(),
            runtime,
            breakers: Registry::default(),
            digests: Registry::default(),
            tallies: Registry::default(),
            leases: Registry::default(),
            lease_drawn: Notify::new(),
            slots: Registry::default(),
            share_taken: Notify::new(),
            catch_up: catch_up::CatchUp::default(),
            changes: changes::Changes::default(),
            generation: Mutex::new(None),
        }
    }

    /// Starts the task, if it is not running and the caller is inside a runtime.
    pub(crate) fn ensure(&self, store: &Arc<StoreInner>) {
        if !self.running.load(Ordering::Acquire) && self.wire.is_some() {
            self.start(store);
        }
    }

    #[cold]
    fn start(&self, store: &Arc<StoreInner>) {
        let (Ok(runtime), Some(wire)) = (Handle::try_current(), &self.wire) else { return };
        if self.stopped.load(Ordering::Acquire) || self.running.swap(true, Ordering::AcqRel) {
            return;
        }
        *self.runtime.lock() = Some(runtime);
        let guard = RunningGuard { store: store.clone(), running: self.running.clone() };
        let (store, wire) = (store.clone(), wire.clone());
        let background = async move {
            let guard = guard; // dropped with the task, also when the runtime ends
            let store = &store;
            // All six are polled in turn; a fixed order makes simulations repeatable.
            tokio::select! {
                biased;
                () = store.background.stop.notified() => {}
                () = health::run(store, &wire) => {}
                () = sync_loop::run(store) => {}
                () = listen::run(store, &wire) => {}
                () = leases::run(store) => {}
                () = slots::run(store) => {}
            }
            sync_loop::leave(store).await;
            store.background.left.notify_waiters();
            drop(guard);
        };
        task::spawn(background, None);
    }

    /// Stops the task, which then leaves the membership.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.stop.notify_one();
    }

    /// Stops the task and waits until it has left the membership.
    pub(crate) async fn leave(&self) {
        let left = self.left.notified();
        if self.running.load(Ordering::Acquire) {
            self.stop();
            let _ = tokio::time::timeout(std::time::Duration::from_secs(1), left).await;
        }
    }
}

/// Exists as long as the background task.
struct RunningGuard {
    store: Arc<StoreInner>,
    running: Arc<AtomicBool>,
}

/// Pushes are no longer received, so the next caller has to ask Redis, which starts the task again.
impl Drop for RunningGuard {
    fn drop(&mut self) {
        self.running.store(false, Ordering::Release);
        if let Some(wire) = &self.store.background.wire {
            wire.discard(None); // its driver ended with the runtime
        }
        self.store.background.breakers.all().iter().for_each(|breaker| breaker.forget_phase());
    }
}
