//! One `EVALSHA` per call, over one multiplexed connection shared by all callers.
//!
//! It runs the same script as Phalanx, for one caller, so that Redis does the same work per permit.

use std::error::Error;
use std::sync::Arc;

use phalanx::internal::core::rate_limit::Rate;
use phalanx_lua::RATE_LIMIT_ACQUIRE;
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use tokio::runtime::Runtime;

use super::exact::Draw;
use super::policies;
use crate::contender::Caller;
use crate::server::Server;

/// The connection, the script and the keys.
#[derive(Clone)]
pub(crate) struct Naive {
    connection: MultiplexedConnection,
    digest: Arc<str>,
    keys: Arc<[String]>,
    rate: Rate,
    draw: Draw,
}

impl Naive {
    pub(crate) fn connect(runtime: &Runtime, server: &Server, case: &str, keys: usize) -> Result<Self, Box<dyn Error>> {
        let client = server.client()?;
        let connecting = async {
            // For speed: no timer per call.
            let config = AsyncConnectionConfig::new().set_response_timeout(None);
            let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
            let load = redis::cmd("SCRIPT").arg("LOAD").arg(RATE_LIMIT_ACQUIRE.source).to_owned();
            let digest: String = load.query_async(&mut connection).await?;
            Ok::<_, redis::RedisError>((connection, digest))
        };
        let (connection, digest) = runtime.block_on(connecting)?;
        let keys = (0..keys).map(|key| format!("naive:{case}:{key}")).collect();
        let rate = Rate::of(&policies::limit());
        Ok(Self { connection, digest: digest.into(), keys, rate, draw: Draw::new(0) })
    }

    /// Returns the caller with this number.
    pub(crate) fn caller(&self, number: usize) -> Self {
        Self { draw: Draw::new(number), ..self.clone() }
    }
}

impl Caller for Naive {
    async fn call(&mut self) -> bool {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&*self.digest).arg(1).arg(self.draw.one_of(&self.keys));
        command.arg(self.rate.gain).arg(self.rate.price).arg(self.rate.capacity);
        command.arg(0).arg(1).arg(1).arg(1).arg(0); // no charge; one group: one caller, one permit, no wait
        let reply: Result<(i64, i64, i64, i64), _> = command.query_async(&mut self.connection).await;
        matches!(reply, Ok((_, _, _, 1)))
    }
}
