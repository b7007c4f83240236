//! The dispatcher of one server (or one shard of a Cluster): collects requests from all cells and sends them in shared
//! round trips.
//!
//! ```text
//!   callers ──► batch ─┐                            queue: callers, and background work apart
//!   refunds ───────────┤  cell (bucket, breaker,        │ fill
//!   outcomes ──────────┘  digest) = BatchSource ──► round trip: one pipeline of merged scripts ──► Redis
//!                                                       │ complete
//!                                     each cell decodes its replies, each request has its own deadline
//! ```
//!
//! Three rules decide when a round trip starts (`queue.rs`):
//!
//! * Near Redis, few round trips are in flight: while they are, new requests wait together and are sent together, which
//!   keeps the cost of a request low.
//! * Far from Redis, waiting for a round trip would double the time of a decision. So one also starts if the last one
//!   started a quarter of the round-trip time ago, at most a millisecond, whether or not it has returned. (Of a round-trip
//!   time below a millisecond: a millisecond ago.)
//! * Background work has a round trip of its own, one at a time and short while callers use the connection. A caller
//!   never waits behind it in the queue, and it never waits for callers.
//!
//! A request waits for its own budget, counted from its own beginning: one that is late fails alone, and nothing is sent
//! that has less time left than a round trip takes. A round trip that is dropped (its runtime ended) completes with a
//! failure.
//!
//! Scripts that the server does not have did not run. They are sent again, with their source, in a round trip of their own,
//! within the deadlines that their requests have; what has a reply does not wait for it.

mod merge;
mod queue;
mod round_trip;
mod round_trip_time;

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use phalanx_core::event::{EventKind, Observers};
use phalanx_core::task;
use redis::Value;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout_at};

use self::merge::Merged;
use self::queue::Queue;
pub(crate) use self::queue::{Queued, Urgency};
use self::round_trip::{BatchItem, RoundTrip};
pub(crate) use self::round_trip::{InlineRequest, InlineTrip, Outgoing};
use self::round_trip_time::RoundTripTime;
use crate::failure::{CROSS_SLOT, Failure};
use crate::invocation::{Invocation, MAX_ATTEMPTS};
use crate::latch::Latch;
use crate::transport::{Boxed, Response, ScriptForm};

/// How often a round trip yields at most for callers that are about to enqueue.
const MAX_YIELDS: usize = 3;

/// Timers have millisecond resolution and are never early. They are set this much earlier to keep within the budget.
const TIMER_RESOLUTION: Duration = Duration::from_millis(1);

/// The budget grows with the distance to Redis, up to this.
const MAX_GROWN_BUDGET: Duration = Duration::from_millis(50);

/// How long background work waits for a reply, if that is longer than the budget: no caller waits for it.
const BACKGROUND_BUDGET: Duration = Duration::from_millis(100);

/// The result of one script call.
pub type ScriptResult = Result<Value, Failure>;

/// Sends calls to Redis, in order. The outer error applies to all of them.
pub trait Wire: Send + Sync + fmt::Debug + 'static {
    /// Sends all calls at once, each in its [form](Invocation::form), and waits for all replies.
    fn send<'a>(&'a self, calls: &'a [Invocation]) -> Boxed<'a, Result<Vec<Response>, Failure>>;
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
    /// The configured budget.
    budget: Duration,
    /// Whether calls of one script on cells of one slot are sent as one; not in a Cluster (`merge.rs`).
    merges: bool,
    /// Whether the server is known to take scripts on cells of several slots, as all do that are not in Cluster mode.
    across_slots: AtomicBool,
    round_trip_time: RoundTripTime,
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

impl Dispatcher {
    pub(crate) fn new(
        wire: Arc<dyn Wire>,
        budget: Duration,
        runtime: Arc<Mutex<Option<Handle>>>,
        wake: Arc<Notify>,
        observers: Observers,
        merges: bool,
    ) -> Self {
        let (latch, trip_ended, round_trip_time) = (Latch::default(), Notify::new(), RoundTripTime::default());
        Self {
            latch,
            wire,
            budget,
            merges,
            across_slots: AtomicBool::new(false),
            round_trip_time,
            queue: Mutex::default(),
            wake,
            trip_ended,
            runtime,
            observers,
        }
    }

