//! A lock of the fleet, held: renewed behind its holder's back, and known to be lost by the holder's own clock.
//!
//! A lock is taken for `ttl` and renewed every third of it. The holder counts from *before* it asked, on its own
//! monotonic clock, and stops believing a tenth of the `ttl` before the store does: so it knows that the lock is lost even
//! when nobody answers, and after having been stopped for a while it knows before its next write. Once lost, always lost.
//!
//! It fails closed: a store that cannot be asked grants nothing.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use phalanx_core::clock::{Clock, Time};
use phalanx_core::lock::{Acquired, LockStore, Unavailable};
use phalanx_core::rng::Rng;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout_at};

/// Which lock, and for how long.
#[derive(Clone, Debug)]
pub struct LockSpec {
    /// Its name: whoever uses the same one in the same fleet shares it.
    pub name: String,
    /// How long it is held without being renewed, and so how long a holder that died keeps others waiting. Default 30 s.
    pub ttl: Duration,
    /// How often a waiter looks, in case it did not hear of a release. Default 1 s.
    pub poll: Duration,
}

impl LockSpec {
    /// A lock of this name, with the defaults.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), ttl: Duration::from_secs(30), poll: Duration::from_secs(1) }
    }

    /// How long it is held without being renewed.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How often a waiter looks.
    #[must_use]
    pub fn poll(mut self, poll: Duration) -> Self {
        self.poll = poll;
        self
    }
}

/// Why there is no lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockError {
    /// The store could not be asked, all the time that was waited.
    Unavailable(Unavailable),
    /// Somebody else held it all the time that was waited.
    Taken {
        /// The holder's fence.
        fence: u64,
    },
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable(error) => error.fmt(f),
            Self::Taken { fence } => write!(f, "somebody else holds the lock, under fence {fence}"),
        }
    }
}

impl std::error::Error for LockError {}

/// The lock's time ran out before it could be renewed: somebody else may hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockLost {
    /// The fence that is stale now.
    pub fence: u64,
}

impl fmt::Display for LockLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the lock was lost (fence {})", self.fence)
    }
}

impl std::error::Error for LockLost {}

/// A lock that can be taken. Cheap to clone.
#[derive(Clone, Debug)]
pub struct DistributedLock<S> {
    pub(crate) store: S,
    pub(crate) spec: LockSpec,
    clock: Clock,
    rng: Arc<Rng>,
}

impl<S: LockStore> DistributedLock<S> {
    /// A lock in this store.
    pub fn new(store: S, spec: LockSpec) -> Self {
        Self { store, spec, clock: Clock::detect(), rng: Arc::new(Rng::from_entropy()) }
    }

    /// This process' own clock, by which a holder knows that the lock is lost. Default [`Clock::detect`].
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Takes the lock if it is free.
    ///
    /// # Errors
    /// It is not, or the store cannot say.
    pub async fn try_acquire(&self) -> Result<LockGuard<S>, LockError> {
        self.ask(&self.owner()).await
    }

    /// Takes the lock, waiting for it at most so long. Who waits is told of a release, and looks now and then.
    ///
    /// # Errors
    /// Somebody else held it, or the store could not be asked, until the time was over.
    pub async fn acquire(&self, wait: Duration) -> Result<LockGuard<S>, LockError> {
        // One name for all the asking: what was granted and not heard of is granted again.
        let owner = self.owner();
        let mut waiting = self.waiting(wait);
        loop {
            match self.ask(&owner).await {
                Ok(held) => return Ok(held),
                Err(error) if waiting.is_over() => return Err(error),
                Err(_) => waiting.turn().await,
            }
        }
    }

    /// Waits for this lock, for at most so long.
    pub(crate) fn waiting(&self, wait: Duration) -> Waiting<'_> {
        let start = Instant::now();
        let until = start.checked_add(wait).unwrap_or(start + phalanx_core::lock::MAX_TTL);
        Waiting { bell: self.store.watch(&self.spec.name), until, poll: self.spec.poll, rng: &self.rng }
    }

    pub(crate) async fn ask(&self, owner: &str) -> Result<LockGuard<S>, LockError> {
        let asked = self.clock.now();
        let LockSpec { name, ttl, .. } = &self.spec;
        match self.store.acquire(name, owner, *ttl).await {
            Ok(Acquired::Held { fence }) => Ok(LockGuard::new(self.clone(), owner.to_owned(), fence, asked)),
            Ok(Acquired::Taken { fence, .. }) => Err(LockError::Taken { fence }),
            Err(error) => Err(LockError::Unavailable(error)),
        }
    }

    /// A name that nobody else has.
    pub(crate) fn owner(&self) -> String {
        format!("{:016x}{:016x}", self.rng.next(), self.rng.next())
    }

    /// Until when the holder believes, having asked then.
    fn believed(&self, asked: Time) -> Time {
        asked.after(self.spec.ttl - self.spec.ttl / 10)
    }
}

/// Somebody who waits for a lock.
pub(crate) struct Waiting<'a> {
    bell: phalanx_core::lock::Watch,
    until: Instant,
    poll: Duration,
    rng: &'a Rng,
}

impl Waiting<'_> {
    pub(crate) fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }

    /// Returns when it is worth asking again: a release was told of, or it is time to look, or time is up.
    pub(crate) async fn turn(&mut self) {
        // Waiters that began together do not look together.
        let look = Instant::now() + self.rng.between(self.poll.mul_f64(0.8), self.poll);
        let _ = timeout_at(look.min(self.until), self.bell.changed()).await;
    }
}

