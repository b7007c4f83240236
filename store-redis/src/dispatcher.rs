//! The dispatcher of one server (or one shard of a Cluster): collects requests from all cells and sends them in shared
//! round trips.
//!
//! ```text
//!   callers ──► batch ─┐
//!   refunds ───────────┤  cell (bucket, breaker, digest) = BatchSource
//!   outcomes ──────────┘        │ enqueue
//!                               ▼
//!                        queue: cell, cell, cell      at most MAX_ROUND_TRIPS in flight,
//!                               │ fill                each is one pipeline with one timer
//!                               ▼
//!                        round trip ──► Redis ──► complete: each cell decodes its replies
//! ```
//!
//! The limit applies to round trips, not to keys: while all are in flight, new requests wait together and are sent
//! together, which keeps the cost per request low. A round trip that is dropped (its runtime ended) completes with a
//! failure.

mod round_trip;

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use phalanx_core::event::{EventKind, Observers};
use phalanx_core::task;
use redis::Value;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout_at};

use self::round_trip::RoundTrip;
pub(crate) use self::round_trip::{InlineRequest, InlineTrip, Outgoing};
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::latch::Latch;

/// Round trips in flight at a time.
const MAX_ROUND_TRIPS: usize = 4;
/// Cells in one round trip.
const MAX_SOURCES_PER_TRIP: usize = 64;
/// With this many cells in flight, no further round trip starts. With more, callers of many keys would be sent in twos
/// and threes, and the server would run one script for each.
const MAX_SOURCES_IN_FLIGHT: usize = 4;
/// How often a round trip yields at most for callers that are about to enqueue.
const MAX_YIELDS: usize = 3;

/// Timers have millisecond resolution and are never early. They are set this much earlier to keep within the budget.
const TIMER_RESOLUTION: Duration = Duration::from_millis(1);

/// The result of one script call.
pub type ScriptResult = Result<Value, Failure>;

/// Sends calls to Redis, in order. The outer error applies to all of them.
pub trait Wire: Send + Sync + fmt::Debug + 'static {
    /// Sends all calls at once and waits for all replies.
    fn send(
        &self,
        calls: Vec<Invocation>,
    ) -> Pin<Box<dyn Future<Output = Result<Vec<ScriptResult>, Failure>> + Send + '_>>;
}

/// A cell that has calls to send.
pub(crate) trait BatchSource: Send + Sync {
    /// Adds all pending calls to `outgoing`.
    fn fill(self: Arc<Self>, outgoing: &mut Outgoing);
}

/// Sends requests to one server, or to one shard of a Cluster.
pub(crate) struct Dispatcher {
    pub(crate) latch: Latch,
    wire: Arc<dyn Wire>,
    budget: Duration,
    queue: Mutex<Queue>,
    /// Wakes the health checks when the latch trips.
    wake: Arc<Notify>,
    /// Notified when a round trip ends.
    trip_ended: Notify,
    /// Where round trips run that are started outside a runtime.
    runtime: Arc<Mutex<Option<Handle>>>,
    /// Receive an event for every round trip.
    observers: Observers,
}

#[derive(Default)]
struct Queue {
    /// Cells that wait for a round trip, and since when.
    waiting: VecDeque<(Instant, Arc<dyn BatchSource>)>,
    /// Whether the task that expires waiting cells is running.
    expiry_running: bool,
    /// Round trips in flight, and the number of cells in them.
    round_trips: usize,
    in_flight: usize,
}

impl Dispatcher {
    pub(crate) fn new(
        wire: Arc<dyn Wire>,
        budget: Duration,
        runtime: Arc<Mutex<Option<Handle>>>,
        wake: Arc<Notify>,
        observers: Observers,
    ) -> Self {
        let (latch, trip_ended) = (Latch::new(budget), Notify::new());
        Self { latch, wire, budget, queue: Mutex::default(), wake, trip_ended, runtime, observers }
    }

    /// Queues a cell for the next round trip, or starts one.
    pub(crate) fn enqueue(self: &Arc<Self>, source: Arc<dyn BatchSource>) {
        {
            let mut queue = self.queue.lock();
            queue.waiting.push_back((Instant::now(), source));
            if queue.round_trips >= MAX_ROUND_TRIPS || queue.in_flight >= MAX_SOURCES_IN_FLIGHT {
                if !std::mem::replace(&mut queue.expiry_running, true) {
                    drop(queue);
                    self.spawn(self.clone().expire_queued());
                }
                return;
            }
            queue.round_trips += 1;
        }
        self.spawn(RoundTrip::new(self, 0).run());
    }

