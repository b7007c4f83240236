//! Several limits of a policy: finds the buckets of a call by its route and its tags, and asks the store for all of them at once.
//!
//! ```text
//!   policy, route, tags ──► set of limits ──► Store::acquire_all_now | acquire_all ──► all granted, or the name of one
//! ```
//!
//! Calls without a limit by a tag share one set, compiled with the route. Of the others, each combination of values has a set in
//! a table, which is bounded as the table of routes is: values that find no room share one bucket.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::call_state::{CallState, Step};
use super::cost::PaidCost;
use crate::clock::Time;
use crate::context::{CallTags, Tags};
use crate::event::{EventKind, Observers};
use crate::key::{LimitName, MAX_ROUTE_BYTES, StateKey};
use crate::policy::{Policy, Stage};
use crate::rate_limit::{
    Dues, LimitCost, LimitKey, LimitSpec, MAX_LIMITS, MissingTag, SHORT_FORM, SetGrant, SetLimit, Take,
};
use crate::rejection::{RejectionCode, Source};
use crate::store::{AcquireRequest, Store};
use crate::table::{Entry, Retention, Table};
use crate::timeout::{Elapsed, Timer, poll_within};

/// The sets of limits of an engine that depend on tags.
pub(crate) type TaggedSets<S> = Table<BoundSet<S>>;

/// The limits of a policy on one route.
pub(crate) struct LimitsStage<S: Store> {
    limits: Box<[Limit<S>]>,
    /// The tags that limits count by, each once.
    tags: Box<[Box<str>]>,
    /// The set of every call, if no limit counts by a tag.
    plain: Option<BoundSet<S>>,
    /// The sets of the engine, and the number by which those of this version are found there.
    sets: Arc<TaggedSets<S>>,
    number: u64,
    /// Cleared when a newer version of the policy replaces this one.
    is_current: Arc<AtomicBool>,
    /// Whether it was emitted that values share a bucket.
    is_exhausted: AtomicBool,
    key: Arc<StateKey>,
    observers: Observers,
    store: S,
}

struct Limit<S: Store> {
    name: LimitName,
    spec: LimitSpec,
    text: Box<str>,
    bucket: LimitBucket<S>,
}

enum LimitBucket<S: Store> {
    Shared(Arc<S::Bucket>),
    /// Of the tag with this index.
    ByTag(usize),
}

/// The limits of calls with the same buckets.
pub(crate) struct BoundSet<S: Store> {
    /// None if no limit applies.
    set: Option<Arc<S::LimitSet>>,
    names: Box<[LimitName]>,
    /// The same limits as in the set, for what is settled or charged in each.
    parts: Box<[SetLimit<S::Bucket>]>,
    /// The buckets of values of tags.
    tagged: Box<[Arc<S::Bucket>]>,
    is_current: Arc<AtomicBool>,
    store: S,
}

impl<S: Store> Entry for BoundSet<S> {
    /// A set of an older version of the policy can be found no more, and one whose buckets are as good as new is made again.
    fn retention(&self) -> Retention {
        if !self.is_current.load(Ordering::Relaxed) {
            return Retention::Disposable;
        }
        self.tagged.iter().map(|bucket| self.store.bucket_retention(bucket)).max().unwrap_or(Retention::Disposable)
    }
}

/// The limits of one call.
pub(crate) enum CallLimits<'a, S: Store> {
    Plain(&'a BoundSet<S>),
    Tagged(Arc<BoundSet<S>>),
}

impl<S: Store> std::ops::Deref for CallLimits<'_, S> {
    type Target = BoundSet<S>;

    fn deref(&self) -> &BoundSet<S> {
        match self {
            Self::Plain(limits) => limits,
            Self::Tagged(limits) => limits,
        }
    }
}

/// The permits of several limits that a call holds, or has spent.
pub(super) struct HeldSet<'a, S: Store> {
    limits: CallLimits<'a, S>,
    dues: Dues,
    /// Whether the operation has started: then they are only settled.
    pub(super) is_spent: bool,
}

impl<S: Store> BoundSet<S> {
    /// Returns the buckets from which a call takes its own cost, with the indices of their limits.
    fn by_cost(&self) -> impl Iterator<Item = (usize, &Arc<S::Bucket>)> {
        let parts = self.parts.iter().enumerate().filter(|(_, part)| part.cost == LimitCost::Call);
        parts.map(|(index, part)| (index, &part.bucket))
    }
}

impl<S: Store> HeldSet<'_, S> {
    /// Returns what a call of this cost has paid, to each limit that takes it. A fixed cost has nothing to settle.
    pub(super) fn paid(&self, cost: u32, source: Source) -> impl Iterator<Item = (&Arc<S::Bucket>, PaidCost)> {
        let paid = move |(index, bucket)| (bucket, PaidCost { cost, due: self.dues.of(index), source });
        self.limits.by_cost().map(paid)
    }
}

