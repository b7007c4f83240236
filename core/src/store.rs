//! Stores: the five traits of state that a fleet may share, and the rules for their implementations.
//!
//! 1. **A store cannot fail a call.** No method returns an error. A reply names the state it is based on ([`Source`]), and
//!    the pipeline applies the policy's `on_degraded`.
//! 2. **Operations are intents** (`acquire`, `admit`, `record`), not reads and writes of fields.
//! 3. **Local decisions are synchronous.** `acquire_now`, `admit_now`, `withdraw_now` and `take_slot_now` never wait. A call
//!    waits for `acquire`, `admit`, `withdraw` or `take_slot` only if they return none.
//! 4. **State is looked up once.** `bucket`, `breaker`, `digest`, `tally` and `slots` return an `Arc` that the pipeline keeps, so
//!    that a call searches no table. Another call with a different spec retunes the existing state.
//! 5. **Times are those of [`Store::clock`].** `now` is read once per call and shared by all stages; the `until` of a
//!    rejection is on the same clock. A store with state on a server decides on the server's clock, uses `now` only
//!    locally, and converts the times that it returns.
//!
//! Each line of a `# Behaviour` list is a case of the conformance suite, with the line as its name.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::breaker::{Admission, BreakerSpec, BreakerView, Override, Phase, Sample, Ticket, Transition};
use crate::clock::{Clock, Time};
use crate::key::StateKey;
pub use crate::rate_limit::{Dues, Level, SetGrant, SetLimit, SetVerdict};
use crate::rate_limit::{RateLimitSpec, Take};
use crate::rejection::Source;
use crate::table::Retention;
pub use crate::tally::{Addition, Allowance, Counts, TallyUse};

/// Which replicas share a kind of state.
///
/// # Examples
/// ```
/// use phalanx::policy::BudgetSpec;
/// use phalanx::store::StateScope;
///
/// assert_eq!(BudgetSpec::ratio(0.1).scope, StateScope::Process);
/// let shared = BudgetSpec::ratio(0.1).scope(StateScope::Fleet);
/// assert_eq!(shared.scope.name(), "fleet");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(transform = crate::schema::without_examples))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum StateScope {
    /// All replicas with the same prefix, service and environment; without Redis, all modules on one store.
    #[default]
    Fleet,
    /// No other replica: each one keeps its own.
    Process,
}

impl StateScope {
    /// Returns the name, as in a configuration file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fleet => "fleet",
            Self::Process => "process",
        }
    }

    #[cfg(feature = "serde")]
    pub(crate) const fn process() -> Self {
        Self::Process
    }
}

/// All five stores, and their clock.
pub trait Store: RateLimitStore + BreakerStore + LatencyDigestStore + TallyStore + SlotStore + Clone {
    /// Returns the clock of every `now` argument.
    fn clock(&self) -> &Clock;
}

/// A request for permits.
#[derive(Clone, Copy, Debug)]
pub struct AcquireRequest {
    /// The number of permits.
    pub cost: u32,
    /// The longest acceptable wait.
    pub max_wait: Duration,
}

/// The reply to a request for permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Granted or rejected.
    pub take: Take,
    /// The level of the bucket afterwards.
    pub left: Level,
    /// The state that decided.
    pub source: Source,
    /// The time the permits are for, on the clock of the state that granted them; [`RateLimitStore::refund`] takes it
    /// back. Of a rejection: without meaning.
    pub due: Time,
}

