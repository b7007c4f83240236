//! Requests for permits of several buckets, merged over all concurrent callers of a policy.
//!
//! A batch holds requests for different sets of the policy. It is sent as groups of equal requests over the different buckets
//! among them, in as few scripts as fit [`MAX_BUCKETS`].

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use parking_lot::Mutex;
use phalanx_core::clock::Time;
use phalanx_core::rate_limit::{Level, MAX_LIMITS, Rate, Take};
use phalanx_core::rejection::Source;
use phalanx_core::store::{AcquireRequest, Dues, SetGrant, SetVerdict};
use phalanx_core::table::{Entry, Retention};
use phalanx_lua as lua;

use super::super::{Shared, clamp_level, time_for};
use super::SharedSet;
use crate::batch::{Batch, BatchRequest, Batches, Coalesce, Joined};
use crate::dispatcher::{BatchSource, InlineRequest, InlineTrip, Outgoing, Queued, ScriptResult, Urgency};
use crate::failure::Failure;
use crate::invocation::integers;
use crate::store::inner::StoreInner;

/// Buckets in one script, which has to stay short.
const MAX_BUCKETS: usize = 64;

/// The longest wait that is sent, in microseconds.
const MAX_WAIT: u64 = 1 << 52;

/// The limits of one policy: merges requests for several of its buckets.
#[derive(Debug)]
pub(crate) struct SharedLimits(pub(super) Arc<LimitsCell>);

impl SharedLimits {
    pub(crate) fn new(store: Arc<StoreInner>) -> Self {
        Self(Arc::new(LimitsCell { store, queued: Queued::default(), batches: Mutex::default() }))
    }
}

impl Entry for SharedLimits {
    /// It holds nothing: sets that are in use keep the cell they have.
    fn retention(&self) -> Retention {
        Retention::Disposable
    }
}

#[derive(Debug)]
pub(super) struct LimitsCell {
    pub(super) store: Arc<StoreInner>,
    queued: Queued,
    /// Callers that wait for the next round trip.
    batches: Mutex<Batches<SetRequest, Option<SetGranted>>>,
}

type SetBatch = Batch<SetRequest, Option<SetGranted>>;

/// What one caller asks for; none if it was cancelled.
#[derive(Clone, Debug)]
pub(super) struct SetRequest(Option<Asked>);

#[derive(Clone, Debug)]
struct Asked {
    set: Arc<SharedSet>,
    request: AcquireRequest,
}

impl SetRequest {
    pub(super) fn new(set: &Arc<SharedSet>, request: AcquireRequest) -> Self {
        Self(Some(Asked { set: set.clone(), request }))
    }

    /// What is equal for requests that can be served together, if neither waits.
    fn key(&self) -> Option<(*const SharedSet, u32)> {
        self.0.as_ref().map(|asked| (Arc::as_ptr(&asked.set), asked.request.cost))
    }

    /// Whether the caller would wait for the permits of one of its limits.
    fn waits(&self) -> bool {
        self.0.as_ref().is_some_and(|asked| !asked.longest_wait().is_zero())
    }
}

impl Asked {
    /// How long the caller would wait for the permits of the limit that allows most.
    fn longest_wait(&self) -> Duration {
        let allowed = self.set.limits.iter().map(|limit| limit.max_wait).max();
        allowed.unwrap_or_default().min(self.request.max_wait)
    }
}

impl PartialEq for SetRequest {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(one), Some(two)) => {
                let (a, b) = (one.request.cost, two.request.cost);
                Arc::ptr_eq(&one.set, &two.set) && a == b && one.longest_wait() == two.longest_wait()
            }
            (None, None) => true,
            _ => false,
        }
    }
}

impl BatchRequest for SetRequest {
    const CANCELLED: Self = Self(None);
}

/// The reply to one caller, and what a refund would return.
#[derive(Clone, Debug)]
pub(super) struct SetGranted {
    pub(super) grant: SetGrant,
    set: Arc<SharedSet>,
    cost: u32,
}

/// A run of equal requests.
struct Group {
    callers: usize,
    asked: Option<Asked>,
}

/// One bucket of a script, as it was sent.
struct SentBucket {
    bucket: Arc<Shared>,
    rate: Rate,
    charge: u64,
}

/// The groups of one script, and the place of their first caller in the order in which callers are served.
struct Part {
    buckets: Vec<SentBucket>,
    groups: Vec<Group>,
    first: usize,
}

/// The replies of a batch, which may come from several scripts.
struct Replies {
    batch: Arc<SetBatch>,
    /// The callers by their place in the scripts.
    order: Vec<usize>,
    gathered: Mutex<Gathered>,
}

