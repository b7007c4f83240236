//! Variants of each stage as enums, and operations that count their attempts.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::task::Poll;
use std::time::Duration;

use phalanx::guard::{CallInfo, Guard};
use phalanx::*;

use super::*;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    None,
    Plain,
    /// The permit is available after four milliseconds.
    Waits,
    /// No permit is left.
    Spent,
}

impl Limit {
    pub const ALL: [Self; 4] = [Self::None, Self::Plain, Self::Waits, Self::Spent];

    pub fn spec(self) -> Option<RateLimitSpec> {
        match self {
            Self::None => None,
            Self::Plain | Self::Spent => Some(RateLimitSpec::new(1, 1_000 * SECOND).burst(5)),
            Self::Waits => Some(RateLimitSpec::per_second(250).burst(100).max_wait(10 * MS)),
        }
    }

    /// Returns the whole permits left, `elapsed` after the bucket was prepared and after `started` calls.
    pub fn left(self, elapsed: Duration, started: u64) -> Option<u64> {
        match self {
            Self::None => None,
            Self::Plain => Some(5 - started),
            Self::Waits => Some(elapsed.as_millis() as u64 / 4 - started),
            Self::Spent => Some(0),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Circuit {
    None,
    Calls,
    Attempts,
    /// Half-open: the call is the one probe.
    ProbeOfCalls,
    /// Half-open: the first attempt is the one probe.
    ProbeOfAttempts,
    Open,
    Throttle,
}

impl Circuit {
    pub fn spec(self) -> Option<BreakerSpec> {
        let counting = BreakerSpec::failure_ratio(1.0).min_throughput(1_000).window(HOUR);
        let probing = BreakerSpec::consecutive_failures(1).break_for(SECOND).window(HOUR).probe_lease(HOUR);
        match self {
            Self::None | Self::Throttle => None,
            Self::Calls => Some(counting),
            Self::Attempts => Some(counting.count_attempts()),
            Self::ProbeOfCalls | Self::Open => Some(probing),
            Self::ProbeOfAttempts => Some(probing.count_attempts()),
        }
    }

    pub fn is_probed(self) -> bool {
        matches!(self, Self::ProbeOfCalls | Self::ProbeOfAttempts)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GuardPlan {
    None,
    /// One at every position.
    Everywhere,
    /// One at every position, and an innermost one that rejects attempts from this number on.
    RejectingFrom(u32),
}

impl GuardPlan {
    pub const ALL: [Self; 4] = [Self::None, Self::Everywhere, Self::RejectingFrom(1), Self::RejectingFrom(2)];
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Work {
    Ok,
    Err,
    /// Ready at the third poll.
    LateOk,
    LateErr,
    Hangs,
}

/// A guard that rejects attempts from this number on.
pub struct RejectingFrom(pub u32);

impl Guard for RejectingFrom {
    fn name(&self) -> &str {
        "rejecting"
    }

    fn order(&self) -> u16 {
        GUARD_ORDERS[3] + 1
    }

    fn admit(&self, call: &CallInfo<'_>) -> Result<(), Rejection> {
        if call.attempt < self.0 { Ok(()) } else { Err(Rejection::new(RejectionCode::GuardRejected)) }
    }
}

/// The operation's own count of attempts: started, succeeded, failed.
#[derive(Default)]
pub struct Attempts {
    pub begun: Cell<usize>,
    pub good: Cell<usize>,
    pub bad: Cell<usize>,
}

impl Attempts {
    pub fn run(&self, work: Work) -> impl Future<Output = Result<u32, Failure>> {
        self.begun.update(|begun| begun + 1);
        let mut polls = 0;
        poll_fn(move |_| {
            polls += 1;
            match work {
                Work::Hangs => Poll::Pending,
                Work::LateOk | Work::LateErr if polls < 3 => Poll::Pending,
                Work::Ok | Work::LateOk => {
                    self.good.update(|good| good + 1);
                    Poll::Ready(Ok(1))
                }
                Work::Err | Work::LateErr => {
                    self.bad.update(|bad| bad + 1);
                    Poll::Ready(Err(BROKEN))
                }
            }
        })
    }
}
