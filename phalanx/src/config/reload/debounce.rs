//! The debounce of file changes: wakes the reloading thread once the files have been quiet for a moment.
//!
//! Signals are not counted: any number of them during one wait cause one reload.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// How long the watched folders must be quiet before the files are read: editors and deployments write in several steps.
pub(super) const QUIET_PERIOD: Duration = Duration::from_millis(100);

/// Files that change all the time are read after this many periods all the same.
const MAX_PERIODS: u32 = 10;

/// A signal that is delivered after a quiet period.
#[derive(Debug, Default)]
pub(super) struct Debounce {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    signaled: bool,
    closed: bool,
}

impl Debounce {
    /// Signals that a file may have changed.
    pub(super) fn signal(&self) {
        self.state.lock().signaled = true;
        self.changed.notify_all();
    }

    /// Ends every wait, now and later.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_all();
    }

    /// Waits for a signal and then for a quiet period. Returns false once closed.
    pub(super) fn wait(&self) -> bool {
        let mut state = self.state.lock();
        self.changed.wait_while(&mut state, |state| !state.signaled && !state.closed);
        for _ in 0..MAX_PERIODS {
            state.signaled = false;
            self.changed.wait_while_for(&mut state, |state| !state.closed, QUIET_PERIOD);
            if state.closed || !state.signaled {
                break;
            }
        }
        state.signaled = false;
        !state.closed
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn many_signals_cause_one_wake_up_and_closing_ends_the_wait_at_once() {
        let (debounce, (woken, wakes)) = (Arc::new(Debounce::default()), channel());
        let waiter = {
            let debounce = debounce.clone();
            std::thread::spawn(move || {
                while debounce.wait() {
                    woken.send(()).unwrap();
                }
            })
        };
        (0..1_000).for_each(|_| debounce.signal());
        wakes.recv_timeout(Duration::from_secs(10)).expect("a wake-up after the signals");
        debounce.close();
        waiter.join().unwrap();
        assert!(wakes.try_recv().is_err(), "a thousand signals cause one wake-up");
    }

    #[test]
    fn signals_that_never_stop_are_delivered_too() {
        let debounce = Arc::new(Debounce::default());
        let (stop, stopped) = channel::<()>();
        let signaler = {
            let debounce = debounce.clone();
            std::thread::spawn(move || {
                // Far more often than once per quiet period.
                while stopped.recv_timeout(QUIET_PERIOD / 20) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                    debounce.signal();
                }
            })
        };
        assert!(debounce.wait());
        drop(stop);
        signaler.join().unwrap();
    }
}
