//! A token bucket shared by the fleet: exact, at one round trip for all callers that arrived during the previous one.
//!
//! Requests that arrive while a round trip is in flight form one batch. `rate_limit_acquire.lua` receives it as groups
//! of equal requests and grants the first k of each group. Refunds and retunes are sent in the background. If Redis
//! does not reply, the twin decides: this replica's share of the rate, starting from its share of the last known level,
//! never from a full bucket.

mod groups;
mod share;

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use parking_lot::Mutex;
use phalanx_core::clock::Time;
use phalanx_core::event::EventKind;
use phalanx_core::key::StateKey;
use phalanx_core::rate_limit::{MAX_UNITS, Rate, RateLimitSpec, Take};
use phalanx_core::rejection::Source;
use phalanx_core::store::{AcquireRequest, Grant, Level};
use phalanx_core::table::{Entry, Retention};
use phalanx_lua as lua;
use phalanx_store_memory::BucketCell;

use self::groups::{Group, Request, groups};
use self::share::share;
use crate::batch::{Batch, Batches, Coalesce, Joined, PendingRequest};
use crate::dispatcher::{BatchSource, InlineRequest, InlineTrip, Outgoing, Queued, ScriptResult, Urgency};
use crate::invocation::integers;
use crate::keys::{Key, Kind};
use crate::store::inner::StoreInner;

/// Refunds in one call of `rate_limit_refund.lua`.
const MAX_REFUNDS_PER_CALL: usize = 256;

/// The bucket of one key: this replica's handle to the shared state.
#[derive(Clone, Debug)]
pub struct SharedBucket(pub(crate) Arc<Shared>);

#[derive(Debug)]
pub(crate) struct Shared {
    store: Arc<StoreInner>,
    key: StateKey,
    redis_key: Key,
    queued: Queued,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    spec: RateLimitSpec,
    rate: Rate,
    /// The rate that Redis still stores, until the retune has been sent.
    previous_rate: Option<Rate>,
    /// Callers that wait for the next round trip.
    batches: Batches<Request, Option<Granted>>,
    refunds: Vec<Refund>,
    /// The level in the last reply.
    last_level: Option<i64>,
    /// The twin, and the number of the outage it was created in.
    twin: Option<(u64, Arc<BucketCell>)>,
}

type AcquireBatch = Batch<Request, Option<Granted>>;

/// The reply to one caller, and the cost that a refund would return.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Granted {
    grant: Grant,
    cost: u32,
}

#[derive(Clone, Copy, Debug)]
struct Refund {
    cost: u32,
    due: Time,
}

impl Entry for SharedBucket {
    /// Redis keeps the bucket. Eviction would lose requests that are queued here, and what a twin has granted meanwhile.
    fn retention(&self) -> Retention {
        let state = self.0.state.lock();
        let idle = state.batches.is_empty() && state.refunds.is_empty() && state.previous_rate.is_none();
        let own = if idle { Retention::Disposable } else { Retention::Relearnable };
        state.twin.as_ref().map_or(own, |(_, twin)| twin.retention().max(own))
    }
}

impl SharedBucket {
    pub(crate) fn new(store: Arc<StoreInner>, key: &StateKey, spec: &RateLimitSpec) -> Self {
        let redis_key = store.keys.of(Kind::Bucket, key);
        let state = State {
            spec: spec.clone(),
            rate: Rate::of(spec),
            previous_rate: None,
            batches: Batches::default(),
            refunds: Vec::new(),
            last_level: None,
            twin: None,
        };
        Self(Arc::new(Shared {
            store,
            key: key.clone(),
            redis_key,
            queued: Queued::default(),
            state: Mutex::new(state),
        }))
    }

    pub(crate) fn retune(&self, spec: &RateLimitSpec) {
        {
            let mut state = self.0.state.lock();
            if state.spec == *spec {
                return;
            }
            let old = std::mem::replace(&mut state.rate, Rate::of(spec));
            state.spec = spec.clone();
            if old == state.rate {
                return;
            }
            state.previous_rate.get_or_insert(old);
            state.twin = None;
        }
        self.0.enqueue();
    }

    /// Decides without a round trip: always while degraded, never otherwise.
    pub fn acquire_now(&self, now: Time, request: AcquireRequest) -> Option<Grant> {
        if self.0.store.dispatcher(self.0.redis_key.slot).latch.is_down() {
            return Some(self.0.acquire_degraded(now, request));
        }
        None
    }

    /// Takes permits, in one round trip with all concurrent callers of the key.
    pub async fn acquire(&self, now: Time, request: AcquireRequest) -> Grant {
        self.0.store.ensure_background();
        let max_wait = u64::try_from(request.max_wait.as_micros()).unwrap_or(u64::MAX).min(1 << 52);
        match PendingRequest::new(&self.0, Request { cost: request.cost, max_wait }).await.flatten() {
            Some(granted) => granted.grant,
            None => self.0.acquire_degraded(now, request),
        }
    }

