//! The gate that calls come in by, so that a process can stop taking new ones and wait for those it has.
//!
//! ```text
//!   open ── drain ──► draining ── window over, or nobody left ──► closed
//!    │                  │  new calls: `draining`, with a retry-after     nobody comes in
//!    └ everybody        └  calls inside others: let in                   who is left is woken and cancelled
//! ```
//!
//! Every call is counted in and out, on the cache line of its thread (`drain/stripe.rs`), with no allocation. A call made
//! inside another is let in while the gate drains, because the one around it needs it to finish; that it is inside
//! travels with the task's [`Context`], also across `tokio::spawn(scope(Context::current(), …))`.
//!
//! What it promises: after [`Gate::begin`] no call from outside is let in; [`Gate::drain`] returns as soon as nobody is
//! left, and otherwise when its window is over, with all that were left cancelled and counted.

mod stripe;

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{self, Poll};
use std::thread::available_parallelism;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use self::stripe::{AWAKE, Stripe};
use crate::context::{self, Context};
use crate::rejection::{Rejection, RejectionCode};
use crate::striped::{CacheLine, thread_number};

/// When callers are told to come back, unless the gate is told otherwise: by then a balancer has looked elsewhere.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// What cancelled calls get to unwind in.
const UNWIND: Duration = Duration::from_millis(50);

/// Twice as many as processors, because threads meet on a stripe by chance; more than this do not pay for their memory.
const FEWEST: usize = 4;
const MOST: usize = 16;

/// The gate. Cheap to clone; clones are the same gate.
#[derive(Clone)]
pub struct Gate(Arc<Shared>);

struct Shared {
    stripes: Box<[CacheLine<Stripe>]>,
    /// What marks a task as being inside.
    id: u32,
    retry_after: Duration,
    /// Somebody was the last to leave a stripe while the gate drained.
    emptied: Notify,
}

/// How a drain went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Calls in flight when it began, those inside others included.
    pub in_flight: u64,
    /// Calls that were left when the window was over, and were cancelled.
    pub leftovers: u64,
    /// Those of them that did not even end then: work that does not yield.
    pub stuck: u64,
    /// How long it took.
    pub elapsed: Duration,
}

impl Default for Gate {
    fn default() -> Self {
        Self::new(RETRY_AFTER)
    }
}

