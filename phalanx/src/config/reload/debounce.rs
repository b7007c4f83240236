//! What wakes the thread that follows files: rung when something happened, and once more when it is over.
//!
//! Rings are not counted. A hundred of them while nobody listens are one.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// How long a folder must be quiet before it is read: editors and deployments write in several steps.
pub(super) const SETTLE: Duration = Duration::from_millis(100);

/// A folder that is never quiet is read after so many settles all the same.
const SETTLES: u32 = 10;

#[derive(Debug, Default)]
pub(super) struct Debounce {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    rung: bool,
    over: bool,
}

impl Debounce {
    /// Something happened.
    pub(super) fn ring(&self) {
        self.state.lock().rung = true;
        self.changed.notify_all();
    }

    /// Nobody is to listen any more.
    pub(super) fn end(&self) {
        self.state.lock().over = true;
        self.changed.notify_all();
    }

    /// Waits until something happened and it has been quiet since; false if it is over.
    pub(super) fn wait(&self) -> bool {
        let mut state = self.state.lock();
        self.changed.wait_while(&mut state, |state| !state.rung && !state.over);
        for _ in 0..SETTLES {
            state.rung = false;
            self.changed.wait_while_for(&mut state, |state| !state.over, SETTLE);
            if state.over || !state.rung {
                break;
            }
        }
        state.rung = false;
        !state.over
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn many_rings_are_one_and_the_end_is_heard_at_once() {
        let (bell, (heard, hears)) = (Arc::new(Debounce::default()), channel());
        let listener = {
            let bell = bell.clone();
            std::thread::spawn(move || {
                while bell.wait() {
                    heard.send(()).unwrap();
                }
            })
        };
        (0..1_000).for_each(|_| bell.ring());
        hears.recv_timeout(Duration::from_secs(10)).expect("it was rung");
        bell.end();
        listener.join().unwrap();
        assert!(hears.try_recv().is_err(), "a thousand rings are one");
    }

    #[test]
    fn who_never_stops_ringing_is_heard_too() {
        let bell = Arc::new(Debounce::default());
        let (over, is_over) = channel::<()>();
        let ringer = {
            let bell = bell.clone();
            std::thread::spawn(move || {
                // Far more often than a settle is long.
                while is_over.recv_timeout(SETTLE / 20) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                    bell.ring();
                }
            })
        };
        assert!(bell.wait());
        drop(over);
        ringer.join().unwrap();
    }
}
