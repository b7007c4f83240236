//! A token bucket shared by the fleet: exact, at one round trip for all callers that arrived during the previous one, or
//! leased, at none.
//!
//! Requests that arrive while a round trip is in flight form one batch. `rate_limit_acquire.lua` receives it as groups
//! of equal requests and grants the first k of each group. Refunds, charges (`charges.rs`) and retunes are sent in the
//! background. While the bucket is known to be exhausted, calls that do not wait are rejected here (`exhausted.rs`). If Redis
//! does not reply, the twin decides (`twin.rs`), and what it grants is charged to the bucket afterwards. A leased bucket
//! grants permits of its own blocks first, and sends requests for blocks with the callers that found none (`lease.rs`).
//! Several buckets of one policy are decided in one script (`set.rs`).

mod charges;
mod exhausted;
mod groups;
mod lease;
mod set;
mod twin;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Waker;
use std::time::Duration;

use parking_lot::Mutex;
use phalanx_core::clock::Time;
use phalanx_core::event::EventKind;
use phalanx_core::key::StateKey;
use phalanx_core::rate_limit::{BlockCell, Consistency, LeaseHolder, MAX_UNITS, Rate, RateLimitSpec, Take};
use phalanx_core::rejection::Source;
use phalanx_core::store::{AcquireRequest, Grant, Level};
use phalanx_core::table::{Entry, Retention};
use phalanx_lua as lua;

use self::charges::Charges;
use self::exhausted::Exhausted;
use self::groups::{Group, Request, groups};
pub use self::lease::LeasedPermits;
pub(crate) use self::set::SharedLimits;
pub use self::set::SharedSet;
use self::twin::{Reason, Seen, Twin, Uncharged};
use crate::batch::{Batch, Batches, Coalesce, Joined, PendingRequest};
use crate::dispatcher::{BatchSource, InlineRequest, InlineTrip, Outgoing, Queued, ScriptResult, Urgency};
use crate::invocation::integers;
use crate::keys::{Key, Kind};
use crate::options::DegradedShare;
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
    /// Until when the bucket may be known to be exhausted, in microseconds: before that the state is looked at.
    exhausted_until: AtomicU64,
    /// Whether permits are leased: the spec says so, and the replica has not left.
    is_leased: AtomicBool,
    /// The block of leased permits that callers spend.
    block: BlockCell,
    /// Whether the background task looks after the blocks.
    lease_noted: AtomicBool,
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
    seen: Option<Seen>,
    /// The server's time in that reply, and when it arrived.
    server_seen: Option<(Time, Time)>,
    twin: Option<Twin>,
    /// The latest time for which a twin that is gone has granted permits.
    earlier_due: Time,
    uncharged: Uncharged,
    /// Work that is done.
    charges: Charges,
    /// What is known of the exhausted bucket, and how often the server had lost its data by then.
    exhausted: Option<(u64, Exhausted)>,
    /// The blocks of leased permits.
    leases: LeaseHolder,
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
    /// On the server's clock.
    due: Time,
}

