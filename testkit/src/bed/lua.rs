//! The Redis store over the shipped scripts, run in this process on a manual clock: no server and no socket.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use phalanx_core::clock::{Clock, Time};
use phalanx_core::rejection::Source;
use phalanx_store_redis::transport::{Boxed, Response};
use phalanx_store_redis::{Failure, Invocation, RedisLocks, RedisOptions, RedisStore, ScriptResult, Wire};

use super::{Bed, LockBed, ORIGIN};
use crate::lua_server::LuaServer;
use crate::redis_model::value;

/// A bed for the Redis store over an in-process [`LuaServer`].
#[derive(Debug)]
pub struct LuaBed {
    clock: Clock,
    server: Arc<LuaServer>,
    replicas: Mutex<Vec<RedisStore>>,
}

impl LuaBed {
    /// Returns the store of another replica, on a clock of its own. The test must advance that clock together with the
    /// bed's.
    pub fn store_on(&self, clock: Clock) -> RedisStore {
        let wire = Arc::new(LuaWire(self.server.clone()));
        // A generous budget, because a degraded decision would only show that the machine is busy.
        let options = RedisOptions { store_budget: Duration::from_millis(500), ..RedisOptions::default() };
        let store = RedisStore::over_wire(wire, clock, options);
        self.replicas.lock().push(store.clone());
        store
    }
}

impl Bed for LuaBed {
    type Store = RedisStore;

    const SOURCE: Source = Source::Fleet;
    const IMMEDIATE_TRANSITIONS: bool = false;

    async fn new() -> Self {
        let clock = Clock::manual();
        clock.set(ORIGIN);
        Self { server: Arc::new(LuaServer::with_clock(clock.clone())), clock, replicas: Mutex::default() }
    }

    fn store(&self) -> RedisStore {
        self.store_on(self.clock.clone())
    }

    fn now(&self) -> Time {
        self.clock.now()
    }

    async fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    async fn sync_all(&self) {
        sync_replicas(&self.replicas).await;
    }
}

impl LockBed for LuaBed {
    type Locks = RedisLocks;

    fn locks(&self) -> RedisLocks {
        self.store().locks()
    }
}

/// Synchronizes all replicas. Two passes, because the first may produce messages for replicas already synchronized.
pub(super) async fn sync_replicas(replicas: &Mutex<Vec<RedisStore>>) {
    let replicas = replicas.lock().clone();
    for _ in 0..2 {
        for replica in &replicas {
            replica.settle().await;
        }
    }
}

/// A transport to an in-process server.
struct LuaWire(Arc<LuaServer>);

impl LuaWire {
    fn run(&self, call: &Invocation) -> ScriptResult {
        let (keys, args) = call.keys_and_args();
        let owned = |parts: Vec<&[u8]>| parts.into_iter().map(<[u8]>::to_vec).collect::<Vec<_>>();
        self.0.run(call.script(), &owned(keys), &owned(args)).map(value).map_err(Failure::Call)
    }
}

impl Wire for LuaWire {
    fn send<'a>(&'a self, calls: &'a [Invocation]) -> Boxed<'a, Result<Vec<Response>, Failure>> {
        let replies: Vec<ScriptResult> = calls.iter().map(|call| self.run(call)).collect();
        // A failed script must fail the test: otherwise the twin would decide and the case might still pass.
        for reply in &replies {
            assert!(reply.is_ok(), "{reply:?}");
        }
        Box::pin(std::future::ready(Ok(replies.into_iter().map(Response::Reply).collect())))
    }
}

impl fmt::Debug for LuaWire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LuaWire")
    }
}
