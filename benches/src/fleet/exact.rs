//! An exact rate limit with many callers, on one key or on random keys, compared with one EVALSHA per call.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use phalanx::Source;
use phalanx::store::StateKey;
use phalanx::store::Take;
use phalanx::store::{AcquireRequest, RateLimitStore, Store};
use phalanx_store_redis::{RedisStore, SharedBucket};
use tokio::runtime::Runtime;

use super::contest::{Case, Compared, Contender};
use super::naive::Naive;
use super::policies;
use crate::contender::Caller;
use crate::figures::Bar;
use crate::server::Server;

/// Name, callers, keys, comparison and bar.
type CasePlan = (&'static str, usize, usize, Compared, Bar);

const PLANS: &[CasePlan] = &[
    ("exact_1", 1, 1, Compared::Latency, Bar::AtMost(1.2)),
    ("exact_16", 16, 1, Compared::Throughput, Bar::AtLeast(1.2)),
    ("exact_128", 128, 1, Compared::Throughput, Bar::AtLeast(5.5)),
    ("exact_1024", 1_024, 1, Compared::Throughput, Bar::AtLeast(28.0)),
    ("exact_128_64keys", 128, 64, Compared::Throughput, Bar::AtLeast(1.2)),
    ("exact_1024_64keys", 1_024, 64, Compared::Throughput, Bar::AtLeast(5.0)),
];

pub(crate) fn cases(
    runtime: &Runtime,
    server: &Server,
    wanted: &dyn Fn(&str) -> bool,
) -> Result<Vec<Case>, Box<dyn Error>> {
    let store = RedisStore::over(server.client()?).build()?;
    let mut cases = Vec::new();
    for &(name, callers, keys, compared, bar) in PLANS.iter().filter(|(name, ..)| wanted(name)) {
        let (ours, naive) = (Ours::new(&store, name, keys), Naive::connect(runtime, server, name, keys)?);
        let peers = vec![Contender::new("evalsha_per_call", callers, move |number| naive.caller(number))];
        cases.push(Case { name, compared, bar: Some(bar), ours: ours.contender(callers), peers });
    }
    #[cfg(feature = "limitador")]
    cases.extend(super::limitador::cases(runtime, server, &store, wanted)?);
    Ok(cases)
}

/// The store and its resolved buckets.
#[derive(Clone)]
pub(crate) struct Ours {
    store: RedisStore,
    buckets: Arc<[Arc<SharedBucket>]>,
    draw: Draw,
}

impl Ours {
    pub(crate) fn new(store: &RedisStore, case: &str, keys: usize) -> Self {
        let bucket = |key: usize| store.bucket(&StateKey::new(case, &key.to_string()), &policies::limit());
        Self { store: store.clone(), buckets: (0..keys).map(bucket).collect(), draw: Draw::new(0) }
    }

    pub(crate) fn contender(self, callers: usize) -> Contender {
        Contender::new("phalanx", callers, move |number| Self { draw: Draw::new(number), ..self.clone() })
    }
}

impl Caller for Ours {
    /// Acquires one permit like the pipeline does. Expected: granted by Redis.
    async fn call(&mut self) -> bool {
        let bucket = self.draw.one_of(&self.buckets);
        let (now, ask) = (self.store.clock().now(), AcquireRequest { cost: 1, max_wait: Duration::ZERO });
        let grant = match self.store.acquire_now(bucket, now, ask) {
            Some(grant) => grant,
            None => self.store.acquire(bucket, now, ask).await,
        };
        grant.take == Take::Granted { wait: Duration::ZERO } && grant.source == Source::Fleet
    }
}

/// Selects the next key: a xorshift per caller, the same for all contenders.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draw(u64);

impl Draw {
    pub(crate) fn new(caller: usize) -> Self {
        Self((caller as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    pub(crate) fn one_of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        &all[(self.0 >> 32) as usize % all.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::Draw;

    #[test]
    fn every_key_is_drawn_about_as_often() {
        let (keys, mut drawn) = ((0..64).collect::<Vec<usize>>(), [0; 64]);
        for caller in 0..100 {
            let mut draw = Draw::new(caller);
            (0..64).for_each(|_| drawn[*draw.one_of(&keys)] += 1);
        }
        assert!(drawn.iter().all(|times| (50..200).contains(times)), "{drawn:?}");
    }
}
