//! limitador at 1,024 callers: its Redis storage, exact like ours, and its cached one, which may overshoot.

use std::error::Error;
use std::sync::Arc;

use limitador::AsyncRateLimiter;
use limitador::limit::{Context, Limit, Namespace};
use limitador::storage::AsyncCounterStorage;
use limitador::storage::redis::{AsyncRedisStorage, CachedRedisStorage};
use phalanx_store_redis::RedisStore;
use tokio::runtime::Runtime;

use super::contest::{Case, Compared, Contender};
use super::exact::Ours;
use crate::contender::Caller;
use crate::figures::Bar;
use crate::server::Server;
use crate::settings::UNREACHABLE_RATE;

const NAME: &str = "exact_1024_vs_limitador_cached";
const CALLERS: usize = 1_024;
const NAMESPACE: &str = "bench";

pub(crate) fn cases(
    runtime: &Runtime,
    server: &Server,
    store: &RedisStore,
    wanted: &dyn Fn(&str) -> bool,
) -> Result<Vec<Case>, Box<dyn Error>> {
    if !wanted(NAME) {
        return Ok(Vec::new());
    }
    // The cached storage spawns its flush task when it is built.
    let (cached, exact) = runtime.block_on(async {
        let cached = CachedRedisStorage::new(server.url()).await?;
        let exact = AsyncRedisStorage::new(server.url()).await?;
        Ok::<_, Box<dyn Error>>((Limiter::over(cached), Limiter::over(exact)))
    })?;
    Ok(vec![Case {
        name: NAME,
        compared: Compared::Throughput,
        bar: Some(Bar::AtLeast(4.0)),
        ours: Ours::new(store, NAME, 1).contender(CALLERS),
        peers: vec![cached.contender("limitador_cached"), exact.contender("limitador_redis")],
    }])
}

/// One limit without conditions or variables: the least work for limitador.
#[derive(Clone)]
struct Limiter {
    limiter: Arc<AsyncRateLimiter>,
    namespace: Arc<Namespace>,
}

impl Limiter {
    fn over(storage: impl AsyncCounterStorage + 'static) -> Self {
        let limiter = AsyncRateLimiter::new_with_storage(Box::new(storage));
        limiter.add_limit(Limit::new(NAMESPACE, u64::from(UNREACHABLE_RATE) * 60, 60, [], []));
        Self { limiter: Arc::new(limiter), namespace: Arc::new(NAMESPACE.into()) }
    }

    fn contender(self, name: &'static str) -> Contender {
        Contender::new(name, CALLERS, move |_| self.clone())
    }
}

impl Caller for Limiter {
    async fn call(&mut self) -> bool {
        let context = Context::default();
        let answer = self.limiter.check_rate_limited_and_update(&self.namespace, &context, 1).await;
        answer.is_ok_and(|answer| !answer.limited)
    }
}