    /// Returns permits in the background.
    pub fn refund(&self, cost: u32, due: Time, source: Source) {
        if source != Source::Degraded {
            return self.0.queue_refund(cost, due);
        }
        // Permits of the twin go back to the twin, if it still exists; Redis never granted them.
        if let Some((_, twin)) = &self.0.state.lock().twin {
            twin.refund(cost, due);
        }
    }

    /// Returns the level of the last reply, or the twin's while degraded, without I/O.
    pub fn cached_level(&self, now: Time) -> Option<Level> {
        if self.0.store.dispatcher(self.0.redis_key.slot).latch.is_down() {
            return Some(self.0.twin().peek(now));
        }
        let state = self.0.state.lock();
        state.last_level.map(|units| Level { units, price: state.rate.price })
    }

    /// Reads the level without taking permits.
    pub async fn peek(&self, now: Time) -> Level {
        let shared = &self.0;
        shared.store.ensure_background();
        let rate = shared.state.lock().rate;
        let mut call = shared.store.invocation(&lua::RATE_LIMIT_PEEK, &[&shared.redis_key]);
        call.arg(rate.gain).arg(rate.price).arg(rate.capacity);
        let reply = shared.store.dispatcher(shared.redis_key.slot).call(call).await;
        match reply.map(|value| integers(&value)).as_deref() {
            Ok([_, level, ..]) => Level { units: clamp_level(*level, rate), price: rate.price },
            _ => shared.twin().peek(now),
        }
    }
}

impl Shared {
    /// Lets the twin decide.
    fn acquire_degraded(&self, now: Time, request: AcquireRequest) -> Grant {
        self.store.dispatcher(self.redis_key.slot).latch.count_degraded_decision();
        Grant { source: Source::Degraded, ..self.twin().acquire(now, request) }
    }

    /// Returns the twin of this outage: this replica's share of the rate and of the last known level.
    fn twin(&self) -> Arc<BucketCell> {
        let outage = self.store.dispatcher(self.redis_key.slot).latch.trips();
        let mut state = self.state.lock();
        if let Some((made_in, twin)) = &state.twin
            && *made_in == outage
        {
            return twin.clone();
        }
        let replicas = self.store.degraded_sharers();
        // The calls that timed out before the latch tripped were decided by an earlier twin. Permits it granted are
        // gone.
        let left = state.twin.as_ref().map(|(_, twin)| twin.peek(self.store.clock.now()).permits());
        let twin = Arc::new(share(&state.spec, replicas, state.last_level, left, &self.store));
        state.twin = Some((outage, twin.clone()));
        twin
    }

    fn queue_refund(self: &Arc<Self>, cost: u32, due: Time) {
        if cost == 0 {
            return;
        }
        {
            let mut state = self.state.lock();
            let now = self.store.clock.now();
            // Permits that are due already can be summed up; only their number matters.
            let alike = |refund: &&mut Refund| refund.due <= now && due <= now;
            match state.refunds.last_mut().filter(alike) {
                Some(last) => last.cost = last.cost.saturating_add(cost),
                None => state.refunds.push(Refund { cost, due }),
            }
        }
        self.enqueue();
    }

    /// Queues this cell for the next round trip, unless it is queued.
    fn enqueue(self: &Arc<Self>) {
        if self.queued.mark(Urgency::Caller) {
            self.store.dispatcher(self.redis_key.slot).enqueue(self.clone(), Urgency::Caller);
        }
    }

    /// Sends the request in a batch of its own, so that no other caller depends on this task being polled.
    fn submit_inline(self: &Arc<Self>, request: Request, trip: InlineTrip) -> (Joined<Self>, Option<InlineRequest>) {
        let (batch, rate) = (Arc::new(Batch::new()), self.state.lock().rate);
        let index = batch.join(request, Waker::noop()).unwrap_or(0);
        let mut outgoing = Outgoing::default();
        self.fill_callers(&mut outgoing, rate, batch.clone());
        ((batch, index), Some(trip.send(outgoing)))
    }

    fn fill_retune(self: &Arc<Self>, outgoing: &mut Outgoing, old: Rate, new: Rate) {
        let mut call = self.store.invocation(&lua::RATE_LIMIT_RETUNE, &[&self.redis_key]);
        for rate in [old, new] {
            call.arg(rate.gain).arg(rate.price).arg(rate.capacity);
        }
        let shared = self.clone();
        // A lost retune does no harm: the next acquire by the new rate converts the level stored by the old one.
        outgoing
            .add(call, move |reply| shared.note_reply(&reply.map_or_else(|_| Vec::new(), |value| integers(&value))));
    }

    fn fill_refunds(self: &Arc<Self>, outgoing: &mut Outgoing, rate: Rate, refunds: &[Refund]) {
        let now = self.store.clock.now().as_micros() as i64;
        for part in refunds.chunks(MAX_REFUNDS_PER_CALL) {
            let mut call = self.store.invocation(&lua::RATE_LIMIT_REFUND, &[&self.redis_key]);
            call.arg(rate.gain).arg(rate.price).arg(rate.capacity).arg(part.len());
            for refund in part {
                call.arg(refund.cost).arg(refund.due.as_micros() as i64 - now);
            }
            let shared = self.clone();
            // Not retried: it may have run, and losing permits is better than minting them.
            outgoing.add(call, move |reply| {
                shared.note_reply(&reply.map_or_else(|_| Vec::new(), |value| integers(&value)))
            });
        }
    }