/// A store of token buckets.
pub trait RateLimitStore: Send + Sync + 'static {
    /// The bucket of one key.
    type Bucket: Send + Sync + 'static;

    /// The limits that decide about calls together.
    type LimitSet: Send + Sync + 'static;

    /// Returns the bucket of a key; creates it if there is none.
    ///
    /// # Behaviour
    /// - a new bucket is full
    /// - the same key is the same bucket
    /// - different keys never share a bucket
    /// - another spec keeps the permits that fit
    fn bucket(&self, key: &StateKey, spec: &RateLimitSpec) -> Arc<Self::Bucket>;

    /// Takes permits if that can be decided in this process. None means that nothing was taken and that
    /// [`RateLimitStore::acquire`] must be asked.
    fn acquire_now(&self, bucket: &Self::Bucket, now: Time, request: AcquireRequest) -> Option<Grant>;

    /// Takes permits, now or reserved for later.
    ///
    /// # Behaviour
    /// - permits come back at the declared rate
    /// - an empty bucket rejects and names the time to retry
    /// - a rejection takes nothing
    /// - a cost takes that many permits
    /// - a cost above the burst is rejected for good
    /// - waiters are served in the order they came
    /// - a wait longer than allowed is rejected
    /// - a leased limit admits no more than its burst and its rate
    /// - leased permits that are not called for come back
    fn acquire(&self, bucket: &Self::Bucket, now: Time, request: AcquireRequest) -> impl Future<Output = Grant> + Send;

    /// Gives back permits that were not used. `due` and `source` are those of the grant, so that permits return to the
    /// state that granted them, without what time has refilled since.
    ///
    /// # Behaviour
    /// - a refund is there for the next call
    /// - a refund never overfills
    /// - a refund returns only what has not been refilled since
    /// - a place with others behind it waits for them
    /// - a crowd that leaves gives all its places back
    /// - a leased permit that is refunded is there for the next call
    fn refund(&self, bucket: &Self::Bucket, cost: u32, due: Time, source: Source);

    /// Takes permits for work that is done, whether they are there or not. Never waits: a store with state on a server sends
    /// it later, and takes the permits once, whatever becomes of replies. What is not there is a debt: nothing is granted or
    /// leased before time has paid it off.
    ///
    /// # Behaviour
    /// - a charge takes permits that are there
    /// - a charge beyond the level is a debt that time pays off
    /// - a charge may exceed the burst
    /// - a refund pays off debt
    /// - a charge leaves the places of waiters alone
    /// - another spec keeps the debt
    /// - a leased limit in debt leases nothing
    fn charge(&self, bucket: &Self::Bucket, permits: u32);

    /// Gives back permits that were charged a moment ago. The caller has subtracted what time has refilled since. Never
    /// waits.
    ///
    /// # Behaviour
    /// - a charge that is given back is there for the next call
    fn discharge(&self, bucket: &Self::Bucket, permits: u32);
    /// Returns the set of these limits, whose buckets are different ones of one policy. It has no state of its own.
    fn limit_set(&self, limits: Vec<SetLimit<Self::Bucket>>) -> Arc<Self::LimitSet>;

    /// Takes permits of all limits of a set if that can be decided in this process. None means that nothing was taken and that
    /// [`RateLimitStore::acquire_all`] must be asked.
    fn acquire_all_now(&self, set: &Self::LimitSet, now: Time, request: AcquireRequest) -> Option<SetGrant>;

    /// Takes permits of all limits of a set, or of none. A call waits for each of them as long as that limit allows, at most for
    /// the request's `max_wait`.
    ///
    /// # Behaviour
    /// - several limits are charged together
    /// - a limit that rejects leaves the others untouched
    /// - of several limits that reject the last to recover is named
    /// - a call waits for the slowest of its limits
    /// - a limit takes its own cost
    /// - a cost above the burst of one limit is rejected for good
    /// - leased limits are spent together or not at all
    fn acquire_all(
        &self,
        set: &Arc<Self::LimitSet>,
        now: Time,
        request: AcquireRequest,
    ) -> impl Future<Output = SetGrant> + Send;

    /// Gives back permits of all limits of a set that were not used: of a request of this cost, with the times and the source of
    /// its grant, as [`RateLimitStore::refund`] does for one.
    ///
    /// # Behaviour
    /// - a refund reaches every limit
    fn refund_all(&self, set: &Self::LimitSet, cost: u32, dues: &Dues, source: Source);

    /// Returns the level without taking permits.
    ///
    /// # Behaviour
    /// - a peek takes nothing
    fn peek(&self, bucket: &Self::Bucket, now: Time) -> impl Future<Output = Level> + Send;

    /// Returns the level that this process knows, if any, without asking a server. Never waits.
    ///
    /// # Behaviour
    /// - the cached level is that of the last call
    fn cached_level(&self, bucket: &Self::Bucket, now: Time) -> Option<Level>;

    /// Returns whether this process may forget the bucket. A bucket that would come back full must be kept until it is
    /// full; one that is kept elsewhere may go.
    fn bucket_retention(&self, bucket: &Self::Bucket) -> Retention;
}

/// The reply to a call that asks a breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmitReply {
    /// Admitted or rejected.
    pub admission: Admission,
    /// The state that decided.
    pub source: Source,
}