    /// Returns how long a caller waits at most: the configured budget, or two round trips if Redis is further away.
    pub(crate) fn budget(&self) -> Duration {
        self.budget.max((2 * self.round_trip_time.median()).min(self.grown_budget()))
    }

    /// Returns the median of the last round trips; zero before the first.
    pub(crate) fn median_round_trip(&self) -> Duration {
        self.round_trip_time.median()
    }

    /// Returns the longest budget that the distance to Redis can lead to.
    fn grown_budget(&self) -> Duration {
        self.budget.max((5 * self.budget / 2).min(MAX_GROWN_BUDGET))
    }

    /// Queues a cell for the next round trip of its kind, or starts one.
    pub(crate) fn enqueue(self: &Arc<Self>, source: Arc<dyn BatchSource>, urgency: Urgency) {
        let mut queue = self.queue.lock();
        queue.push(Instant::now(), source, urgency);
        self.start_due(queue);
    }

    /// Starts every round trip that may start now, and the timer for those that may start later.
    fn start_due(self: &Arc<Self>, mut queue: parking_lot::MutexGuard<'_, Queue>) {
        let callers = queue.begin_for_callers(Instant::now(), self.round_trip_time.median());
        let background = queue.begin_for_background();
        let timer = queue.needs_timer();
        drop(queue);
        if callers {
            self.spawn(RoundTrip::new(self, Urgency::Caller, 0).run());
        }
        if background {
            self.spawn(RoundTrip::new(self, Urgency::Background, 0).run());
        }
        if timer {
            self.spawn(TimerGuard(self.clone()).run());
        }
    }

    /// Starts round trips that are due and fails callers that have waited too long, until no caller waits.
    async fn run_timer(self: &Arc<Self>) {
        loop {
            let next = {
                let mut queue = self.queue.lock();
                match queue.next_due(Instant::now(), self.longest_wait(), self.round_trip_time.median()) {
                    Some(next) => next,
                    None => return queue.timer_ended(),
                }
            };
            sleep_until(next).await;
            let mut queue = self.queue.lock();
            let overdue = queue.take_overdue(Instant::now(), self.longest_wait());
            self.start_due(queue);
            fail(overdue);
        }
    }

    /// Notes whether the server has taken a script on keys of several slots.
    pub(crate) fn take_across_slots(&self, takes: bool) {
        self.across_slots.store(takes, Ordering::Relaxed);
    }

    /// How much earlier a timer is set to keep within the budget of the moment.
    fn timer_resolution(&self) -> Duration {
        TIMER_RESOLUTION.min(self.budget() / 10)
    }

    /// How long a request may wait in the queue: then it has less time left than a round trip takes.
    fn longest_wait(&self) -> Duration {
        let budget = self.budget();
        budget - self.least_time(budget)
    }

    /// The least time that a request needs to be worth sending. At most half of the budget: if all replies are slow, some
    /// requests must be sent to notice that they are not any more.
    fn least_time(&self, budget: Duration) -> Duration {
        let resolution = TIMER_RESOLUTION.min(budget / 10);
        self.round_trip_time.median().clamp(resolution, budget / 2)
    }

    /// Spawns a round trip. Without a runtime it is dropped, which completes its calls with a failure.
    pub(crate) fn spawn(&self, trip: impl Future<Output = ()> + Send + 'static) {
        let fallback = self.runtime.lock().clone();
        task::spawn(trip, fallback.as_ref());
    }

    /// With nothing queued or in flight, the caller sends inline and saves two task switches.
    pub(crate) fn try_inline(self: &Arc<Self>) -> Option<InlineTrip> {
        let mut queue = self.queue.lock();
        let inline = !self.latch.is_down() && queue.begin_inline(Instant::now());
        inline.then(|| InlineTrip(RoundTrip::new(self, Urgency::Caller, 1)))
    }

