//! The slots of one key: a share that this replica leases from the fleet, in which calls are admitted without a round trip.
//!
//! What is asked for and when is decided by core (`ShareHolder`); this file sends it. A call that finds the share used up joins
//! the callers of the next request; there is one request at a time. While anything is held, the background task renews it
//! (`background/slots.rs`). After a rejection the replica does not ask again for some milliseconds. Without Redis it admits
//! calls within its last share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Waker;
use std::time::Duration;

use parking_lot::Mutex;
use phalanx_core::clock::Time;
use phalanx_core::event::EventKind;
use phalanx_core::key::StateKey;
use phalanx_core::rejection::Source;
use phalanx_core::slots::ShareReply;
use phalanx_core::slots::share::{LEASE, SentRequest, ShareHolder, SlotShare};
use phalanx_core::store::SlotReply;
use phalanx_core::table::{Entry, Retention};
use phalanx_lua as lua;
use tokio::time::Instant;

use crate::batch::{Batch, BatchRequest, Batches, Coalesce, Joined, PendingRequest};
use crate::dispatcher::{BatchSource, Dispatcher, InlineRequest, Outgoing, Queued, ScriptResult, Urgency};
use crate::invocation::integers;
use crate::keys::{Key, Kind};
use crate::store::inner::StoreInner;

/// How long a replica does not ask again after a rejection: at least the first, and so much for each live replica. A random
/// time of the same length is added, so that no replica is always the first to ask.
const MIN_PAUSE: Duration = Duration::from_millis(20);
const PAUSE_PER_REPLICA: Duration = Duration::from_millis(1);

/// How soon the background task looks again while Redis is away, or a request has no reply yet.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// The slots of one key: this replica's handle to the shared state.
#[derive(Clone, Debug)]
pub struct SharedSlots(pub(crate) Arc<Shared>);

#[derive(Debug)]
pub(crate) struct Shared {
    store: Arc<StoreInner>,
    key: StateKey,
    redis_key: Key,
    /// This cell among the holders of the fleet.
    id: u64,
    queued: Queued,
    share: SlotShare,
    /// Until when calls are rejected without asking, in microseconds.
    rejected_until: AtomicU64,
    /// Whether the background task looks after the share.
    noted: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    holder: ShareHolder,
    /// Callers that wait for the next request.
    batches: Batches<Request, Option<SlotReply>>,
    /// How often the server had lost its data when the last request was made.
    losses: u64,
}

type SlotBatch = Batch<Request, Option<SlotReply>>;

/// A request for one slot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Request {
    wanted: bool,
}

impl BatchRequest for Request {
    const CANCELLED: Self = Self { wanted: false };
}

impl Entry for SharedSlots {
    /// Calls in flight give their slots back here, and a share would be held twice.
    fn retention(&self) -> Retention {
        let is_idle = self.0.share.in_use() == 0 && self.0.share.share() == 0;
        if is_idle { Retention::Disposable } else { Retention::Pinned }
    }
}

impl SharedSlots {
    pub(crate) fn new(store: Arc<StoreInner>, key: &StateKey, cap: u32) -> Self {
        let redis_key = store.keys.of(Kind::Slots, key);
        let state = State { holder: ShareHolder::new(cap), batches: Batches::default(), losses: 0 };
        Self(Arc::new(Shared {
            key: key.clone(),
            redis_key,
            id: store.identity.next() >> 11, // 53 bits, exact in a double
            queued: Queued::default(),
            share: SlotShare::default(),
            rejected_until: AtomicU64::new(0),
            noted: AtomicBool::new(false),
            state: Mutex::new(state),
            store,
        }))
    }

    /// The key in Redis, by which cells are ordered.
    pub(crate) fn redis_key(&self) -> &str {
        &self.0.redis_key.text
    }

    pub(crate) fn retune(&self, cap: u32) {
        self.0.state.lock().holder.retune(cap);
    }

    /// Decides without a round trip: within the share, for some milliseconds after a rejection, and while degraded.
    #[inline]
    pub fn take_now(&self, now: Time) -> Option<SlotReply> {
        let shared = &self.0;
        let now = shared.store.lease_time(now);
        if shared.share.enter(now) {
            return Some(SlotReply { is_granted: true, source: Source::Leased });
        }
        if shared.dispatcher().latch.is_down() {
            return Some(shared.take_degraded());
        }
        let is_rejected = now.as_micros() < shared.rejected_until.load(Ordering::Relaxed);
        is_rejected.then_some(SlotReply { is_granted: false, source: Source::Fleet })
    }

