//! limitador at 1,024 callers: its Redis storage, exact like our exact limit, and its cached one, which decides in the process
//! like our leased limit, and may overshoot: by how much, with five replicas.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use limitador::AsyncRateLimiter;
use limitador::limit::{Context, Limit, Namespace};
use limitador::storage::AsyncCounterStorage;
use limitador::storage::redis::{AsyncRedisStorage, CachedRedisStorage};
use phalanx_store_redis::RedisStore;
use tokio::runtime::Runtime;

use super::contest::{Case, Compared, Contender};
use super::exact::Ours;
use super::leased::{self, EVEN, Fleet, Leased, RATE, SPAN};
use crate::contender::Caller;
use crate::figures::{Bar, Row};
use crate::server::Server;
use crate::settings::UNREACHABLE_RATE;

const NAME: &str = "exact_1024_vs_limitador_cached";
const LEASED: &str = "leased_vs_limitador_cached";
const ADMITTED: &str = "leased_vs_limitador_admitted";
pub(crate) const CASES: &[&str] = &[ADMITTED];
const CALLERS: usize = 1_024;
const NAMESPACE: &str = "bench";

pub(crate) fn cases(
    runtime: &Runtime,
    server: &Server,
    store: &RedisStore,
    wanted: &dyn Fn(&str) -> bool,
) -> Result<Vec<Case>, Box<dyn Error>> {
    let mut cases = Vec::new();
    // The cached storage spawns its flush task when it is built.
    let cached = || runtime.block_on(async { Limiter::cached(server, UNREACHABLE_RATE.into()).await });
    if wanted(NAME) {
        let exact = runtime.block_on(AsyncRedisStorage::new(server.url()))?;
        let exact = Limiter::over(exact, UNREACHABLE_RATE.into());
        cases.push(Case {
            name: NAME,
            compared: Compared::Throughput,
            bar: Some(Bar::AtLeast(4.0)),
            ours: Ours::new(store, NAME, 1).contender(CALLERS),
            peers: vec![cached()?.contender("limitador_cached"), exact.contender("limitador_redis")],
        });
    }
    if wanted(LEASED) {
        let ours = Leased::new(store, LEASED, 1);
        cases.push(Case {
            name: LEASED,
            compared: Compared::Throughput,
            bar: Some(Bar::AtLeast(12.0)),
            ours: Contender::new("phalanx", CALLERS, move |number| ours.caller(number, 1)),
            peers: vec![cached()?.contender("limitador_cached")],
        });
    }
    Ok(cases)
}

/// Measures what five replicas admit together of what the limit allows, with one and a half times the calls.
pub(crate) fn measure(runtime: &Runtime) -> Result<Vec<Row>, Box<dyn Error>> {
    let server = Server::start()?;
    let ours = Fleet::new(&server, ADMITTED, RATE)?.load(runtime, &EVEN)?;
    let replicas = runtime.block_on(async {
        let mut replicas = Vec::new();
        for _ in EVEN {
            replicas.push(Limiter::cached(&server, RATE).await?);
        }
        Ok::<_, Box<dyn Error>>(replicas)
    })?;
    // The first second is a part of a window, and fills the caches.
    admitted(runtime, &replicas, Duration::from_secs(1));
    let theirs = admitted(runtime, &replicas, SPAN) as f64 / (RATE as f64 * SPAN.as_secs_f64());
    Ok(vec![Row::value(ADMITTED, ours.of_rate, "of the rate").with("limitador_cached", theirs)])
}

fn admitted(runtime: &Runtime, replicas: &[Limiter], span: Duration) -> u64 {
    let start = |(replica, demand): (&Limiter, u64)| {
        let replica = replica.clone();
        runtime.spawn(async move { leased::paced_calls(|| replica.check(), demand, span).await })
    };
    let tasks: Vec<_> = replicas.iter().zip(EVEN).map(start).collect();
    tasks.into_iter().map(|task| runtime.block_on(task).unwrap_or_default()).sum()
}

/// One limit without conditions or variables: the least work for limitador.
#[derive(Clone)]
struct Limiter {
    limiter: Arc<AsyncRateLimiter>,
    namespace: Arc<Namespace>,
}

impl Limiter {
    async fn cached(server: &Server, per_second: u64) -> Result<Self, Box<dyn Error>> {
        Ok(Self::over(CachedRedisStorage::new(server.url()).await?, per_second))
    }

    /// With windows of a minute where the limit is never reached, else of a second.
    fn over(storage: impl AsyncCounterStorage + 'static, per_second: u64) -> Self {
        let limiter = AsyncRateLimiter::new_with_storage(Box::new(storage));
        let (most, seconds) = if per_second == RATE { (per_second, 1) } else { (per_second * 60, 60) };
        limiter.add_limit(Limit::new(NAMESPACE, most, seconds, [], []));
        Self { limiter: Arc::new(limiter), namespace: Arc::new(NAMESPACE.into()) }
    }

    fn contender(self, name: &'static str) -> Contender {
        Contender::new(name, CALLERS, move |_| self.clone())
    }

    async fn check(&self) -> bool {
        let context = Context::default();
        let answer = self.limiter.check_rate_limited_and_update(&self.namespace, &context, 1).await;
        answer.is_ok_and(|answer| !answer.limited)
    }
}

impl Caller for Limiter {
    async fn call(&mut self) -> bool {
        self.check().await
    }
}
