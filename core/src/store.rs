//! Where state that a fleet may share is kept: three traits, and the rules every store keeps.
//!
//! 1. **A store cannot fail a call.** No method returns an error; an answer says whose state it was made on
//!    ([`Source`]), and the pipeline applies the policy's `on_degraded`.
//! 2. **Operations say what is meant** (`acquire`, `admit`, `record`), never get or set.
//! 3. **What can be decided here is answered now.** `acquire_now` and `admit_now` never wait; only when they cannot
//!    answer does a call wait for `acquire` or `admit`.
//! 4. **State is resolved once.** `bucket`, `breaker` and `digest` find or make the state of a key and hand out an
//!    `Arc` of it, which the pipeline keeps: no table is searched on the way of a call. Asking again with another spec
//!    retunes the living state.
//! 5. **Moments are [`Store::clock`]'s.** `now` is the caller's reading of it, taken once and shared by all stages of a
//!    call; the `until` of a rejection is on it too. A store whose truth lives elsewhere decides on the server's clock,
//!    uses `now` for its local bookkeeping only and translates what it answers.
//!
//! Each line of a `# Behaviour` list below is a case of the conformance suite, named after it.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::breaker::{Admission, BreakerSpec, BreakerView, Override, Phase, Sample, Ticket, Transition};
use crate::clock::{Clock, Time};
use crate::key::StateKey;
pub use crate::rate_limit::Level;
use crate::rate_limit::{RateLimitSpec, Take};
use crate::rejection::Source;
use crate::table::Retention;

/// All three, and the clock they are asked with.
pub trait Store: RateLimitStore + BreakerStore + LatencyDigestStore + Clone {
    /// The clock whose readings are handed to the other methods.
    fn clock(&self) -> &Clock;
}

/// What a call wants from a rate limit.
#[derive(Clone, Copy, Debug)]
pub struct AcquireRequest {
    /// How many permits.
    pub cost: u32,
    /// How long it would wait for them.
    pub max_wait: Duration,
}

/// What it got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Granted or rejected.
    pub take: Take,
    /// What is left in the bucket.
    pub left: Level,
    /// Whose bucket.
    pub source: Source,
}

/// Token buckets.
pub trait RateLimitStore: Send + Sync + 'static {
    /// The state of one key.
    type Bucket: Send + Sync + 'static;

    /// Finds or makes the bucket of a key.
    ///
    /// # Behaviour
    /// - a new bucket is full
    /// - the same key is the same bucket
    /// - different keys never share a bucket
    /// - another spec keeps the permits that fit
    fn bucket(&self, key: &StateKey, spec: &RateLimitSpec) -> Arc<Self::Bucket>;

    /// Takes permits if that can be decided in this process: none means that [`RateLimitStore::acquire`] must be asked,
    /// and that nothing was taken.
    fn acquire_now(&self, bucket: &Self::Bucket, now: Time, ask: AcquireRequest) -> Option<Grant>;

    /// Takes permits, now or reserved for later.
    ///
    /// # Behaviour
    /// - permits come back at the declared rate
    /// - an empty bucket rejects and says when to come back
    /// - a rejection takes nothing
    /// - a cost takes that many permits
    /// - a cost above the burst is rejected for good
    /// - waiters are served in the order they came
    /// - a wait longer than allowed is rejected
    fn acquire(&self, bucket: &Self::Bucket, now: Time, ask: AcquireRequest) -> impl Future<Output = Grant> + Send;

    /// Gives back permits that were taken for the moment `due` and not used, to whoever gave them: `source` is the
    /// grant's.
    ///
    /// # Behaviour
    /// - a refund is there for the next call
    /// - a refund never overfills
    /// - a reservation with others behind it lapses
    fn refund(&self, bucket: &Self::Bucket, cost: u32, due: Time, source: Source);

    /// Looks without taking.
    ///
    /// # Behaviour
    /// - a look takes nothing
    fn peek(&self, bucket: &Self::Bucket, now: Time) -> impl Future<Output = Level> + Send;

    /// Looks without taking and without asking anybody: what this process last knew. None if that is nothing. Never waits.
    ///
    /// # Behaviour
    /// - what is known of a bucket is what the last call left
    fn cached_level(&self, bucket: &Self::Bucket, now: Time) -> Option<Level>;

    /// Returns whether this process may forget the bucket. A bucket that would come back full must be kept until it is
    /// full; one that is kept elsewhere may go.
    fn bucket_retention(&self, bucket: &Self::Bucket) -> Retention;
}

/// A circuit's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmitReply {
    /// Admitted or rejected.
    pub admission: Admission,
    /// Whose circuit.
    pub source: Source,
}