    /// Sends one call in a round trip of its own.
    pub(crate) async fn call(&self, call: Invocation) -> ScriptResult {
        self.call_within(call, self.budget()).await
    }

    /// The same with a budget of its own, unless that of all calls is longer.
    pub(crate) async fn call_within(&self, call: Invocation, budget: Duration) -> ScriptResult {
        if self.latch.is_down() {
            return Err(Failure::NotSent);
        }
        let reply = Arc::new(Mutex::new(Err(Failure::Call("no reply".to_owned()))));
        let mut outgoing = Outgoing::default();
        outgoing.add(call, {
            let reply = reply.clone();
            move |result| *reply.lock() = result
        });
        let end = Instant::now() + budget.max(self.budget());
        let patience = |sent| {
            // A second attempt may be left too little time to be evidence of silence.
            let is_fair = sent + self.budget() <= end + self.timer_resolution();
            Patience { silent_at: is_fair.then_some(end), end }
        };
        self.round_trip(&mut outgoing.items, |_| end, patience).await;
        drop(outgoing);
        let mut reply = reply.lock();
        std::mem::replace(&mut reply, Err(Failure::NotSent))
    }

    /// Sends the call of a health check, also while the latch is down. Measures the distance of a Redis that no caller
    /// could wait for.
    pub(crate) async fn health_check(&self, call: Invocation) -> Result<(), Failure> {
        match self.check_once(&call).await? {
            Response::Reply(reply) => reply.map(|_| ()),
            Response::UnknownScript => match self.check_once(&call.in_form(ScriptForm::Source)).await? {
                Response::Reply(reply) => reply.map(|_| ()),
                Response::UnknownScript => Err(unknown_to_the_end()),
            },
        }
    }

    async fn check_once(&self, call: &Invocation) -> Result<Response, Failure> {
        let sent = Instant::now();
        let until = sent + self.grown_budget() - TIMER_RESOLUTION.min(self.budget / 10);
        let sending = self.wire.send(std::slice::from_ref(call));
        let mut responses = timeout_at(until, sending).await.unwrap_or(Err(Failure::Timeout))?;
        self.round_trip_time.record(sent.elapsed());
        if sent.elapsed() > self.budget() {
            return Err(Failure::Timeout); // callers would not have waited for this reply
        }
        responses.pop().ok_or(Failure::Timeout)
    }

    /// Sends what was filled in, each request within its own time.
    async fn send_outgoing(&self, mut outgoing: Outgoing, urgency: Urgency) {
        let sent = Instant::now();
        if self.latch.is_down() {
            return; // dropped, which completes all with a failure
        }
        // The budget of the moment: it grows if other replies show that Redis has become slower.
        let deadline = |item: &BatchItem| match urgency {
            Urgency::Caller => item.opened.map_or(sent, |opened| opened.min(sent)) + self.budget(),
            Urgency::Background => sent + self.budget().max(BACKGROUND_BUDGET),
        };
        let least = self.least_time(self.budget());
        outgoing.items.retain(|item| deadline(item) >= sent + least); // the others are dropped: not sent
        if !outgoing.items.is_empty() {
            let patience = |sent| Patience { silent_at: Some(sent + self.budget()), end: sent + self.grown_budget() };
            self.round_trip(&mut outgoing.items, deadline, patience).await;
        }
    }

    /// Sends the calls and completes each with its reply or at its deadline. Those whose script the server does not have are
    /// sent again, by source, in a round trip of their own.
    ///
    /// They are sent again even if their callers have no time left, as when the connection was only opened meanwhile: then
    /// the server has the script for the next call. Otherwise a distant Redis might never get it.
    async fn round_trip(
        &self,
        items: &mut [BatchItem],
        deadline: impl Fn(&BatchItem) -> Instant,
        patience: impl Fn(Instant) -> Patience,
    ) {
        let calls = items.iter_mut().filter_map(|item| item.call.take()).collect();
        let mut merged = if self.merges {
            Merged::of(calls, self.across_slots.load(Ordering::Relaxed))
        } else {
            Merged::none(calls)
        };
        for attempt in 1..=MAX_ATTEMPTS {
            let sent = Instant::now();
            let Some(responses) = self.attempt(items, &merged, sent, &deadline, patience(sent)).await else { return };
            for (index, reply) in merged.take_replies(responses) {
                if matches!(&reply, Err(Failure::Call(text)) if text == CROSS_SLOT) {
                    self.take_across_slots(false); // the server was replaced by one in Cluster mode
                }
                items[index].complete(reply);
            }
            if merged.is_empty() || self.latch.is_down() {
                return; // with the latch down, the items are dropped: not sent
            }
            merged.send_again(attempt);
        }
        merged.indices().for_each(|index| items[index].complete(Err(unknown_to_the_end())));
    }

