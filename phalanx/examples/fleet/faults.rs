//! The faults that are injected, and when.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep_until;

use crate::processes::Victim;
use crate::recorder::Recorder;
use crate::redis_server::Server;

/// A fault, or its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    KillRedis,
    RestartRedis,
    StopRedis,
    ContRedis,
    KillReplica,
}

impl Fault {
    /// Whether it makes Redis unavailable.
    pub(crate) const fn begins_outage(self) -> bool {
        matches!(self, Self::KillRedis | Self::StopRedis)
    }

    /// Whether it makes Redis available again.
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
            Self::ContRedis => "Redis continues (SIGCONT)",
            Self::KillReplica => "the last replica is killed (SIGKILL)",
        })
    }
}

/// Injects every fault when it is due and records it.
pub(crate) async fn run(
    faults: Vec<(Duration, Fault)>,
    recorder: Arc<Recorder>,
    mut server: Option<Server>,
    victim: Victim,
) -> io::Result<()> {
    for (at, fault) in faults {
        sleep_until(recorder.scenario().started_at() + at).await;
        recorder.record_fault(fault);
        match (fault, &mut server) {
            (Fault::KillReplica, _) => victim.kill(),
            (Fault::KillRedis, Some(server)) => server.send("kill").await?,
            (Fault::RestartRedis, Some(server)) => server.send("start").await?,
            (Fault::StopRedis, Some(server)) => server.send("stop").await?,
            (Fault::ContRedis, Some(server)) => server.send("cont").await?,
            (_, None) => {} // the command line does not let this happen
        }
    }
    // Dropping the handle would end the server.
    std::future::pending().await
}
