//! Demo: what an operator sees. A shop whose policies use every stage calls a warehouse that is healthy, has a slow tail,
//! fails and recovers. It serves the metrics that the dashboard and the alerts use, and a simulated operator pulls levers.
//!
//! ```text
//!   cargo run --example observe --features prometheus                          then: curl localhost:9464/metrics
//!   cargo run --example observe --features prometheus -- --redis redis://localhost
//!   cargo run --example observe --all-features -- --config levers.toml         edit it while it runs
//!   docker compose --profile observe up                                        Prometheus and Grafana around it
//! ```
//!
//! The files: `scenario` (what happens when), `warehouse` (the dependency), `policies`, `load` (the calls), `operator` (the
//! levers), `config_watch` (a file of levers), `status_lines` (the output), `../common`.

mod args;
mod config_watch;
#[path = "../common/latencies.rs"]
mod latencies;
mod load;
#[path = "../common/metrics.rs"]
mod metrics;
mod operator;
mod policies;
mod scenario;
mod status_lines;
#[path = "../common/stop.rs"]
mod stop;
mod warehouse;

use std::error::Error;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use phalanx::store::Rng;
use phalanx::telemetry::prometheus::Page;
use phalanx::{Event, ModuleBuilder, ResilienceModule};
use tokio::net::TcpListener;
use tokio::time::sleep;

use crate::args::Args;
use crate::scenario::Scenario;
use crate::status_lines::StatusLines;
use crate::warehouse::Warehouse;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    let listener = TcpListener::bind(args.listen).await?;
    println!("metrics: http://{}/metrics", listener.local_addr()?);
    println!("demo: a shop with three policies calls a warehouse that turns slow, fails and recovers; Ctrl-C ends it");

    let page = Page::install()?; // installs the meter provider, so it comes before `metered`
    let scenario = Scenario::start(args.phase);
    let status_lines = Arc::new(StatusLines::new(scenario));
    let event_lines = status_lines.clone();
    let builder = store(&args)?
        .seed(args.seed)
        .policies(policies::all(&scenario))
        .metered()
        .on_event(move |event: &Event<'_>| event_lines.record(event));
    let (module, _watcher) = config_watch::build(builder, args.config.as_deref())?;

    let rng = Rng::seeded(args.seed);
    let warehouse = Arc::new(Warehouse::new(scenario, rng.fork()));
    tokio::select! {
        served = metrics::serve(listener, page) => served?,
        loaded = load::run(&module, warehouse, scenario, &rng) => loaded?,
        operated = operator::run(&module, scenario, &status_lines) => operated?,
        printed = status_lines.print(&module) => printed?,
        stopped = stop::stopped() => stopped?,
        () = time_limit(args.seconds) => {}
    }
    leave_fleet(&module).await;
    Ok(())
}

async fn time_limit(seconds: Option<u64>) {
    match seconds {
        Some(seconds) => sleep(Duration::from_secs(seconds)).await,
        None => pending().await,
    }
}

#[cfg(feature = "redis")]
fn store(args: &Args) -> Result<ModuleBuilder, Box<dyn Error>> {
    // More than the default of 20 ms, for debug builds on a busy machine.
    let budget = Duration::from_millis(50);
    Ok(match &args.redis {
        Some(url) => ResilienceModule::with_redis(redis::Client::open(url.as_str())?)
            .environment(&args.environment)
            .store_budget(budget),
        None => ResilienceModule::in_memory(),
    })
}

#[cfg(feature = "redis")]
async fn leave_fleet(module: &ResilienceModule) {
    module.leave_fleet().await;
}

#[cfg(not(feature = "redis"))]
fn store(args: &Args) -> Result<ModuleBuilder, Box<dyn Error>> {
    match (&args.redis, &args.environment) {
        (Some(_), _) => Err("built without the feature `redis`".into()),
        (None, _) => Ok(ResilienceModule::in_memory()),
    }
}

#[cfg(not(feature = "redis"))]
async fn leave_fleet(_: &ResilienceModule) {}
