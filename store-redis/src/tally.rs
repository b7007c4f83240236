//! A tally shared by the fleet: counted in this process, summed up in Redis, where marks are granted.
//!
//! Nothing is sent while all is well. A withdrawal is one round trip for all callers that arrived during the previous one;
//! it takes along what this replica has counted since the last one, slice by slice, and `tally_sync.lua` grants as many
//! marks as the counts of all replicas allow. After a rejection the replica does not ask again for some milliseconds. While
//! a throttle [watches](SharedTally::watch), the counts are sent and the fleet's window is read every `sync_interval`.
//!
//! Counts are sent once: after a reply that did not arrive it is unknown whether they were added, and a budget must not be
//! raised by the same calls twice. Without Redis this replica decides by its own counts, and by its share of the marks that
//! are always allowed; marks taken meanwhile are counts like others and are sent with the next call.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Waker;
use std::time::Duration;

use parking_lot::Mutex;
use phalanx_core::clock::Time;
use phalanx_core::event::EventKind;
use phalanx_core::key::StateKey;
use phalanx_core::rejection::Source;
use phalanx_core::store::{Addition, Allowance, Counts, TallyUse, Withdrawal};
use phalanx_core::table::{Entry, Retention};
use phalanx_core::tally::Tally;
use phalanx_lua as lua;

use crate::batch::{Batch, BatchRequest, Batches, Coalesce, Joined, PendingRequest};
use crate::dispatcher::{BatchSource, Dispatcher, InlineRequest, Outgoing, Queued, ScriptResult, Urgency};
use crate::failure::Failure;
use crate::invocation::integers;
use crate::keys::Key;
use crate::store::inner::StoreInner;

/// How long a replica does not ask again after a rejection: at least the first, and so much for each live replica. A random
/// time of the same length is added, so that no replica is always the first to ask.
const MIN_PAUSE: Duration = Duration::from_millis(10);
const PAUSE_PER_REPLICA: Duration = Duration::from_micros(200);

/// The timer of a hedge has this resolution.
const MIN_LEAD: Duration = Duration::from_millis(1);

/// Marks to put back that are remembered; further ones are lost, which only lowers the budget.
const MAX_PUT_BACK: usize = 256;

/// The tally of one key and use: this replica's handle to the shared state.
#[derive(Clone, Debug)]
pub struct SharedTally(pub(crate) Arc<Shared>);

#[derive(Debug)]
pub(crate) struct Shared {
    store: Arc<StoreInner>,
    key: StateKey,
    of: TallyUse,
    slot: u16,
    queued: Queued,
    /// Whether the next round of the sync loop visits this cell.
    noted: AtomicBool,
    /// Until when the fleet's window is read, in microseconds.
    watched_until: AtomicU64,
    /// Until when withdrawals are rejected without asking, in microseconds.
    rejected_until: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    redis_key: Key,
    /// What this replica has counted, with the marks that it was granted.
    own: Tally,
    /// What of that has been sent.
    sent: Tally,
    /// Callers that wait for the next round trip.
    batches: Batches<Request, Option<Withdrawal>>,
    /// Slices of the server's clock whose marks are to be put back, one entry for each mark.
    put_back: Vec<u64>,
    /// The fleet's window, as last read.
    read: Option<Window>,
}

type WithdrawalBatch = Batch<Request, Option<Withdrawal>>;

/// A request for one mark.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Request {
    wanted: bool,
    allowance: Allowance,
}

impl BatchRequest for Request {
    const CANCELLED: Self = Self { wanted: false, allowance: Allowance { per_call: 0.0, floor: 0.0 } };
}

/// What one call carries: additions by the slice of this replica's clock, and slices of the server's clock.
#[derive(Debug)]
struct Unsent {
    slice_micros: u64,
    additions: Vec<(u64, i64, i64)>,
    put_back: Vec<u64>,
}

/// The fleet's window at one moment.
#[derive(Debug)]
struct Window {
    at: Time,
    server_now: u64,
    slice_micros: u64,
    slices: Vec<(u64, Counts)>,
}

/// A reply of `tally_sync.lua`.
struct Reply {
    repaired: bool,
    slice: u64,
    granted: u64,
    window: Window,
}