impl Gate {
    /// An open gate that tells those it rejects to come back after so long. Default one second.
    pub fn new(retry_after: Duration) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let threads = available_parallelism().map_or(1, usize::from);
        let lines = (2 * threads).next_power_of_two().clamp(FEWEST, MOST);
        Self(Arc::new(Shared {
            stripes: (0..lines).map(|_| CacheLine(Stripe::new())).collect(),
            id: NEXT.fetch_add(1, Ordering::Relaxed).max(1),
            retry_after,
            emptied: Notify::new(),
        }))
    }

    /// Runs work that is no guarded call (a request, a tick) as one: counted, marked as inside for the calls it makes,
    /// and cancelled when it outlasts a drain.
    ///
    /// # Errors
    /// `draining`: the gate has stopped letting work in, or the work was cancelled by the end of a drain.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, Rejection> {
        let current = Context::current();
        let stay = self.admit(current).ok_or_else(|| self.rejection())?;
        let held = Held { gate: self, stay };
        let inside = current.inside(self.id());
        let mut work = pin!(work);
        poll_fn(|cx| match context::bind(inside, || work.as_mut().poll(cx)) {
            Poll::Ready(done) => Poll::Ready(Ok(done)),
            Poll::Pending if self.cancels(&held.stay, cx) => Poll::Ready(Err(self.rejection())),
            Poll::Pending => Poll::Pending,
        })
        .await
    }

    /// Calls in flight, those inside others included.
    pub fn in_flight(&self) -> u64 {
        self.0.stripes.iter().map(|line| line.0.in_flight()).sum()
    }

    /// Whether it has stopped letting new calls in.
    pub fn is_draining(&self) -> bool {
        self.0.stripes.first().is_some_and(|line| line.0.is_draining())
    }

    /// Stops letting new calls in. Doing it again changes nothing.
    pub fn begin(&self) {
        self.0.stripes.iter().for_each(|line| line.0.drain());
    }

    /// Stops letting new calls in, waits for those inside, for `window` at most, and then cancels them. Doing it again is
    /// harmless: whoever waits is told the same.
    pub async fn drain(&self, window: Duration) -> Drained {
        let start = Instant::now();
        self.begin();
        let in_flight = self.in_flight();
        // Further away than the clock can count is as good as a month.
        let until = start.checked_add(window).unwrap_or(start + Duration::from_secs(30 * 24 * 3_600));
        let mut over = timeout_at(until, self.emptied()).await.is_err();
        self.0.stripes.iter().for_each(|line| line.0.close());
        if !over {
            // Work that its outer call left behind may have come in while we looked.
            over = timeout_at(until, self.emptied()).await.is_err();
        }
        let leftovers = if over { self.in_flight() } else { 0 };
        if leftovers > 0 {
            self.0.stripes.iter().for_each(|line| line.0.cancel());
            let _ = timeout_at(Instant::now() + UNWIND, self.emptied()).await;
        }
        let stuck = if over { self.in_flight() } else { 0 };
        Drained { in_flight, leftovers, stuck, elapsed: start.elapsed() }
    }

    /// Returns when nobody is inside, once the gate drains.
    async fn emptied(&self) {
        loop {
            let mut emptied = pin!(self.0.emptied.notified());
            emptied.as_mut().enable(); // before looking, so that none is missed in between
            if self.in_flight() == 0 {
                return;
            }
            emptied.await;
        }
    }

    /// Lets a call in, or not.
    #[inline]
    pub(crate) fn admit(&self, current: Context) -> Option<Stay> {
        let stripes = &self.0.stripes;
        let number = thread_number() & (stripes.len() - 1);
        stripes[number].0.enter(current.is_inside(self.id())).then(|| Stay::of(number as u16))
    }

    /// Whether the call is cancelled; if not, it will be woken when it is.
    pub(crate) fn cancels(&self, stay: &Stay, cx: &task::Context<'_>) -> bool {
        let cancelled = self.stripe(stay).sleep(&stay.bed, cx.waker());
        if cancelled {
            stay.cancelled.store(true, Ordering::Relaxed);
        }
        cancelled
    }

    /// Lets a call out.
    #[inline]
    pub(crate) fn leave(&self, stay: &mut Stay) {
        let stripe = self.stripe(stay);
        stripe.wake_up(*stay.bed.get_mut());
        if stripe.leave() {
            self.0.emptied.notify_waiters();
        }
        stay.stripe = OUTSIDE;
    }

    pub(crate) fn rejection(&self) -> Rejection {
        Rejection::new(RejectionCode::Draining).retry_in(self.0.retry_after)
    }

    /// What marks a task as being inside.
    pub(crate) fn id(&self) -> u32 {
        self.0.id
    }

    fn stripe(&self, stay: &Stay) -> &Stripe {
        &self.0.stripes[usize::from(stay.stripe) & (self.0.stripes.len() - 1)].0
    }
}

impl PartialEq for Gate {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Gate {}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (in_flight, draining) = (self.in_flight(), self.is_draining());
        f.debug_struct("Gate").field("in_flight", &in_flight).field("draining", &draining).finish()
    }
}

const OUTSIDE: u16 = u16::MAX;

/// A call's stay inside a gate: the stripe that counts it, and where its waker lies while it waits. Atomic only so that a
/// future that holds it can change threads.
#[derive(Debug)]
pub(crate) struct Stay {
    stripe: u16,
    cancelled: AtomicBool,
    bed: AtomicU32,
}

impl Stay {
    /// Of a call that came through no gate.
    #[inline]
    pub(crate) const fn none() -> Self {
        Self::of(OUTSIDE)
    }

    const fn of(stripe: u16) -> Self {
        Self { stripe, cancelled: AtomicBool::new(false), bed: AtomicU32::new(AWAKE) }
    }

    #[inline]
    pub(crate) const fn is_held(&self) -> bool {
        self.stripe != OUTSIDE
    }

    /// Whether the call has been told that it is cancelled.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}

/// Work inside, counted out however it ends.
struct Held<'a> {
    gate: &'a Gate,
    stay: Stay,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.gate.leave(&mut self.stay);
    }
}

/// Where an engine's calls look for a gate. There is none until a runtime attaches one, and looking costs a load.
#[derive(Clone, Debug, Default)]
pub(crate) struct Door(Arc<OnceLock<Gate>>);

impl Door {
    #[inline]
    pub(crate) fn gate(&self) -> Option<&Gate> {
        self.0.get()
    }

    /// Whether this is the gate now: the first one attached stays.
    pub(crate) fn attach(&self, gate: &Gate) -> bool {
        self.0.get_or_init(|| gate.clone()) == gate
    }
}

#[cfg(all(test, not(phalanx_model)))]
mod tests;
