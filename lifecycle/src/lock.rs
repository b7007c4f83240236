//! A distributed lock: renewed in the background, and known to be lost by the holder's own clock.
//!
//! The store grants a lock for `ttl`, and the holder renews it every third of that. The holder counts the ttl from
//! *before* it sent the request, on its own monotonic clock, and treats the lock as lost a tenth of the `ttl` before the
//! store frees it. It therefore detects a lost lock even if the store does not reply, and a process that was paused
//! detects it before its next write. A lost lock stays lost.
//!
//! The lock fails closed: if the store cannot be reached, nothing is granted.
//!
//! Nothing that is dropped holds the lock: a guard releases it, and an acquire that was cancelled, or that gave up without
//! a reply, withdraws from it. Both are repeated in the background until the store has replied or the ttl is over.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use phalanx_core::clock::{Clock, Time};
use phalanx_core::lock::{Acquired, LockStore, Unavailable};
use phalanx_core::rng::Rng;
use phalanx_core::task;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout_at};

/// The pause after a release without a reply, which doubles up to the second.
const FIRST_RELEASE_PAUSE: Duration = Duration::from_millis(100);
const MAX_RELEASE_PAUSE: Duration = Duration::from_secs(1);

/// The name, ttl and poll interval of a lock.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use phalanx_lifecycle::LockSpec;
///
/// let spec = LockSpec::named("nightly-report").ttl(Duration::from_secs(10));
/// assert_eq!((spec.name.as_str(), spec.ttl), ("nightly-report", Duration::from_secs(10)));
/// ```
#[derive(Clone, Debug)]
pub struct LockSpec {
    /// The name of the lock. Locks of the same name in the same store exclude each other.
    pub name: String,
    /// How long the lock is held without renewal, and so how long a crashed holder blocks the others. Default 30 s.
    pub ttl: Duration,
    /// How often a waiter polls, in case a release notification was missed. Default 1 s.
    pub poll: Duration,
}

impl LockSpec {
    /// Creates the spec of a lock of this name, with the defaults.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), ttl: Duration::from_secs(30), poll: Duration::from_secs(1) }
    }

    /// Sets how long the lock is held without renewal.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Sets how often a waiter polls.
    #[must_use]
    pub fn poll(mut self, poll: Duration) -> Self {
        self.poll = poll;
        self
    }
}

/// Why a lock was not acquired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockError {
    /// The store could not be reached.
    Unavailable(Unavailable),
    /// Another owner holds the lock.
    Taken {
        /// The holder's fence.
        fence: u64,
    },
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable(error) => error.fmt(f),
            Self::Taken { fence } => write!(f, "another owner holds the lock (fence {fence})"),
        }
    }
}

impl std::error::Error for LockError {}

/// The lock expired before it could be renewed. Another owner may hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockLost {
    /// The fence, which is stale now.
    pub fence: u64,
}

impl fmt::Display for LockLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the lock was lost (fence {})", self.fence)
    }
}

impl std::error::Error for LockLost {}

/// A lock that one owner at a time can hold, across all replicas that share its store. Cheap to clone.
///
/// # Examples
///
/// ```
/// use phalanx_lifecycle::{DistributedLock, LockError, LockSpec};
/// use phalanx_store_memory::MemoryLocks;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let locks = MemoryLocks::default(); // `module.locks()` in a fleet
/// let lock = DistributedLock::new(locks, LockSpec::named("nightly-report"));
///
/// let guard = lock.try_acquire().await?;
/// let fence = guard.check()?; // before every write, which carries the fence
/// assert_eq!(lock.try_acquire().await.unwrap_err(), LockError::Taken { fence });
///
/// assert!(guard.release().await?);
/// assert!(lock.try_acquire().await?.fence() > fence);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct DistributedLock<S> {
    pub(crate) store: S,
    pub(crate) spec: LockSpec,
    clock: Clock,
    rng: Arc<Rng>,
}

impl<S: LockStore> DistributedLock<S> {
    /// Creates a lock in this store.
    pub fn new(store: S, spec: LockSpec) -> Self {
        Self { store, spec, clock: Clock::detect(), rng: Arc::new(Rng::from_entropy()) }
    }

    /// Sets the clock by which a holder detects that the lock is lost. Default [`Clock::detect`].
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Sets the source of owner names and jitter. In production it must not be seeded: two owners of one name would hold
    /// the lock together.
    #[doc(hidden)]
    #[must_use]
    pub fn rng(mut self, rng: Rng) -> Self {
        self.rng = Arc::new(rng);
        self
    }

    /// Acquires the lock if it is free.
    ///
    /// # Errors
    /// Returns an error if another owner holds the lock or the store cannot be reached.
    pub async fn try_acquire(&self) -> Result<LockGuard<S>, LockError> {
        self.claim().attempt().await
    }

    /// Acquires the lock, waiting at most `wait` for its release.
    ///
    /// # Errors
    /// Returns the error of the last attempt if the wait is over.
    pub async fn acquire(&self, wait: Duration) -> Result<LockGuard<S>, LockError> {
        let mut claim = self.claim();
        let mut wait = self.start_wait(wait);
        loop {
            match claim.attempt().await {
                Ok(guard) => return Ok(guard),
                Err(error) if wait.is_over() => return Err(error),
                Err(_) => wait.next_attempt().await,
            }
        }
    }