    /// Fails cells that waited for their whole budget: round trips that hang one after the other could keep them here
    /// for several.
    async fn expire_queued(self: Arc<Self>) {
        loop {
            let oldest = {
                let mut queue = self.queue.lock();
                match queue.waiting.front() {
                    Some((since, _)) => *since,
                    None => return queue.expiry_running = false,
                }
            };
            let max_wait = self.budget - TIMER_RESOLUTION.min(self.budget / 10);
            sleep_until(oldest + max_wait).await;
            let now = Instant::now();
            let overdue: Vec<_> = {
                let mut queue = self.queue.lock();
                let count = queue.waiting.iter().take_while(|(since, _)| *since + max_wait <= now).count();
                queue.waiting.drain(..count).collect()
            };
            for (_, source) in overdue {
                source.fill(&mut Outgoing::default()); // dropped at once, which completes all with a failure
            }
        }
    }

    /// Spawns a round trip. Without a runtime it is dropped, which completes its calls with a failure.
    pub(crate) fn spawn(&self, trip: impl Future<Output = ()> + Send + 'static) {
        let fallback = self.runtime.lock().clone();
        task::spawn(trip, fallback.as_ref());
    }

    /// With nothing queued or in flight, the caller sends inline and saves two task switches.
    pub(crate) fn try_inline(self: &Arc<Self>) -> Option<InlineTrip> {
        let mut queue = self.queue.lock();
        let idle = queue.round_trips == 0 && queue.waiting.is_empty() && !self.latch.is_down();
        idle.then(|| {
            (queue.round_trips, queue.in_flight) = (1, queue.in_flight + 1);
            InlineTrip(RoundTrip::new(self, 1))
        })
    }

    /// Sends one call in a round trip of its own.
    pub(crate) async fn call(&self, call: Invocation) -> ScriptResult {
        if self.latch.is_down() {
            return Err(Failure::NotSent);
        }
        let sent = Instant::now();
        let mut replies = self.round_trip(vec![call], sent, sent + self.budget).await?;
        replies.pop().unwrap_or(Err(Failure::Call("no reply".to_owned())))
    }

    /// Sends the call of a health check, also while the latch is down.
    pub(crate) async fn health_check(&self, call: Invocation) -> Result<(), Failure> {
        let mut replies = self.send(vec![call], Instant::now() + self.budget).await?;
        replies.pop().unwrap_or(Err(Failure::Timeout)).map(|_| ())
    }

    /// Sends the calls and waits for the replies until `until`.
    async fn send(&self, calls: Vec<Invocation>, until: Instant) -> Result<Vec<ScriptResult>, Failure> {
        let until = until - TIMER_RESOLUTION.min(self.budget / 10);
        let mut sending = pin!(self.wire.send(calls));
        let mut reply = timeout_at(until, &mut sending).await;
        // A timer that fires late means that this process was stalled, not Redis: the reply may be waiting to be read.
        let late = Instant::now().saturating_duration_since(until);
        if reply.is_err() && late > self.budget / 4 {
            reply = timeout_at(Instant::now() + self.budget / 4, &mut sending).await;
        }
        reply.unwrap_or(Err(Failure::Timeout))
    }

    /// Sends the calls, and reports the result to the latch and to the observers.
    async fn round_trip(
        &self,
        calls: Vec<Invocation>,
        sent: Instant,
        until: Instant,
    ) -> Result<Vec<ScriptResult>, Failure> {
        let reply = self.send(calls, until).await;
        // A request that queued for most of its budget is not evidence against Redis.
        let fair = until.saturating_duration_since(sent) >= self.budget / 2;
        let evidence = match &reply {
            Err(Failure::Timeout) if !fair => Some(&Failure::NotSent),
            Err(failure) => Some(failure),
            // One reply that the server cannot serve counts for the whole round trip.
            Ok(replies) => replies.iter().find_map(|reply| match reply {
                Err(failure @ Failure::Rejecting(_)) => Some(failure),
                _ => None,
            }),
        };
        match evidence {
            // A failure that is noticed late counts as of its deadline: a stall of this process is no silence of Redis.
            Some(failure) => self.record_failure_at(failure, sent, Instant::now().min(until)),
            None => self.latch.record_success(),
        }
        if self.observers.any() {
            self.emit(&reply, sent);
        }
        reply
    }

    fn emit(&self, reply: &Result<Vec<ScriptResult>, Failure>, sent: Instant) {
        let failure = match reply {
            Err(failure) => Some(failure),
            Ok(replies) => replies.iter().find_map(|reply| reply.as_ref().err()),
        };
        self.observers
            .emit_all(EventKind::StoreRoundTrip { took: sent.elapsed(), failed: failure.map(Failure::label) });
    }

    pub(crate) fn record_failure(&self, failure: &Failure, sent: Instant) {
        self.record_failure_at(failure, sent, Instant::now());
    }