    /// Takes a slot, in one round trip with all concurrent callers of the key.
    pub async fn take(&self) -> SlotReply {
        self.0.store.ensure_background();
        match PendingRequest::new(&self.0, Request { wanted: true }).await.flatten() {
            Some(reply) => {
                self.0.dispatcher().latch.count_shared_decision();
                reply
            }
            None => self.0.take_degraded(),
        }
    }

    /// Returns a slot.
    #[inline]
    pub fn give_back(&self) {
        self.0.share.leave();
    }
}

impl Shared {
    fn dispatcher(&self) -> &Arc<Dispatcher> {
        self.store.dispatcher(self.redis_key.slot)
    }

    /// Decides by the last share.
    fn take_degraded(self: &Arc<Self>) -> SlotReply {
        self.dispatcher().count_degraded_decision();
        let most = {
            let mut state = self.state.lock();
            // What runs without a share is reported as soon as Redis answers.
            state.holder.hurry(self.store.lease_now());
            state.holder.degraded_share(self.store.degraded_sharers())
        };
        self.note();
        SlotReply { is_granted: self.share.enter_without_lease(most), source: Source::Degraded }
    }

    /// Lets the background task look after the share.
    fn note(self: &Arc<Self>) {
        if !self.noted.swap(true, Ordering::Relaxed) {
            self.store.background.slots.note_use(self);
            self.store.background.share_taken.notify_one();
        }
    }

    /// Queues this cell for the next round trip. The store budget applies to renewals too: callers may wait behind one.
    fn enqueue(self: &Arc<Self>) {
        if self.queued.mark(Urgency::Caller) {
            self.dispatcher().enqueue(self.clone(), Urgency::Caller);
        }
    }

    /// Renews the share if that is due. Returns after what time to look again; `None` if nothing is held. With `hand_back`,
    /// hands back what is not in use.
    pub(crate) fn tick(self: &Arc<Self>, hand_back: bool) -> Option<Duration> {
        self.noted.store(false, Ordering::Relaxed);
        let now = self.store.lease_now();
        let (due, is_waiting) = {
            let mut state = self.state.lock();
            let losses = self.store.state_losses.load(Ordering::Relaxed);
            if state.losses != losses && state.holder.due().is_some() {
                state.holder.hurry(now);
            }
            if hand_back && state.holder.due().is_some() {
                state.holder.forget_demand(&self.share);
                state.holder.hurry(now);
            }
            (state.holder.due(), state.holder.is_waiting())
        };
        let due = due?;
        if !self.noted.swap(true, Ordering::Relaxed) {
            self.store.background.slots.note_use(self);
        }
        if is_waiting || self.dispatcher().latch.is_down() {
            return Some(LOOK_AGAIN);
        }
        if due <= now {
            self.enqueue();
            return Some(LOOK_AGAIN);
        }
        Some(due.since(now))
    }

    /// Does not ask again for a moment.
    fn note_rejection(&self, now: Time) {
        let replicas = self.store.replicas.load(Ordering::Relaxed);
        let pause = MIN_PAUSE.max(PAUSE_PER_REPLICA.saturating_mul(replicas));
        let until = now.after(self.store.rng.between(pause, 2 * pause));
        self.rejected_until.store(until.as_micros(), Ordering::Relaxed);
    }

    fn complete(self: &Arc<Self>, sent: &SentRequest, waiting: &[(Arc<SlotBatch>, Vec<Request>)], reply: ScriptResult) {
        let now = self.store.lease_now();
        let reply = reply.ok().and_then(|value| decode(&integers(&value)));
        let (lapsed, is_decided, has_waiters) = {
            let mut state = self.state.lock();
            let lapsed = match &reply {
                Some((_, reply)) => state.holder.granted(&self.share, sent, reply),
                None => {
                    state.holder.failed(sent, now);
                    None
                }
            };
            let is_decided = reply.is_some_and(|(_, reply)| !reply.is_late);
            (lapsed, is_decided, !state.batches.is_empty())
        };
        for (batch, requests) in waiting {
            let decide = |request: &Request| {
                let is_granted = request.wanted && self.share.enter(now);
                is_decided.then_some(SlotReply { is_granted, source: Source::Fleet })
            };
            let replies: Vec<_> = requests.iter().map(decide).collect();
            let is_full = requests
                .iter()
                .zip(&replies)
                .any(|(request, reply)| request.wanted && reply.is_some_and(|reply| !reply.is_granted));
            if is_full {
                self.note_rejection(now);
            }
            for orphan in batch.complete(replies) {
                self.reclaim(orphan);
            }
        }
        if has_waiters {
            self.enqueue();
        }
        self.note();
        if let Some(calls) = lapsed {
            self.store.observers.emit(&self.key, EventKind::FleetShareLapsed { calls });
        }
        if reply.is_some_and(|(repaired, _)| repaired) {
            self.store.observers.emit(&self.key, EventKind::StateRepaired);
        }
    }
}