/// A store of circuit breakers.
pub trait BreakerStore: Send + Sync + 'static {
    /// The breaker of one key.
    type Breaker: Send + Sync + 'static;

    /// Returns the breaker of a key; creates it if there is none.
    ///
    /// # Behaviour
    /// - a new circuit is closed
    /// - the same key is the same circuit
    /// - different keys never share a circuit
    /// - another threshold reaches a living circuit
    /// - another window keeps what was counted
    fn breaker(&self, key: &StateKey, spec: &BreakerSpec) -> Arc<Self::Breaker>;

    /// Admits or rejects a call if that can be decided in this process without a change of state. None means that
    /// [`BreakerStore::admit`] must be asked. Closed and open breakers, as nearly all are, decide here.
    fn admit_now(&self, breaker: &Self::Breaker, now: Time) -> Option<AdmitReply>;

    /// Admits or rejects a call. Also returns the change of phase that it caused, if any.
    ///
    /// # Behaviour
    /// - an open circuit rejects and names the end of the break
    /// - after the break the allowed number of probes passes
    /// - a lost probe is replaced when its lease expires
    /// - a ramp admits a growing share
    fn admit(
        &self,
        breaker: &Self::Breaker,
        now: Time,
    ) -> impl Future<Output = (AdmitReply, Option<Transition>)> + Send;

    /// Records the outcome of an admitted call. Never waits: a store with state on a server may return none and change the
    /// phase a little later.
    ///
    /// # Behaviour
    /// - failures at the ratio trip
    /// - failures in a row trip
    /// - slow calls trip
    /// - a burst across a slice edge trips
    /// - successes never trip
    /// - neutral and cancelled outcomes count for nothing
    /// - a cancelled probe gives its lease back
    /// - a probe that succeeds closes the circuit
    /// - a probe that fails opens it again
    /// - a late outcome of an earlier epoch changes nothing
    /// - a failure while open does not prolong the break
    /// - breaks grow on trips in a row
    fn record(&self, breaker: &Self::Breaker, now: Time, ticket: Ticket, sample: Sample) -> Option<Transition>;

    /// Reports a quantile of the latency. Never waits.
    ///
    /// # Behaviour
    /// - a quantile over its threshold for long enough trips
    fn observe_quantile(&self, breaker: &Self::Breaker, now: Time, value: Option<Duration>) -> Option<Transition>;

    /// Returns whether this process may forget the breaker. A circuit that would come back closed must be kept while it is
    /// open; one that is kept elsewhere may go.
    fn breaker_retention(&self, breaker: &Self::Breaker) -> Retention;

    /// Sets or releases an override.
    ///
    /// # Behaviour
    /// - forced open rejects everything
    /// - forced closed admits everything and never trips
    /// - disabled counts nothing
    /// - metrics only admits everything and still changes phase
    fn force(&self, breaker: &Self::Breaker, overridden: Option<Override>) -> impl Future<Output = ()> + Send;

    /// Closes the breaker and forgets its history. An override stays.
    ///
    /// # Behaviour
    /// - a reset circuit is closed and old tickets are void
    fn reset(&self, breaker: &Self::Breaker, now: Time) -> impl Future<Output = Option<Transition>> + Send;

    /// Returns the state of the breaker.
    ///
    /// # Behaviour
    /// - an inspection returns the counts
    fn inspect(&self, breaker: &Self::Breaker, now: Time) -> impl Future<Output = BreakerView> + Send;

    /// Returns the phase and the override that this process knows, without asking a server; closed if it knows neither.
    /// Never waits.
    ///
    /// # Behaviour
    /// - the cached phase comes with the override
    fn cached_phase(&self, breaker: &Self::Breaker) -> (Phase, Option<Override>);
}

/// A store of latency digests.
pub trait LatencyDigestStore: Send + Sync + 'static {
    /// The digest of one key.
    type Digest: Send + Sync + 'static;

    /// Returns the digest of a key over a window; creates it if there is none.
    ///
    /// # Behaviour
    /// - the same key is the same digest
    /// - different keys never share a digest
    /// - another window starts the digest over
    fn digest(&self, key: &StateKey, window: Duration) -> Arc<Self::Digest>;

    /// Adds one latency. Never waits.
    ///
    /// # Behaviour
    /// - a latency over an hour is ignored
    fn observe(&self, digest: &Self::Digest, now: Time, latency: Duration);

    /// Returns a quantile of the window. Never waits.
    ///
    /// # Behaviour
    /// - a quantile is within its error
    /// - too few samples have no quantile
    /// - the window forgets
    /// - a late latency reaches every reader
    fn quantile(&self, digest: &Self::Digest, now: Time, quantile: f64) -> Option<Duration> {
        self.quantile_since(digest, now, Time::ZERO, quantile)
    }

    /// Returns a quantile of a measurement epoch: of the slices of the window that began at `since` or later. The digest is
    /// not changed, so that each reader has an epoch of its own. [`Time::ZERO`] includes everything, also latencies from
    /// before this clock started. Never waits.
    ///
    /// # Behaviour
    /// - an epoch holds nothing from before it
    /// - an epoch begins with the next slice
    /// - an epoch of one replica is not the others'
    /// - too few samples since have no quantile
    fn quantile_since(&self, digest: &Self::Digest, now: Time, since: Time, quantile: f64) -> Option<Duration>;

    /// Returns whether quantiles are of the latencies of all replicas. While a shared store has not received those of the
    /// others, a low quantile says nothing about the fleet. Default true.
    fn has_fleet_latencies(&self, digest: &Self::Digest) -> bool {
        let _ = digest;
        true
    }
}

