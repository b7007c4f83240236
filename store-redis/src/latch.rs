//! The latch of one server: up while requests are sent to Redis, down while they are decided in this process.
//!
//! It trips
//!
//! * after three timeouts in a row,
//! * if nothing was received for more than two budgets since a request that timed out was sent,
//! * after two broken connections in a row,
//! * after twenty round trips in a row of which every script failed, or
//! * with one reply that the server cannot serve (`READONLY`, `OOM`, …).
//!
//! Only three successful health checks in a row lift it, so a late success cannot lift it, and a server that comes and
//! goes does not make it flap. Timeouts of one burst count as one: a timeout counts only if its command was sent after
//! the previously counted one had expired, and any reply resets the count. Calls that fail together with one connection
//! also count as one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::failure::Failure;

const TIMEOUTS_TO_TRIP: u32 = 3;
const BREAKS_TO_TRIP: u32 = 2;
/// A single script may fail because of its own key. A server that fails all of them does not serve.
const FAILED_CALLS_TO_TRIP: u32 = 20;
const GOOD_CHECKS_TO_RECOVER: u32 = 3;

/// The latch of one server, or of one shard of a Cluster.
#[derive(Debug, Default)]
pub(crate) struct Latch {
    down: AtomicBool,
    /// How often it has tripped.
    trips: AtomicU64,
    /// Calls decided without Redis since the last trip.
    degraded_decisions: AtomicU64,
    /// Whether Redis has ever replied.
    answered: AtomicBool,
    /// Calls decided without Redis since the start, by reason.
    decisions: Arc<DegradedDecisions>,
    /// Calls decided by Redis since the start.
    shared_decisions: AtomicU64,
    evidence: Mutex<Evidence>,
}

#[derive(Debug, Default)]
struct Evidence {
    timeouts: u32,
    breaks: u32,
    /// Round trips in a row of which every script failed.
    failed_calls: u32,
    /// When the last counted timeout expired.
    last: Option<Instant>,
    /// When the oldest request was sent that timed out, if no reply was received since.
    silent_since: Option<Instant>,
    /// When the last counted break was noticed: all requests in flight break with their connection.
    last_break: Option<Instant>,
    good_checks: u32,
    since: Option<Instant>,
    reason: Option<Failure>,
    /// Why the last attempt to connect failed, if nothing was received since. Callers that wait for a connection only know
    /// that they wait.
    cause: Option<Failure>,
}

/// Calls decided without Redis since the start, by the reason.
#[derive(Debug, Default)]
pub struct DegradedDecisions {
    connecting: AtomicU64,
    outage: AtomicU64,
    late: AtomicU64,
}

impl DegradedDecisions {
    /// Returns each reason with its count: `connecting` (Redis has never replied yet), `outage` (it was not asked) and
    /// `late` (it was asked and did not reply in time).
    pub fn by_reason(&self) -> [(&'static str, u64); 3] {
        let Self { connecting, outage, late } = self;
        [("connecting", connecting), ("outage", outage), ("late", late)]
            .map(|(reason, count)| (reason, count.load(Ordering::Relaxed)))
    }
}

/// An outage that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outage {
    pub(crate) lasted: Duration,
    pub(crate) degraded_decisions: u64,
}

impl Latch {
    #[inline]
    pub(crate) fn is_down(&self) -> bool {
        self.down.load(Ordering::Acquire)
    }

    /// Returns how often it has tripped. Identifies the outage: a twin of an earlier one is not used again.
    pub(crate) fn trips(&self) -> u64 {
        self.trips.load(Ordering::Acquire)
    }