    fn record_failure_at(&self, failure: &Failure, sent: Instant, at: Instant) {
        if self.latch.record_failure(failure, sent, at) {
            self.fail_queued();
            self.wake.notify_one();
        }
    }

    /// Completes all waiting cells with a failure, because nothing is sent while the latch is down.
    pub(crate) fn fail_queued(&self) {
        let queue = std::mem::take(&mut self.queue.lock().waiting);
        for (_, source) in queue {
            source.fill(&mut Outgoing::default()); // dropped at once, which completes all with a failure
        }
    }

    /// Waits until nothing is queued or in flight.
    pub(crate) async fn until_idle(&self) {
        loop {
            let mut trip_ended = pin!(self.trip_ended.notified());
            trip_ended.as_mut().enable();
            {
                let queue = self.queue.lock();
                if queue.round_trips == 0 && queue.waiting.is_empty() {
                    return;
                }
            }
            trip_ended.await;
        }
    }

    /// Yields while that brings new cells, at most [`MAX_YIELDS`] times: callers that just got a reply and ask again
    /// then share the next round trip.
    async fn wait_for_more(&self) {
        let mut waiting = 0;
        for _ in 0..MAX_YIELDS {
            tokio::task::yield_now().await;
            let now_waiting = self.queue.lock().waiting.len();
            if now_waiting == waiting {
                return;
            }
            waiting = now_waiting;
        }
    }

    /// Takes the next cells from the queue; `None` ends the round trip.
    fn next_sources(&self, in_flight: &mut usize) -> Option<Vec<Arc<dyn BatchSource>>> {
        let mut queue = self.queue.lock();
        queue.in_flight -= std::mem::take(in_flight);
        // With enough cells in flight elsewhere, the round trip that carries them continues with the queue.
        if queue.waiting.is_empty() || queue.in_flight >= MAX_SOURCES_IN_FLIGHT {
            queue.round_trips -= 1;
            drop(queue);
            self.trip_ended.notify_waiters();
            return None;
        }
        *in_flight = queue.waiting.len().min(MAX_SOURCES_PER_TRIP);
        queue.in_flight += *in_flight;
        Some(queue.waiting.drain(..*in_flight).map(|(_, source)| source).collect())
    }
}

impl fmt::Debug for Dispatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dispatcher").field("latch", &self.latch).finish_non_exhaustive()
    }
}

impl Dispatcher {
    async fn send_outgoing(&self, mut outgoing: Outgoing) {
        let sent = Instant::now();
        let until = outgoing.opened.map_or(sent, |opened| opened.min(sent)) + self.budget;
        if self.latch.is_down() || until <= sent {
            return; // dropped, which completes all with a failure
        }
        let calls = outgoing.items.iter_mut().filter_map(|item| item.call.take()).collect();
        let reply = self.round_trip(calls, sent, until).await;
        let replies: Vec<ScriptResult> = match reply {
            Ok(replies) => replies,
            Err(failure) => outgoing.items.iter().map(|_| Err(failure.clone())).collect(),
        };
        for (item, reply) in outgoing.items.iter_mut().zip(replies) {
            if let Some(complete) = item.complete.take() {
                complete(reply);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invocation::TimeSource;

    const BUDGET: Duration = Duration::from_millis(20);

    /// A server that never replies.
    #[derive(Debug)]
    struct Silent;

    impl Wire for Silent {
        fn send(
            &self,
            _: Vec<Invocation>,
        ) -> Pin<Box<dyn Future<Output = Result<Vec<ScriptResult>, Failure>> + Send + '_>> {
            Box::pin(std::future::pending())
        }
    }

    fn dispatcher() -> Dispatcher {
        Dispatcher::new(Arc::new(Silent), BUDGET, Arc::default(), Arc::default(), Observers::default())
    }

    fn call() -> Vec<Invocation> {
        vec![Invocation::new(&phalanx_lua::PROBE, TimeSource::Server, &["k"])]
    }

    #[tokio::test(start_paused = true)]
    async fn three_budgets_of_silence_trip_the_latch() {
        let dispatcher = dispatcher();
        for _ in 0..3 {
            assert!(!dispatcher.latch.is_down());
            let sent = Instant::now();
            assert_eq!(dispatcher.round_trip(call(), sent, sent + BUDGET).await, Err(Failure::Timeout));
        }
        assert!(dispatcher.latch.is_down());
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_sent_too_late_is_no_evidence_against_redis() {
        let dispatcher = dispatcher();
        for _ in 0..10 {
            let sent = Instant::now();
            assert_eq!(dispatcher.round_trip(call(), sent, sent + BUDGET / 4).await, Err(Failure::Timeout));
        }
        assert!(!dispatcher.latch.is_down());
    }
}
