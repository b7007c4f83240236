//! A tally of one key: core's machine behind a lock, with the clock of its window.

use std::time::Duration;

use parking_lot::Mutex;
use phalanx_core::clock::{Clock, Time};
use phalanx_core::rejection::Source;
use phalanx_core::store::{Addition, Allowance, Counts, Withdrawal};
use phalanx_core::table::{Entry, Retention};
use phalanx_core::tally::Tally;

/// The tally of one key and use.
#[derive(Debug)]
pub struct TallyCell {
    clock: Clock,
    tally: Mutex<Tally>,
}

impl Entry for TallyCell {
    fn retention(&self) -> Retention {
        let empty = self.sum(self.clock.now()) == Counts::default();
        if empty { Retention::Disposable } else { Retention::Relearnable }
    }
}

impl TallyCell {
    /// Creates an empty tally.
    pub fn new(clock: Clock, window: Duration) -> Self {
        Self { clock, tally: Mutex::new(Tally::new(window)) }
    }

    /// Starts over if the window is another one.
    pub fn retune(&self, window: Duration) {
        self.tally.lock().retune(window);
    }

    /// Adds calls and marks, or takes them back.
    pub fn add(&self, now: Time, addition: Addition) {
        self.tally.lock().add(now, addition);
    }

    /// Returns the sums of the window.
    pub fn sum(&self, now: Time) -> Counts {
        self.tally.lock().sum(now)
    }

    /// Takes a mark, if the window allows another one.
    pub fn withdraw(&self, now: Time, allowance: Allowance) -> Withdrawal {
        let (granted, slice) = self.tally.lock().withdraw(now, 1, allowance);
        Withdrawal { granted: granted > 0, source: Source::Local, slice }
    }

    /// Puts back a mark that was granted and not used.
    pub fn put_back(&self, withdrawal: Withdrawal) {
        self.tally.lock().put_back(self.clock.now(), withdrawal.slice, withdrawal.granted.into());
    }
}
