//! A token bucket of the fleet: exact, one round trip shared by all callers who arrived during the previous one.
//!
//! What callers ask while a trip is under way is one batch, told to the script in groups of callers who ask alike; it
//! grants the first k of each. Refunds and another rate travel behind the callers. When Redis does not answer, the twin
//! does: this replica's share of the rate, starting from its share of what was last seen, never from a full bucket.

mod groups;
mod share;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::time::Duration;

use parking_lot::Mutex;
use phalanx_core::clock::Time;
use phalanx_core::event::EventKind;
use phalanx_core::key::StateKey;
use phalanx_core::rate_limit::{Rate, RateLimitSpec, Take};
use phalanx_core::rejection::Source;
use phalanx_core::store::{AcquireRequest, Grant, Level};
use phalanx_core::table::{Entry, Retention};
use phalanx_lua as lua;
use phalanx_store_memory::BucketCell;

use self::groups::{Group, Wish, groups};
use self::share::share;
use crate::batch::{Asking, Batch, Batches, Desk, Seat};
use crate::fleet::Fleet;
use crate::invocation::integers;
use crate::keys::{Key, Kind};
use crate::lane::{Manifest, Passenger, Pilot, Replied, Solo};

/// Refunds in one script.
const REFUNDS: usize = 256;

/// The bucket of one key, as this replica holds it.
#[derive(Clone, Debug)]
pub struct Bucket(pub(crate) Arc<Shared>);

#[derive(Debug)]
pub(crate) struct Shared {
    fleet: Arc<Fleet>,
    key: StateKey,
    place: Key,
    queued: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    spec: RateLimitSpec,
    rate: Rate,
    /// The rate before, until Redis has been told of the new one.
    told: Option<Rate>,
    /// Callers who wait for the next flight.
    batches: Batches<Wish, Option<Given>>,
    refunds: Vec<Refund>,
    /// What was last seen in it.
    seen: Option<i64>,
    /// The twin, and the outage it was made in.
    twin: Option<(u64, Arc<BucketCell>)>,
}

type Together = Batch<Wish, Option<Given>>;

/// What one caller got, and what it cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Given {
    grant: Grant,
    cost: u32,
}

#[derive(Clone, Copy, Debug)]
struct Refund {
    cost: u32,
    due: Time,
}

impl Entry for Bucket {
    /// Redis keeps the bucket. Lost would be what is on its way, and what a twin has granted meanwhile.
    fn retention(&self) -> Retention {
        let state = self.0.state.lock();
        let idle = state.batches.is_empty() && state.refunds.is_empty() && state.told.is_none();
        let own = if idle { Retention::Disposable } else { Retention::Relearnable };
        state.twin.as_ref().map_or(own, |(_, twin)| twin.retention().max(own))
    }
}