struct Gathered {
    replies: Vec<Option<SetGranted>>,
    missing_parts: usize,
}

/// Returns the callers of a batch in the order in which they are served: each beside the first one that asks for the same, so
/// that callers of a few tenants are a few groups. In the order of their requests, if one of them waits for permits: the line
/// is kept.
fn serving_order<K: Eq + Hash>(keys: impl ExactSizeIterator<Item = K>, is_line: bool) -> Vec<usize> {
    let mut order: Vec<usize> = (0..keys.len()).collect();
    if !is_line {
        let mut first = HashMap::new();
        let places: Vec<usize> = keys.enumerate().map(|(index, key)| *first.entry(key).or_insert(index)).collect();
        order.sort_by_key(|index| places[*index]);
    }
    order
}

impl LimitsCell {
    /// Adds the calls of a batch.
    fn fill_batch(self: &Arc<Self>, outgoing: &mut Outgoing, batch: Arc<SetBatch>) {
        let requests = batch.close();
        let order = serving_order(requests.iter().map(SetRequest::key), requests.iter().any(SetRequest::waits));
        let parts = Self::parts(order.iter().map(|index| &requests[*index]));
        let gathered = Gathered { replies: vec![None; requests.len()], missing_parts: parts.len() };
        let opened = batch.opened;
        let replies = Arc::new(Replies { batch, order, gathered: Mutex::new(gathered) });
        for mut part in parts {
            if part.buckets.is_empty() {
                // Every caller has left.
                self.complete_part(part, &replies, Err(Failure::NotSent));
                continue;
            }
            for sent in &mut part.buckets {
                sent.prepare(outgoing);
            }
            let keys: Vec<_> = part.buckets.iter().map(|sent| &sent.bucket.redis_key).collect();
            let mut call = self.store.invocation(&lua::RATE_LIMIT_ACQUIRE_ALL, &keys);
            for SentBucket { rate, charge, .. } in &part.buckets {
                call.arg(rate.gain).arg(rate.price).arg(rate.capacity).arg(*charge);
            }
            call.arg(part.groups.len());
            for group in &part.groups {
                let Some(Asked { set, request }) = &group.asked else {
                    call.arg(group.callers).arg(0);
                    continue;
                };
                call.arg(group.callers).arg(set.limits.len());
                for (bucket, limit) in set.buckets() {
                    let max_wait = limit.max_wait.min(request.max_wait).as_micros();
                    let max_wait = u64::try_from(max_wait).unwrap_or(MAX_WAIT).min(MAX_WAIT);
                    call.arg(part.number_of(bucket)).arg(limit.cost.of(request.cost)).arg(max_wait);
                }
            }
            // Draws follow the callers, as with a single limit.
            let leased = part.groups.iter().flat_map(|group| &group.asked).any(|asked| asked.set.is_leased());
            let buckets: Vec<_> = part.buckets.iter().map(|sent| sent.bucket.clone()).collect();
            let (cell, replies) = (self.clone(), replies.clone());
            outgoing.add_waiting(opened, call, move |reply| cell.complete_part(part, &replies, reply));
            if leased {
                buckets.iter().for_each(|bucket| bucket.fill_lease(outgoing));
            }
        }
    }