    /// Sends the calls once, and returns the replies if they arrive. Completes items whose deadline is over, and all if the
    /// connection breaks. Reports to the latch and the observers.
    async fn attempt(
        &self,
        items: &mut [BatchItem],
        merged: &Merged,
        sent: Instant,
        deadline: impl Fn(&BatchItem) -> Instant,
        Patience { mut silent_at, end }: Patience,
    ) -> Option<Vec<Response>> {
        let (budget, resolution) = (self.budget(), self.timer_resolution());
        let mut sending = pin!(self.wire.send(merged.calls()));
        let mut waiting: Vec<usize> = merged.indices().filter(|index| !items[*index].is_completed()).collect();
        while !(waiting.is_empty() && silent_at.is_none() && Instant::now() + resolution >= end) {
            let deadlines = waiting.iter().map(|index| deadline(&items[*index])).chain(silent_at);
            let until = deadlines.min().unwrap_or(end) - resolution;
            let mut reply = timeout_at(until, &mut sending).await;
            // A timer that fires late means that this process was stalled, not Redis: the reply may be waiting to be read.
            let late = Instant::now().saturating_duration_since(until);
            if reply.is_err() && late > budget / 4 {
                reply = timeout_at(Instant::now() + budget / 4, &mut sending).await;
            }
            if let Ok(reply) = reply {
                if sent.elapsed() <= self.grown_budget() {
                    self.round_trip_time.record(sent.elapsed());
                }
                self.report(&reply, sent, Instant::now().min(until.max(sent)));
                if let Err(failure) = &reply {
                    waiting.iter().for_each(|index| items[*index].complete(Err(failure.clone())));
                }
                return reply.ok();
            }
            let due = until + resolution;
            if silent_at.take_if(|silent_at| *silent_at <= due).is_some() {
                // Only the last part counts as silence: other calls may have been answered before.
                let since = due.checked_sub(budget).map_or(sent, |since| since.max(sent));
                self.report(&Err(Failure::Timeout), since, due.min(Instant::now()));
            }
            // With the latch down no caller has to wait any longer, and health checks measure the distance.
            let down = self.latch.is_down();
            waiting.retain(|index| {
                let overdue = down || deadline(&items[*index]) <= due;
                overdue.then(|| items[*index].complete(Err(Failure::Timeout)));
                !overdue
            });
            if down {
                return None;
            }
        }
        None
    }

    /// Reports the result of a round trip to the latch and to the observers.
    fn report(&self, reply: &Result<Vec<Response>, Failure>, sent: Instant, at: Instant) {
        let (failed, evidence) = match reply {
            Err(failure) => (Some(failure), Evidence::Failure(failure)),
            Ok(responses) => (failures(responses).next(), Evidence::of(responses)),
        };
        match evidence {
            Evidence::Failure(failure) => self.record_failure_at(failure, sent, at),
            // A reply that only a call with a longer budget has waited for is no evidence for Redis.
            Evidence::Success if sent.elapsed() <= self.grown_budget() => self.latch.record_success(),
            Evidence::Success | Evidence::None => {}
        }
        if self.observers.any() {
            let (took, failed) = (sent.elapsed(), failed.map(Failure::label));
            self.observers.emit_all(EventKind::StoreRoundTrip { took, failed });
        }
    }

    pub(crate) fn record_failure(&self, failure: &Failure, sent: Instant) {
        self.record_failure_at(failure, sent, Instant::now());
    }