impl Bucket {
    pub(crate) fn new(fleet: Arc<Fleet>, key: &StateKey, spec: &RateLimitSpec) -> Self {
        let place = fleet.keys.of(Kind::Bucket, key);
        let state = State {
            spec: spec.clone(),
            rate: Rate::of(spec),
            told: None,
            batches: Batches::default(),
            refunds: Vec::new(),
            seen: None,
            twin: None,
        };
        Self(Arc::new(Shared {
            fleet,
            key: key.clone(),
            place,
            queued: AtomicBool::new(false),
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
            state.told.get_or_insert(old);
            state.twin = None;
        }
        self.0.call_out();
    }

    /// What can be decided without Redis: everything while it is away, and nothing else.
    pub fn acquire_now(&self, now: Time, ask: AcquireRequest) -> Option<Grant> {
        if self.0.fleet.lane(self.0.place.slot).latch.is_down() {
            return Some(self.0.decide_locally(now, ask));
        }
        None
    }

    /// Takes permits, in one round trip with everybody who asks meanwhile.
    pub async fn acquire(&self, now: Time, ask: AcquireRequest) -> Grant {
        self.0.fleet.keep();
        let max_wait = u64::try_from(ask.max_wait.as_micros()).unwrap_or(u64::MAX).min(1 << 52);
        match Asking::new(&self.0, Wish { cost: ask.cost, max_wait }).await.flatten() {
            Some(given) => given.grant,
            None => self.0.decide_locally(now, ask),
        }
    }

    /// Gives permits back, behind the caller.
    pub fn refund(&self, cost: u32, due: Time, source: Source) {
        if source != Source::Degraded {
            return self.0.take_back(cost, due);
        }
        // What the twin gave goes back to the twin, if there is one still: Redis must not be given what it never gave.
        if let Some((_, twin)) = &self.0.state.lock().twin {
            twin.refund(cost, due);
        }
    }

    /// What was last seen in it, or what the twin holds while Redis is away. Nobody is asked.
    pub fn glance(&self, now: Time) -> Option<Level> {
        if self.0.fleet.lane(self.0.place.slot).latch.is_down() {
            return Some(self.0.twin().peek(now));
        }
        let state = self.0.state.lock();
        state.seen.map(|units| Level { units, price: state.rate.price })
    }

    /// Looks without taking.
    pub async fn peek(&self, now: Time) -> Level {
        let shared = &self.0;
        shared.fleet.keep();
        let rate = shared.state.lock().rate;
        let mut call = shared.fleet.call(&lua::RATE_LIMIT_PEEK, &[&shared.place]);
        call.arg(rate.gain).arg(rate.price).arg(rate.capacity);
        let reply = shared.fleet.lane(shared.place.slot).ask(call).await;
        match reply.map(|value| integers(&value)).as_deref() {
            Ok([_, level, ..]) => Level { units: *level, price: rate.price },
            _ => shared.twin().peek(now),
        }
    }
}

impl Shared {
    /// Takes the word of the twin.
    fn decide_locally(&self, now: Time, ask: AcquireRequest) -> Grant {
        self.fleet.lane(self.place.slot).latch.degraded_decisions();
        Grant { source: Source::Degraded, ..self.twin().acquire(now, ask) }
    }

    /// This replica's share: its part of the rate, and its part of what was last seen.
    fn twin(&self) -> Arc<BucketCell> {
        let outage = self.fleet.lane(self.place.slot).latch.falls();
        let mut state = self.state.lock();
        if let Some((made_in, twin)) = &state.twin
            && *made_in == outage
        {
            return twin.clone();
        }
        let replicas = self.fleet.sharers();
        // An outage begins with timeouts, which a twin decided already: what it has given out is not there twice.
        let left = state.twin.as_ref().map(|(_, twin)| twin.peek(self.fleet.clock.now()).permits());
        let twin = Arc::new(share(&state.spec, replicas, state.seen, left, &self.fleet));
        state.twin = Some((outage, twin.clone()));
        twin
    }

    fn take_back(self: &Arc<Self>, cost: u32, due: Time) {
        if cost == 0 {
            return;
        }
        {
            let mut state = self.state.lock();
            let now = self.fleet.clock.now();
            // Of permits that were there at once, all that matters is how many.
            let alike = |refund: &&mut Refund| refund.due <= now && due <= now;
            match state.refunds.last_mut().filter(alike) {
                Some(last) => last.cost = last.cost.saturating_add(cost),
                None => state.refunds.push(Refund { cost, due }),
            }
        }
        self.call_out();
    }

    /// Asks for a seat on the next flight, unless it has one.
    fn call_out(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::AcqRel) {
            self.fleet.lane(self.place.slot).call_out(self.clone());
        }
    }

    /// A batch that nobody else can join, on a flight of its own: what it costs nobody else, if its caller forgets it.
    fn sit_alone(self: &Arc<Self>, ask: Wish, pilot: Pilot) -> (Seat<Self>, Option<Solo>) {
        let (batch, rate) = (Arc::new(Batch::new()), self.state.lock().rate);
        let place = batch.join(ask, Waker::noop()).unwrap_or(0);
        let mut manifest = Manifest::default();
        self.board_callers(&mut manifest, rate, batch.clone());
        ((batch, place), Some(pilot.fly(manifest)))
    }

    fn board_retune(self: &Arc<Self>, manifest: &mut Manifest, old: Rate, new: Rate) {
        let mut call = self.fleet.call(&lua::RATE_LIMIT_RETUNE, &[&self.place]);
        for rate in [old, new] {
            call.arg(rate.gain).arg(rate.price).arg(rate.capacity);
        }
        let shared = self.clone();
        // A retune that is lost is made up for: whoever takes by the new rate converts what was stored by the old.
        manifest.add(call, move |reply| shared.read(&reply.map_or_else(|_| Vec::new(), |value| integers(&value))));
    }

    fn board_refunds(self: &Arc<Self>, manifest: &mut Manifest, rate: Rate, refunds: &[Refund]) {
        let now = self.fleet.clock.now().as_micros() as i64;
        for part in refunds.chunks(REFUNDS) {
            let mut call = self.fleet.call(&lua::RATE_LIMIT_REFUND, &[&self.place]);
            call.arg(rate.gain).arg(rate.price).arg(rate.capacity).arg(part.len());
            for refund in part {
                call.arg(refund.cost).arg(refund.due.as_micros() as i64 - now);
            }
            let shared = self.clone();
            // Not repeated when lost: it may have happened, and permits lost are better than permits minted.
            manifest.add(call, move |reply| shared.read(&reply.map_or_else(|_| Vec::new(), |value| integers(&value))));
        }
    }

    fn board_callers(self: &Arc<Self>, manifest: &mut Manifest, rate: Rate, batch: Arc<Together>) {
        let groups = groups(&batch.board());
        let mut call = self.fleet.call(&lua::RATE_LIMIT_ACQUIRE, &[&self.place]);
        call.arg(rate.gain).arg(rate.price).arg(rate.capacity).arg(groups.len());
        for group in &groups {
            call.arg(group.callers).arg(group.wish.cost).arg(group.wish.max_wait);
        }
        manifest.waiting_since(batch.opened);
        let shared = self.clone();
        manifest.add(call, move |reply| shared.answer(&batch, rate, &groups, reply));
    }

    fn answer(self: &Arc<Self>, batch: &Together, rate: Rate, groups: &[Group], reply: Replied) {
        let integers = reply.map_or_else(|_| Vec::new(), |value| integers(&value));
        self.read(&integers);
        let grants = match &integers[..] {
            [_, level, _, granted @ ..] => self.grants(*level, rate, groups, granted),
            // Nobody knows what was taken: the twin decides, and what Redis may have taken is lost.
            _ => vec![None; groups.iter().map(|group| group.callers as usize).sum()],
        };
        for orphan in batch.answer(grants) {
            self.give_back(orphan);
        }
    }

    /// What each caller got, one after the other, from the level before the first of them.
    fn grants(&self, level: i64, rate: Rate, groups: &[Group], granted: &[i64]) -> Vec<Option<Given>> {
        let now = self.fleet.clock.now();
        let (mut level, mut grants) = (level, Vec::new());
        let time_for = |units: i64| Duration::from_micros(units.unsigned_abs().div_ceil(rate.gain));
        for (index, group) in groups.iter().enumerate() {
            let Some(granted) = granted.get(index).and_then(|k| u32::try_from(*k).ok()) else {
                grants.extend((0..group.callers).map(|_| None)); // not answered
                continue;
            };
            let need = u64::from(group.wish.cost).saturating_mul(rate.price).min(1 << 62) as i64;
            for caller in 0..group.callers {
                let take = if caller < granted {
                    level -= need;
                    let wait = if need > 0 && level < 0 { time_for(level) } else { Duration::ZERO };
                    Take::Granted { wait }
                } else if need as u64 > rate.capacity {
                    Take::Rejected { until: Time::NEVER }
                } else {
                    Take::Rejected { until: now.after(time_for(level - need)) }
                };
                let left = Level { units: level, price: rate.price };
                let grant = Grant { take, left, source: Source::Fleet };
                grants.push(Some(Given { grant, cost: group.wish.cost }));
            }
        }
        self.state.lock().seen = Some(level);
        grants
    }

    /// Notes what every reply says beside its own matter.
    fn read(&self, reply: &[i64]) {
        let [_, level, flags, ..] = reply else { return };
        self.state.lock().seen = Some(*level);
        if flags & 1 != 0 {
            self.fleet.observers.emit(&self.key, EventKind::StateRepaired);
        }
        if flags & 2 != 0 {
            self.fleet.tell_mismatch(&self.key);
        }
    }
}

impl Desk for Shared {
    type Ask = Wish;
    type Answer = Option<Given>;

    fn sit(self: &Arc<Self>, ask: Wish, waker: &Waker) -> (Seat<Self>, Option<Solo>) {
        if let Some(pilot) = self.fleet.lane(self.place.slot).take_off() {
            return self.sit_alone(ask, pilot);
        }
        let seat = self.state.lock().batches.join(ask, waker);
        self.call_out();
        (seat, None)
    }

    fn give_back(self: &Arc<Self>, answer: Option<Given>) {
        if let Some(Given { grant: Grant { take: Take::Granted { wait }, .. }, cost }) = answer {
            self.take_back(cost, self.fleet.clock.now().after(wait));
        }
    }
}

impl Passenger for Shared {
    fn board(self: Arc<Self>, manifest: &mut Manifest) {
        self.queued.store(false, Ordering::Release);
        let (rate, told, refunds, batches) = {
            let mut state = self.state.lock();
            (state.rate, state.told.take(), std::mem::take(&mut state.refunds), state.batches.take())
        };
        if let Some(old) = told {
            self.board_retune(manifest, old, rate);
        }
        if !refunds.is_empty() {
            self.board_refunds(manifest, rate, &refunds);
        }
        for batch in batches {
            self.board_callers(manifest, rate, batch);
        }
    }
}