impl<S: Store> LimitsStage<S> {
    /// Compiles the limits of a valid policy; none if it has none besides the short form.
    pub(super) fn compile(
        key: &Arc<StateKey>,
        policy: &Policy,
        store: &S,
        sets: &Arc<TaggedSets<S>>,
        observers: &Observers,
    ) -> Option<Self> {
        static NUMBERS: AtomicU64 = AtomicU64::new(1); // of a set, never 0
        if policy.limits.is_empty() {
            return None;
        }
        let short_form = policy.rate_limit.clone().map(|spec| (SHORT_FORM, LimitSpec::from(spec)));
        let named = policy.limits.iter().map(|(name, spec)| (name, spec.clone()));
        let mut tags: Vec<Box<str>> = Vec::new();
        let mut limit = |(text, spec): (&str, LimitSpec)| {
            let bucket = match &spec.key {
                LimitKey::Tag(tag) => {
                    LimitBucket::ByTag(tags.iter().position(|known| **known == **tag).unwrap_or_else(|| {
                        tags.push(tag.as_str().into());
                        tags.len() - 1
                    }))
                }
                // The bucket of the short form, whether it is alone or not.
                LimitKey::Route if text == SHORT_FORM => LimitBucket::Shared(store.bucket(key, &spec.rate(None))),
                LimitKey::Route => LimitBucket::Shared(store.bucket(&key.of_limit(text), &spec.rate(key.route()))),
                LimitKey::Policy => {
                    let key = StateKey::new(key.policy(), ()).of_policy_limit(text);
                    LimitBucket::Shared(store.bucket(&key, &spec.rate(None)))
                }
            };
            Limit { name: LimitName::of(text), spec, text: text.into(), bucket }
        };
        let limits: Box<[_]> = short_form.into_iter().chain(named).map(&mut limit).collect();
        let mut stage = Self {
            limits,
            tags: tags.into(),
            plain: None,
            sets: sets.clone(),
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            is_current: Arc::new(AtomicBool::new(true)),
            is_exhausted: AtomicBool::new(false),
            key: key.clone(),
            observers: observers.clone(),
            store: store.clone(),
        };
        stage.plain = stage.tags.is_empty().then(|| stage.set_of(&[], false));
        Some(stage)
    }

    /// Marks the sets of this version as outdated.
    pub(super) fn supersede(&self) {
        self.is_current.store(false, Ordering::Relaxed);
    }

    /// Charges permits of the limits that take the cost of a call, by the tags of the task.
    pub(super) fn charge(&self, permits: u32) {
        if let Some(limits) = self.limits_of(&CallTags::NONE) {
            limits.by_cost().for_each(|(_, bucket)| self.store.charge(bucket, permits));
        }
    }

    /// Returns the buckets that do not depend on a tag.
    pub(super) fn shared_buckets(&self) -> impl Iterator<Item = &Arc<S::Bucket>> {
        self.limits.iter().filter_map(|limit| match &limit.bucket {
            LimitBucket::Shared(bucket) => Some(bucket),
            LimitBucket::ByTag(_) => None,
        })
    }

