//! An exact limit beside many circuits in use, over a healthy Redis: none of its decisions may be made without Redis.

// This program measures real time; `phalanx_core::Clock` is part of what is measured.
#![allow(clippy::disallowed_methods)]

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use phalanx::{Policy, ResilienceModule};
use tokio::runtime::Runtime;
use tokio::time::sleep;

use super::degraded::Degraded;
use super::policies::{self, NAME};
use crate::figures::{Bar, Row};
use crate::operation::{OperationError, ready};
use crate::server::Server;

pub(crate) const CASES: &[&str] = &["beside_600_circuits"];

const CIRCUITS: usize = 600;
const CIRCUIT: &str = "circuit";
/// Calls a second: of each circuit, and of the limit.
const CIRCUIT_RATE: f64 = 10.0;
const LIMIT_RATE: f64 = 500.0;
/// Of the calls of circuits one in so many fails, which is sent to Redis.
const FAILS: usize = 20;
const WARM_UP: Duration = Duration::from_secs(2);
const SPAN: Duration = Duration::from_secs(10);

pub(crate) fn measure(runtime: &Runtime) -> Result<Vec<Row>, Box<dyn Error>> {
    let server = Server::start()?;
    let seen = Arc::new(Degraded::default());
    let recorder = seen.clone();
    let module = ResilienceModule::with_redis(server.client()?)
        .environment("beside")
        .policy(Policy::named(NAME).rate_limit(policies::limit()))
        .policy(policies::guarded_as(CIRCUIT))
        .on_event(move |event| recorder.note(event))
        .build()?;
    let (calls, before) = runtime.block_on(runtime.spawn(call_all(module, seen.clone())))??;
    let (degraded, outages) = seen.read();
    let row = Row::value(CASES[0], (degraded - before) as f64, "degraded").bar(Bar::AtMost(0.0));
    Ok(vec![row.with("calls", calls as f64).with("outages", outages as f64)])
}

/// Calls the circuits and the limit. Returns how many calls of the limit were made after the warm-up, and how many decisions
/// were made without Redis before its end.
async fn call_all(module: ResilienceModule, seen: Arc<Degraded>) -> Result<(u64, u64), String> {
    let pipeline = |policy: &str, route: &str| module.pipeline(policy, route).map_err(|error| error.to_string());
    let route = |number: usize| pipeline(CIRCUIT, &format!("route-{number}"));
    let circuits = (0..CIRCUITS).map(route).collect::<Result<Vec<_>, _>>()?;
    let limit = pipeline(NAME, "route")?;
    let (start, mut of_circuits, mut of_limit, mut counted, mut before) = (Instant::now(), 0, 0, 0, 0);
    while start.elapsed() < WARM_UP + SPAN {
        let elapsed = start.elapsed().as_secs_f64();
        while of_circuits < (elapsed * CIRCUIT_RATE * CIRCUITS as f64) as usize {
            let circuit = circuits[of_circuits % CIRCUITS].clone();
            let fails = (of_circuits / CIRCUITS + of_circuits) % FAILS == 0;
            tokio::spawn(async move {
                drop(circuit.run(|| async { if fails { Err(OperationError) } else { ready().await } }).await);
            });
            of_circuits += 1;
        }
        while of_limit < (elapsed * LIMIT_RATE) as usize {
            let limit = limit.clone();
            tokio::spawn(async move { drop(limit.run(ready).await) });
            of_limit += 1;
            counted += u64::from(start.elapsed() > WARM_UP);
        }
        if start.elapsed() < WARM_UP {
            before = seen.read().0;
        }
        sleep(Duration::from_millis(1)).await;
    }
    sleep(Duration::from_millis(100)).await;
    Ok((counted, before))
}
