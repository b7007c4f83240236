//! Nested policies do not multiply: three attempts around three attempts are not nine.
//!
//! When a call inside an attempt gives up after having tried again (or for want of budget), it leaves a mark; when the
//! attempt then fails with the same kind, the policy around it does not try again either. The mark belongs to the
//! attempt: it lives in its ride and visits a thread-local for the time of a poll, which is where the call inside finds
//! it; no task-local, no allocation. The last call inside to end has the word, so one that was made good by another says
//! nothing. (Work handed to another task ends elsewhere and is not seen: there the outer policy's own attempts and
//! budget are the bound.)

use std::cell::Cell;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::kind::Kind;

/// A kind as a number; 0 is none.
const NONE: u8 = 0;

const fn number(kind: Kind) -> u8 {
    kind as u8 + 1
}

thread_local! {
    static GAVE_UP: Cell<u8> = const { Cell::new(NONE) };
}

/// What calls inside an attempt left behind. Atomic only so that a future that holds it can change threads.
#[derive(Debug, Default)]
pub(crate) struct Mark(AtomicU8);

impl Mark {
    /// Runs a piece of the attempt with its mark in place.
    #[inline]
    pub(crate) fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        let outer = GAVE_UP.replace(self.0.load(Ordering::Relaxed));
        let done = work();
        self.0.store(GAVE_UP.replace(outer), Ordering::Relaxed);
        done
    }

    /// Whether a call inside gave up on this kind.
    #[inline]
    pub(crate) fn is(&self, kind: Kind) -> bool {
        self.0.load(Ordering::Relaxed) == number(kind)
    }

    /// Before another attempt.
    pub(crate) fn wipe(&self) {
        self.0.store(NONE, Ordering::Relaxed);
    }
}

/// At the end of a call: whether it gave up, and on what.
#[inline(always)]
pub(crate) fn note(gave_up: Option<Kind>) {
    GAVE_UP.set(gave_up.map_or(NONE, number));
}
