//! Leased permits of a bucket: blocks that this replica draws ahead of its callers, who then pay a compare-and-swap.
//!
//! What to draw and when is decided by core (`LeaseHolder`); this file sends it. A request for a block is behind the callers
//! in the same round trip, so that they are served first, or alone when the present block has become low. The time of a
//! request is read before it is sent, and the time of a call after its last await, by a clock that nothing sets. Without
//! Redis a block is spent until it ends; then the twin decides.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use phalanx_core::clock::Time;
use phalanx_core::rate_limit::{ClosedBlock, Drawn, LeaseTally, Level, Rate, Spent, Take};
use phalanx_core::rejection::Source;
use phalanx_core::store::Grant;
use phalanx_lua as lua;

use super::exhausted::Exhausted;
use super::{Shared, SharedBucket, State, clamp_level};
use crate::dispatcher::{Outgoing, ScriptResult};
use crate::invocation::integers;

/// The longest lease that a reply can name.
const MAX_LEASE: Duration = Duration::from_millis(200);

/// What is sent for the leases of a bucket.
struct LeaseRequest {
    rate: Rate,
    /// Permits to draw; 0 if only blocks are closed.
    want: u64,
    closed: Vec<ClosedBlock>,
    sent: Time,
}

impl SharedBucket {
    /// Returns the permits that are leased and not spent.
    pub(crate) fn leased(&self) -> u64 {
        self.0.state.lock().leases.held(&self.0.block)
    }

    /// Gives all leased permits back and leases no more.
    pub(crate) fn close_leases(&self) {
        self.0.is_leased.store(false, Ordering::Relaxed);
        self.0.state.lock().leases.freeze(&self.0.block);
        self.0.report_closed();
    }
}

impl Shared {
    /// Grants leased permits.
    #[inline]
    pub(super) fn spend_leased(self: &Arc<Self>, now: Time, cost: u32) -> Option<Grant> {
        let now = self.store.lease_time(now);
        let spent = match self.block.spend(now, cost) {
            Some(spent) => spent,
            None => self.spend_next(now, cost)?,
        };
        if spent.is_low {
            self.draw_more();
        }
        let left = Level { units: spent.left.into(), price: 1 };
        let take = Take::Granted { wait: Duration::ZERO };
        Some(Grant { take, left, source: Source::Leased, due: spent.drawn_at })
    }

    #[cold]
    fn spend_next(&self, now: Time, cost: u32) -> Option<Spent> {
        self.state.lock().leases.spend_next(&self.block, now, cost)
    }

    /// Sends a request for another block, if one is worth sending.
    #[cold]
    fn draw_more(self: &Arc<Self>) {
        if !self.store.dispatcher(self.redis_key.slot).latch.is_down() {
            self.enqueue();
        }
    }

    /// Puts permits back into the block which was drawn at this time. Returns whether it is still there.
    pub(super) fn put_back_leased(&self, cost: u32, drawn_at: Time) -> bool {
        self.state.lock().leases.put_back(&self.block, self.store.lease_now(), cost, drawn_at)
    }

    /// Adds the request for a block, and the blocks to close, if there are any.
    pub(super) fn fill_lease(self: &Arc<Self>, outgoing: &mut Outgoing) {
        let Some(request) = self.lease_request() else { return };
        let LeaseRequest { rate, want, closed, .. } = &request;
        let mut call = self.store.invocation(&lua::RATE_LIMIT_LEASE, &[&self.redis_key]);
        call.arg(rate.gain).arg(rate.price).arg(rate.capacity).arg(*want).arg(closed.len());
        for block in closed {
            call.arg(block.ends.as_micros()).arg(block.size).arg(block.unspent);
        }
        let shared = self.clone();
        outgoing.add(call, move |reply| shared.complete_lease(&request, reply));
    }

    fn lease_request(&self) -> Option<LeaseRequest> {
        let mut state = self.state.lock();
        let State { rate, uncharged, leases, .. } = &mut *state;
        // What was granted without Redis is charged by a caller's request first.
        let draws = self.is_leased.load(Ordering::Relaxed) && uncharged.permits(*rate) == 0;
        if !draws && !leases.has_closed() {
            return None;
        }
        let round_trip = self.store.dispatcher(self.redis_key.slot).median_round_trip();
        let sent = self.store.lease_now();
        let want = if draws { leases.draw(&self.block, sent, *rate, round_trip).unwrap_or(0) } else { 0 };
        let closed = leases.take_closed();
        (want > 0 || !closed.is_empty()).then_some(LeaseRequest { rate: *rate, want, closed, sent })
    }

