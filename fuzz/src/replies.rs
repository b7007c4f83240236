//! Replies of a server that is not trusted: any value for any script, any push, any Cluster topology. No decoder panics, a
//! level stays inside what its rate allows, and a caller waits no longer than its budget.

mod hostile_redis;

use std::sync::Arc;
use std::time::Duration;

use phalanx_core::breaker::{Admission, BreakerSpec, Override, Sample, Ticket};
use phalanx_core::clock::{Clock, Time};
use phalanx_core::key::StateKey;
use phalanx_core::kind::Outcome;
use phalanx_core::lock::LockStore;
use phalanx_core::rate_limit::{RateLimitSpec, Take};
use phalanx_core::rng::Rng;
use phalanx_core::store::{AcquireRequest, BreakerStore, Grant, LatencyDigestStore, RateLimitStore, Store};
use phalanx_store_redis::internal::shard_survey;
use phalanx_store_redis::{RedisConnection, RedisStore, SharedBreaker, SharedBucket, SharedDigest};

use self::hostile_redis::{HostileRedis, survey, value};
use crate::block_on;
use crate::input::{Input, Recipe, random};

/// Operations of one input.
const MAX_STEPS: usize = 24;
const SECOND: Duration = Duration::from_secs(1);
/// Burst 10.
const RATE: RateLimitSpec = RateLimitSpec::per_second(10);

/// Runs one input: operations, what the background of the store receives, and the replies to the operations.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    if input.byte() % 16 == 15 {
        return topology(&mut input);
    }
    let (steps, background) = (input.bytes(MAX_STEPS), input.bytes(512));
    block_on(play(steps, HostileRedis::new(background, input.rest())));
}

/// The replies of all masters to `CLUSTER SLOTS`.
fn topology(input: &mut Input<'_>) {
    let reply = if input.flag() { survey(input) } else { value(input, 0) };
    if let Some((shards, unreachable)) = shard_survey(&reply) {
        let slots: usize =
            shards.iter().flatten().map(|(first, last)| usize::from(last.saturating_sub(*first)) + 1).sum();
        assert!(slots <= 16_384, "{slots} slots");
        assert!(unreachable.iter().all(|number| *number < shards.len()));
    }
}

async fn play(steps: &[u8], redis: HostileRedis) {
    let redis = RedisConnection::over_transport(Arc::new(redis));
    let store = RedisStore::over(redis).clock(Clock::tokio()).rng(Rng::seeded(7)).build().expect("good options");
    let key = StateKey::new("policy", "route");
    let spec = BreakerSpec::consecutive_failures(2).or_slow_call_ratio(0.5, SECOND).or_latency(0.9, SECOND, SECOND);
    let spec = spec.ramp(SECOND, 4).probes(2, 2);
    let mut player = Player {
        bucket: store.bucket(&key, &RATE),
        breaker: store.breaker(&key, &spec),
        digest: store.digest(&key, 10 * SECOND),
        ticket: Ticket { epoch: 1, lease: None },
        store,
        key,
        spec,
    };
    for step in steps {
        player.step(*step).await;
    }
    // Pushes, heartbeats, health checks and rounds of the sync loop.
    tokio::time::sleep(2 * SECOND).await;
    player.step(0).await;
    player.store.leave().await;
}

struct Player {
    store: RedisStore,
    key: StateKey,
    spec: BreakerSpec,
    bucket: Arc<SharedBucket>,
    breaker: Arc<SharedBreaker>,
    digest: Arc<SharedDigest>,
    /// Of the last call that was admitted.
    ticket: Ticket,
}

impl Player {
    async fn step(&mut self, step: u8) {
        let before = tokio::time::Instant::now();
        let (store, now) = (&self.store, self.store.clock().now());
        let more = u32::from(step / 16);
        match step % 16 {
            0 => self.acquire(now, 1).await,
            1 => self.acquire_together(now, more).await,
            2 => store.refund(&self.bucket, more, now.after(SECOND), phalanx_core::rejection::Source::Fleet),
            3 => {
                let level = store.peek(&self.bucket, now).await;
                assert!(level.permits() <= 70, "{level:?}");
            }
            4 => drop(store.bucket(&self.key, &RATE.burst(u64::from(more).clamp(1, 7) * 10))),
            5 | 6 => self.admit(now).await,
            7 => {
                let outcome = [Outcome::Success, Outcome::Failure, Outcome::Cancelled][more as usize % 3];
                store.record(&self.breaker, now, self.ticket, Sample { outcome, latency: SECOND * more });
                store.observe_quantile(&self.breaker, now, Some(SECOND * more));
            }
            8 => {
                let overrides = [None, Some(Override::Open), Some(Override::Closed), Some(Override::MetricsOnly)];
                store.force(&self.breaker, overrides[more as usize % 4]).await;
            }
            9 => drop(store.reset(&self.breaker, now).await),
            10 => drop(store.inspect(&self.breaker, now).await),
            11 => {
                store.observe(&self.digest, now, SECOND * more);
                let quantile = store.quantile_since(&self.digest, now, Time::from_micros(more.into()), 0.5);
                assert!(quantile.is_none_or(|quantile| quantile <= 4_000 * SECOND), "{quantile:?}");
            }
            12 => return store.settle().await,
            13 => self.lock().await,
            14 => self.request().await,
            _ => return tokio::time::sleep(SECOND * more / 4).await,
        }
        drop(self.store.breaker(&self.key, &self.spec));
        assert!(before.elapsed() <= Duration::from_millis(200), "{step} waited for {:?}", before.elapsed());
    }