impl Entry for SharedBucket {
    /// Redis keeps the bucket. Eviction would lose requests that are queued here, and what a twin has granted meanwhile.
    fn retention(&self) -> Retention {
        let state = self.0.state.lock();
        let idle = state.batches.is_empty() && state.refunds.is_empty() && state.previous_rate.is_none();
        let idle = idle && state.uncharged.permits(state.rate) == 0 && !state.leases.holds();
        let idle = idle && state.charges.is_settled();
        let own = if idle { Retention::Disposable } else { Retention::Relearnable };
        state.twin.as_ref().map_or(own, |twin| twin.retention().max(own))
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
            seen: None,
            server_seen: None,
            twin: None,
            earlier_due: Time::ZERO,
            uncharged: Uncharged::default(),
            charges: Charges::default(),
            exhausted: None,
            leases: LeaseHolder::default(),
        };
        Self(Arc::new(Shared {
            store,
            key: key.clone(),
            redis_key,
            queued: Queued::default(),
            exhausted_until: AtomicU64::new(0),
            is_leased: AtomicBool::new(spec.consistency == Consistency::Leased),
            block: BlockCell::default(),
            lease_noted: AtomicBool::new(false),
            state: Mutex::new(state),
        }))
    }

    /// Returns the name of its policy.
    pub(crate) fn policy(&self) -> &str {
        self.0.key.policy()
    }

    pub(crate) fn retune(&self, spec: &RateLimitSpec) {
        {
            let mut state = self.0.state.lock();
            if state.spec == *spec {
                return;
            }
            let old = std::mem::replace(&mut state.rate, Rate::of(spec));
            let was_leased = state.spec.consistency == Consistency::Leased;
            state.spec = spec.clone();
            self.0.is_leased.store(spec.consistency == Consistency::Leased, Ordering::Relaxed);
            if was_leased {
                state.leases.freeze(&self.0.block);
            }
            if old != state.rate {
                state.convert(old, spec);
                state.previous_rate.get_or_insert(old);
                state.exhausted = None;
            } else if !state.leases.has_closed() {
                return;
            }
        }
        self.0.enqueue();
    }

    /// Decides without a round trip: always while degraded; otherwise grants of leased permits, and rejections of a bucket
    /// that is known to be exhausted.
    #[inline]
    pub fn acquire_now(&self, now: Time, request: AcquireRequest) -> Option<Grant> {
        let shared = &self.0;
        if shared.is_leased.load(Ordering::Relaxed)
            && let Some(grant) = shared.spend_leased(now, request.cost)
        {
            return Some(grant);
        }
        if shared.store.dispatcher(shared.redis_key.slot).latch.is_down() {
            return Some(shared.acquire_degraded(now, now, request));
        }
        if now.as_micros() >= shared.exhausted_until.load(Ordering::Relaxed) || !request.max_wait.is_zero() {
            return None;
        }
        shared.reject_exhausted(now, request.cost)
    }

    /// Takes permits, in one round trip with all concurrent callers of the key.
    pub async fn acquire(&self, now: Time, request: AcquireRequest) -> Grant {
        self.0.store.ensure_background();
        let max_wait = u64::try_from(request.max_wait.as_micros()).unwrap_or(u64::MAX).min(1 << 52);
        match PendingRequest::new(&self.0, Request { cost: request.cost, max_wait }).await.flatten() {
            Some(granted) => {
                self.0.store.dispatcher(self.0.redis_key.slot).latch.count_shared_decision();
                granted.grant
            }
            None => self.0.acquire_degraded(now, self.0.store.clock.now(), request),
        }
    }

    /// Returns permits in the background.
    pub fn refund(&self, cost: u32, due: Time, source: Source) {
        if source == Source::Leased && self.0.put_back_leased(cost, due) {
            return;
        }
        if source != Source::Degraded {
            return self.0.queue_refund(cost, due);
        }
        // Permits of the twin go back to the twin, if it still exists; Redis never granted them.
        let mut state = self.0.state.lock();
        let rate = state.rate;
        if state.twin.as_ref().is_some_and(|twin| twin.refund(cost, due)) {
            state.uncharged.remove(cost, rate);
        }
    }

    /// Returns the level of the last reply, or the twin's while degraded, without I/O.
    pub fn cached_level(&self, now: Time) -> Option<Level> {
        if self.0.store.dispatcher(self.0.redis_key.slot).latch.is_down() {
            return Some(self.0.twin_level(now));
        }
        let state = self.0.state.lock();
        state.seen.map(|seen| Level { units: seen.level, price: state.rate.price })
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
            _ => shared.twin_level(now),
        }
    }
}

impl Shared {
    /// Lets the twin decide. A new one exists since the call `began`.
    fn acquire_degraded(&self, began: Time, now: Time, request: AcquireRequest) -> Grant {
        self.store.dispatcher(self.redis_key.slot).count_degraded_decision();
        let mut state = self.state.lock();
        let (rate, divisor) = (state.rate, self.reason().divisor);
        let grant = self.twin(&mut state, began).acquire(now, request, rate);
        if matches!(grant.take, Take::Granted { .. }) {
            let seen = state.seen;
            state.uncharged.add(request.cost, now, seen, rate, divisor);
        }
        grant
    }

    fn twin_level(&self, now: Time) -> Level {
        self.twin(&mut self.state.lock(), now).peek(now)
    }

