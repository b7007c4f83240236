//! What a refund gives back: permits that have not been refilled since, and places in the queue.
//!
//! Permits that were taken and given back must not be there twice. While the bucket is below its capacity, nothing is lost by
//! a permit that is held, and a refund returns it whole. Once the bucket could have been full, time has refilled what the
//! permit left free. The time at which that began is not known, so each refund loses what was refilled since its permits
//! were due: take 100, cancel after the second that refills them, and nothing is returned.
//!
//! Waiters have been promised their times, so a place in the middle of the queue cannot be filled by moving them. It is
//! remembered as abandoned instead, until every place from the first abandoned one to the end of the queue is: then the
//! queue ends before them. Two numbers remember all of them, which is exact as soon as the last waiter of a crowd has left,
//! in whatever order.
//!
//! Debt is at the end of the queue, and no caller waits for its times. So a refund of permits that were due earlier pays it
//! off, and the queue that places are compared with ends before it. As soon as a caller waits behind it, it is a part of that
//! caller's time, and only time pays it off.

use crate::clock::{Time, micros};

use super::{MAX_UNITS, Rate};

/// The places in the queue that were abandoned while others waited behind them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Abandoned {
    /// Units of the queue before the first of them.
    pub from: u64,
    /// Their units together; 0 if there are none.
    pub units: u64,
}

impl Abandoned {
    /// Moves the queue forward by this number of units. Which places were reached is not known; they count as abandoned
    /// ones, so that none is given away twice.
    #[must_use]
    pub fn advance(self, gained: u64) -> Self {
        let reached = gained.saturating_sub(self.from);
        match self.units.saturating_sub(reached) {
            0 => Self::default(),
            units => Self { from: self.from.saturating_sub(gained), units },
        }
    }
}

/// What is below zero: the queue of waiters, and the debt behind them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// Units of both.
    pub units: u64,
    /// Units at the end for which no caller waits.
    pub debt: u64,
    /// The places in the queue that were abandoned.
    pub abandoned: Abandoned,
}

impl Rate {
    /// Computes what a refund of permits that were due at `due` adds to a level at the time `at` with this line, and the debt
    /// and the abandoned places afterwards.
    pub fn refund(self, line: Line, at: Time, cost: u32, due: Time) -> (u64, Line) {
        const MOST: u64 = 2 * MAX_UNITS;
        let units = u64::from(cost).saturating_mul(self.price).min(MAX_UNITS);
        let refilled = micros(at.since(due)).saturating_mul(self.gain);
        // A time that the bucket has not reached, without a queue, is of a clock that was set back: it may have been
        // refilled since.
        let unfilled = if due > at { 0 } else { units.saturating_sub(refilled) };
        let queue = line.units - line.debt.min(line.units);
        if queue == 0 {
            let units = line.units.saturating_sub(unfilled);
            return (unfilled, Line { units, debt: units, abandoned: Abandoned::default() });
        }
        let (mut place, mut paid, mut left) = (0, 0, line.abandoned);
        if due.after(self.slack()) >= at.after(self.time_for(queue)) {
            place = units.saturating_sub(refilled);
        } else if due > at {
            // Waits are rounded up to a microsecond: the place begins at most that much earlier.
            let ahead = micros(due.since(at));
            let start = (ahead - 1).saturating_mul(self.gain).min(MOST).saturating_sub(units);
            left.from = if left.units == 0 { start } else { left.from.min(start) };
            left.units = (left.units + units.min(ahead.saturating_mul(self.gain))).min(queue);
        } else {
            paid = unfilled.min(line.debt);
        }
        let behind = queue.saturating_sub(place).saturating_sub(left.from);
        if left.units > 0 && left.units + self.price / 2 >= behind {
            place += left.units.min(behind);
            left.units = 0;
        }
        let units = line.units.saturating_sub(place + paid);
        let abandoned = if left.units > 0 { left } else { Abandoned::default() };
        (place + paid, Line { units, debt: (line.debt - paid).min(units), abandoned })
    }
}
