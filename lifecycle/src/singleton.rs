//! A step that one replica runs for all.
//!
//! ```text
//!   is it marked as done? ── yes ──► skip
//!     │ no
//!   take the lock ── somebody holds it ──► wait: a release is told of, and a poll is the net ──► ask again
//!     │ held                               or skip, by choice
//!   marked meanwhile? ── yes ──► give it back, skip
//!     │ no
//!   run it, renewing ── the lock is lost ──► stop running, fail
//!     │ done
//!   mark the version as done and free the lock, in one
//! ```
//!
//! A holder that crashes marks nothing, so whoever waits takes its place when the lock has run out. A replica that comes
//! late finds the mark and skips. The mark is of a version, so that a new release runs the step again. A store that
//! cannot be asked fails the start after the wait: the step is never run without the lock.
//!
//! A lock does not make work happen exactly once: a holder that loses it is told, but what it has done stays. Steps stay
//! idempotent, or write under the fence ([`StepContext::fence`](crate::StepContext::fence)).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use phalanx_core::event::EventKind;
use phalanx_core::lock::{LockStore, MAX_TTL};

use crate::lock::{DistributedLock, LockError, LockGuard, LockSpec};
use crate::step::{Failure, Guarded, Step, StepContext};

/// How a singleton step is run.
#[derive(Clone, Debug)]
pub struct SingletonSpec {
    /// What the lock and the mark are called. Default: the step's name.
    pub name: Option<String>,
    /// What the mark is of: another version runs the step again. Default `1`.
    pub version: String,
    /// How long the lock is held without being renewed, and so how long a holder that died keeps the others waiting.
    /// Default 30 s.
    pub ttl: Duration,
    /// The longest a replica waits, for the holder to be done or for the store to answer. Default 60 s.
    pub wait: Duration,
    /// Whether a replica that finds the lock held goes on without waiting for the holder. Default false.
    pub skip: bool,
    /// Whether the step is run at every start, whatever was done before. Default false.
    pub always: bool,
    /// How long it is remembered that the step was done. Default and most: 30 days.
    pub remember: Duration,
    /// How often a waiting replica looks, in case it did not hear of a release. Default 1 s.
    pub poll: Duration,
}

impl Default for SingletonSpec {
    fn default() -> Self {
        Self {
            name: None,
            version: "1".to_owned(),
            ttl: Duration::from_secs(30),
            wait: Duration::from_secs(60),
            skip: false,
            always: false,
            remember: MAX_TTL,
            poll: Duration::from_secs(1),
        }
    }
}

impl SingletonSpec {
    /// Run once for this version of the step.
    pub fn version(version: impl Into<String>) -> Self {
        Self { version: version.into(), ..Self::default() }
    }

    /// Run at every start, by one replica at a time: who finds it running waits for that run instead of one of its own.
    /// For steps of the "ensure" kind.
    #[must_use]
    pub fn always(mut self) -> Self {
        self.always = true;
        self
    }

    /// Go on at once where somebody else is at it.
    #[must_use]
    pub fn skip(mut self) -> Self {
        self.skip = true;
        self
    }

    /// What lock and mark are called.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// How long the lock is held without being renewed.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// The longest a replica waits.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// How long it is remembered that the step was done.
    #[must_use]
    pub fn remember(mut self, remember: Duration) -> Self {
        self.remember = remember;
        self
    }

    /// How often a waiting replica looks.
    #[must_use]
    pub fn poll(mut self, poll: Duration) -> Self {
        self.poll = poll;
        self
    }
}

/// Why a singleton step was not run.
#[derive(Debug)]
struct NotRun {
    waited: Duration,
    why: LockError,
}

impl fmt::Display for NotRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not run, after waiting for {:?}", self.waited)
    }
}

impl std::error::Error for NotRun {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.why)
    }
}

