//! The drain gate: every call enters and leaves it, so that a process can stop admitting new calls and wait for those in
//! flight.
//!
//! ```text
//!   open ──── begin ────► draining ──── window over, or none in flight ────► closed
//!    │                      │                                                  │
//!    └ admits every call    ├ new calls are rejected with `draining` and a     └ rejects every call; those still
//!                           │ retry-after                                        in flight are woken and cancelled
//!                           └ calls nested in an admitted one are admitted
//! ```
//!
//! A drain, from the signal to the result:
//!
//! ```text
//!   SIGTERM ─► lifecycle (lifecycle/src): readiness off, pre-drain delay
//!     │
//!     ▼  Gate::drain(window)        drain.rs                     in every stripe (drain/stripe.rs), in this order:
//!     │    1 begin                  set the DRAINING bit ······► `Stripe::enter` rejects calls from outside
//!     │    2 wait, at most window   all counts are zero ◄······· `Stripe::leave` of the last call notifies
//!     │    3 close                  set the CLOSED bit ········► `Stripe::enter` rejects nested calls, too
//!     │    4 cancel what is left    wake the stored wakers ····► the call polls `Gate::poll_cancelled` and ends with
//!     │                                                          `draining` (pipeline/call_state/gate.rs)
//!     │    5 wait, at most 50 ms    all counts are zero          calls that do not yield are `stuck`
//!     ▼
//!   Drained { in_flight, leftovers, stuck, elapsed } ─► event `Drained`, then the next lifecycle step
//! ```
//!
//! Every call is counted in and out, on the stripe of its thread, without allocating. A call nested in another is admitted
//! while the gate drains, because the outer call needs it to finish. That it is nested is part of the task's [`Context`],
//! also across `tokio::spawn(scope(Context::current(), …))`.
//!
//! Guarantees: after [`Gate::begin`] no call from outside is admitted. [`Gate::drain`] returns as soon as no call is in
//! flight, and otherwise at the end of its window, with all remaining calls cancelled and counted.

mod stripe;

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{self, Poll};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use self::stripe::{NO_WAKER, Stripe};

use crate::context::{self, Context};
use crate::rejection::{Rejection, RejectionCode};
use crate::striped::Striped;

/// The default retry-after: by then a load balancer sends the caller to another replica.
const DEFAULT_RETRY_AFTER: Duration = Duration::from_secs(1);
/// How long cancelled calls have to unwind.
const UNWIND_TIME: Duration = Duration::from_millis(50);

/// The gate that calls enter and leave. Cheap to clone; clones are the same gate.
///
/// # Examples
/// ```
/// use std::time::Duration;
///
/// use phalanx_core::drain::Gate;
/// use phalanx_core::rejection::RejectionCode;
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let gate = Gate::new(Duration::from_secs(3));
/// assert_eq!(gate.run(async { 7 }).await, Ok(7));
///
/// let drained = gate.drain(Duration::from_secs(10)).await;
/// assert_eq!((drained.in_flight, drained.leftovers), (0, 0));
///
/// let rejection = gate.run(async { 7 }).await.unwrap_err();
/// assert_eq!(rejection.code(), RejectionCode::Draining);
/// assert_eq!(rejection.retry_after(), Some(Duration::from_secs(3)));
/// # });
/// ```
#[derive(Clone)]
pub struct Gate(Arc<Shared>);

struct Shared {
    stripes: Striped<Stripe>,
    /// The mark in the context of tasks inside the gate.
    id: u32,
    retry_after: Duration,
    /// Notified when a stripe becomes empty while the gate drains.
    emptied: Notify,
}

/// The result of a drain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Calls in flight when it began, nested ones included.
    pub in_flight: u64,
    /// Calls still in flight at the end of the window, which were cancelled.
    pub leftovers: u64,
    /// Those of them that did not end when they were cancelled: work that does not yield.
    pub stuck: u64,
    /// How long it took.
    pub elapsed: Duration,
}

impl Default for Gate {
    fn default() -> Self {
        Self::new(DEFAULT_RETRY_AFTER)
    }
}