    /// Begins to wait for the lock, for at most `wait`.
    pub(crate) fn start_wait(&self, wait: Duration) -> LockWait<'_> {
        let start = Instant::now();
        let until = start.checked_add(wait).unwrap_or(start + phalanx_core::lock::MAX_TTL);
        LockWait { released: self.store.watch(&self.spec.name), until, poll: self.spec.poll, rng: &self.rng }
    }

    /// Begins to claim the lock, under a unique owner name.
    pub(crate) fn claim(&self) -> LockClaim<'_, S> {
        let owner = format!("{:016x}{:016x}", self.rng.next(), self.rng.next());
        LockClaim { lock: self, owner, unanswered: false }
    }

    /// Releases the lock in the background, under any fence if `None`, until the store has replied or the ttl is over. A
    /// second release is harmless, and saves waiters a whole ttl if the first was lost. Needs a tokio runtime.
    fn release_in_background(&self, owner: String, fence: Option<u64>) {
        let lock = self.clone();
        let release = async move {
            let (name, until) = (&lock.spec.name, Instant::now() + lock.spec.ttl.min(phalanx_core::lock::MAX_TTL));
            let mut pause = FIRST_RELEASE_PAUSE;
            loop {
                let released = match fence {
                    Some(fence) => lock.store.release(name, &owner, fence).await,
                    None => lock.store.withdraw(name, &owner).await,
                };
                if released.is_ok() || Instant::now() + pause >= until {
                    return;
                }
                sleep(pause).await;
                pause = (2 * pause).min(MAX_RELEASE_PAUSE);
            }
        };
        task::spawn(release, None);
    }

    /// Returns until when the holder treats a lock requested at this time as held.
    fn valid_until(&self, requested_at: Time) -> Time {
        requested_at.after(self.spec.ttl - self.spec.ttl / 10)
    }
}

/// The attempts of one owner to acquire a lock. One owner for all of them: if the reply to a granted acquire is lost, the
/// next attempt is granted the same fence. Dropping it withdraws from the lock if an attempt has no reply, because the
/// store may have granted it.
pub(crate) struct LockClaim<'a, S: LockStore> {
    lock: &'a DistributedLock<S>,
    owner: String,
    /// Whether an attempt has had no reply, and none since was granted.
    unanswered: bool,
}

impl<S: LockStore> LockClaim<'_, S> {
    /// Makes one attempt to acquire the lock.
    pub(crate) async fn attempt(&mut self) -> Result<LockGuard<S>, LockError> {
        let requested_at = self.lock.clock.now();
        let LockSpec { name, ttl, .. } = &self.lock.spec;
        let unanswered = std::mem::replace(&mut self.unanswered, true); // in case this is dropped while it waits
        match self.lock.store.acquire(name, &self.owner, *ttl).await {
            Ok(Acquired::Held { fence }) => {
                self.unanswered = false;
                Ok(LockGuard::new(self.lock.clone(), self.owner.clone(), fence, requested_at))
            }
            Ok(Acquired::Taken { fence, .. }) => {
                self.unanswered = unanswered;
                Err(LockError::Taken { fence })
            }
            Err(error) => Err(LockError::Unavailable(error)),
        }
    }
}

impl<S: LockStore> Drop for LockClaim<'_, S> {
    fn drop(&mut self) {
        if self.unanswered {
            self.lock.release_in_background(std::mem::take(&mut self.owner), None);
        }
    }
}

/// A wait for the release of a lock.
pub(crate) struct LockWait<'a> {
    released: phalanx_core::lock::Watch,
    until: Instant,
    poll: Duration,
    rng: &'a Rng,
}

impl LockWait<'_> {
    pub(crate) fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }

    /// Waits until the next attempt is due: after a release, at the poll interval, or when the wait is over.
    pub(crate) async fn next_attempt(&mut self) {
        // Jitter, so that waiters that began together do not poll together.
        let poll_at = Instant::now() + self.rng.between(self.poll.mul_f64(0.8), self.poll);
        let _ = timeout_at(poll_at.min(self.until), self.released.changed()).await;
    }
}

/// A held lock. Dropping it releases the lock in the background; [`LockGuard::release`] waits for the release.
#[must_use = "the lock is released when its guard is dropped"]
pub struct LockGuard<S: LockStore> {
    lock: DistributedLock<S>,
    owner: String,
    validity: LockValidity,
    /// `None` outside a runtime, where nothing can renew.
    renewal: Option<AbortHandle>,
    released: bool,
}

impl<S: LockStore> LockGuard<S> {
    fn new(lock: DistributedLock<S>, owner: String, fence: u64, requested_at: Time) -> Self {
        let until = Arc::new(watch::Sender::new(lock.valid_until(requested_at)));
        let validity = LockValidity { fence, clock: lock.clock.clone(), until };
        let renewal = task::spawn(renew(lock.clone(), owner.clone(), validity.clone()), None);
        Self { lock, owner, validity, renewal, released: false }
    }