/// Makes a step one that a single replica of the fleet runs, under a lock in this store. It is stopped only where it was
/// run.
pub fn singleton<S: LockStore>(step: Step, locks: S, spec: SingletonSpec) -> Step {
    let name = spec.name.clone().unwrap_or_else(|| step.name.clone());
    let guard = Guarded { environment: locks.environment().map(str::to_owned) };
    let lock_spec = LockSpec::named(name).ttl(spec.ttl).poll(spec.poll);
    let lock = DistributedLock::new(locks, lock_spec);
    let mut outer = Step::new(step.name.clone());
    (outer.timeout, outer.patience) = (step.timeout, spec.wait.saturating_add(step.patience));
    (outer.mutates_shared_state, outer.long_running) = (step.mutates_shared_state, step.long_running);
    outer.guard = Some(guard);
    let once = Arc::new(Once { step, lock, spec, ran: AtomicBool::new(false) });
    let stopping = once.clone();
    let start = move |scene| {
        let once = once.clone();
        async move { once.start(scene).await }
    };
    let stop = move |scene| {
        let once = stopping.clone();
        async move { if once.ran.load(Ordering::Acquire) { once.step.stop(scene).await } else { Ok(()) } }
    };
    outer.start_in(start).stop_in(stop)
}

struct Once<S> {
    step: Step,
    lock: DistributedLock<S>,
    spec: SingletonSpec,
    ran: AtomicBool,
}

impl<S: LockStore> Once<S> {
    async fn start(&self, scene: StepContext) -> Result<(), Failure> {
        // One name for all the asking: what was granted and not heard of is granted again.
        let owner = self.lock.owner();
        let mut waiting = self.lock.waiting(self.spec.wait);
        let mut seen = None;
        loop {
            match self.turn(&owner, &mut seen).await {
                Ok(None) => return Ok(()),
                Ok(Some(held)) => return self.run(held, scene).await,
                Err(LockError::Taken { .. }) if self.spec.skip => return Ok(()),
                Err(why) if waiting.is_over() => return Err(NotRun { waited: self.spec.wait, why }.into()),
                Err(_) => waiting.turn().await,
            }
        }
    }

    /// Asks whether it is done, and for the lock if it is not; none if it is done.
    async fn turn(&self, owner: &str, seen: &mut Option<u64>) -> Result<Option<LockGuard<S>>, LockError> {
        if self.is_done(*seen).await? {
            return Ok(None);
        }
        match self.lock.ask(owner).await {
            // It may have been done between the two questions.
            Ok(held) if self.is_done(*seen).await? => {
                let _ = held.release().await; // or its time runs out
                Ok(None)
            }
            Ok(held) => Ok(Some(held)),
            Err(error) => {
                if let LockError::Taken { fence } = error {
                    seen.get_or_insert(fence);
                }
                Err(error)
            }
        }
    }

    /// Whether it was done: at any time or, if it is always run, by the run that was under way when we came or a later one.
    async fn is_done(&self, seen: Option<u64>) -> Result<bool, LockError> {
        let done = self.lock.store.completed(&self.lock.spec.name, &self.spec.version).await;
        let fence = done.map_err(LockError::Unavailable)?;
        Ok(match (fence, self.spec.always) {
            (None, _) => false,
            (Some(_), false) => true,
            (Some(fence), true) => seen.is_some_and(|seen| fence >= seen),
        })
    }

    async fn run(&self, held: LockGuard<S>, scene: StepContext) -> Result<(), Failure> {
        let runtime = scene.runtime.clone();
        let scene = StepContext { proof: Some(held.proof()), ..scene };
        tokio::select! {
            biased; // a lock that is lost is lost, though the step is done
            lost = held.lost() => {
                runtime.emit(EventKind::LockLost { lock: &self.lock.spec.name, fence: lost.fence });
                return Err(lost.into());
            }
            started = self.step.start(scene) => started?,
        }
        self.ran.store(true, Ordering::Release);
        let reason = match held.complete(&self.spec.version, self.spec.remember).await {
            Ok(true) => return Ok(()),
            Ok(false) => "done, but its lock was lost before that could be marked".to_owned(),
            Err(error) => format!("done, but that could not be marked: {error}"),
        };
        // It is done, and somebody else may do it again: no reason not to start.
        runtime.emit(EventKind::StepFailed { step: &self.step.name, reason: &reason });
        Ok(())
    }
}