    async fn acquire(&self, now: Time, cost: u32) {
        let request = AcquireRequest { cost, max_wait: Duration::ZERO };
        let grant = match self.store.acquire_now(&self.bucket, now, request) {
            Some(grant) => grant,
            None => self.store.acquire(&self.bucket, now, request).await,
        };
        check(grant);
        assert!(self.store.cached_level(&self.bucket, now).is_none_or(|level| level.permits() <= 70));
    }

    async fn acquire_together(&self, now: Time, cost: u32) {
        tokio::join!(self.acquire(now, 1), self.acquire(now, cost), self.acquire(now, cost), self.acquire(now, 0));
    }

    async fn admit(&mut self, now: Time) {
        let reply = match self.store.admit_now(&self.breaker, now) {
            Some(reply) => reply,
            None => self.store.admit(&self.breaker, now).await.0,
        };
        if let Admission::Admitted(ticket) = reply.admission {
            self.ticket = ticket;
        }
    }

    /// Locks fail closed: what is not a reply of the script is an error.
    async fn lock(&self) {
        let locks = self.store.locks();
        if let Ok(phalanx_core::lock::Acquired::Held { fence }) = locks.acquire("lock", "owner", SECOND).await {
            let _ = locks.renew("lock", "owner", fence, SECOND).await;
            let _ = locks.complete("lock", "owner", fence, "1", SECOND).await;
        }
        let _ = locks.completed("lock", "1").await;
    }

    async fn request(&self) {
        let requests = self.store.idempotency();
        let _ = requests.claim("00", "f0", "aa", SECOND).await;
        let _ = requests.renew("00", "aa", SECOND).await;
        let _ = requests.complete("00", "f0", "aa", b"answer", SECOND).await;
    }
}

/// A level is at most the capacity (of any rate in use here) and at most 2^52 units below zero.
fn check(grant: Grant) {
    assert!(grant.left.permits() <= 70, "{grant:?}");
    assert!(grant.left.units >= -(1 << 53), "{grant:?}");
    if let Take::Granted { wait } = grant.take {
        assert!(wait <= Duration::from_micros(1 << 53), "{grant:?}");
    }
}

/// Returns the inputs that the corpus starts with.
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    let play = |name: &str, steps: &[u8], reply: &[i64]| {
        let start = Recipe::of(&[0]).number(steps.len() as i64).bytes(steps).number(0);
        (name.to_owned(), start.bytes(&hostile_redis::reply(reply).repeat(4)).done())
    };
    let last = i64::MAX;
    let mut seeds = vec![
        play("lowest-level", &[0, 0x31, 3], &[1, i64::MIN, 0, 1, 1, 1, 1]),
        play("highest-level", &[0, 0x31, 3, 0xff, 0], &[1, last, 3, last, -1]),
        play("last-lease", &[5, 7, 5, 12], &[1, 3, 5, 0, 0, 0, 0, 0, 0, 2, last, last]),
        play("last-ramp", &[5, 5, 10, 12], &[1, 1, 5, 0, 0, 1, 0, 0, 0, 3, last, last]),
        play("last-epoch", &[5, 7, 9, 10, 12, 5], &[1, 2, last, last, 0, 0, u32::MAX.into(), 7, 0, 1, 1, 0]),
        play("many-transitions", &[5, 10], &[1, 2, 5, 0, 0, 0, 0, 0, last]),
        play("nothing", &[0, 5, 11, 12, 13, 14], &[]),
        ("topology".to_owned(), hostile_redis::topology_seed()),
    ];
    for kind in [0, 15] {
        seeds.extend(random(&[kind], 8, 240));
    }
    seeds
}