    /// Returns the fence: a number higher than that of every earlier holder. Writes under the lock carry it.
    pub fn fence(&self) -> u64 {
        self.validity.fence
    }

    /// Whether the lock is lost. Reads the local clock and sends nothing to the store.
    pub fn is_lost(&self) -> bool {
        self.validity.check().is_err()
    }

    /// Returns the fence if the lock is still held. Call it before every write.
    ///
    /// # Errors
    /// Returns [`LockLost`] if the lock is lost.
    pub fn check(&self) -> Result<u64, LockLost> {
        self.validity.check()
    }

    /// Waits until the lock is lost.
    pub async fn lost(&self) -> LockLost {
        self.validity.lost().await
    }

    pub(crate) fn validity(&self) -> LockValidity {
        self.validity.clone()
    }

    /// Releases the lock. Returns false if it was no longer held.
    ///
    /// # Errors
    /// Returns an error if the store could not be reached in two attempts. The release is then repeated in the background
    /// until the ttl ends.
    pub async fn release(mut self) -> Result<bool, Unavailable> {
        self.renewal.iter().for_each(AbortHandle::abort);
        let (name, fence) = (&self.lock.spec.name, self.validity.fence);
        let mut released = self.lock.store.release(name, &self.owner, fence).await;
        if released.is_err() {
            released = self.lock.store.release(name, &self.owner, fence).await;
        }
        self.released = released.is_ok();
        released
    }

    /// Marks the work of this version as done for `keep`, and releases the lock. Returns false if it was no longer held.
    ///
    /// # Errors
    /// Returns an error if the store could not be reached until the lock was lost.
    pub async fn complete(mut self, version: &str, keep: Duration) -> Result<bool, Unavailable> {
        let (name, fence) = (&self.lock.spec.name, self.validity.fence);
        let mut retried = false;
        loop {
            match self.lock.store.complete(name, &self.owner, fence, version, keep).await {
                Ok(held) => {
                    self.released = true;
                    // After a lost reply the lock is free, and the mark shows that the first request succeeded.
                    let done = held || retried && self.lock.store.completed(name, version).await? == Some(fence);
                    return Ok(done);
                }
                Err(error) if self.is_lost() => return Err(error),
                Err(_) => sleep(self.lock.spec.ttl / 20).await,
            }
            retried = true;
        }
    }
}

impl<S: LockStore> Drop for LockGuard<S> {
    fn drop(&mut self) {
        self.renewal.iter().for_each(AbortHandle::abort);
        // Needs a tokio runtime; without one the lock is freed when its ttl ends.
        if !self.released {
            self.lock.release_in_background(std::mem::take(&mut self.owner), Some(self.validity.fence));
        }
    }
}

impl<S: LockStore> fmt::Debug for LockGuard<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("lock", &self.lock.spec.name)
            .field("validity", &self.validity)
            .finish_non_exhaustive()
    }
}

/// Until when a holder treats its lock as held, by its own clock. Clones share the same state.
#[derive(Clone)]
pub(crate) struct LockValidity {
    fence: u64,
    clock: Clock,
    /// Zero once the lock is lost.
    until: Arc<watch::Sender<Time>>,
}

impl LockValidity {
    pub(crate) fn check(&self) -> Result<u64, LockLost> {
        let until = *self.until.borrow();
        if self.clock.now() < until {
            return Ok(self.fence);
        }
        self.mark_lost();
        Err(LockLost { fence: self.fence })
    }

    pub(crate) async fn lost(&self) -> LockLost {
        let mut until = self.until.subscribe();
        loop {
            let valid_until = *until.borrow_and_update();
            if let Err(lost) = self.check() {
                return lost;
            }
            tokio::select! {
                biased; // the loop checks both
                () = sleep(valid_until.since(self.clock.now()).max(Duration::from_millis(1))) => {}
                _ = until.changed() => {}
            }
        }
    }

    /// Extends the validity, unless the lock is lost already.
    fn extend(&self, new_until: Time) {
        let now = self.clock.now();
        self.until.send_modify(|until| {
            if now < *until {
                *until = new_until;
            }
        });
    }

    fn mark_lost(&self) {
        self.until.send_if_modified(|until| std::mem::replace(until, Time::ZERO) != Time::ZERO);
    }
}

impl fmt::Debug for LockValidity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockValidity").field("fence", &self.fence).field("lost", &self.check().is_err()).finish()
    }
}

/// Renews the lock every third of its ttl, and more often after an error, until the lock is lost.
async fn renew<S: LockStore>(lock: DistributedLock<S>, owner: String, validity: LockValidity) {
    let ttl = lock.spec.ttl;
    let mut pause = ttl / 3;
    loop {
        sleep(pause).await;
        let requested_at = lock.clock.now();
        if validity.check().is_err() {
            return;
        }
        match lock.store.renew(&lock.spec.name, &owner, validity.fence, ttl).await {
            Ok(true) => {
                validity.extend(lock.valid_until(requested_at));
                pause = ttl / 3;
            }
            Ok(false) => return validity.mark_lost(),
            Err(_) => pause = ttl / 20,
        }
    }
}
