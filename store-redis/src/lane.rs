//! The way to one server: who has something to say boards the next flight.
//!
//! ```text
//!   callers ──► batch ─┐
//!   refunds ───────────┤  cell (bucket, circuit, digest)
//!   outcomes ──────────┘        │ call_out
//!                               ▼
//!                        ready: cell, cell, cell      at most FLIGHTS under way
//!                               │ board                 each one pipeline, one timer
//!                               ▼
//!                        flight ──► Redis ──► land: each cell reads its replies
//! ```
//!
//! The bound is on flights, not on keys: while all are under way, everybody who arrives waits together and leaves
//! together, which is what makes a round trip cheap. A flight that is lost (its runtime ended) lands all the same, with
//! a failure.

mod flight;

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use phalanx_core::event::{EventKind, Observers};
use redis::Value;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout_at};

use self::flight::Flight;
pub(crate) use self::flight::{Manifest, Pilot, Solo};
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::latch::Latch;

/// Flights under way at a time.
const FLIGHTS: usize = 4;
/// Cells on one flight.
const SEATS: usize = 64;
/// Cells on all flights under way, from which on nobody else leaves: with more, callers of many keys would leave by twos
/// and threes, and the server would run a script for each.
const ABOARD: usize = 4;
/// Turns that a flight waits at most for passengers who are about to come.
const TURNS: usize = 3;

/// Timers go by whole milliseconds and are never early. To keep to the budget they are set so much before.
const TICK: Duration = Duration::from_millis(1);

/// What came of one call.
pub type Replied = Result<Value, Failure>;

/// Carries calls to Redis, in order. The outer error stands for all of them.
pub trait Wire: Send + Sync + fmt::Debug + 'static {
    /// Sends all of them at once and waits for all the replies.
    fn send(&self, calls: Vec<Invocation>) -> Pin<Box<dyn Future<Output = Result<Vec<Replied>, Failure>> + Send + '_>>;
}

/// Somebody with something to say.
pub(crate) trait Passenger: Send + Sync {
    /// Hands over all there is to say now.
    fn board(self: Arc<Self>, manifest: &mut Manifest);
}

/// The way to one server, or to one shard of a Cluster.
pub(crate) struct Lane {
    pub(crate) latch: Latch,
    wire: Arc<dyn Wire>,
    budget: Duration,
    ready: Mutex<Ready>,
    /// Wakes the keeper when the latch falls.
    wake: Arc<Notify>,
    /// A flight ended.
    landed: Notify,
    /// Where flights fly that nobody in a runtime has called out.
    runtime: Arc<Mutex<Option<Handle>>>,
    /// Who is told of every round trip.
    observers: Observers,
}

#[derive(Default)]
struct Ready {
    /// Who waits for a seat, and since when.
    queue: VecDeque<(Instant, Arc<dyn Passenger>)>,
    /// Somebody sees to it that nobody waits too long.
    watched: bool,
    /// Flights under way, and cells on them.
    flying: usize,
    aboard: usize,
}

impl Lane {
    pub(crate) fn new(
        wire: Arc<dyn Wire>,
        budget: Duration,
        runtime: Arc<Mutex<Option<Handle>>>,
        wake: Arc<Notify>,
        observers: Observers,
    ) -> Self {
        let (latch, landed) = (Latch::new(budget), Notify::new());
        Self { latch, wire, budget, ready: Mutex::default(), wake, landed, runtime, observers }
    }

    /// Somebody has something to say.
    pub(crate) fn call_out(self: &Arc<Self>, passenger: Arc<dyn Passenger>) {
        {
            let mut ready = self.ready.lock();
            ready.queue.push_back((Instant::now(), passenger));
            if ready.flying >= FLIGHTS || ready.aboard >= ABOARD {
                if !std::mem::replace(&mut ready.watched, true) {
                    drop(ready);
                    self.launch(self.clone().watch());
                }
                return;
            }
            ready.flying += 1;
        }
        self.launch(Flight::new(self, 0).fly());
    }

