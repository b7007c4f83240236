//! The Redis store over the very scripts, run in this process on a clock that the test moves: no server, no socket.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use phalanx_core::clock::{Clock, Time};
use phalanx_core::rejection::Source;
use phalanx_store_redis::{Failure, Invocation, RedisLocks, RedisOptions, RedisStore, ScriptResult, Wire};
use redis::Value;

use super::{Bed, ORIGIN};
use crate::lua_server::{Reply, Server};

/// The Redis store over the scripts in this process.
#[derive(Debug)]
pub struct LuaBed {
    clock: Clock,
    server: Arc<Server>,
    replicas: Mutex<Vec<RedisStore>>,
}

impl LuaBed {
    /// A replica's store on a clock of its own, as every process has one. Who moves the bed's has to move it too.
    pub fn store_on(&self, clock: Clock) -> RedisStore {
        let wire = Arc::new(LuaWire(self.server.clone()));
        // The budget is generous, because a twin's answer would only say that the machine is busy.
        let options = RedisOptions { store_budget: Duration::from_millis(500), ..RedisOptions::default() };
        let store = RedisStore::over_wire(wire, clock, options);
        self.replicas.lock().push(store.clone());
        store
    }
}

impl Bed for LuaBed {
    type Store = RedisStore;
    type Locks = RedisLocks;

    const SOURCE: Source = Source::Fleet;
    const TELLS_AT_ONCE: bool = false;

    async fn new() -> Self {
        let clock = Clock::manual();
        clock.set(ORIGIN);
        Self { server: Arc::new(Server::on(clock.clone())), clock, replicas: Mutex::default() }
    }

    fn store(&self) -> RedisStore {
        self.store_on(self.clock.clone())
    }

    fn locks(&self) -> RedisLocks {
        self.store().locks()
    }

    fn now(&self) -> Time {
        self.clock.now()
    }

    async fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    async fn settle(&self) {
        settle_all(&self.replicas).await;
    }
}

/// What one replica tells may be news to another: twice around is enough.
pub(super) async fn settle_all(replicas: &Mutex<Vec<RedisStore>>) {
    let replicas = replicas.lock().clone();
    for _ in 0..2 {
        for replica in &replicas {
            replica.settle().await;
        }
    }
}

/// A wire to a server in this process.
struct LuaWire(Arc<Server>);

impl LuaWire {
    fn run(&self, call: &Invocation) -> ScriptResult {
        let (keys, args) = call.keys_and_args();
        let owned = |parts: Vec<&[u8]>| parts.into_iter().map(<[u8]>::to_vec).collect::<Vec<_>>();
        self.0.run(call.script(), &owned(keys), &owned(args)).map(value).map_err(Failure::Call)
    }
}

impl Wire for LuaWire {
    fn send(
        &self,
        calls: Vec<Invocation>,
    ) -> Pin<Box<dyn Future<Output = Result<Vec<ScriptResult>, Failure>> + Send + '_>> {
        let replies: Vec<ScriptResult> = calls.iter().map(|call| self.run(call)).collect();
        // A script that fails is a mistake in it or in its port: no case may pass on the twin's answers instead.
        for reply in &replies {
            assert!(reply.is_ok(), "{reply:?}");
        }
        Box::pin(std::future::ready(Ok(replies)))
    }
}

impl fmt::Debug for LuaWire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LuaWire")
    }
}

fn value(reply: Reply) -> Value {
    match reply {
        Reply::Nil => Value::Nil,
        Reply::Int(n) => Value::Int(n),
        Reply::Bytes(bytes) => Value::BulkString(bytes),
        Reply::Array(parts) => Value::Array(parts.into_iter().map(value).collect()),
    }
}