    /// Returns the limits of a call with these tags and those of its task; none if one of them is missing or too long.
    #[inline]
    fn limits_of(&self, tags: &CallTags<'_>) -> Option<CallLimits<'_, S>> {
        match &self.plain {
            Some(limits) => Some(CallLimits::Plain(limits)),
            None => Tags::with_current(|task| self.tagged(tags, task)).map(CallLimits::Tagged),
        }
    }

    fn tagged(&self, tags: &CallTags<'_>, task: &Tags) -> Option<Arc<BoundSet<S>>> {
        if tags.are_too_many() {
            return None;
        }
        let mut values = [None; MAX_LIMITS];
        let values = &mut values[..self.tags.len()];
        for (value, tag) in values.iter_mut().zip(&self.tags) {
            *value = tags.get(tag).or_else(|| task.get(tag));
            if value.is_some_and(|value| value.len() > MAX_ROUTE_BYTES) {
                return None;
            }
        }
        let key = self.key.borrowed().of_set(self.number, values);
        self.sets.find(key).or_else(|| self.add_set(values))
    }

    /// Adds the set of values that are new to this process.
    #[cold]
    fn add_set(&self, values: &[Option<&str>]) -> Option<Arc<BoundSet<S>>> {
        let lacks = |limit: &Limit<S>| match limit.bucket {
            LimitBucket::ByTag(tag) => values[tag].is_none() && limit.spec.missing == MissingTag::Reject,
            LimitBucket::Shared(_) => false,
        };
        if self.limits.iter().any(lacks) {
            return None;
        }
        let key = self.key.borrowed().of_set(self.number, values).to_owned_set(&self.key);
        Some(self.sets.find_or_make(&key, || self.set_of(values, false)).unwrap_or_else(|| {
            // A full bucket for each new value would be no limit at all, so new values share one until there is room.
            if !self.is_exhausted.swap(true, Ordering::Relaxed) {
                self.observers.emit(&self.key, EventKind::TagsExhausted);
            }
            Arc::new(self.set_of(values, true))
        }))
    }

    /// Looks up the buckets of these values of the tags. Without room, all values that are there share one for each limit.
    fn set_of(&self, values: &[Option<&str>], no_room: bool) -> BoundSet<S> {
        let (mut set, mut names, mut tagged) = (Vec::new(), Vec::new(), Vec::new());
        for limit in &self.limits {
            let bucket = match &limit.bucket {
                LimitBucket::Shared(bucket) => bucket.clone(),
                LimitBucket::ByTag(tag) => {
                    let (tag, value) = (&self.tags[*tag], values[*tag]);
                    if value.is_none() && limit.spec.missing == MissingTag::Skip {
                        continue;
                    }
                    let (key, rate) = match value.filter(|_| no_room) {
                        Some(_) => {
                            (StateKey::of_other_tags(self.key.policy(), &limit.text, tag), limit.spec.rate(None))
                        }
                        None => {
                            let key = StateKey::of_tag(self.key.policy(), &limit.text, tag, value);
                            (key, limit.spec.rate(value))
                        }
                    };
                    let bucket = self.store.bucket(&key, &rate);
                    tagged.push(bucket.clone());
                    bucket
                }
            };
            let max_wait = limit.spec.max_wait.unwrap_or_default();
            set.push(SetLimit { bucket, cost: limit.spec.cost, max_wait });
            names.push(limit.name);
        }
        BoundSet {
            set: (!set.is_empty()).then(|| self.store.limit_set(set.clone())),
            names: names.into(),
            parts: set.into(),
            tagged: tagged.into(),
            is_current: self.is_current.clone(),
            store: self.store.clone(),
        }
    }
}

impl<'a, S: Store> CallState<'a, S> {
    /// Acquires the call's permits of all limits, if the store can decide without awaiting; otherwise returns the limits to await.
    #[inline]
    pub(super) fn acquire_limits(&mut self, stage: &'a LimitsStage<S>) -> Result<Step, CallLimits<'a, S>> {
        let Some(limits) = stage.limits_of(self.tags) else {
            self.reject(Stage::RateLimit, RejectionCode::InvalidTag);
            return Ok(Step::Reject);
        };
        let Some(set) = &limits.set else { return Ok(Step::Continue) };
        match self.stages.store.acquire_all_now(set, self.attempt.started, self.set_request()) {
            Some(grant) => Ok(self.apply_set_grant(limits, grant)),
            None => Err(limits),
        }
    }

    /// Awaits the store's decision about all limits.
    pub(super) async fn await_limits(&mut self, timer: &mut Timer, limits: CallLimits<'a, S>) -> Step {
        let (within, request, now) = (self.time_left(), self.set_request(), self.attempt.started);
        let grant = {
            let Some(set) = &limits.set else { return Step::Continue };
            let mut acquiring = pin!(self.stages.store.acquire_all(set, now, request));
            poll_fn(|cx| poll_within(timer, within, cx, |cx| acquiring.as_mut().poll(cx))).await
        };
        timer.disarm();
        self.restart_clock();
        match grant {
            Ok(grant) => self.apply_set_grant(limits, grant),
            Err(Elapsed) => self.reject_late(),
        }
    }

    /// The call's cost, and the longest wait that its deadline allows; each limit has one of its own too.
    #[inline]
    fn set_request(&self) -> AcquireRequest {
        AcquireRequest { cost: self.cost(), max_wait: self.time_left().unwrap_or(Duration::MAX) }
    }

    /// Takes the permits that all limits granted, or the rejection of one.
    #[inline]
    fn apply_set_grant(&mut self, limits: CallLimits<'a, S>, grant: SetGrant) -> Step {
        let SetGrant { take, limit, left, source, dues } = grant;
        self.notes.level = left;
        self.notes.limit = limits.names.get(limit).copied().unwrap_or_default();
        match take {
            Take::Granted { wait } => {
                self.hold_set(HeldSet { limits, dues, is_spent: false }, source);
                self.accept_reply(Stage::RateLimit, source).or_wait(wait)
            }
            Take::Rejected { until } => {
                let step = if until == Time::NEVER {
                    // Whatever the policy does without Redis: the bucket can never hold that much.
                    self.reject(Stage::RateLimit, RejectionCode::CostAboveBurst);
                    Step::Reject
                } else {
                    self.reject_reply(Stage::RateLimit, RejectionCode::RateLimited, until, source)
                };
                if step == Step::Reject {
                    self.stages.state.rejected.count(&self.stages.key);
                }
                step
            }
        }
    }

    /// Gives the permits of several limits back.
    pub(super) fn refund_set(&self, held: &HeldSet<'a, S>, cost: u32, source: Source) {
        if let Some(set) = &held.limits.set {
            self.stages.store.refund_all(set, cost, &held.dues, source);
        }
    }
}
