//! Singleton steps: steps that one replica runs for the whole fleet.
//!
//! ```text
//!   is the version marked as done? ── yes ──► skip
//!     │ no
//!   acquire the lock ── held by another ──► wait for its release (notified, with a poll as backup), then ask again;
//!     │ acquired                            or skip, if `skip_if_running`
//!   marked meanwhile? ── yes ──► release the lock, skip
//!     │ no
//!   run the step, renewing the lock ── lock lost ──► cancel the step, fail
//!     │ done
//!   mark the version as done and release the lock, atomically
//! ```
//!
//! A holder that crashes leaves no mark, so a waiting replica acquires the lock after its ttl and runs the step. A replica
//! that starts later finds the mark and skips. The mark belongs to a version, so a new release can run the step again. If
//! the store cannot be reached for the whole wait, the start fails: the step never runs without the lock.
//!
//! A lock does not make work happen exactly once. A holder that loses the lock is cancelled, but its effects remain.
//! Steps must be idempotent, or write under the fence ([`StepContext::fence`]).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use phalanx_core::event::EventKind;
use phalanx_core::lock::{LockStore, MAX_TTL};

use crate::lock::{DistributedLock, LockClaim, LockError, LockGuard, LockSpec};
use crate::step::{BoxError, SingletonScope, Step, StepContext};

/// How a singleton step runs.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use phalanx_lifecycle::SingletonSpec;
///
/// let spec = SingletonSpec::version("2026-11").wait(Duration::from_secs(120));
/// assert_eq!((spec.version.as_str(), spec.wait), ("2026-11", Duration::from_secs(120)));
/// assert!(!spec.always && !spec.skip_if_running); // once per version, and the other replicas wait
/// ```
#[derive(Clone, Debug)]
pub struct SingletonSpec {
    /// The name of the lock and of the mark. Default: the step's name.
    pub name: Option<String>,
    /// The version that is marked as done. Another version runs the step again. Default `1`.
    pub version: String,
    /// How long the lock is held without renewal, and so how long a crashed holder blocks the others. Default 30 s.
    pub ttl: Duration,
    /// The longest time a replica waits, for the holder to finish or for the store to reply. Default 60 s.
    pub wait: Duration,
    /// Whether a replica continues at once if another replica is running the step. Default false.
    pub skip_if_running: bool,
    /// Whether the step runs at every start, even if its version is marked as done. Default false.
    pub always: bool,
    /// How long the mark is kept after a replica last found it: a version that is still started is not forgotten. Default,
    /// and maximum, 30 days.
    pub remember: Duration,
    /// How often a waiting replica polls, in case a release notification was missed. Default 1 s.
    pub poll: Duration,
}

impl Default for SingletonSpec {
    fn default() -> Self {
        Self {
            name: None,
            version: "1".to_owned(),
            ttl: Duration::from_secs(30),
            wait: Duration::from_secs(60),
            skip_if_running: false,
            always: false,
            remember: MAX_TTL,
            poll: Duration::from_secs(1),
        }
    }
}

impl SingletonSpec {
    /// Runs the step once for this version.
    pub fn version(version: impl Into<String>) -> Self {
        Self { version: version.into(), ..Self::default() }
    }

    /// Runs the step at every start, on one replica at a time. A replica that finds the step running waits for that run
    /// instead of running it again. For steps that ensure a state, such as "create the queue if it is missing".
    #[must_use]
    pub fn always(mut self) -> Self {
        self.always = true;
        self
    }

    /// Continues at once if another replica is running the step, without waiting for it.
    #[must_use]
    pub fn skip_if_running(mut self) -> Self {
        self.skip_if_running = true;
        self
    }

    /// Sets the name of the lock and of the mark.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets how long the lock is held without renewal.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Sets the longest time a replica waits.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Sets how long the mark is kept after a replica last found it.
    #[must_use]
    pub fn remember(mut self, remember: Duration) -> Self {
        self.remember = remember;
        self
    }

    /// Sets how often a waiting replica polls.
    #[must_use]
    pub fn poll(mut self, poll: Duration) -> Self {
        self.poll = poll;
        self
    }
}

/// The error of a singleton step that could not run.
#[derive(Debug)]
struct NotRun {
    waited: Duration,
    cause: LockError,
}

impl fmt::Display for NotRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not run, after waiting for {:?}", self.waited)
    }
}

impl std::error::Error for NotRun {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.cause)
    }
}

