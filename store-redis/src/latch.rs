//! Up or down: whether Redis is asked at all.
//!
//! It falls after three timeouts one after the other, or when nothing was heard for more than two budgets since something
//! was sent that timed out; after two broken connections in a row, or one word of the server that
//! it cannot serve. It is lifted by three good probes in a row and by nothing else, so a late success of an earlier
//! time cannot lift it and a server that comes and goes does not make it flutter. Many timeouts of one burst are one:
//! a timeout counts only if its command was sent after the one counted before had run out, and any answer meanwhile
//! wipes the slate. So are the calls that break together with one connection.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::failure::Failure;

const TIMEOUTS: u32 = 3;
const BREAKS: u32 = 2;
const GOOD_PROBES: u32 = 3;

/// The latch of one server, or of one shard of a Cluster.
#[derive(Debug)]
pub(crate) struct Latch {
    down: AtomicBool,
    /// How often it has fallen.
    falls: AtomicU64,
    /// Calls decided in Redis' place since it fell.
    degraded_decisions: AtomicU64,
    /// Silence that is too long.
    silence: Duration,
    evidence: Mutex<Evidence>,
}

#[derive(Debug, Default)]
struct Evidence {
    timeouts: u32,
    breaks: u32,
    /// When the last timeout that counted ran out.
    last: Option<Instant>,
    /// Since when something is unanswered that had a fair chance, and nothing else was answered either.
    silent_since: Option<Instant>,
    /// When the last break that counted was noticed: all that was under way breaks with its connection.
    last_break: Option<Instant>,
    good_probes: u32,
    since: Option<Instant>,
    reason: Option<Failure>,
}

/// An outage that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outage {
    pub(crate) lasted: Duration,
    pub(crate) degraded_decisions: u64,
}

impl Latch {
    pub(crate) fn new(budget: Duration) -> Self {
        Self {
            silence: 2 * budget,
            down: AtomicBool::new(false),
            falls: AtomicU64::new(0),
            degraded_decisions: AtomicU64::new(0),
            evidence: Mutex::default(),
        }
    }

    #[inline]
    pub(crate) fn is_down(&self) -> bool {
        self.down.load(Ordering::Acquire)
    }

    /// How often it has fallen: what was learned in one outage means nothing in the next.
    pub(crate) fn falls(&self) -> u64 {
        self.falls.load(Ordering::Acquire)
    }

    /// A call was decided in Redis' place.
    pub(crate) fn degraded_decisions(&self) {
        self.degraded_decisions.fetch_add(1, Ordering::Relaxed);
    }

    /// Redis answered.
    pub(crate) fn hit(&self) {
        let mut evidence = self.evidence.lock();
        if !self.is_down() {
            *evidence = Evidence::default();
        }
    }

    /// Redis did not answer something sent at `sent`. Whether that made the latch fall.
    pub(crate) fn miss(&self, failure: &Failure, sent: Instant, now: Instant) -> bool {
        let mut evidence = self.evidence.lock();
        if self.is_down() {
            return false;
        }
        if *failure == Failure::Timeout {
            let since = evidence.silent_since.map_or(sent, |since| since.min(sent));
            evidence.silent_since = Some(since);
        }
        match failure {
            Failure::Timeout if evidence.last.is_none_or(|last| sent >= last) => {
                evidence.timeouts += 1;
                evidence.last = Some(now);
            }
            Failure::Connection if evidence.last_break.is_none_or(|last| sent >= last) => {
                evidence.breaks += 1;
                evidence.last_break = Some(now);
            }
            Failure::Rejecting(_) => evidence.breaks = BREAKS,
            Failure::Timeout | Failure::Connection | Failure::Call(_) | Failure::NotAsked => {}
        }
        let silent = evidence.silent_since.is_some_and(|since| now.duration_since(since) > self.silence);
        if evidence.timeouts < TIMEOUTS && evidence.breaks < BREAKS && !silent {
            return false;
        }
        // Who left too late to be answered can only confirm a silence.
        let reason = if *failure == Failure::NotAsked { Failure::Timeout } else { failure.clone() };
        *evidence = Evidence { since: Some(now), reason: Some(reason), ..Evidence::default() };
        self.degraded_decisions.store(0, Ordering::Relaxed);
        self.falls.fetch_add(1, Ordering::AcqRel);
        self.down.store(true, Ordering::Release);
        true
    }

    /// Why it is down.
    pub(crate) fn reason(&self) -> Option<Failure> {
        self.evidence.lock().reason.clone()
    }

