//! Redis commands per 1,000 calls through breaker and digest, at the rate of a busy service.
//!
//! Commands are counted by Redis and include those called by scripts, which are more than are sent over the network.

// This program measures real time; `phalanx_core::Clock` is part of what is measured.
#![allow(clippy::disallowed_methods)]

use std::error::Error;
use std::time::{Duration, Instant};

use redis::Client;
use tokio::runtime::Runtime;
use tokio::time::sleep;

use super::policies::{self, NAME, PipelineCaller};
use crate::contender::Caller;
use crate::figures::{Bar, Row};
use crate::server::Server;

pub(crate) const CASES: &[&str] = &["commands_per_1000", "commands_per_1000_8routes"];

/// Calls per second: above the rate of the bar, below the limit of one task.
const RATE: f64 = 70_000.0;
const WARM_UP: Duration = Duration::from_millis(700);
const SPAN: Duration = Duration::from_secs(4);

pub(crate) fn measure(runtime: &Runtime) -> Result<Vec<Row>, Box<dyn Error>> {
    let one = with_routes(runtime, 1)?;
    let eight = with_routes(runtime, 8)?;
    Ok(vec![one.row(CASES[0]).bar(Bar::AtMost(5.0)), eight.row(CASES[1])])
}

struct Recorded {
    calls: u64,
    commands: u64,
    scripts: u64,
    took: Duration,
}

impl Recorded {
    fn row(&self, case: &str) -> Row {
        let per_1000 = |count: u64| count as f64 * 1_000.0 / self.calls as f64;
        Row::value(case, per_1000(self.commands), "commands")
            .with("scripts", per_1000(self.scripts))
            .with("calls_per_s", self.calls as f64 / self.took.as_secs_f64())
    }
}

fn with_routes(runtime: &Runtime, routes: usize) -> Result<Recorded, Box<dyn Error>> {
    let server = Server::start()?;
    let module = policies::module(&server, "commands", policies::guarded())?;
    let route = |number: usize| module.pipeline(NAME, &format!("route-{number}")).map(PipelineCaller);
    let mut callers = (0..routes).map(route).collect::<Result<Vec<_>, _>>()?;
    let client = server.client()?;
    // On a worker thread, like the calls of a service; `block_on` would run them on this thread.
    let counted = runtime.spawn(async move {
        call_at_rate(&mut callers, WARM_UP).await?;
        let (before, start) = (CommandCounts::of(&client)?, Instant::now());
        let calls = call_at_rate(&mut callers, SPAN).await?;
        let (after, took) = (CommandCounts::of(&client)?, start.elapsed());
        // The first INFO is included in the count of the second.
        let commands = after.commands.saturating_sub(before.commands + 1);
        Ok::<_, String>(Recorded { calls, commands, scripts: after.scripts - before.scripts, took })
    });
    let counted = runtime.block_on(counted)??;
    drop(module);
    Ok(counted)
}

/// Makes calls for `span`, catching up with the rate every millisecond.
async fn call_at_rate(callers: &mut [PipelineCaller], span: Duration) -> Result<u64, String> {
    let (start, routes) = (Instant::now(), callers.len());
    let mut made = 0;
    while start.elapsed() < span {
        let due = (start.elapsed().as_secs_f64() * RATE) as u64;
        while made < due {
            if !callers[made as usize % routes].call().await {
                return Err("commands_per_1000: a call was rejected".to_owned());
            }
            made += 1;
        }
        sleep(Duration::from_millis(1)).await;
    }
    Ok(made)
}

/// Command counters of a server.
pub(super) struct CommandCounts {
    commands: u64,
    pub(super) scripts: u64,
}

impl CommandCounts {
    pub(super) fn of(client: &Client) -> Result<Self, String> {
        let info = client.get_connection().and_then(|mut connection| {
            redis::cmd("INFO").arg("stats").arg("commandstats").query::<String>(&mut connection)
        });
        let info = info.map_err(|error| error.to_string())?;
        let number = |head: &str| {
            let rest = info.lines().find_map(|line| line.strip_prefix(head));
            rest.and_then(|rest| rest.split([',', '\r']).next()?.trim().parse().ok()).unwrap_or(0)
        };
        let scripts = number("cmdstat_evalsha:calls=") + number("cmdstat_eval:calls=");
        Ok(Self { commands: number("total_commands_processed:"), scripts })
    }
}
