//! The one who works behind the callers: dials, probes, tells what is owed, listens, counts the living.
//!
//! Three tasks on the runtime of whoever first needed Redis. If that runtime ends, the next caller's takes over. When the
//! store is dropped they leave the membership and end.

mod link;
mod listen;
mod rounds;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::circuit;
use crate::digest;
use crate::fleet::{ByName, Fleet};
use crate::wire::RedisWire;

/// What the keeper works with.
#[derive(Debug)]
pub(crate) struct Keeping {
    /// The wire to a real Redis; none in tests that bring their own.
    wire: Option<Arc<RedisWire>>,
    running: Arc<AtomicBool>,
    stopped: AtomicBool,
    stop: Notify,
    left: Notify,
    /// Where flights fly that nobody in a runtime has called out.
    runtime: Arc<Mutex<Option<Handle>>>,
    pub(crate) circuits: ByName<circuit::Shared>,
    pub(crate) digests: ByName<digest::Shared>,
    /// What the server held when it was last asked, by the name it gave it.
    generation: Mutex<Option<String>>,
}

impl Keeping {
    pub(crate) fn new(wire: Option<Arc<RedisWire>>, runtime: Arc<Mutex<Option<Handle>>>) -> Self {
        Self {
            wire,
            running: Arc::new(AtomicBool::new(false)),
            stopped: AtomicBool::new(false),
            stop: Notify::new(),
            left: Notify::new(),
            runtime,
            circuits: ByName::default(),
            digests: ByName::default(),
            generation: Mutex::new(None),
        }
    }

    /// Starts the keeper, if it is not at work and there is a runtime to work in.
    pub(crate) fn ensure(&self, fleet: &Arc<Fleet>) {
        if !self.running.load(Ordering::Acquire) && self.wire.is_some() {
            self.start(fleet);
        }
    }

    #[cold]
    fn start(&self, fleet: &Arc<Fleet>) {
        let (Ok(runtime), Some(wire)) = (Handle::try_current(), &self.wire) else { return };
        if self.stopped.load(Ordering::Acquire) || self.running.swap(true, Ordering::AcqRel) {
            return;
        }
        *self.runtime.lock() = Some(runtime.clone());
        let at_work = AtWork { fleet: fleet.clone(), running: self.running.clone() };
        let (fleet, wire) = (fleet.clone(), wire.clone());
        runtime.spawn(async move {
            let at_work = at_work; // ends with the runtime, if not before
            let fleet = &fleet;
            tokio::select! {
                () = link::tend(fleet, &wire) => {}
                () = rounds::make(fleet) => {}
                () = listen::to_others(fleet, &wire) => {}
                () = fleet.keeping.stop.notified() => {}
            }
            rounds::leave(fleet).await;
            fleet.keeping.left.notify_waiters();
            drop(at_work);
        });
    }

    /// Ends the keeper; it leaves the membership behind the caller's back.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.stop.notify_one();
    }

    /// Ends the keeper and waits until it has left.
    pub(crate) async fn leave(&self) {
        let left = self.left.notified();
        if self.running.load(Ordering::Acquire) {
            self.stop();
            let _ = tokio::time::timeout(std::time::Duration::from_secs(1), left).await;
        }
    }
}

/// While it lives, somebody keeps the store.
struct AtWork {
    fleet: Arc<Fleet>,
    running: Arc<AtomicBool>,
}

/// Nobody hears of changes any more: whoever calls next has to ask, which starts another keeper.
impl Drop for AtWork {
    fn drop(&mut self) {
        self.running.store(false, Ordering::Release);
        if let Some(wire) = &self.fleet.keeping.wire {
            wire.discard(None); // its driver ended with the runtime
        }
        self.fleet.keeping.circuits.all().iter().for_each(|circuit| circuit.trust_nothing());
    }
}