    /// Returns what a twin of now is made for.
    fn reason(&self) -> Reason {
        let outage = self.store.dispatcher(self.redis_key.slot).latch.trips();
        Reason { outage, divisor: self.store.degraded_sharers() }
    }

    /// Returns the twin of this outage and this share. A new one starts from its share of the level last seen, without what
    /// was granted and charged since, and with no more than an earlier one had left. What is missing is a debt.
    fn twin<'a>(&self, state: &'a mut State, now: Time) -> &'a mut Twin {
        let reason = self.reason();
        let former = state.retire_twin_unless(|twin| twin.reason == reason, now);
        let State { spec, rate, seen, uncharged, charges, earlier_due, twin, .. } = state;
        twin.get_or_insert_with(|| {
            let full = seen.map_or(rate.capacity as i64, |seen| seen.level);
            // Before the fleet was ever seen, other replicas may be taking the same burst at this moment.
            let own = self.store.options.degraded_share == DegradedShare::Full;
            let known = own || seen.is_some() || self.store.shares.fleet_was_seen();
            let permits = full.div_euclid(rate.price as i64).div_euclid(reason.divisor.into());
            let share = if known { permits } else { permits.min(0) };
            let granted = uncharged.permits(*rate).saturating_add(charges.permits(*rate));
            let left = share.saturating_sub_unsigned(granted).min(former.unwrap_or(i64::MAX));
            Twin::new(&self.store.clock, spec, reason, left, now, *earlier_due)
        })
    }

    /// Rejects a call that does not wait, if it is known that the bucket does not hold its permits.
    fn reject_exhausted(&self, now: Time, cost: u32) -> Option<Grant> {
        let mut state = self.state.lock();
        let rate = state.rate;
        let (losses, exhausted) = state.exhausted.as_mut()?;
        if *losses != self.store.state_losses.load(Ordering::Relaxed) {
            return None;
        }
        exhausted.reject(now, cost, rate)
    }

    /// Records whether the bucket is exhausted, and by which lowest cost of a call that did not wait.
    fn note_exhausted(&self, state: &mut State, rejected: Option<u32>, level: i64) {
        let rate = state.rate;
        if let Some(cost) = rejected {
            let now = self.store.clock.now();
            let exhausted = Exhausted::new(cost, level, now, rate, &self.store.rng);
            self.exhausted_until.store(exhausted.ends().as_micros(), Ordering::Relaxed);
            state.exhausted = Some((self.store.state_losses.load(Ordering::Relaxed), exhausted));
        } else if state.exhausted.is_some_and(|(_, exhausted)| exhausted.ended_by(level, rate)) {
            state.exhausted = None;
        }
    }

    fn queue_refund(self: &Arc<Self>, cost: u32, due: Time) {
        if cost == 0 {
            return;
        }
        {
            let mut state = self.state.lock();
            state.exhausted = None;
            match state.refunds.last_mut().filter(|refund| refund.due == due) {
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
        let batch = Arc::new(Batch::new());
        let index = batch.join(request, Waker::noop()).unwrap_or(0);
        let mut outgoing = Outgoing::default();
        let (rate, previous_rate, charge, owes) = {
            let mut state = self.state.lock();
            (state.rate, state.previous_rate.take(), self.charge(&mut state), !state.charges.is_settled())
        };
        if let Some(old) = previous_rate {
            self.fill_retune(&mut outgoing, old, rate);
        }
        if owes {
            self.fill_charges(&mut outgoing);
        }
        self.fill_callers(&mut outgoing, rate, charge, batch.clone());
        self.fill_lease(&mut outgoing);
        ((batch, index), Some(trip.send(outgoing)))
    }

    fn fill_retune(self: &Arc<Self>, outgoing: &mut Outgoing, old: Rate, new: Rate) {
        let mut call = self.store.invocation(&lua::RATE_LIMIT_RETUNE, &[&self.redis_key]);
        for rate in [old, new] {
            call.arg(rate.gain).arg(rate.price).arg(rate.capacity);
        }
        let shared = self.clone();
        // A lost retune is sent again: the next acquire would convert the level stored by the old rate, but a bucket that is
        // missing was full by the old rate, not by the new one.
        outgoing.add(call, move |reply| match reply {
            Ok(value) => shared.note_reply(new, &integers(&value)),
            Err(_) => shared.state.lock().previous_rate = Some(old),
        });
    }

    fn fill_refunds(self: &Arc<Self>, outgoing: &mut Outgoing, rate: Rate, mut refunds: Vec<Refund>) {
        // The last places of the queue first, so that those before them are then the last.
        refunds.sort_by_key(|refund| std::cmp::Reverse(refund.due));
        for part in refunds.chunks(MAX_REFUNDS_PER_CALL) {
            let mut call = self.store.invocation(&lua::RATE_LIMIT_REFUND, &[&self.redis_key]);
            call.arg(rate.gain).arg(rate.price).arg(rate.capacity).arg(part.len());
            for refund in part {
                call.arg(refund.cost).arg(refund.due.as_micros());
            }
            let shared = self.clone();
            // Not retried: it may have run, and losing permits is better than minting them.
            outgoing.add(call, move |reply| {
                shared.note_reply(rate, &reply.map_or_else(|_| Vec::new(), |value| integers(&value)))
            });
        }
    }

    /// Returns the permits to charge with the next call.
    fn charge(&self, state: &mut State) -> u64 {
        let State { uncharged, seen, rate, .. } = state;
        uncharged.send(self.store.clock.now(), *seen, *rate, self.store.degraded_sharers())
    }

    fn fill_callers(self: &Arc<Self>, outgoing: &mut Outgoing, rate: Rate, charge: u64, batch: Arc<AcquireBatch>) {
        let groups = groups(&batch.close());
        let mut call = self.store.invocation(&lua::RATE_LIMIT_ACQUIRE, &[&self.redis_key]);
        call.arg(rate.gain).arg(rate.price).arg(rate.capacity).arg(charge).arg(groups.len());
        for group in &groups {
            call.arg(group.callers).arg(group.request.cost).arg(group.request.max_wait);
        }
        let shared = self.clone();
        outgoing
            .add_waiting(batch.opened, call, move |reply| shared.complete_batch(&batch, rate, charge, &groups, reply));
    }

    fn complete_batch(
        self: &Arc<Self>,
        batch: &AcquireBatch,
        rate: Rate,
        charge: u64,
        groups: &[Group],
        reply: ScriptResult,
    ) {
        let integers = reply.map_or_else(|_| Vec::new(), |value| integers(&value));
        self.note_reply(rate, &integers);
        let answered = integers.len() > 2;
        {
            let mut state = self.state.lock();
            let rate = state.rate;
            state.uncharged.sent(charge, answered, rate);
            if answered && !self.store.dispatcher(self.redis_key.slot).latch.is_down() {
                state.retire_twin_unless(|_| false, self.store.clock.now());
            }
        }
        let grants = match &integers[..] {
            [now, level, _, granted @ ..] => {
                self.grants(Time::from_micros(u64::try_from(*now).unwrap_or(0)), *level, rate, groups, granted)
            }
            // It is unknown whether permits were taken: the twin decides, and what Redis took is lost.
            _ => vec![None; groups.iter().map(|group| group.callers as usize).sum()],
        };
        for orphan in batch.complete(grants) {
            self.reclaim(orphan);
        }
    }

    /// Computes each caller's grant, in order, from the server's time and the level before the first of them.
    fn grants(
        &self,
        server_now: Time,
        level: i64,
        rate: Rate,
        groups: &[Group],
        granted: &[i64],
    ) -> Vec<Option<Granted>> {
        let now = self.store.clock.now();
        let (mut level, mut grants) = (clamp_level(level, rate), Vec::new());
        let mut rejected: Option<u32> = None;
        for (index, group) in groups.iter().enumerate() {
            let Some(granted) = granted.get(index).and_then(|k| u32::try_from(*k).ok()) else {
                grants.extend((0..group.callers).map(|_| None)); // missing in the reply
                continue;
            };
            let cost = group.request.cost;
            let need = u64::from(cost).saturating_mul(rate.price).min(1 << 62) as i64;
            let fits = need as u64 <= rate.capacity;
            for caller in 0..group.callers {
                let mut due = server_now;
                let take = if caller < granted {
                    level = level.saturating_sub(need); // a reply may grant more than there was
                    let wait = if need > 0 && level < 0 { time_for(rate, level) } else { Duration::ZERO };
                    due = server_now.after(wait);
                    Take::Granted { wait }
                } else if fits {
                    Take::Rejected { until: now.after(time_for(rate, level.saturating_sub(need))) }
                } else {
                    Take::Rejected { until: Time::NEVER }
                };
                let left = Level { units: level, price: rate.price };
                let grant = Grant { take, left, source: Source::Fleet, due };
                grants.push(Some(Granted { grant, cost }));
            }
            if granted < group.callers && fits && need > 0 && group.request.max_wait == 0 {
                rejected = Some(rejected.map_or(cost, |lowest| lowest.min(cost)));
            }
        }
        let mut state = self.state.lock();
        state.see(level, rate, now);
        state.server_seen = Some((server_now, now));
        if state.rate == rate {
            self.note_exhausted(&mut state, rejected, level);
        }
        grants
    }

    /// Records the level and the flags, which every bucket script returns.
    fn note_reply(&self, rate: Rate, reply: &[i64]) {
        let [server_now, level, flags, ..] = reply else { return };
        {
            let (mut state, level) = (self.state.lock(), clamp_level(*level, rate));
            let now = self.store.clock.now();
            state.see(level, rate, now);
            state.server_seen = u64::try_from(*server_now).ok().map(|server_now| (Time::from_micros(server_now), now));
            if state.rate == rate {
                self.note_exhausted(&mut state, None, level);
            }
        }
        if flags & 1 != 0 {
            self.store.observers.emit(&self.key, EventKind::StateRepaired);
        }
        if flags & 2 != 0 {
            self.store.report_mismatch(&self.key);
        }
    }
}

impl State {
    /// Records a level in units of this rate.
    fn see(&mut self, level: i64, rate: Rate, at: Time) {
        let level = if rate == self.rate { level } else { rate.convert(level, self.rate) };
        self.seen = Some(Seen { level, at });
    }

    /// Converts everything that is known from the old rate to the present one.
    fn convert(&mut self, old: Rate, spec: &RateLimitSpec) {
        if let Some(seen) = &mut self.seen {
            seen.level = old.convert(seen.level, self.rate);
        }
        self.uncharged.retune(old, self.rate);
        self.charges.retune(old, self.rate);
        if let Some(twin) = &self.twin {
            twin.retune(spec);
        }
    }

    /// Drops the twin, unless it is to be kept. Returns the permits that it had left; below zero, its debt.
    fn retire_twin_unless(&mut self, keep: impl Fn(&Twin) -> bool, now: Time) -> Option<i64> {
        let twin = self.twin.take_if(|twin| !keep(twin))?;
        self.earlier_due = twin.latest_due();
        let Level { units, price } = twin.peek(now);
        Some(units.div_euclid(price.max(1) as i64))
    }
}

/// Returns the time in which this many units are refilled.
fn time_for(rate: Rate, units: i64) -> Duration {
    rate.time_for(units.unsigned_abs())
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
        if let Some(Granted { grant: Grant { take: Take::Granted { .. }, due, .. }, cost }) = granted {
            self.queue_refund(cost, due);
        }
    }
}

impl BatchSource for Shared {
    fn fill(self: Arc<Self>, outgoing: &mut Outgoing) {
        self.queued.clear();
        let (rate, previous_rate, refunds, batches, mut charge) = {
            let mut state = self.state.lock();
            let batches = state.batches.take();
            let charge = if batches.is_empty() { 0 } else { self.charge(&mut state) };
            (state.rate, state.previous_rate.take(), std::mem::take(&mut state.refunds), batches, charge)
        };
        if let Some(old) = previous_rate {
            self.fill_retune(outgoing, old, rate);
        }
        self.fill_charges(outgoing);
        if !refunds.is_empty() {
            self.fill_refunds(outgoing, rate, refunds);
        }
        for batch in batches {
            self.fill_callers(outgoing, rate, std::mem::take(&mut charge), batch);
        }
        self.fill_lease(outgoing);
    }
}