    /// A probe came back. The outage, if that ended it.
    pub(crate) fn probed(&self, good: bool, now: Instant) -> Option<Outage> {
        let mut evidence = self.evidence.lock();
        evidence.good_probes = if good { evidence.good_probes + 1 } else { 0 };
        if !self.is_down() || evidence.good_probes < GOOD_PROBES {
            return None;
        }
        let lasted = evidence.since.map_or(Duration::ZERO, |since| now.duration_since(since));
        *evidence = Evidence::default();
        self.down.store(false, Ordering::Release);
        Some(Outage { lasted, degraded_decisions: self.degraded_decisions.load(Ordering::Relaxed) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: Duration = Duration::from_millis(20);

    #[tokio::test(start_paused = true)]
    async fn a_thousand_timeout_of_one_burst_are_one() {
        let (latch, sent) = (Latch::new(BUDGET), Instant::now());
        for _ in 0..1_000 {
            assert!(!latch.miss(&Failure::Timeout, sent, sent + BUDGET));
        }
        assert!(!latch.is_down());
    }

    #[tokio::test(start_paused = true)]
    async fn three_timeout_one_after_the_other_make_it_fall() {
        let (latch, start) = (Latch::new(BUDGET), Instant::now());
        let miss = |round: u32| latch.miss(&Failure::Timeout, start + BUDGET * round, start + BUDGET * (round + 1));
        assert_eq!([miss(0), miss(1), miss(2)], [false, false, true]);
        assert!(latch.is_down());
    }

    #[tokio::test(start_paused = true)]
    async fn two_budgets_of_silence_are_enough_however_the_timeout_fall() {
        let (latch, start) = (Latch::new(BUDGET), Instant::now());
        assert!(!latch.miss(&Failure::Timeout, start, start + BUDGET));
        assert!(!latch.miss(&Failure::Timeout, start + BUDGET / 2, start + BUDGET * 3 / 2));
        assert!(!latch.miss(&Failure::NotAsked, start + BUDGET * 3 / 2, start + 2 * BUDGET));
        assert!(latch.miss(&Failure::NotAsked, start + 2 * BUDGET, start + 2 * BUDGET + BUDGET / 10));
        assert_eq!(latch.reason(), Some(Failure::Timeout));
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_meanwhile_wipes_the_slate() {
        let (latch, start) = (Latch::new(BUDGET), Instant::now());
        for round in 0..10 {
            latch.miss(&Failure::Timeout, start + BUDGET * round, start + BUDGET * (round + 1));
            if round % 2 == 1 {
                latch.hit();
            }
        }
        assert!(!latch.is_down());
    }

    #[tokio::test(start_paused = true)]
    async fn two_broken_connections_or_one_word_of_the_server_make_it_fall() {
        let now = Instant::now();
        let latch = Latch::new(BUDGET);
        assert!(!latch.miss(&Failure::Connection, now, now));
        assert!(latch.miss(&Failure::Connection, now, now));
        assert!(Latch::new(BUDGET).miss(&Failure::Rejecting("OOM"), now, now));
        assert!(!Latch::new(BUDGET).miss(&Failure::Call("ERR".to_owned()), now, now));
    }

    #[tokio::test(start_paused = true)]
    async fn whatever_breaks_with_one_connection_is_one_break() {
        let (latch, sent) = (Latch::new(BUDGET), Instant::now());
        for _ in 0..1_000 {
            assert!(!latch.miss(&Failure::Connection, sent, sent + BUDGET));
        }
        assert!(latch.miss(&Failure::Connection, sent + BUDGET, sent + BUDGET), "another one that breaks too");
    }

    #[tokio::test(start_paused = true)]
    async fn only_three_good_probes_in_a_row_lift_it() {
        let now = Instant::now();
        let latch = Latch::new(BUDGET);
        latch.miss(&Failure::Rejecting("OOM"), now, now);
        latch.hit();
        assert!(latch.is_down(), "a late success of an earlier time lifts nothing");
        let probes = [true, true, false, true, true].map(|good| latch.probed(good, now));
        assert_eq!(probes, [None; 5]);
        latch.degraded_decisions();
        let outage = latch.probed(true, now + Duration::from_secs(7));
        assert_eq!(outage, Some(Outage { lasted: Duration::from_secs(7), degraded_decisions: 1 }));
        assert!(!latch.is_down());
        assert_eq!(latch.falls(), 1);
    }
}