impl Coalesce for Shared {
    type Request = Request;
    type Reply = Option<SlotReply>;

    /// Never sent inline: the one request at a time must not depend on a caller that is polled.
    fn submit(self: &Arc<Self>, request: Request, waker: &Waker) -> (Joined<Self>, Option<InlineRequest>) {
        let (joined, is_waiting) = {
            let mut state = self.state.lock();
            (state.batches.join(request, waker), state.holder.is_waiting())
        };
        if !is_waiting {
            self.enqueue();
        }
        (joined, None)
    }

    fn reclaim(self: &Arc<Self>, reply: Option<SlotReply>) {
        if reply.is_some_and(|reply| reply.is_granted) {
            self.share.leave();
        }
    }
}

impl BatchSource for Shared {
    fn fill(self: Arc<Self>, outgoing: &mut Outgoing) {
        self.queued.clear();
        let (sent, waiting) = {
            let mut state = self.state.lock();
            if state.holder.is_waiting() {
                return; // its reply sends this cell again
            }
            let batches = state.batches.take();
            let waiting: Vec<_> = batches.into_iter().map(|batch| (batch.clone(), batch.close())).collect();
            let callers = waiting.iter().flat_map(|(_, requests)| requests).filter(|request| request.wanted).count();
            state.losses = self.store.state_losses.load(Ordering::Relaxed);
            let callers = u32::try_from(callers).unwrap_or(u32::MAX);
            (state.holder.request(&self.share, self.store.lease_now(), callers), waiting)
        };
        let opened = waiting.first().map_or_else(Instant::now, |(batch, _)| batch.opened);
        let mut call = self.store.invocation(&lua::SLOTS_SHARE, &[&self.redis_key]);
        let request = sent.request;
        call.arg(sent.cap).arg(self.id).arg(request.number).arg(request.keep).arg(request.want);
        call.arg(u32::from(request.is_asking)).arg(LEASE.as_micros() as u64);
        outgoing.add_waiting(opened, call, move |reply| self.complete(&sent, &waiting, reply));
    }
}

/// Decodes a reply of `slots_share.lua`: whether the record was repaired, and the share.
fn decode(reply: &[i64]) -> Option<(bool, ShareReply)> {
    let [_, flags, held, share, recorded, total, ..] = *reply else { return None };
    let slots = |number: i64| u32::try_from(number.max(0)).unwrap_or(u32::MAX);
    let reply = ShareReply {
        held: slots(held),
        share: slots(share),
        recorded: slots(recorded),
        is_late: flags & 2 != 0,
        total: total.max(0) as u64,
    };
    Some((flags & 1 != 0, reply))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_reply_is_decoded_with_what_follows_ignored() {
        let (repaired, reply) = decode(&[7, 3, 5, 4, 2, 9, 1]).unwrap();
        assert!(repaired && reply.is_late);
        assert_eq!((reply.held, reply.share, reply.recorded, reply.total), (5, 4, 2, 9));
        assert!(decode(&[7, 0, 5, 4, 2]).is_none());
    }

    proptest! {
        #[test]
        fn arbitrary_replies_never_raise_the_share_above_the_cap(
            numbers in prop::collection::vec(any::<i64>(), 0..9), cap in 1..100_u32,
        ) {
            let (share, mut holder) = (SlotShare::default(), ShareHolder::new(cap));
            let sent = holder.request(&share, Time::ZERO, 1);
            if let Some((_, reply)) = decode(&numbers) {
                holder.granted(&share, &sent, &reply);
                prop_assert!(share.share() <= cap);
            }
        }
    }
}