/// The reply to a request for a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Withdrawal {
    /// Whether the mark is granted. If not, nothing was taken.
    pub granted: bool,
    /// The state that decided.
    pub source: Source,
    /// The slice in which the mark is counted, on the clock of that state; [`TallyStore::put_back`] takes it back from there.
    pub slice: u64,
}

/// A store of tallies: the requests and accepts of adaptive throttles, and the calls and extra attempts of budgets, where
/// the replicas share them ([`StateScope::Fleet`]).
pub trait TallyStore: Send + Sync + 'static {
    /// The tally of one key and use.
    type Tally: Send + Sync + 'static;

    /// Returns the tally of a key and use over a window; creates it if there is none.
    ///
    /// # Behaviour
    /// - a new tally is empty
    /// - the same key is the same tally
    /// - different keys never share a tally
    /// - different uses never share a tally
    /// - another window starts the tally over
    fn tally(&self, key: &StateKey, of: TallyUse, window: Duration) -> Arc<Self::Tally>;

    /// Adds calls and marks of this replica, or takes back what was added before. Never waits: a store with state on a
    /// server may send it with a later request.
    ///
    /// # Behaviour
    /// - what was added counts for one window
    /// - what is taken back was never counted
    fn add(&self, tally: &Self::Tally, now: Time, addition: Addition);

    /// Keeps the sum of this replica close to the fleet's for one window from now. Never waits. Default: does nothing, as the
    /// sum of an in-process store is always the fleet's.
    fn watch(&self, tally: &Self::Tally, now: Time) {
        let _ = (tally, now);
    }

    /// Returns the sums of the window: of all replicas while the tally is watched, at least of this one. Never waits.
    ///
    /// # Behaviour
    /// - a watched tally is the sum of all replicas
    fn sum(&self, tally: &Self::Tally, now: Time) -> Counts;

    /// Takes a mark if that can be decided in this process. None means that nothing was taken and that
    /// [`TallyStore::withdraw`] must be asked.
    fn withdraw_now(&self, tally: &Self::Tally, now: Time, allowance: Allowance) -> Option<Withdrawal>;

    /// Takes a mark, if the window allows another one.
    ///
    /// # Behaviour
    /// - marks never exceed their share of the calls of all replicas
    /// - a minimum is always allowed
    /// - a rejected withdrawal takes nothing
    /// - a mark counts for one window
    fn withdraw(&self, tally: &Self::Tally, now: Time, allowance: Allowance)
    -> impl Future<Output = Withdrawal> + Send;

    /// Puts back a mark that was granted and not used. Never waits.
    ///
    /// # Behaviour
    /// - a mark that is put back is there for the next call
    /// - a mark of an earlier window is not put back
    fn put_back(&self, tally: &Self::Tally, withdrawal: Withdrawal);

    /// Returns how long before it is needed a mark should be asked for, so that the reply is there in time. Default zero.
    fn lead(&self, tally: &Self::Tally) -> Duration {
        let _ = tally;
        Duration::ZERO
    }
}

/// The reply to a call that asks for a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotReply {
    /// Whether the call has a slot. If not, nothing was taken.
    pub is_granted: bool,
    /// The state that decided.
    pub source: Source,
}

/// A store of slots: how many calls of a key may be in flight on all replicas together
/// ([`BulkheadSpec::fleet_max_concurrency`](crate::bulkhead::BulkheadSpec::fleet_max_concurrency)).
pub trait SlotStore: Send + Sync + 'static {
    /// The slots of one key.
    type Slots: Send + Sync + 'static;

    /// Returns the slots of a key; creates them if there are none.
    ///
    /// # Behaviour
    /// - the same key is the same slots
    /// - different keys never share slots
    /// - another cap keeps the calls in flight
    fn slots(&self, key: &StateKey, cap: u32) -> Arc<Self::Slots>;

    /// Takes a slot if that can be decided in this process. None means that nothing was taken and that
    /// [`SlotStore::take_slot`] must be asked.
    ///
    /// # Behaviour
    /// - a slot that was used is taken again without a wait
    fn take_slot_now(&self, slots: &Self::Slots, now: Time) -> Option<SlotReply>;

    /// Takes a slot, if fewer than the cap are taken.
    ///
    /// # Behaviour
    /// - calls in flight never exceed the cap
    /// - a full fleet rejects and takes nothing
    /// - slots that are not used are there for the others
    /// - a slot is held for as long as its call takes
    fn take_slot(&self, slots: &Self::Slots, now: Time) -> impl Future<Output = SlotReply> + Send;

    /// Returns a slot that was taken. Never waits.
    ///
    /// # Behaviour
    /// - a slot that is returned is there for the next call
    fn return_slot(&self, slots: &Self::Slots);
}