    fn complete_lease(self: &Arc<Self>, request: &LeaseRequest, reply: ScriptResult) {
        let LeaseRequest { rate, want, closed, sent } = request;
        let integers = reply.map_or_else(|_| Vec::new(), |value| integers(&value));
        self.note_reply(*rate, &integers);
        let mut state = self.state.lock();
        let before = state.leases.tally();
        let micros = |number: i64| u64::try_from(number).unwrap_or(0);
        match integers[..] {
            [at, level, _, permits, ends, lasts, ..] => {
                state.leases.reported(closed, true);
                let lasts = Duration::from_micros(micros(lasts)).min(MAX_LEASE);
                let drawn = Drawn { permits: micros(permits), ends: Time::from_micros(micros(ends)), lasts };
                let drawn = (Time::from_micros(micros(at)), drawn);
                self.take_block(&mut state, *rate, (*sent, *want), drawn, clamp_level(level, *rate));
            }
            // What the request has drawn is never spent, and what it has closed is not closed again.
            _ => {
                state.leases.reported(closed, false);
                state.leases.draw_failed();
            }
        }
        self.store.leases.add(before, state.leases.tally());
        let (holds, has_closed) = (state.leases.holds(), state.leases.has_closed());
        drop(state);
        if holds {
            self.note_lease();
        }
        if has_closed {
            self.report_closed();
        }
    }

    /// Takes the block that was drawn. If that emptied the bucket, calls are rejected until it is worth asking again; if
    /// draws are paused for a large cost, calls ask the bucket.
    fn take_block(
        &self,
        state: &mut State,
        rate: Rate,
        request @ (_, want): (Time, u64),
        drawn: (Time, Drawn),
        level: i64,
    ) {
        if want == 0 {
            return;
        }
        let now = self.store.lease_now();
        let chance = self.store.rng.unit();
        let paused = state.leases.drawn(&self.block, now, rate, request, drawn, level, chance);
        if state.rate != rate || !self.is_leased.load(Ordering::Relaxed) {
            state.leases.freeze(&self.block);
        } else if let Some(until) = paused.filter(|_| level < rate.price as i64) {
            let at = self.store.clock.now();
            let exhausted = Exhausted::paused(level, at, at.after(until.since(now)));
            self.exhausted_until.store(exhausted.ends().as_micros(), Ordering::Relaxed);
            state.exhausted = Some((self.store.state_losses.load(Ordering::Relaxed), exhausted));
        }
    }

    /// Lets the background task look after the blocks, and after charges.
    pub(super) fn note_lease(self: &Arc<Self>) {
        if !self.lease_noted.swap(true, Ordering::Relaxed) {
            self.store.background.leases.note_use(self);
            self.store.background.lease_drawn.notify_one();
        }
    }

    /// Closes blocks that have ended, or that are not needed any more, and repeats charges that have not arrived. Returns after
    /// what time to do so again; `None` without both.
    pub(crate) fn tick_leases(self: &Arc<Self>) -> Option<Duration> {
        let now = self.store.lease_now();
        self.lease_noted.store(false, Ordering::Relaxed);
        let (next, has_closed) = {
            let mut state = self.state.lock();
            let rate = state.rate;
            (state.leases.tick(&self.block, now, rate), state.leases.has_closed())
        };
        if has_closed {
            self.report_closed();
        }
        let next = next.map(|next| next.since(now)).into_iter().chain(self.repeat_charges()).min();
        if next.is_some() && !self.lease_noted.swap(true, Ordering::Relaxed) {
            self.store.background.leases.note_use(self);
        }
        next
    }

    /// Sends the blocks that were closed. Without Redis they are lost.
    fn report_closed(self: &Arc<Self>) {
        if !self.store.dispatcher(self.redis_key.slot).latch.is_down() {
            return self.enqueue();
        }
        let mut state = self.state.lock();
        let before = state.leases.tally();
        let closed = state.leases.take_closed();
        state.leases.reported(&closed, false);
        self.store.leases.add(before, state.leases.tally());
    }
}

/// The permits that a replica has leased.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeasedPermits {
    /// Leased and not spent.
    pub held: u64,
    /// Drawn from the fleet's buckets since the start.
    pub drawn: u64,
    /// Given back unspent since the start.
    pub returned: u64,
    /// Neither spent nor given back in time since the start: the fleet admitted fewer calls.
    pub expired: u64,
}

impl LeasedPermits {
    pub(crate) const fn new(held: u64, tally: LeaseTally) -> Self {
        Self { held, drawn: tally.drawn, returned: tally.returned, expired: tally.expired }
    }
}