/// Circuit breakers.
pub trait BreakerStore: Send + Sync + 'static {
    /// The state of one key.
    type Breaker: Send + Sync + 'static;

    /// Finds or makes the circuit of a key.
    ///
    /// # Behaviour
    /// - a new circuit is closed
    /// - the same key is the same circuit
    /// - different keys never share a circuit
    /// - another threshold reaches a living circuit
    /// - another window forgets what was counted
    fn breaker(&self, key: &StateKey, spec: &BreakerSpec) -> Arc<Self::Breaker>;

    /// The circuit's answer if it can be given in this process and changes nothing: none means that
    /// [`BreakerStore::admit`] must be asked. Closed and open circuits, as nearly all are, answer here.
    fn admit_now(&self, breaker: &Self::Breaker, now: Time) -> Option<AdmitReply>;

    /// Asks for a call to pass. The change of phase that asking brought about, if any, comes beside the answer.
    ///
    /// # Behaviour
    /// - an open circuit rejects and says when the break is over
    /// - after the break the allowed number of probes passes
    /// - a lost probe frees its place when its lease is over
    /// - a ramp admits a growing share
    fn admit(
        &self,
        breaker: &Self::Breaker,
        now: Time,
    ) -> impl Future<Output = (AdmitReply, Option<Transition>)> + Send;

    /// Records what became of an admitted call. Never waits, so a store whose truth lives elsewhere may return nothing
    /// and bring the change of phase about a little later.
    ///
    /// # Behaviour
    /// - failures at the ratio trip
    /// - failures in a row trip
    /// - slow calls trip
    /// - a burst across a slice edge trips
    /// - successes never trip
    /// - neutral and cancelled outcomes count for nothing
    /// - a cancelled probe frees its place
    /// - a probe that succeeds closes the circuit
    /// - a probe that fails opens it again
    /// - a late outcome of an earlier epoch changes nothing
    /// - a failure while open does not prolong the break
    /// - breaks grow on trips in a row
    fn record(&self, breaker: &Self::Breaker, now: Time, ticket: Ticket, sample: Sample) -> Option<Transition>;

    /// Tells the latency's quantile. Never waits.
    ///
    /// # Behaviour
    /// - a quantile over its threshold for long enough trips
    fn observe_quantile(&self, breaker: &Self::Breaker, now: Time, value: Option<Duration>) -> Option<Transition>;

    /// Returns whether this process may forget the breaker. A circuit that would come back closed must be kept while it is
    /// open; one that is kept elsewhere may go.
    fn breaker_retention(&self, breaker: &Self::Breaker) -> Retention;

    /// Puts an operator's word above the phase, or takes it away.
    ///
    /// # Behaviour
    /// - forced open rejects everything
    /// - forced closed admits everything and never trips
    /// - disabled counts nothing
    /// - metrics only admits everything and still changes phase
    fn force(&self, breaker: &Self::Breaker, overridden: Option<Override>) -> impl Future<Output = ()> + Send;

    /// Back to a closed circuit that has seen nothing. An operator's word stays.
    ///
    /// # Behaviour
    /// - a reset circuit is closed and old tickets are void
    fn reset(&self, breaker: &Self::Breaker, now: Time) -> impl Future<Output = Option<Transition>> + Send;

    /// What can be seen from outside.
    ///
    /// # Behaviour
    /// - a look shows what was counted
    fn inspect(&self, breaker: &Self::Breaker, now: Time) -> impl Future<Output = BreakerView> + Send;

    /// Looks without asking anybody: the phase this process last knew, and the operator's word above it. Closed if nothing
    /// was heard of it yet. Never waits.
    ///
    /// # Behaviour
    /// - what is known of a circuit is its phase and the word above it
    fn cached_phase(&self, breaker: &Self::Breaker) -> (Phase, Option<Override>);
}

/// Latency digests.
pub trait LatencyDigestStore: Send + Sync + 'static {
    /// The state of one key.
    type Digest: Send + Sync + 'static;

    /// Finds or makes the digest of a key over a window.
    ///
    /// # Behaviour
    /// - the same key is the same digest
    /// - different keys never share a digest
    /// - another window starts the digest over
    fn digest(&self, key: &StateKey, window: Duration) -> Arc<Self::Digest>;

    /// Adds one latency. Never waits.
    ///
    /// # Behaviour
    /// - what is no latency is left out
    fn observe(&self, digest: &Self::Digest, now: Time, latency: Duration);

    /// The quantile of what the window saw. Never waits.
    ///
    /// # Behaviour
    /// - a quantile is within its error
    /// - too few samples have no quantile
    /// - the window forgets
    fn quantile(&self, digest: &Self::Digest, now: Time, quantile: f64) -> Option<Duration> {
        self.quantile_since(digest, now, Time::ZERO, quantile)
    }

    /// The quantile of a measurement epoch: of those slices of the window that began at `since` or later. The digest
    /// itself stays what it is, so an epoch is its reader's alone. [`Time::ZERO`] is before everything, also before what
    /// others saw when this clock had not begun. Never waits.
    ///
    /// # Behaviour
    /// - an epoch holds nothing from before it
    /// - an epoch begins with the next slice
    /// - an epoch of one replica is not the others'
    /// - too few samples since have no quantile
    fn quantile_since(&self, digest: &Self::Digest, now: Time, since: Time, quantile: f64) -> Option<Duration>;
}