impl Entry for SharedTally {
    /// Redis keeps what was sent, and the rest is counted again within one window.
    fn retention(&self) -> Retention {
        let empty = self.0.state.lock().own.sum(self.0.store.clock.now()) == Counts::default();
        if empty { Retention::Disposable } else { Retention::Relearnable }
    }
}

impl SharedTally {
    pub(crate) fn new(store: Arc<StoreInner>, key: &StateKey, of: TallyUse, window: Duration) -> Self {
        let own = Tally::new(window);
        let redis_key = store.keys.tally(of, key, own.slice_micros());
        Self(Arc::new(Shared {
            key: key.clone(),
            of,
            slot: redis_key.slot,
            queued: Queued::default(),
            noted: AtomicBool::new(false),
            watched_until: AtomicU64::new(0),
            rejected_until: AtomicU64::new(0),
            state: Mutex::new(State {
                redis_key,
                sent: own.clone(),
                own,
                batches: Batches::default(),
                put_back: Vec::new(),
                read: None,
            }),
            store,
        }))
    }

    /// The key, by which rounds are ordered.
    pub(crate) fn id(&self) -> String {
        self.0.state.lock().redis_key.text.clone()
    }

    pub(crate) fn retune(&self, window: Duration) {
        let mut state = self.0.state.lock();
        if state.own.window() != window {
            state.own.retune(window);
            state.sent.retune(window);
            state.redis_key = self.0.store.keys.tally(self.0.of, &self.0.key, state.own.slice_micros());
            state.read = None;
            state.put_back.clear();
        }
    }

    /// Counts calls and marks of this replica.
    pub fn add(&self, now: Time, addition: Addition) {
        self.0.state.lock().own.add(now, addition);
    }

    /// Keeps the sum close to the fleet's for one window from now.
    pub fn watch(&self, now: Time) {
        let window = self.0.state.lock().own.window();
        self.0.watched_until.fetch_max(now.after(window).as_micros(), Ordering::Relaxed);
        self.0.store.ensure_background();
        self.0.note();
    }

    /// Returns the sums of the fleet's window, as last read, and of what was not sent yet; while the tally is not watched, or
    /// without Redis, those of this replica.
    pub fn sum(&self, now: Time) -> Counts {
        let mut state = self.0.state.lock();
        if self.0.is_degraded() || !self.0.is_watched(now) {
            state.read = None;
        }
        let State { own, sent, read, .. } = &mut *state;
        let Some(read) = read else { return own.sum(now) };
        let (fleet, own, sent) = (read.sum(now), own.sum(now), sent.sum(now));
        let unsent = |own: u64, sent: u64| (own as i64).saturating_sub(sent as i64);
        Counts {
            calls: fleet.calls.saturating_add_signed(unsent(own.calls, sent.calls)),
            marks: fleet.marks.saturating_add_signed(unsent(own.marks, sent.marks)),
        }
    }

    /// Decides without a round trip: always while degraded, and for some milliseconds after a rejection.
    pub fn withdraw_now(&self, now: Time, allowance: Allowance) -> Option<Withdrawal> {
        if self.0.is_degraded() {
            return Some(self.0.withdraw_degraded(now, allowance));
        }
        let rejected = now.as_micros() < self.0.rejected_until.load(Ordering::Relaxed);
        rejected.then_some(Withdrawal { granted: false, source: Source::Fleet, slice: 0 })
    }

    /// Takes a mark, in one round trip with all concurrent callers of the key.
    pub async fn withdraw(&self, now: Time, allowance: Allowance) -> Withdrawal {
        self.0.store.ensure_background();
        match PendingRequest::new(&self.0, Request { wanted: true, allowance }).await.flatten() {
            Some(withdrawal) => {
                self.0.dispatcher().latch.count_shared_decision();
                withdrawal
            }
            None => self.0.withdraw_degraded(now.max(self.0.store.clock.now()), allowance),
        }
    }

    /// Puts back a mark, in the background.
    pub fn put_back(&self, withdrawal: Withdrawal) {
        self.0.put_back(withdrawal);
    }

    /// Returns the time of a round trip.
    pub fn lead(&self) -> Duration {
        self.0.dispatcher().median_round_trip().max(MIN_LEAD)
    }
}