    /// Sees to it that nobody waits for a seat longer than his budget: flights that hang one after the other could keep
    /// him here for several.
    async fn watch(self: Arc<Self>) {
        loop {
            let oldest = {
                let mut ready = self.ready.lock();
                match ready.queue.front() {
                    Some((since, _)) => *since,
                    None => return ready.watched = false,
                }
            };
            let patience = self.budget - TICK.min(self.budget / 10);
            sleep_until(oldest + patience).await;
            let now = Instant::now();
            let overdue: Vec<_> = {
                let mut ready = self.ready.lock();
                let count = ready.queue.iter().take_while(|(since, _)| *since + patience <= now).count();
                ready.queue.drain(..count).collect()
            };
            for (_, passenger) in overdue {
                passenger.board(&mut Manifest::default()); // dropped at once: all land with a failure
            }
        }
    }

    /// Lets a flight fly by itself. Without a runtime it is dropped, and whoever boarded lands with a failure.
    fn launch(&self, flight: impl Future<Output = ()> + Send + 'static) {
        let runtime = Handle::try_current().ok().or_else(|| self.runtime.lock().clone());
        if let Some(runtime) = runtime {
            runtime.spawn(flight);
        }
    }

    /// Where nobody flies and nobody waits, a caller may fly himself, which saves two hops between tasks.
    pub(crate) fn take_off(self: &Arc<Self>) -> Option<Pilot> {
        let mut ready = self.ready.lock();
        let alone = ready.flying == 0 && ready.queue.is_empty() && !self.latch.is_down();
        alone.then(|| {
            (ready.flying, ready.aboard) = (1, ready.aboard + 1);
            Pilot(Flight::new(self, 1))
        })
    }

    /// Asks one thing, alone.
    pub(crate) async fn ask(&self, call: Invocation) -> Replied {
        if self.latch.is_down() {
            return Err(Failure::NotAsked);
        }
        let sent = Instant::now();
        let mut replies = self.carry(vec![call], sent, sent + self.budget).await?;
        replies.pop().unwrap_or(Err(Failure::Call("no reply".to_owned())))
    }

    /// Asks something to learn whether Redis is well again, within its budget.
    pub(crate) async fn probe(&self, call: Invocation) -> Result<(), Failure> {
        let mut replies = self.send(vec![call], Instant::now() + self.budget).await?;
        replies.pop().unwrap_or(Err(Failure::Timeout)).map(|_| ())
    }

    /// Sends and waits, no longer than until then.
    async fn send(&self, calls: Vec<Invocation>, until: Instant) -> Result<Vec<Replied>, Failure> {
        let until = until - TICK.min(self.budget / 10);
        let mut sending = pin!(self.wire.send(calls));
        let mut answer = timeout_at(until, &mut sending).await;
        // A timer that comes late means that this process stood still, not Redis: the reply may be waiting to be read.
        let late = Instant::now().saturating_duration_since(until);
        if answer.is_err() && late > self.budget / 4 {
            answer = timeout_at(Instant::now() + self.budget / 4, &mut sending).await;
        }
        answer.unwrap_or(Err(Failure::Timeout))
    }

    /// The same, and tells the latch what came of it.
    async fn carry(&self, calls: Vec<Invocation>, sent: Instant, until: Instant) -> Result<Vec<Replied>, Failure> {
        let answer = self.send(calls, until).await;
        // Who waited so long for his flight that Redis had no fair chance to answer says nothing about Redis.
        let fair = until.saturating_duration_since(sent) >= self.budget / 2;
        let telling = match &answer {
            Err(Failure::Timeout) if !fair => Some(&Failure::NotAsked),
            Err(failure) => Some(failure),
            // One reply that says the server cannot serve speaks for all.
            Ok(replies) => replies.iter().find_map(|reply| match reply {
                Err(failure @ Failure::Rejecting(_)) => Some(failure),
                _ => None,
            }),
        };
        match telling {
            // What was noticed late happened when it was due: that this process stood still is no silence of Redis.
            Some(failure) => self.missed_at(failure, sent, Instant::now().min(until)),
            None => self.latch.hit(),
        }
        if self.observers.any() {
            self.emit(&answer, sent);
        }
        answer
    }

    fn emit(&self, answer: &Result<Vec<Replied>, Failure>, sent: Instant) {
        let failure = match answer {
            Err(failure) => Some(failure),
            Ok(replies) => replies.iter().find_map(|reply| reply.as_ref().err()),
        };
        self.observers.emit_all(EventKind::StoreRoundTrip { took: sent.elapsed(), failed: failure.map(Failure::word) });
    }

