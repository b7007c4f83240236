//! A leased rate limit: many callers compared with one EVALSHA per call, one caller compared with a bucket in memory, and what
//! five replicas admit and cost.

use std::error::Error;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use phalanx::store::{AcquireRequest, MemoryStore, RateLimitStore, StateKey, Store, Take};
use phalanx::{Clock, Consistency, RateLimitSpec, Source};
use phalanx_store_redis::{RedisStore, SharedBucket};
use tokio::runtime::Runtime;
use tokio::task::yield_now;

use super::commands::CommandCounts;
use super::contest::{Case, Compared, Contender};
use super::exact::Draw;
use super::naive::Naive;
use super::policies;
use crate::contender::Caller;
use crate::figures::{Bar, Row};
use crate::server::Server;

pub(crate) const CASES: &[&str] =
    &["leased_utilisation_even", "leased_utilisation_skewed", "leased_admitted", "leased_scripts_per_1000"];

/// Name, callers, keys and bar.
const PLANS: &[(&str, usize, usize, f64)] = &[("leased_1024", 1_024, 1, 50.0), ("leased_64keys", 1_024, 64, 20.0)];

/// Calls after which a caller yields: those that never wait do not.
const CALLS_PER_YIELD: u32 = 64;
/// Calls of one caller that are timed together.
const BATCH: u32 = 2_000;

const ASK: AcquireRequest = AcquireRequest { cost: 1, max_wait: Duration::ZERO };

pub(crate) fn cases(
    runtime: &Runtime,
    server: &Server,
    wanted: &dyn Fn(&str) -> bool,
) -> Result<Vec<Case>, Box<dyn Error>> {
    let store = RedisStore::over(server.client()?).build()?;
    let mut cases = Vec::new();
    for &(name, callers, keys, bar) in PLANS.iter().filter(|(name, ..)| wanted(name)) {
        let (ours, naive) = (Leased::new(&store, name, keys), Naive::connect(runtime, server, name, keys)?);
        let peers = vec![Contender::new("evalsha_per_call", callers, move |number| naive.caller(number))];
        let ours = Contender::new("phalanx", callers, move |number| ours.caller(number, 1));
        cases.push(Case { name, compared: Compared::Throughput, bar: Some(Bar::AtLeast(bar)), ours, peers });
    }
    let name = "leased_1_caller_ns";
    if wanted(name) {
        let (ours, memory) = (Leased::new(&store, name, 1), MemoryStore::new(Clock::system()));
        let ours = Contender::new("phalanx", 1, move |number| ours.caller(number, BATCH));
        let buckets: Arc<[_]> = [memory.bucket(&StateKey::new(name, ()), &policies::limit())].into();
        let in_memory = move |number| {
            let (store, buckets) = (memory.clone(), buckets.clone());
            InMemory { store, buckets, draw: Draw::new(number) }
        };
        let peers = vec![Contender::new("memory_bucket", 1, in_memory)];
        let (compared, bar) = (Compared::Batches(BATCH), Some(Bar::AtMost(2.0)));
        cases.push(Case { name, compared, bar, ours, peers });
    }
    Ok(cases)
}

/// The store and its resolved buckets.
#[derive(Clone)]
pub(super) struct Leased {
    store: RedisStore,
    buckets: Arc<[Arc<SharedBucket>]>,
}

impl Leased {
    pub(super) fn new(store: &RedisStore, case: &str, keys: usize) -> Self {
        let spec = policies::limit().consistency(Consistency::Leased);
        let bucket = |key: usize| store.bucket(&StateKey::new(case, &key.to_string()), &spec);
        Self { store: store.clone(), buckets: (0..keys).map(bucket).collect() }
    }

    pub(super) fn caller(&self, number: usize, calls: u32) -> LeasedCaller {
        LeasedCaller { leased: self.clone(), draw: Draw::new(number), calls, since_yield: 0 }
    }
}

/// Acquires permits, some of them together.
pub(super) struct LeasedCaller {
    leased: Leased,
    draw: Draw,
    calls: u32,
    since_yield: u32,
}

impl Caller for LeasedCaller {
    /// Expected: granted from a block, or by Redis.
    async fn call(&mut self) -> bool {
        let mut as_expected = true;
        for _ in 0..self.calls {
            let store = &self.leased.store;
            let bucket = self.draw.one_of(&self.leased.buckets);
            let now = store.clock().now();
            let grant = match store.acquire_now(bucket, now, ASK) {
                Some(grant) => grant,
                None => store.acquire(bucket, now, ASK).await,
            };
            as_expected &= grant.take == Take::Granted { wait: Duration::ZERO } && grant.source != Source::Degraded;
        }
        self.since_yield += self.calls;
        if self.since_yield >= CALLS_PER_YIELD {
            self.since_yield = 0;
            yield_now().await;
        }
        as_expected
    }
}

/// The same on a bucket in memory, which is drawn too: the draw is part of what is timed.
struct InMemory {
    store: MemoryStore,
    buckets: Arc<[Arc<<MemoryStore as RateLimitStore>::Bucket>]>,
    draw: Draw,
}

impl Caller for InMemory {
    async fn call(&mut self) -> bool {
        let mut as_expected = true;
        for _ in 0..BATCH {
            let bucket = self.draw.one_of(&self.buckets);
            let grant = self.store.acquire_now(bucket, self.store.clock().now(), ASK);
            as_expected &= grant.is_some_and(|grant| grant.take == Take::Granted { wait: Duration::ZERO });
        }
        yield_now().await;
        as_expected
    }
}