impl State {
    /// Takes what has been counted and not been sent; it counts as sent from here on.
    fn take_unsent(&mut self, now: Time) -> Unsent {
        let slice_micros = self.own.slice_micros();
        let mut additions = Vec::new();
        self.sent.sum(now); // moves the window
        for (slice, own) in self.own.slices(now) {
            let Some(sent) = self.sent.slice(slice) else { continue };
            let new = |own: u64, sent: u64| (own as i64).saturating_sub(sent as i64);
            let (calls, marks) = (new(own.calls, sent.calls), new(own.marks, sent.marks));
            if (calls, marks) != (0, 0) {
                additions.push((slice, calls, marks));
                *sent = own;
            }
        }
        Unsent { slice_micros, additions, put_back: std::mem::take(&mut self.put_back) }
    }

    /// Takes back what was certainly not sent.
    fn restore(&mut self, unsent: Unsent) {
        if self.own.slice_micros() != unsent.slice_micros {
            return;
        }
        for (slice, calls, marks) in unsent.additions {
            if let Some(sent) = self.sent.slice(slice) {
                sent.calls = sent.calls.saturating_add_signed(calls.saturating_neg());
                sent.marks = sent.marks.saturating_add_signed(marks.saturating_neg());
            }
        }
        self.put_back.extend(unsent.put_back);
        self.put_back.truncate(MAX_PUT_BACK);
    }

    fn has_unsent(&mut self, now: Time) -> bool {
        self.sent.sum(now);
        let mut slices = self.own.slices(now);
        !self.put_back.is_empty() || slices.any(|(slice, own)| self.sent.slice(slice).is_some_and(|sent| *sent != own))
    }
}

impl Window {
    /// Sums the slices that are inside the window at `now`.
    fn sum(&self, now: Time) -> Counts {
        let server_now = self.server_now.saturating_add(now.since(self.at).as_micros() as u64);
        let present = server_now / self.slice_micros.max(1);
        let inside = self.slices.iter().filter(|(slice, _)| slice.saturating_add(SLICES) > present);
        inside.fold(Counts::default(), |sum, (_, counts)| Counts {
            calls: sum.calls.saturating_add(counts.calls),
            marks: sum.marks.saturating_add(counts.marks),
        })
    }
}

impl Reply {
    fn decode(reply: &[i64], at: Time, slice_micros: u64) -> Option<Self> {
        let [server_now, flags, slice, granted, slices @ ..] = reply else { return None };
        let number = |n: &i64| u64::try_from(*n).unwrap_or(0);
        let counts = |part: &[i64]| match part {
            [slice, calls, marks] => Some((number(slice), Counts { calls: number(calls), marks: number(marks) })),
            _ => None,
        };
        let slices = slices.chunks(3).take(SLICES as usize).filter_map(counts).collect();
        Some(Self {
            repaired: flags & 1 != 0,
            slice: number(slice),
            granted: number(granted),
            window: Window { at, server_now: number(server_now), slice_micros, slices },
        })
    }
}

/// Slices of a window.
const SLICES: u64 = phalanx_core::estimate::ring::SLICES as u64;

impl Shared {
    fn dispatcher(&self) -> &Arc<Dispatcher> {
        self.store.dispatcher(self.slot)
    }

    pub(crate) fn is_degraded(&self) -> bool {
        self.dispatcher().latch.is_down()
    }

    fn is_watched(&self, now: Time) -> bool {
        now.as_micros() < self.watched_until.load(Ordering::Relaxed)
    }

    /// Notes this cell for the next round of the sync loop.
    fn note(self: &Arc<Self>) {
        if !self.noted.load(Ordering::Relaxed) && !self.noted.swap(true, Ordering::Relaxed) {
            self.store.background.tallies.note_use(self);
        }
    }

    /// One round of the sync loop: sends and reads while watched. With `flush_all`, also what else is not sent.
    pub(crate) fn tick(self: &Arc<Self>, flush_all: bool) {
        self.noted.store(false, Ordering::Relaxed);
        let now = self.store.clock.now();
        let watched = self.is_watched(now);
        if watched {
            self.note(); // until a window passes without trouble
        }
        let unsent = flush_all && self.state.lock().has_unsent(now);
        if (watched || unsent) && !self.is_degraded() {
            self.enqueue(Urgency::Background);
        }
    }

    fn enqueue(self: &Arc<Self>, urgency: Urgency) {
        if self.queued.mark(urgency) {
            self.dispatcher().enqueue(self.clone(), urgency);
        }
    }