impl Gate {
    /// Returns an open gate whose rejections carry this retry-after. [`Gate::default`] uses one second.
    pub fn new(retry_after: Duration) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        Self(Arc::new(Shared {
            stripes: Striped::new(Stripe::new),
            id: NEXT.fetch_add(1, Ordering::Relaxed).max(1),
            retry_after,
            emptied: Notify::new(),
        }))
    }

    /// Runs work that is not a guarded call (a request, a scheduled job) inside the gate: counted, with the calls it makes
    /// nested in it, and cancelled at the end of a drain.
    ///
    /// # Errors
    /// Returns `draining` if the gate no longer admits work, or if a drain cancelled it.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, Rejection> {
        let current = Context::current();
        let ticket = self.admit(current).ok_or_else(|| self.rejection())?;
        let held = HeldTicket { gate: self, ticket };
        let inside = current.inside(self.id());
        let mut work = pin!(work);
        poll_fn(|cx| match context::bind(inside, || work.as_mut().poll(cx)) {
            Poll::Ready(done) => Poll::Ready(Ok(done)),
            Poll::Pending if self.poll_cancelled(&held.ticket, cx) => Poll::Ready(Err(self.rejection())),
            Poll::Pending => Poll::Pending,
        })
        .await
    }

    /// Returns the calls in flight, nested ones included.
    pub fn in_flight(&self) -> u64 {
        self.0.stripes.iter().map(Stripe::in_flight).sum()
    }

    /// Whether the gate has stopped admitting new calls.
    pub fn is_draining(&self) -> bool {
        self.0.stripes.get(0).is_draining()
    }

    /// Stops admitting new calls. Idempotent.
    pub fn begin(&self) {
        self.0.stripes.iter().for_each(Stripe::drain);
    }

    /// Stops admitting new calls, waits at most `window` for those in flight, and cancels the rest. May be called again,
    /// also concurrently: each caller waits for the same end.
    pub async fn drain(&self, window: Duration) -> Drained {
        let start = Instant::now();
        self.begin();
        let in_flight = self.in_flight();
        // A window beyond the range of the clock is cut to a month.
        let until = start.checked_add(window).unwrap_or(start + Duration::from_secs(30 * 24 * 3_600));
        let mut over = timeout_at(until, self.emptied()).await.is_err();
        self.0.stripes.iter().for_each(Stripe::close);
        if !over {
            // A nested call may have entered between the count and `close`: its outer call spawned it and has ended.
            over = timeout_at(until, self.emptied()).await.is_err();
        }
        let leftovers = if over { self.in_flight() } else { 0 };
        if leftovers > 0 {
            self.0.stripes.iter().for_each(Stripe::cancel);
            let _ = timeout_at(Instant::now() + UNWIND_TIME, self.emptied()).await;
        }
        let stuck = if over { self.in_flight() } else { 0 };
        Drained { in_flight, leftovers, stuck, elapsed: start.elapsed() }
    }

    /// Waits until no call is in flight, once the gate drains.
    async fn emptied(&self) {
        loop {
            let mut emptied = pin!(self.0.emptied.notified());
            emptied.as_mut().enable(); // before the count, so that no notification is missed
            if self.in_flight() == 0 {
                return;
            }
            emptied.await;
        }
    }

    /// Admits a call made under `current`; none if it is rejected.
    #[inline]
    pub(crate) fn admit(&self, current: Context) -> Option<GateTicket> {
        let stripes = &self.0.stripes;
        let index = stripes.index();
        stripes.get(index).enter(current.is_inside(self.id())).then(|| GateTicket::of(index as u16))
    }

    /// Whether the call is cancelled; if not, the task is woken when it is.
    pub(crate) fn poll_cancelled(&self, ticket: &GateTicket, cx: &task::Context<'_>) -> bool {
        let cancelled = self.stripe(ticket).poll_cancelled(&ticket.waker_slot, cx.waker());
        if cancelled {
            ticket.cancelled.store(true, Ordering::Relaxed);
        }
        cancelled
    }

    /// Counts a call out, and releases its waker slot.
    #[inline]
    pub(crate) fn leave(&self, ticket: &mut GateTicket) {
        let stripe = self.stripe(ticket);
        stripe.release_waker(*ticket.waker_slot.get_mut());
        if stripe.leave() {
            self.0.emptied.notify_waiters();
        }
        ticket.stripe = NO_STRIPE;
    }

    pub(crate) fn rejection(&self) -> Rejection {
        Rejection::new(RejectionCode::Draining).retry_in(self.0.retry_after)
    }

    /// Returns the mark in the context of tasks inside the gate.
    pub(crate) fn id(&self) -> u32 {
        self.0.id
    }

    fn stripe(&self, ticket: &GateTicket) -> &Stripe {
        self.0.stripes.get(usize::from(ticket.stripe))
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

/// The stripe of a call that did not enter a gate.
const NO_STRIPE: u16 = u16::MAX;

/// A call's admission by a gate: the stripe that counts it, and the slot of its waker while it waits. Atomic only so that
/// the future that holds it can change threads.
#[derive(Debug)]
pub(crate) struct GateTicket {
    stripe: u16,
    cancelled: AtomicBool,
    waker_slot: AtomicU32,
}

impl GateTicket {
    /// The ticket of a call that did not enter a gate.
    #[inline]
    pub(crate) const fn none() -> Self {
        Self::of(NO_STRIPE)
    }

    const fn of(stripe: u16) -> Self {
        Self { stripe, cancelled: AtomicBool::new(false), waker_slot: AtomicU32::new(NO_WAKER) }
    }

    #[inline]
    pub(crate) const fn is_held(&self) -> bool {
        self.stripe != NO_STRIPE
    }

    /// Whether the call has seen that it is cancelled.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}

/// The ticket of work in [`Gate::run`], given back on drop.
struct HeldTicket<'a> {
    gate: &'a Gate,
    ticket: GateTicket,
}

impl Drop for HeldTicket<'_> {
    fn drop(&mut self) {
        self.gate.leave(&mut self.ticket);
    }
}

/// The gate of an engine: empty until a runtime attaches one. Reading it costs one load.
#[derive(Clone, Debug, Default)]
pub(crate) struct GateCell(Arc<OnceLock<Gate>>);

impl GateCell {
    #[inline]
    pub(crate) fn get(&self) -> Option<&Gate> {
        self.0.get()
    }

    /// Attaches a gate, unless one is attached already. Returns whether this gate is the attached one.
    pub(crate) fn attach(&self, gate: &Gate) -> bool {
        self.0.get_or_init(|| gate.clone()) == gate
    }
}

#[cfg(all(test, not(phalanx_model)))]
mod tests;
