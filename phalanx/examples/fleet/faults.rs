//! What goes wrong on purpose.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep_until;

use crate::ledger::Ledger;
use crate::moment::Turn;
use crate::processes::Victim;
use crate::server::Server;

/// One thing that goes wrong, or is put right again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    KillRedis,
    RestartRedis,
    StopRedis,
    ContRedis,
    KillReplica,
}

impl Fault {
    /// Whether it takes Redis away from everybody.
    pub(crate) const fn begins_outage(self) -> bool {
        matches!(self, Self::KillRedis | Self::StopRedis)
    }

    /// Whether it gives Redis back.
    pub(crate) const fn ends_outage(self) -> bool {
        matches!(self, Self::RestartRedis | Self::ContRedis)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::KillRedis => "Redis is killed (SIGKILL)",
            Self::RestartRedis => "Redis is started again, empty",
            Self::StopRedis => "Redis hangs (SIGSTOP)",
            Self::ContRedis => "Redis goes on (SIGCONT)",
            Self::KillReplica => "the last replica is killed (SIGKILL)",
        })
    }
}

/// Does what is due when it is due, and notes it.
pub(crate) async fn play(
    faults: Vec<(Duration, Fault)>,
    ledger: Arc<Ledger>,
    mut server: Option<Server>,
    victim: Victim,
) -> io::Result<()> {
    for (at, fault) in faults {
        sleep_until(ledger.story().began() + at).await;
        ledger.turned(Turn::Fault(fault));
        match (fault, &mut server) {
            (Fault::KillReplica, _) => victim.kill(),
            (Fault::KillRedis, Some(server)) => server.tell("kill").await?,
            (Fault::RestartRedis, Some(server)) => server.tell("start").await?,
            (Fault::StopRedis, Some(server)) => server.tell("stop").await?,
            (Fault::ContRedis, Some(server)) => server.tell("cont").await?,
            (_, None) => {} // the command line does not let this happen
        }
    }
    // The server lives as long as the handle on it.
    std::future::pending().await
}