    fn record_failure_at(&self, failure: &Failure, sent: Instant, at: Instant) {
        if self.latch.record_failure(failure, sent, at, self.budget()) {
            self.round_trip_time.forget();
            self.fail_queued();
            self.wake.notify_one();
        }
    }

    /// Counts a call decided without Redis. One that is late wakes the health checks, which look at how many there are.
    pub(crate) fn count_degraded_decision(&self) {
        self.latch.count_degraded_decision();
        if !self.latch.is_down() {
            self.wake.notify_one();
        }
    }

    /// Completes all waiting cells with a failure, because nothing is sent while the latch is down.
    pub(crate) fn fail_queued(&self) {
        let waiting = self.queue.lock().take_all();
        fail(waiting);
    }

    /// Waits until nothing is queued or in flight.
    pub(crate) async fn until_idle(&self) {
        loop {
            let mut trip_ended = pin!(self.trip_ended.notified());
            trip_ended.as_mut().enable();
            if self.queue.lock().is_idle() {
                return;
            }
            trip_ended.await;
        }
    }

    /// Yields while that brings new callers, at most [`MAX_YIELDS`] times: callers that just got a reply and ask again
    /// then share the next round trip.
    async fn wait_for_more(&self) {
        let mut waiting = 0;
        for _ in 0..MAX_YIELDS {
            tokio::task::yield_now().await;
            let now_waiting = self.queue.lock().callers_waiting();
            if now_waiting == waiting {
                return;
            }
            waiting = now_waiting;
        }
    }
}

/// How long a round trip waits.
#[derive(Clone, Copy)]
struct Patience {
    /// Without a reply by then, Redis is silent. Requests that waited in the queue fail earlier.
    silent_at: Option<Instant>,
    /// The round trip waits until then, also when no request waits for it any more: a server that replies late is not
    /// silent, its distance has to be known, and as long as it works off this round trip it should get no further one.
    end: Instant,
}

/// What the replies of a round trip mean for the latch.
enum Evidence<'a> {
    Success,
    Failure(&'a Failure),
    /// The server has none of the scripts, so the next attempt decides: a server that fails every source does not serve.
    None,
}

impl<'a> Evidence<'a> {
    fn of(responses: &'a [Response]) -> Self {
        // One reply that the server cannot serve counts for the whole round trip, and so does a master that is not reached, and
        // a server that fails every script.
        let concerns_server = |failure: &&Failure| !matches!(failure, Failure::Call(_) | Failure::NotSent);
        if let Some(failure) = failures(responses).find(concerns_server) {
            return Self::Failure(failure);
        }
        let has_run = responses.iter().any(|response| matches!(response, Response::Reply(Ok(_))));
        match failures(responses).next() {
            _ if has_run || responses.is_empty() => Self::Success,
            Some(failure) => Self::Failure(failure),
            None => Self::None,
        }
    }
}

fn failures(responses: &[Response]) -> impl Iterator<Item = &Failure> {
    responses.iter().filter_map(|response| match response {
        Response::Reply(reply) => reply.as_ref().err(),
        Response::UnknownScript => None,
    })
}

/// The failure of a call that was sent by source to a server that does not take the script from it.
fn unknown_to_the_end() -> Failure {
    Failure::Call("NOSCRIPT".to_owned())
}

/// Completes what these cells have pending with a failure: it was not sent.
fn fail(sources: Vec<Arc<dyn BatchSource>>) {
    for source in sources {
        source.fill(&mut Outgoing::default()); // dropped at once, which completes all with a failure
    }
}

/// The timer of the queue. If its task is dropped (its runtime ended), the next request starts another one.
struct TimerGuard(Arc<Dispatcher>);

impl TimerGuard {
    async fn run(self) {
        self.0.run_timer().await;
    }
}

impl Drop for TimerGuard {
    fn drop(&mut self) {
        self.0.queue.lock().timer_ended();
    }
}

impl fmt::Debug for Dispatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dispatcher").field("latch", &self.latch).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