    fn fill_callers(self: &Arc<Self>, outgoing: &mut Outgoing, rate: Rate, batch: Arc<AcquireBatch>) {
        let groups = groups(&batch.close());
        let mut call = self.store.invocation(&lua::RATE_LIMIT_ACQUIRE, &[&self.redis_key]);
        call.arg(rate.gain).arg(rate.price).arg(rate.capacity).arg(groups.len());
        for group in &groups {
            call.arg(group.callers).arg(group.request.cost).arg(group.request.max_wait);
        }
        let shared = self.clone();
        outgoing.add_waiting(batch.opened, call, move |reply| shared.complete_batch(&batch, rate, &groups, reply));
    }

    fn complete_batch(self: &Arc<Self>, batch: &AcquireBatch, rate: Rate, groups: &[Group], reply: ScriptResult) {
        let integers = reply.map_or_else(|_| Vec::new(), |value| integers(&value));
        self.note_reply(&integers);
        let grants = match &integers[..] {
            [_, level, _, granted @ ..] => self.grants(*level, rate, groups, granted),
            // It is unknown whether permits were taken: the twin decides, and what Redis took is lost.
            _ => vec![None; groups.iter().map(|group| group.callers as usize).sum()],
        };
        for orphan in batch.complete(grants) {
            self.reclaim(orphan);
        }
    }

    /// Computes each caller's grant, in order, from the level before the first of them.
    fn grants(&self, level: i64, rate: Rate, groups: &[Group], granted: &[i64]) -> Vec<Option<Granted>> {
        let now = self.store.clock.now();
        let (mut level, mut grants) = (clamp_level(level, rate), Vec::new());
        let time_for = |units: i64| Duration::from_micros(units.unsigned_abs().div_ceil(rate.gain));
        for (index, group) in groups.iter().enumerate() {
            let Some(granted) = granted.get(index).and_then(|k| u32::try_from(*k).ok()) else {
                grants.extend((0..group.callers).map(|_| None)); // missing in the reply
                continue;
            };
            let need = u64::from(group.request.cost).saturating_mul(rate.price).min(1 << 62) as i64;
            for caller in 0..group.callers {
                let take = if caller < granted {
                    level = level.saturating_sub(need); // a reply may grant more than there was
                    let wait = if need > 0 && level < 0 { time_for(level) } else { Duration::ZERO };
                    Take::Granted { wait }
                } else if need as u64 > rate.capacity {
                    Take::Rejected { until: Time::NEVER }
                } else {
                    Take::Rejected { until: now.after(time_for(level.saturating_sub(need))) }
                };
                let left = Level { units: level, price: rate.price };
                let grant = Grant { take, left, source: Source::Fleet };
                grants.push(Some(Granted { grant, cost: group.request.cost }));
            }
        }
        self.state.lock().last_level = Some(level);
        grants
    }

    /// Records the level and the flags, which every bucket script returns.
    fn note_reply(&self, reply: &[i64]) {
        let [_, level, flags, ..] = reply else { return };
        {
            let mut state = self.state.lock();
            state.last_level = Some(clamp_level(*level, state.rate));
        }
        if flags & 1 != 0 {
            self.store.observers.emit(&self.key, EventKind::StateRepaired);
        }
        if flags & 2 != 0 {
            self.store.report_mismatch(&self.key);
        }
    }
}

/// Limits the level of a reply to what a script can return, so that no sum with it overflows.
fn clamp_level(level: i64, rate: Rate) -> i64 {
    level.clamp(-(MAX_UNITS as i64), rate.capacity as i64)
}

impl Coalesce for Shared {
    type Request = Request;
    type Reply = Option<Granted>;

    fn submit(self: &Arc<Self>, request: Request, waker: &Waker) -> (Joined<Self>, Option<InlineRequest>) {
        if let Some(trip) = self.store.dispatcher(self.redis_key.slot).try_inline() {
            return self.submit_inline(request, trip);
        }
        let joined = self.state.lock().batches.join(request, waker);
        self.enqueue();
        (joined, None)
    }

    fn reclaim(self: &Arc<Self>, granted: Option<Granted>) {
        if let Some(Granted { grant: Grant { take: Take::Granted { wait }, .. }, cost }) = granted {
            self.queue_refund(cost, self.store.clock.now().after(wait));
        }
    }
}

impl BatchSource for Shared {
    fn fill(self: Arc<Self>, outgoing: &mut Outgoing) {
        self.queued.clear();
        let (rate, previous_rate, refunds, batches) = {
            let mut state = self.state.lock();
            (state.rate, state.previous_rate.take(), std::mem::take(&mut state.refunds), state.batches.take())
        };
        if let Some(old) = previous_rate {
            self.fill_retune(outgoing, old, rate);
        }
        if !refunds.is_empty() {
            self.fill_refunds(outgoing, rate, &refunds);
        }
        for batch in batches {
            self.fill_callers(outgoing, rate, batch);
        }
    }
}