/// A lock that is held. Dropping it gives it back behind your back; [`LockGuard::release`] waits for that.
#[must_use = "a lock that is dropped is given back"]
pub struct LockGuard<S: LockStore> {
    lock: DistributedLock<S>,
    owner: String,
    proof: Proof,
    renewing: AbortHandle,
    given_back: bool,
}

impl<S: LockStore> LockGuard<S> {
    fn new(lock: DistributedLock<S>, owner: String, fence: u64, asked: Time) -> Self {
        let until = Arc::new(watch::Sender::new(lock.believed(asked)));
        let proof = Proof { fence, clock: lock.clock.clone(), until };
        let renewing = tokio::spawn(renew(lock.clone(), owner.clone(), proof.clone())).abort_handle();
        Self { lock, owner, proof, renewing, given_back: false }
    }

    /// Higher than that of every holder before. Whatever is written under the lock carries it.
    pub fn fence(&self) -> u64 {
        self.proof.fence
    }

    /// Whether it is lost. Costs a reading of the clock and asks nobody.
    pub fn is_lost(&self) -> bool {
        self.proof.check().is_err()
    }

    /// The fence, if the lock is still held: ask before every write.
    ///
    /// # Errors
    /// It is lost.
    pub fn check(&self) -> Result<u64, LockLost> {
        self.proof.check()
    }

    /// Returns when it is lost.
    pub async fn lost(&self) -> LockLost {
        self.proof.lost().await
    }

    pub(crate) fn proof(&self) -> Proof {
        self.proof.clone()
    }

    /// Gives it back; false if it was not held any more.
    ///
    /// # Errors
    /// The store could not be asked, twice: the lock is free when its time is over.
    pub async fn release(mut self) -> Result<bool, Unavailable> {
        self.renewing.abort();
        self.given_back = true;
        let (name, fence) = (&self.lock.spec.name, self.proof.fence);
        // Releasing twice is harmless, so a reply that was lost costs nobody a whole ttl.
        match self.lock.store.release(name, &self.owner, fence).await {
            Ok(held) => Ok(held),
            Err(_) => self.lock.store.release(name, &self.owner, fence).await,
        }
    }

    /// Marks the work of this version as done for so long, and gives the lock back; false if it was not held any more.
    ///
    /// # Errors
    /// The store could not be asked until the lock was lost.
    pub async fn complete(mut self, version: &str, keep: Duration) -> Result<bool, Unavailable> {
        let (name, fence) = (&self.lock.spec.name, self.proof.fence);
        let mut asked_before = false;
        loop {
            match self.lock.store.complete(name, &self.owner, fence, version, keep).await {
                Ok(held) => {
                    self.given_back = true;
                    // What was done and not heard of leaves its mark.
                    let done = held || asked_before && self.lock.store.completed(name, version).await? == Some(fence);
                    return Ok(done);
                }
                Err(error) if self.is_lost() => return Err(error),
                Err(_) => sleep(self.lock.spec.ttl / 20).await,
            }
            asked_before = true;
        }
    }
}

impl<S: LockStore> Drop for LockGuard<S> {
    fn drop(&mut self) {
        self.renewing.abort();
        // Behind everybody's back, and only if there is somebody to do it; else its time runs out.
        if let (false, Ok(runtime)) = (self.given_back, Handle::try_current()) {
            let (store, name) = (self.lock.store.clone(), self.lock.spec.name.clone());
            let (owner, fence) = (std::mem::take(&mut self.owner), self.proof.fence);
            runtime.spawn(async move { store.release(&name, &owner, fence).await });
        }
    }
}

impl<S: LockStore> fmt::Debug for LockGuard<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").field("lock", &self.lock.spec.name).field("proof", &self.proof).finish_non_exhaustive()
    }
}

/// What a holder knows by itself. Clones know the same.
#[derive(Clone)]
pub(crate) struct Proof {
    fence: u64,
    clock: Clock,
    /// Until when it believes; the beginning of time once it is lost.
    until: Arc<watch::Sender<Time>>,
}

impl Proof {
    pub(crate) fn check(&self) -> Result<u64, LockLost> {
        let until = *self.until.borrow();
        if self.clock.now() < until {
            return Ok(self.fence);
        }
        self.give_up();
        Err(LockLost { fence: self.fence })
    }

    pub(crate) async fn lost(&self) -> LockLost {
        let mut until = self.until.subscribe();
        loop {
            let believed = *until.borrow_and_update();
            if let Err(lost) = self.check() {
                return lost;
            }
            tokio::select! {
                () = sleep(believed.since(self.clock.now()).max(Duration::from_millis(1))) => {}
                _ = until.changed() => {}
            }
        }
    }

    /// Believes longer, unless it is lost already.
    fn extend(&self, until: Time) {
        let now = self.clock.now();
        self.until.send_modify(|believed| {
            if now < *believed {
                *believed = until;
            }
        });
    }

    fn give_up(&self) {
        self.until.send_if_modified(|until| std::mem::replace(until, Time::ZERO) != Time::ZERO);
    }
}

impl fmt::Debug for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proof").field("fence", &self.fence).field("lost", &self.check().is_err()).finish()
    }
}

/// Renews every third of the ttl; where nobody answers, more often, until it is lost.
async fn renew<S: LockStore>(lock: DistributedLock<S>, owner: String, proof: Proof) {
    let ttl = lock.spec.ttl;
    let mut pause = ttl / 3;
    loop {
        sleep(pause).await;
        let asked = lock.clock.now();
        if proof.check().is_err() {
            return;
        }
        match lock.store.renew(&lock.spec.name, &owner, proof.fence, ttl).await {
            Ok(true) => {
                proof.extend(lock.believed(asked));
                pause = ttl / 3;
            }
            Ok(false) => return proof.give_up(),
            Err(_) => pause = ttl / 20,
        }
    }
}