/// Makes a step a singleton: one replica of the fleet runs it, under a lock in this store. The step is stopped only on
/// the replica that ran it.
///
/// # Examples
///
/// ```
/// use std::convert::Infallible;
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU32, Ordering};
/// use phalanx_lifecycle::{Runtime, SingletonSpec, Step, singleton};
/// use phalanx_store_memory::MemoryLocks;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (locks, runs) = (MemoryLocks::default(), Arc::new(AtomicU32::new(0))); // `module.locks()` in a fleet
/// for _replica in 0..3 {
///     let runs = runs.clone();
///     let seed = Step::new("seed").on_start(move || {
///         runs.fetch_add(1, Ordering::Relaxed);
///         std::future::ready(Ok::<_, Infallible>(()))
///     });
///     let seed = singleton(seed, locks.clone(), SingletonSpec::version("7"));
///     Runtime::builder().step(seed).build()?.start().await?;
/// }
/// assert_eq!(runs.load(Ordering::Relaxed), 1);
/// # Ok(())
/// # }
/// ```
pub fn singleton<S: LockStore>(step: Step, locks: S, spec: SingletonSpec) -> Step {
    let name = spec.name.clone().unwrap_or_else(|| step.name.clone());
    let scope = SingletonScope { environment: locks.environment().map(str::to_owned) };
    let lock_spec = LockSpec::named(name).ttl(spec.ttl).poll(spec.poll);
    let lock = DistributedLock::new(locks, lock_spec);
    let mut outer = Step::new(step.name.clone());
    (outer.timeout, outer.lock_wait) = (step.timeout, spec.wait.saturating_add(step.lock_wait));
    (outer.mutates_shared_state, outer.long_running) = (step.mutates_shared_state, step.long_running);
    outer.singleton = Some(scope);
    let inner = Arc::new(SingletonStep { step, lock, spec, ran: AtomicBool::new(false) });
    let stopping = inner.clone();
    let start = move |context| {
        let inner = inner.clone();
        async move { inner.start(context).await }
    };
    let stop = move |context| {
        let inner = stopping.clone();
        async move { if inner.ran.load(Ordering::Acquire) { inner.step.stop(context).await } else { Ok(()) } }
    };
    outer.on_start_with(start).on_stop_with(stop)
}

struct SingletonStep<S> {
    step: Step,
    lock: DistributedLock<S>,
    spec: SingletonSpec,
    /// Whether this replica ran the step, and so has to stop it.
    ran: AtomicBool,
}

impl<S: LockStore> SingletonStep<S> {
    async fn start(&self, context: StepContext) -> Result<(), BoxError> {
        let mut claim = self.lock.claim();
        let mut wait = self.lock.start_wait(self.spec.wait);
        let mut first_seen_fence = None;
        loop {
            match self.acquire_unless_done(&mut claim, &mut first_seen_fence).await {
                Ok(None) => return Ok(()),
                Ok(Some(guard)) => return self.run(guard, context).await,
                Err(LockError::Taken { .. }) if self.spec.skip_if_running => return Ok(()),
                Err(cause) if wait.is_over() => return Err(NotRun { waited: self.spec.wait, cause }.into()),
                Err(_) => wait.next_attempt().await,
            }
        }
    }

    /// Acquires the lock, or returns none if the step is done.
    async fn acquire_unless_done(
        &self,
        claim: &mut LockClaim<'_, S>,
        first_seen_fence: &mut Option<u64>,
    ) -> Result<Option<LockGuard<S>>, LockError> {
        if self.is_done(*first_seen_fence).await? {
            return Ok(None);
        }
        match claim.attempt().await {
            // Another replica may have finished between the check and the acquire.
            Ok(guard) if self.is_done(*first_seen_fence).await? => {
                let _ = guard.release().await; // if this fails, it is repeated in the background
                Ok(None)
            }
            Ok(guard) => Ok(Some(guard)),
            Err(error) => {
                if let LockError::Taken { fence } = error {
                    first_seen_fence.get_or_insert(fence);
                }
                Err(error)
            }
        }
    }

    /// Whether the step is done. Under `always`, only the run that was in progress when this replica first asked, or a
    /// later one, counts.
    async fn is_done(&self, first_seen_fence: Option<u64>) -> Result<bool, LockError> {
        let completed = self.lock.store.completed(&self.lock.spec.name, &self.spec.version).await;
        let fence = completed.map_err(LockError::Unavailable)?;
        Ok(match (fence, self.spec.always) {
            (None, _) => false,
            (Some(_), false) => true,
            (Some(fence), true) => first_seen_fence.is_some_and(|seen| fence >= seen),
        })
    }

    async fn run(&self, guard: LockGuard<S>, context: StepContext) -> Result<(), BoxError> {
        let runtime = context.runtime.clone();
        let context = StepContext { lock: Some(guard.validity()), ..context };
        tokio::select! {
            biased; // a lost lock fails the step even if it finished in the same poll
            lost = guard.lost() => {
                runtime.emit(EventKind::LockLost { lock: &self.lock.spec.name, fence: lost.fence });
                return Err(lost.into());
            }
            started = self.step.start(context) => started?,
        }
        self.ran.store(true, Ordering::Release);
        let reason = match guard.complete(&self.spec.version, self.spec.remember).await {
            Ok(true) => return Ok(()),
            Ok(false) => "done, but its lock was lost before that could be marked".to_owned(),
            Err(error) => format!("done, but that could not be marked: {error}"),
        };
        // The work is done, so the start succeeds; without the mark another replica may run the step again.
        runtime.emit(EventKind::StepFailed { step: &self.step.name, reason: &reason });
        Ok(())
    }
}