    /// Decides by this replica's own counts and its share.
    fn withdraw_degraded(&self, now: Time, allowance: Allowance) -> Withdrawal {
        self.dispatcher().count_degraded_decision();
        let share = allowance.share(self.store.degraded_sharers());
        let (granted, slice) = self.state.lock().own.withdraw(now, 1, share);
        Withdrawal { granted: granted > 0, source: Source::Degraded, slice }
    }

    fn put_back(self: &Arc<Self>, withdrawal: Withdrawal) {
        if !withdrawal.granted {
            return;
        }
        {
            let mut state = self.state.lock();
            if withdrawal.source == Source::Degraded {
                let now = self.store.clock.now();
                return state.own.put_back(now, withdrawal.slice, 1);
            }
            if state.put_back.len() < MAX_PUT_BACK {
                state.put_back.push(withdrawal.slice);
            }
        }
        self.rejected_until.store(0, Ordering::Relaxed);
        if !self.is_degraded() {
            self.enqueue(Urgency::Background);
        }
    }

    /// Does not ask again for a moment.
    fn note_rejection(&self, now: Time) {
        let replicas = self.store.replicas.load(Ordering::Relaxed);
        let pause = MIN_PAUSE.max(PAUSE_PER_REPLICA.saturating_mul(replicas));
        let until = now.after(self.store.rng.between(pause, 2 * pause));
        self.rejected_until.store(until.as_micros(), Ordering::Relaxed);
    }

    /// Adds the call of one batch, or of none.
    fn fill_call(self: &Arc<Self>, outgoing: &mut Outgoing, batch: Option<Arc<WithdrawalBatch>>) {
        let now = self.store.clock.now();
        let requests = batch.as_ref().map_or_else(Vec::new, |batch| batch.close());
        let wanted = requests.iter().filter(|request| request.wanted).count();
        // Requests differ only if the policy has just changed.
        let allowance = requests.iter().rfind(|request| request.wanted).map_or(Allowance::default(), |it| it.allowance);
        let (mut call, unsent) = {
            let mut state = self.state.lock();
            let unsent = state.take_unsent(now);
            (self.store.invocation(&lua::TALLY_SYNC, &[&state.redis_key]), unsent)
        };
        call.arg(unsent.slice_micros).arg(wanted).arg(allowance.per_call).arg(allowance.floor);
        call.arg(unsent.additions.len()).arg(unsent.put_back.len());
        for (slice, calls, marks) in &unsent.additions {
            let age = now.as_micros().saturating_sub(slice.saturating_mul(unsent.slice_micros));
            call.arg(age).arg(*calls).arg(*marks);
        }
        for slice in &unsent.put_back {
            call.arg(*slice);
        }
        let (shared, opened) = (self.clone(), batch.as_ref().map(|batch| batch.opened));
        let complete = move |reply| shared.complete(batch.as_deref(), &requests, unsent, reply);
        match opened {
            Some(opened) => outgoing.add_waiting(opened, call, complete),
            None => outgoing.add(call, complete),
        }
    }

    fn complete(
        self: &Arc<Self>,
        batch: Option<&WithdrawalBatch>,
        requests: &[Request],
        unsent: Unsent,
        reply: ScriptResult,
    ) {
        let (now, slice_micros) = (self.store.clock.now(), unsent.slice_micros);
        let not_sent = matches!(reply, Err(Failure::NotSent));
        let reply = reply.ok().and_then(|value| Reply::decode(&integers(&value), now, slice_micros));
        let Some(Reply { repaired, slice, granted, window }) = reply else {
            if not_sent {
                self.state.lock().restore(unsent);
            }
            // It is unknown whether marks were taken: each caller decides alone, and what Redis took is lost.
            if let Some(batch) = batch {
                batch.complete(vec![None; requests.len()]);
            }
            return;
        };
        let wanted = requests.iter().filter(|request| request.wanted).count() as u64;
        let granted = granted.min(wanted);
        {
            let mut state = self.state.lock();
            if state.own.slice_micros() == slice_micros {
                let taken = Addition { at: now, calls: 0, marks: granted as i64 };
                state.own.add(now, taken);
                state.sent.add(now, taken);
                state.read = Some(window);
            }
        }
        if granted < wanted {
            self.note_rejection(now);
        }
        let mut left = granted;
        let withdrawals = requests.iter().map(|request| {
            let granted = request.wanted && left > 0;
            left -= u64::from(granted);
            Some(Withdrawal { granted, source: Source::Fleet, slice })
        });
        if let Some(batch) = batch {
            for orphan in batch.complete(withdrawals.collect()) {
                self.reclaim(orphan);
            }
        }
        if repaired {
            self.store.observers.emit(&self.key, EventKind::StateRepaired);
        }
    }
}

