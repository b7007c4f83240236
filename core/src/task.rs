//! Spawning of background tasks: on the tokio runtime, or in the simulated process that the caller belongs to.
//!
//! The fleet simulator of `phalanx-testkit` runs many replicas on one thread. It suspends and kills each of them alone,
//! so it must know which tasks belong to which replica: while it polls a task of a replica, [`enter`] makes
//! that replica the one that further tasks are spawned into. Nothing else enters a process, and without one a spawn is
//! tokio's.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::task::AbortHandle;

/// A task of a simulated process.
pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A simulated process: tasks spawned while it is entered run as part of it.
pub trait Process: Send + Sync {
    /// Runs a task as part of this process.
    fn spawn(&self, task: Task) -> AbortHandle;
}

thread_local! {
    static CURRENT: RefCell<Option<Arc<dyn Process>>> = const { RefCell::new(None) };
}

/// Makes `process` the current one of this thread until the guard is dropped.
pub fn enter(process: Arc<dyn Process>) -> EnterGuard {
    EnterGuard(CURRENT.with(|current| current.replace(Some(process))))
}

/// Restores the process that was current before.
#[must_use = "dropping the guard leaves the process"]
pub struct EnterGuard(Option<Arc<dyn Process>>);

impl Drop for EnterGuard {
    fn drop(&mut self) {
        CURRENT.with(|current| *current.borrow_mut() = self.0.take());
    }
}

/// Spawns a task into the current simulated process, else on the runtime of the caller, else on `fallback`. Without any
/// of them the task is dropped, and the result is `None`.
pub fn spawn(task: impl Future<Output = ()> + Send + 'static, fallback: Option<&Handle>) -> Option<AbortHandle> {
    if let Some(process) = CURRENT.with(|current| current.borrow().clone()) {
        return Some(process.spawn(Box::pin(task)));
    }
    match Handle::try_current() {
        Ok(runtime) => Some(runtime.spawn(task).abort_handle()),
        Err(_) => fallback.map(|runtime| runtime.spawn(task).abort_handle()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    struct Counting(AtomicUsize);

    impl Process for Counting {
        fn spawn(&self, task: Task) -> AbortHandle {
            self.0.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(task).abort_handle()
        }
    }

    #[tokio::test]
    async fn a_task_belongs_to_the_process_that_is_entered() {
        let process = Arc::new(Counting(AtomicUsize::new(0)));
        {
            let _entered = enter(process.clone());
            spawn(async {}, None);
        }
        let (sender, receiver) = tokio::sync::oneshot::channel();
        spawn(async move { sender.send(7).unwrap() }, None);
        assert_eq!(receiver.await, Ok(7), "outside of the process, tokio runs it");
        assert_eq!(process.0.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn without_a_runtime_and_a_process_a_task_is_dropped() {
        let (sender, mut receiver) = tokio::sync::oneshot::channel::<()>();
        assert!(spawn(async move { sender.send(()).unwrap() }, None).is_none());
        assert!(receiver.try_recv().is_err());
    }
}