    /// Groups the requests of a batch, and divides the groups among scripts.
    fn parts<'a>(requests: impl Iterator<Item = &'a SetRequest>) -> Vec<Part> {
        let mut parts: Vec<Part> = Vec::new();
        let mut last = None::<&SetRequest>;
        for (index, request) in requests.enumerate() {
            if last == Some(request)
                && let Some(group) = parts.last_mut().and_then(|part| part.groups.last_mut())
            {
                group.callers += 1;
                continue;
            }
            last = Some(request);
            if parts.last().is_none_or(|part| !part.has_room_for(request)) {
                parts.push(Part { buckets: Vec::new(), groups: Vec::new(), first: index });
            }
            if let Some(part) = parts.last_mut() {
                part.add(request);
            }
        }
        parts
    }

    fn complete_part(self: &Arc<Self>, part: Part, replies: &Replies, reply: ScriptResult) {
        let integers = reply.map_or_else(|_| Vec::new(), |value| integers(&value));
        // Now, two numbers for each bucket, and two for each group.
        let expected = 1 + 2 * part.buckets.len() + 2 * part.groups.len();
        let answered = integers.len() >= expected;
        for sent in &part.buckets {
            sent.settle(answered);
        }
        // Without a reply it is unknown whether permits were taken: the twins decide, and what Redis took is lost.
        let granted = if answered { self.grants(&part, &integers) } else { Vec::new() };
        let batch = {
            let mut gathered = replies.gathered.lock();
            for (index, granted) in replies.order.iter().skip(part.first).zip(granted) {
                gathered.replies[*index] = granted;
            }
            gathered.missing_parts -= 1;
            (gathered.missing_parts == 0).then(|| std::mem::take(&mut gathered.replies))
        };
        if let Some(all) = batch {
            for orphan in replies.batch.complete(all) {
                self.reclaim(orphan);
            }
        }
    }

    /// Computes each caller's reply, in order, from the server's time and the levels before the first of them.
    fn grants(&self, part: &Part, integers: &[i64]) -> Vec<Option<SetGranted>> {
        let micros = integers.first().and_then(|now| u64::try_from(*now).ok()).unwrap_or(0);
        let (server_now, now) = (Time::from_micros(micros), self.store.clock.now());
        let (of_buckets, of_groups) = integers[1..].split_at(2 * part.buckets.len());
        let mut levels: Vec<i64> = Vec::with_capacity(part.buckets.len());
        for (sent, reply) in part.buckets.iter().zip(of_buckets.chunks_exact(2)) {
            sent.bucket.note_reply(sent.rate, &[integers[0], reply[0], reply[1]]);
            levels.push(clamp_level(reply[0], sent.rate));
        }
        let mut rejected: Vec<Option<u32>> = vec![None; part.buckets.len()];
        let mut grants = Vec::new();
        for (group, reply) in part.groups.iter().zip(of_groups.chunks_exact(2)) {
            let Some(Asked { set, request }) = &group.asked else {
                grants.extend((0..group.callers).map(|_| None));
                continue;
            };
            let granted = usize::try_from(reply[0]).unwrap_or(0).min(group.callers);
            let needs: Vec<_> = set
                .buckets()
                .map(|(bucket, limit)| {
                    let number = part.number_of(bucket) - 1;
                    let cost = limit.cost.of(request.cost);
                    let need = u64::from(cost).saturating_mul(part.buckets[number].rate.price).min(1 << 62) as i64;
                    (number, cost, need)
                })
                .collect();
            let reply_of = |grant| Some(SetGranted { grant, set: set.clone(), cost: request.cost });
            for _ in 0..granted {
                grants.push(reply_of(part.grant(&needs, &mut levels, server_now)));
            }
            if granted == group.callers {
                continue;
            }
            let named = usize::try_from(reply[1]).unwrap_or(0).saturating_sub(1).min(needs.len().saturating_sub(1));
            let Some(&(number, cost, need)) = needs.get(named) else { continue };
            let rate = part.buckets[number].rate;
            let fits = need as u64 <= rate.capacity;
            let missing = time_for(rate, levels[number].saturating_sub(need).min(0));
            let until = if fits { now.after(missing) } else { Time::NEVER };
            let left = Level { units: levels[number], price: rate.price };
            let rejection = SetGrant {
                take: Take::Rejected { until },
                limit: named,
                left,
                source: Source::Fleet,
                dues: Dues::Same(server_now),
            };
            grants.extend((granted..group.callers).map(|_| reply_of(rejection.clone())));
            let waits = !set.limits[named].max_wait.min(request.max_wait).is_zero();
            if fits && need > 0 && !waits {
                rejected[number] = Some(rejected[number].map_or(cost, |lowest| lowest.min(cost)));
            }
        }
        for ((sent, level), rejected) in part.buckets.iter().zip(levels).zip(rejected) {
            sent.note_level(level, rejected, now);
        }
        grants
    }

    /// Sends the request in a batch of its own, so that no other caller depends on this task being polled.
    fn submit_inline(self: &Arc<Self>, request: SetRequest, trip: InlineTrip) -> (Joined<Self>, Option<InlineRequest>) {
        let batch = Arc::new(Batch::new());
        let index = batch.join(request, Waker::noop()).unwrap_or(0);
        let mut outgoing = Outgoing::default();
        self.fill_batch(&mut outgoing, batch.clone());
        ((batch, index), Some(trip.send(outgoing)))
    }
}

impl Part {
    /// Whether the buckets of a request fit.
    fn has_room_for(&self, request: &SetRequest) -> bool {
        let Some(Asked { set, .. }) = &request.0 else { return true };
        let new = set.buckets().filter(|(bucket, _)| self.number_of(bucket) > self.buckets.len()).count();
        self.buckets.len() + new <= MAX_BUCKETS
    }