    pub(crate) fn missed(&self, failure: &Failure, sent: Instant) {
        self.missed_at(failure, sent, Instant::now());
    }

    fn missed_at(&self, failure: &Failure, sent: Instant, at: Instant) {
        if self.latch.miss(failure, sent, at) {
            self.ground();
            self.wake.notify_one();
        }
    }

    /// Lands everybody who is ready with a failure: nobody waits for a server that is not asked.
    pub(crate) fn ground(&self) {
        let queue = std::mem::take(&mut self.ready.lock().queue);
        for (_, passenger) in queue {
            passenger.board(&mut Manifest::default()); // dropped at once
        }
    }

    /// Returns when nobody is ready and nobody flies.
    pub(crate) async fn idle(&self) {
        loop {
            let mut landed = pin!(self.landed.notified());
            landed.as_mut().enable();
            {
                let ready = self.ready.lock();
                if ready.flying == 0 && ready.queue.is_empty() {
                    return;
                }
            }
            landed.await;
        }
    }

    /// Whoever was just answered and asks again comes along: waits as long as that brings somebody, a few turns at most.
    async fn gather(&self) {
        let mut waiting = 0;
        for _ in 0..TURNS {
            tokio::task::yield_now().await;
            let now_waiting = self.ready.lock().queue.len();
            if now_waiting == waiting {
                return;
            }
            waiting = now_waiting;
        }
    }

    /// The next passengers; none ends the flight.
    fn next_passengers(&self, aboard: &mut usize) -> Option<Vec<Arc<dyn Passenger>>> {
        let mut ready = self.ready.lock();
        ready.aboard -= std::mem::take(aboard);
        // If too many are aboard others, one of those takes the queue when it lands.
        if ready.queue.is_empty() || ready.aboard >= ABOARD {
            ready.flying -= 1;
            drop(ready);
            self.landed.notify_waiters();
            return None;
        }
        *aboard = ready.queue.len().min(SEATS);
        ready.aboard += *aboard;
        Some(ready.queue.drain(..*aboard).map(|(_, passenger)| passenger).collect())
    }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane").field("latch", &self.latch).finish_non_exhaustive()
    }
}

impl Lane {
    async fn carry_all(&self, mut manifest: Manifest) {
        let sent = Instant::now();
        let until = manifest.opened.map_or(sent, |opened| opened.min(sent)) + self.budget;
        if self.latch.is_down() || until <= sent {
            return; // dropped: all land with a failure
        }
        let calls = manifest.legs.iter_mut().filter_map(|leg| leg.call.take()).collect();
        let answer = self.carry(calls, sent, until).await;
        let replies: Vec<Replied> = match answer {
            Ok(replies) => replies,
            Err(failure) => manifest.legs.iter().map(|_| Err(failure.clone())).collect(),
        };
        for (leg, reply) in manifest.legs.iter_mut().zip(replies) {
            if let Some(land) = leg.land.take() {
                land(reply);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invocation::Time;

    const BUDGET: Duration = Duration::from_millis(20);

    /// A server that never answers.
    #[derive(Debug)]
    struct Silent;

    impl Wire for Silent {
        fn send(&self, _: Vec<Invocation>) -> Pin<Box<dyn Future<Output = Result<Vec<Replied>, Failure>> + Send + '_>> {
            Box::pin(std::future::pending())
        }
    }

    fn lane() -> Lane {
        Lane::new(Arc::new(Silent), BUDGET, Arc::default(), Arc::default(), Observers::default())
    }

    fn call() -> Vec<Invocation> {
        vec![Invocation::new(&phalanx_lua::PROBE, Time::Server, &["k"])]
    }

    #[tokio::test(start_paused = true)]
    async fn three_budgets_of_silence_make_the_latch_fall() {
        let lane = lane();
        for _ in 0..3 {
            assert!(!lane.latch.is_down());
            let sent = Instant::now();
            assert_eq!(lane.carry(call(), sent, sent + BUDGET).await, Err(Failure::Timeout));
        }
        assert!(lane.latch.is_down());
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_left_too_late_to_be_answered_says_nothing_about_redis() {
        let lane = lane();
        for _ in 0..10 {
            let sent = Instant::now();
            assert_eq!(lane.carry(call(), sent, sent + BUDGET / 4).await, Err(Failure::Timeout));
        }
        assert!(!lane.latch.is_down());
    }
}