    /// Counts a call decided without Redis.
    pub(crate) fn count_degraded_decision(&self) {
        self.degraded_decisions.fetch_add(1, Ordering::Relaxed);
        let counter = match (self.is_down(), self.has_answered()) {
            (true, _) => &self.decisions.outage,
            (false, true) => &self.decisions.late,
            (false, false) => &self.decisions.connecting,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a call that waited for Redis and was decided by it.
    pub(crate) fn count_shared_decision(&self) {
        self.shared_decisions.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how many calls waited for Redis since the start while this latch was up: those it decided, and those for
    /// which it was too late.
    pub(crate) fn shared_and_late(&self) -> [u64; 2] {
        [&self.shared_decisions, &self.decisions.late].map(|count| count.load(Ordering::Relaxed))
    }

    /// Returns the counts of calls decided without Redis. They stay readable when the store is dropped.
    pub(crate) const fn decisions(&self) -> &Arc<DegradedDecisions> {
        &self.decisions
    }

    /// Whether Redis has ever replied.
    pub(crate) fn has_answered(&self) -> bool {
        self.answered.load(Ordering::Relaxed)
    }

    /// Records a reply.
    pub(crate) fn record_success(&self) {
        if !self.has_answered() {
            self.answered.store(true, Ordering::Relaxed);
        }
        let mut evidence = self.evidence.lock();
        if !self.is_down() {
            *evidence = Evidence::default();
        }
    }

    /// Records that a request sent at `sent` has failed, which was noticed at `now`. Returns whether the latch tripped.
    pub(crate) fn record_failure(&self, failure: &Failure, sent: Instant, now: Instant, budget: Duration) -> bool {
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
            broken if broken.is_connection() && evidence.last_break.is_none_or(|last| sent >= last) => {
                evidence.breaks += 1;
                evidence.last_break = Some(now);
            }
            Failure::Rejecting(_) => evidence.breaks = BREAKS_TO_TRIP,
            Failure::Call(_) => evidence.failed_calls += 1,
            _ => {}
        }
        if let Failure::Unreachable(_) = failure {
            evidence.cause = Some(failure.clone());
        }
        let silent = evidence.silent_since.is_some_and(|since| now.duration_since(since) > 2 * budget);
        let refused = evidence.breaks >= BREAKS_TO_TRIP || evidence.failed_calls >= FAILED_CALLS_TO_TRIP;
        if evidence.timeouts < TIMEOUTS_TO_TRIP && !refused && !silent {
            return false;
        }
        // Requests that were sent too late, or not at all, can only confirm a silence.
        let reason = match failure {
            Failure::NotSent | Failure::Timeout => evidence.cause.take().unwrap_or(Failure::Timeout),
            Failure::Connection => evidence.cause.take().unwrap_or(Failure::Connection),
            other => other.clone(),
        };
        *evidence = Evidence { since: Some(now), reason: Some(reason), ..Evidence::default() };
        self.degraded_decisions.store(0, Ordering::Relaxed);
        self.trips.fetch_add(1, Ordering::AcqRel);
        self.down.store(true, Ordering::Release);
        true
    }

    /// Forgets why connecting failed: a connection was opened.
    pub(crate) fn forget_cause(&self) {
        self.evidence.lock().cause = None;
    }

    /// Returns why it is down.
    pub(crate) fn reason(&self) -> Option<Failure> {
        self.evidence.lock().reason.clone()
    }

    /// Records a health check. Returns the outage if this check ended it.
    pub(crate) fn record_health_check(&self, good: bool, now: Instant) -> Option<Outage> {
        let mut evidence = self.evidence.lock();
        evidence.good_checks = if good { evidence.good_checks + 1 } else { 0 };
        self.answered.fetch_or(good, Ordering::Relaxed);
        if !self.is_down() || evidence.good_checks < GOOD_CHECKS_TO_RECOVER {
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
    async fn a_thousand_timeouts_of_one_burst_count_as_one() {
        let (latch, sent) = (Latch::default(), Instant::now());
        for _ in 0..1_000 {
            assert!(!latch.record_failure(&Failure::Timeout, sent, sent + BUDGET, BUDGET));
        }
        assert!(!latch.is_down());
    }

    #[tokio::test(start_paused = true)]
    async fn three_timeouts_in_a_row_trip_it() {
        let (latch, start) = (Latch::default(), Instant::now());
        let miss = |round: u32| {
            latch.record_failure(&Failure::Timeout, start + BUDGET * round, start + BUDGET * (round + 1), BUDGET)
        };
        assert_eq!([miss(0), miss(1), miss(2)], [false, false, true]);
        assert!(latch.is_down());
    }

    #[tokio::test(start_paused = true)]
    async fn two_budgets_of_silence_trip_it_with_fewer_timeouts() {
        let (latch, start) = (Latch::default(), Instant::now());
        assert!(!latch.record_failure(&Failure::Timeout, start, start + BUDGET, BUDGET));
        assert!(!latch.record_failure(&Failure::Timeout, start + BUDGET / 2, start + BUDGET * 3 / 2, BUDGET));
        assert!(!latch.record_failure(&Failure::NotSent, start + BUDGET * 3 / 2, start + 2 * BUDGET, BUDGET));
        assert!(latch.record_failure(&Failure::NotSent, start + 2 * BUDGET, start + 2 * BUDGET + BUDGET / 10, BUDGET));
        assert_eq!(latch.reason(), Some(Failure::Timeout));
    }

    #[tokio::test(start_paused = true)]
    async fn a_reply_in_between_resets_the_count() {
        let (latch, start) = (Latch::default(), Instant::now());
        for round in 0..10 {
            latch.record_failure(&Failure::Timeout, start + BUDGET * round, start + BUDGET * (round + 1), BUDGET);
            if round % 2 == 1 {
                latch.record_success();
            }
        }
        assert!(!latch.is_down());
    }

    #[tokio::test(start_paused = true)]
    async fn two_broken_connections_or_one_server_error_trip_it() {
        let now = Instant::now();
        let latch = Latch::default();
        assert!(!latch.record_failure(&Failure::Connection, now, now, BUDGET));
        assert!(latch.record_failure(&Failure::Connection, now, now, BUDGET));
        assert!(Latch::default().record_failure(&Failure::Rejecting("OOM"), now, now, BUDGET));
        assert!(!Latch::default().record_failure(&Failure::Call("ERR".to_owned()), now, now, BUDGET));
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_fails_every_script_trips_it_and_one_that_fails_some_does_not() {
        let (now, failure) = (Instant::now(), Failure::Call("ERR".to_owned()));
        let latch = Latch::default();
        let tripped = (1..=20).find(|_| latch.record_failure(&failure, now, now, BUDGET));
        assert_eq!(tripped, Some(20));
        let latch = Latch::default();
        for round in 0..100 {
            assert!(!latch.record_failure(&failure, now, now, BUDGET));
            if round % 10 == 0 {
                latch.record_success();
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn callers_without_a_connection_trip_it_for_the_reason_that_there_is_none() {
        let (latch, start) = (Latch::default(), Instant::now());
        let trip = |latch: &Latch| {
            (0..3)
                .any(|n| latch.record_failure(&Failure::Timeout, start + BUDGET * n, start + BUDGET * (n + 1), BUDGET))
        };
        assert!(!latch.record_failure(&Failure::Unreachable("dns"), start, start, BUDGET));
        assert!(trip(&latch));
        assert_eq!(latch.reason(), Some(Failure::Unreachable("dns")));
        let connected = Latch::default();
        assert!(!connected.record_failure(&Failure::Unreachable("dns"), start, start, BUDGET));
        connected.forget_cause();
        assert!(trip(&connected));
        assert_eq!(connected.reason(), Some(Failure::Timeout), "it was opened, and is silent");
    }

    #[tokio::test(start_paused = true)]
    async fn all_failures_of_one_connection_count_as_one_break() {
        let (latch, sent) = (Latch::default(), Instant::now());
        for _ in 0..1_000 {
            assert!(!latch.record_failure(&Failure::Connection, sent, sent + BUDGET, BUDGET));
        }
        assert!(
            latch.record_failure(&Failure::Connection, sent + BUDGET, sent + BUDGET, BUDGET),
            "a second connection that breaks"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn decisions_without_redis_are_counted_by_their_reason() {
        let (latch, now) = (Latch::default(), Instant::now());
        latch.count_degraded_decision();
        latch.record_success();
        (0..2).for_each(|_| latch.count_degraded_decision());
        latch.record_failure(&Failure::Rejecting("OOM"), now, now, BUDGET);
        (0..3).for_each(|_| latch.count_degraded_decision());
        assert_eq!(latch.decisions().by_reason(), [("connecting", 1), ("outage", 3), ("late", 2)]);
    }

    #[tokio::test(start_paused = true)]
    async fn only_three_good_health_checks_in_a_row_lift_it() {
        let now = Instant::now();
        let latch = Latch::default();
        latch.record_failure(&Failure::Rejecting("OOM"), now, now, BUDGET);
        latch.record_success();
        assert!(latch.is_down(), "a late success does not lift it");
        let checks = [true, true, false, true, true].map(|good| latch.record_health_check(good, now));
        assert_eq!(checks, [None; 5]);
        latch.count_degraded_decision();
        let outage = latch.record_health_check(true, now + Duration::from_secs(7));
        assert_eq!(outage, Some(Outage { lasted: Duration::from_secs(7), degraded_decisions: 1 }));
        assert!(!latch.is_down());
        assert_eq!(latch.trips(), 1);
    }
}