/// Permits a second, and as many at once.
pub(super) const RATE: u64 = 10_000;
pub(super) const SPAN: Duration = Duration::from_secs(3);
/// Calls a second of each replica: together one and a half times the rate.
pub(super) const EVEN: [u64; 5] = [3_000; 5];

pub(crate) fn measure(runtime: &Runtime) -> Result<Vec<Row>, Box<dyn Error>> {
    let server = Server::start()?;
    let even = Fleet::new(&server, "even", RATE)?.load(runtime, &EVEN)?;
    let skewed = Fleet::new(&server, "skewed", RATE)?.load(runtime, &[12_000, 1_200, 900, 600, 300])?;
    let busy = Fleet::new(&server, "busy", 20 * RATE)?.load(runtime, &[12_000; 5])?;
    let most = even.of_limit.max(skewed.of_limit).max(busy.of_limit);
    Ok(vec![
        Row::value(CASES[0], even.of_rate, "of the rate").bar(Bar::AtLeast(0.97)),
        Row::value(CASES[1], skewed.of_rate, "of the rate").bar(Bar::AtLeast(0.90)),
        Row::value(CASES[2], most, "of burst + rate × time").bar(Bar::AtMost(1.0)),
        Row::value(CASES[3], busy.scripts_per_1000, "scripts")
            .bar(Bar::AtMost(2.0))
            .with("calls_per_s", busy.calls_per_s)
            .with("overload_scripts_per_1000", even.scripts_per_1000),
    ])
}

/// Five replicas of one leased limit.
pub(super) struct Fleet {
    client: redis::Client,
    stores: Vec<RedisStore>,
    spec: RateLimitSpec,
    case: &'static str,
}

/// What a fleet has done.
pub(super) struct Load {
    /// Admitted beyond the burst, of rate × time.
    pub(super) of_rate: f64,
    /// Admitted, of burst + rate × time.
    of_limit: f64,
    scripts_per_1000: f64,
    calls_per_s: f64,
}

impl Fleet {
    pub(super) fn new(server: &Server, case: &'static str, rate: u64) -> Result<Self, Box<dyn Error>> {
        let spec = RateLimitSpec::per_second(rate).consistency(Consistency::Leased);
        let store = |_| Ok::<_, Box<dyn Error>>(RedisStore::over(server.client()?).build()?);
        let stores = (0..5).map(store).collect::<Result<_, _>>()?;
        Ok(Self { client: server.client()?, stores, spec, case })
    }

    /// Lets each replica call so often a second, after the burst is used up and blocks are drawn.
    pub(super) fn load(&self, runtime: &Runtime, demands: &[u64]) -> Result<Load, Box<dyn Error>> {
        let rate = self.spec.permits as f64;
        let overloaded = demands.iter().sum::<u64>() > self.spec.permits;
        let warm_up = if overloaded { Duration::from_secs(4) } else { Duration::from_millis(500) };
        self.admitted(runtime, demands, warm_up);
        let before = CommandCounts::of(&self.client)?.scripts;
        let (admitted, took) = self.admitted(runtime, demands, SPAN);
        let scripts = CommandCounts::of(&self.client)?.scripts - before;
        Ok(Load {
            of_rate: admitted as f64 / (rate * took.as_secs_f64()),
            of_limit: admitted as f64 / (self.spec.capacity() as f64 + rate * took.as_secs_f64()),
            scripts_per_1000: scripts as f64 * 1e3 / admitted.max(1) as f64,
            calls_per_s: admitted as f64 / took.as_secs_f64(),
        })
    }

    /// Returns how many calls were admitted, and in what time.
    fn admitted(&self, runtime: &Runtime, demands: &[u64], span: Duration) -> (u64, Duration) {
        let start = |(store, demand): (&RedisStore, &u64)| {
            let (store, demand) = (store.clone(), *demand);
            let bucket = store.bucket(&StateKey::new(self.case, ()), &self.spec);
            runtime.spawn(async move { paced(&store, &bucket, demand, span).await })
        };
        let begun = quanta::Instant::now();
        let tasks: Vec<_> = self.stores.iter().zip(demands).map(start).collect();
        let admitted = tasks.into_iter().map(|task| runtime.block_on(task).unwrap_or_default()).sum();
        (admitted, begun.elapsed())
    }
}

async fn paced(store: &RedisStore, bucket: &Arc<SharedBucket>, per_second: u64, span: Duration) -> u64 {
    let ask = || async {
        let now = store.clock().now();
        let grant = match store.acquire_now(bucket, now, ASK) {
            Some(grant) => grant,
            None => store.acquire(bucket, now, ASK).await,
        };
        matches!(grant.take, Take::Granted { .. })
    };
    paced_calls(ask, per_second, span).await
}

/// Makes so many calls a second, in steps of two milliseconds, and returns how many were admitted. A step that is late is
/// made up for.
pub(super) async fn paced_calls<F: Future<Output = bool>>(
    mut call: impl FnMut() -> F,
    per_second: u64,
    span: Duration,
) -> u64 {
    let (begun, mut made, mut admitted) = (quanta::Instant::now(), 0, 0);
    while begun.elapsed() < span {
        let due = per_second * begun.elapsed().as_micros() as u64 / 1_000_000;
        while made < due {
            made += 1;
            admitted += u64::from(call().await);
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    admitted
}