    fn add(&mut self, request: &SetRequest) {
        if let Some(Asked { set, .. }) = &request.0 {
            for (bucket, _) in set.buckets() {
                if self.number_of(bucket) > self.buckets.len() {
                    self.buckets.push(SentBucket::new(bucket));
                }
            }
        }
        self.groups.push(Group { callers: 1, asked: request.0.clone() });
    }

    /// Returns the number of a bucket from 1; one more than there are if it is not among them.
    fn number_of(&self, bucket: &Arc<Shared>) -> usize {
        self.buckets.iter().take_while(|sent| !Arc::ptr_eq(&sent.bucket, bucket)).count() + 1
    }

    /// Takes the permits of one caller from the levels; returns its grant.
    fn grant(&self, needs: &[(usize, u32, i64)], levels: &mut [i64], server_now: Time) -> SetGrant {
        let mut verdict = SetVerdict::default();
        let mut waits = [Duration::ZERO; MAX_LIMITS];
        for (index, (number, _, need)) in needs.iter().enumerate() {
            let (level, rate) = (&mut levels[*number], self.buckets[*number].rate);
            *level = level.saturating_sub(*need); // a reply may grant more than there was
            let wait = if *need > 0 && *level < 0 { time_for(rate, *level) } else { Duration::ZERO };
            verdict.note(index, Take::Granted { wait }, Level { units: *level, price: rate.price });
            waits[index] = wait;
        }
        verdict.grant(Source::Fleet, Dues::after(server_now, waits[..needs.len()].iter().copied()))
    }
}

impl SentBucket {
    fn new(bucket: &Arc<Shared>) -> Self {
        let rate = bucket.state.lock().rate;
        Self { bucket: bucket.clone(), rate, charge: 0 }
    }

    /// Takes what is sent before the callers, or with them: a change of the rate, and permits to charge.
    fn prepare(&mut self, outgoing: &mut Outgoing) {
        let previous = {
            let mut state = self.bucket.state.lock();
            self.rate = state.rate;
            self.charge = self.bucket.charge(&mut state);
            state.previous_rate.take()
        };
        if let Some(old) = previous {
            self.bucket.fill_retune(outgoing, old, self.rate);
        }
    }

    /// Ends the charge, and the time of the twin if Redis has replied.
    fn settle(&self, answered: bool) {
        let shared = &self.bucket;
        let mut state = shared.state.lock();
        let rate = state.rate;
        state.uncharged.sent(self.charge, answered, rate);
        if answered && !shared.store.dispatcher(shared.redis_key.slot).latch.is_down() {
            state.retire_twin_unless(|_| false, shared.store.clock.now());
        }
    }

    /// Records the level after the callers, and the lowest cost of a call that did not wait and was rejected by this limit.
    fn note_level(&self, level: i64, rejected: Option<u32>, now: Time) {
        let mut state = self.bucket.state.lock();
        state.see(level, self.rate, now);
        if state.rate == self.rate {
            self.bucket.note_exhausted(&mut state, rejected, level);
        }
    }
}

impl Coalesce for LimitsCell {
    type Request = SetRequest;
    type Reply = Option<SetGranted>;

    fn submit(self: &Arc<Self>, request: SetRequest, waker: &Waker) -> (Joined<Self>, Option<InlineRequest>) {
        let slot = request.0.as_ref().map_or(0, |asked| asked.set.slot());
        let dispatcher = self.store.dispatcher(slot);
        if let Some(trip) = dispatcher.try_inline() {
            return self.submit_inline(request, trip);
        }
        let joined = self.batches.lock().join(request, waker);
        if self.queued.mark(Urgency::Caller) {
            dispatcher.enqueue(self.clone(), Urgency::Caller);
        }
        (joined, None)
    }

    fn reclaim(self: &Arc<Self>, granted: Option<SetGranted>) {
        if let Some(SetGranted { grant, set, cost }) = granted
            && matches!(grant.take, Take::Granted { .. })
        {
            set.refund(cost, &grant.dues, grant.source);
        }
    }
}

impl BatchSource for LimitsCell {
    fn fill(self: Arc<Self>, outgoing: &mut Outgoing) {
        self.queued.clear();
        let batches = self.batches.lock().take();
        for batch in batches {
            self.fill_batch(outgoing, batch);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_callers_are_served_together_unless_there_is_a_line() {
        let asked = ["a", "b", "a", "c", "b", "a"];
        assert_eq!(serving_order(asked.iter(), false), [0, 2, 5, 1, 4, 3]);
        assert_eq!(serving_order(asked.iter(), true), [0, 1, 2, 3, 4, 5]);
        assert!(serving_order(std::iter::empty::<u8>(), false).is_empty());
    }
}
