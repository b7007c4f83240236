//! A simulated process: its tasks are suspended, resumed and killed together.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use phalanx_core::task::{self, Process, Task};
use slab::Slab;
use tokio::task::AbortHandle;

/// A simulated process.
pub(crate) struct SimProcess {
    this: Weak<Self>,
    state: Mutex<State>,
}

struct State {
    running: Running,
    /// Wakers of tasks that became ready while the process was suspended, in that order.
    parked: Vec<Waker>,
    tasks: Slab<Option<AbortHandle>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Running {
    Yes,
    Suspended,
    Killed,
}

impl SimProcess {
    pub(crate) fn start() -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            this: this.clone(),
            state: Mutex::new(State { running: Running::Yes, parked: Vec::new(), tasks: Slab::new() }),
        })
    }

    /// Runs a task as part of this process.
    pub(crate) fn run(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.spawn(Box::pin(task));
    }

    /// Stops polling its tasks, like `SIGSTOP`. Timers that fire meanwhile are noticed at the end.
    pub(crate) fn suspend(&self) {
        let mut state = self.state.lock();
        if state.running == Running::Yes {
            state.running = Running::Suspended;
        }
    }

    /// Continues after [`SimProcess::suspend`].
    pub(crate) fn resume(&self) {
        let mut state = self.state.lock();
        if state.running == Running::Suspended {
            state.running = Running::Yes;
            let parked = std::mem::take(&mut state.parked);
            drop(state);
            parked.into_iter().for_each(Waker::wake);
        }
    }

    /// Drops all tasks, like `SIGKILL`.
    pub(crate) fn kill(&self) {
        let mut state = self.state.lock();
        state.running = Running::Killed;
        let parked = std::mem::take(&mut state.parked);
        let tasks: Vec<AbortHandle> = state.tasks.iter().filter_map(|(_, task)| task.clone()).collect();
        drop(state);
        tasks.iter().for_each(AbortHandle::abort);
        drop(parked);
    }

    pub(crate) fn is_running(&self) -> bool {
        self.state.lock().running == Running::Yes
    }
}

impl Process for SimProcess {
    fn spawn(&self, task: Task) -> AbortHandle {
        let Some(process) = self.this.upgrade().filter(|_| self.state.lock().running != Running::Killed) else {
            return tokio::spawn(async {}).abort_handle(); // a dead process runs nothing
        };
        let id = self.state.lock().tasks.insert(None);
        let handle = tokio::spawn(ProcessTask { process, task: Some(task), id }).abort_handle();
        if let Some(slot) = self.state.lock().tasks.get_mut(id) {
            *slot = Some(handle.clone());
        }
        handle
    }
}

/// A task of a process.
struct ProcessTask {
    process: Arc<SimProcess>,
    task: Option<Task>,
    id: usize,
}

impl Future for ProcessTask {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        {
            let mut state = self.process.state.lock();
            match state.running {
                Running::Yes => {}
                Running::Suspended => {
                    state.parked.push(cx.waker().clone());
                    return Poll::Pending;
                }
                Running::Killed => return Poll::Ready(()),
            }
        }
        let process = self.process.clone();
        let _entered = task::enter(process);
        match &mut self.task {
            Some(task) => task.as_mut().poll(cx),
            None => Poll::Ready(()),
        }
    }
}

/// Dropped as part of the process: what the task spawns in its destructors belongs to the process too.
impl Drop for ProcessTask {
    fn drop(&mut self) {
        let _entered = task::enter(self.process.clone());
        self.task = None;
        self.process.state.lock().tasks.try_remove(self.id);
    }
}