impl Coalesce for Shared {
    type Request = Request;
    type Reply = Option<Withdrawal>;

    fn submit(self: &Arc<Self>, request: Request, waker: &Waker) -> (Joined<Self>, Option<InlineRequest>) {
        if let Some(trip) = self.dispatcher().try_inline() {
            let batch = Arc::new(Batch::new());
            let index = batch.join(request, Waker::noop()).unwrap_or(0);
            let mut outgoing = Outgoing::default();
            self.fill_call(&mut outgoing, Some(batch.clone()));
            return ((batch, index), Some(trip.send(outgoing)));
        }
        let joined = self.state.lock().batches.join(request, waker);
        self.enqueue(Urgency::Caller);
        (joined, None)
    }

    fn reclaim(self: &Arc<Self>, withdrawal: Option<Withdrawal>) {
        if let Some(withdrawal) = withdrawal {
            self.put_back(withdrawal);
        }
    }
}

impl BatchSource for Shared {
    fn fill(self: Arc<Self>, outgoing: &mut Outgoing) {
        self.queued.clear();
        let batches = self.state.lock().batches.take();
        if batches.is_empty() {
            self.fill_call(outgoing, None);
        }
        for batch in batches {
            self.fill_call(outgoing, Some(batch));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SLICE: u64 = 1_000_000;

    fn at(millis: u64) -> Time {
        Time::from_micros(millis * 1_000)
    }

    #[test]
    fn the_window_of_a_reply_slides_on_with_this_replicas_clock() {
        let reply = [25_300_000, 0, 25, 0, 16, 5, 1, 25, 2, 0];
        let window = Reply::decode(&reply, at(700), SLICE).unwrap().window;
        assert_eq!(window.sum(at(700)), Counts { calls: 7, marks: 1 });
        assert_eq!(window.sum(at(1_399)), Counts { calls: 7, marks: 1 });
        assert_eq!(window.sum(at(1_400)), Counts { calls: 2, marks: 0 }, "the server's slice 26 began");
        assert_eq!(window.sum(at(10_400)), Counts::default());
    }

    #[test]
    fn counts_are_sent_once_and_again_only_if_they_were_certainly_not_sent() {
        let window = Duration::from_secs(10);
        let redis_key = Key { text: String::new(), id: String::new(), partition: 0, slot: 0 };
        let (own, sent) = (Tally::new(window), Tally::new(window));
        let mut state = State { redis_key, own, sent, batches: Batches::default(), put_back: vec![3], read: None };
        let calls = |at, calls| Addition { at, calls, marks: 0 };
        state.own.add(at(500), calls(at(500), 4));
        let unsent = state.take_unsent(at(500));
        assert_eq!((&unsent.additions[..], &unsent.put_back[..]), (&[(0, 4, 0)][..], &[3][..]));
        assert!(!state.has_unsent(at(500)) && state.take_unsent(at(500)).additions.is_empty());
        state.own.add(at(1_500), calls(at(1_500), 2));
        state.own.add(at(1_500), calls(at(500), -1));
        state.restore(unsent);
        let again = state.take_unsent(at(1_500));
        assert_eq!((&again.additions[..], &again.put_back[..]), (&[(0, 3, 0), (1, 2, 0)][..], &[3][..]));
        state.own.add(at(1_600), calls(at(500), -1));
        assert_eq!(state.take_unsent(at(1_600)).additions, [(0, -1, 0)]);
    }

    proptest! {
        #[test]
        fn arbitrary_replies_are_decoded_without_panic(
            numbers in prop::collection::vec(any::<i64>(), 0..50), read_at in any::<u64>(), now in any::<u64>(), length in any::<u64>(),
        ) {
            if let Some(reply) = Reply::decode(&numbers, Time::from_micros(read_at), length) {
                prop_assert!(reply.window.slices.len() <= SLICES as usize);
                reply.window.sum(Time::from_micros(now));
            }
        }
    }
}
