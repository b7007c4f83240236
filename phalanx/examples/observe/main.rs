//! What an operator gets: a shop whose policies use every stage, against a warehouse that is healthy, grows a slow tail,
//! fails and comes back; the page of metrics that the dashboard and the alerts are made for; and somebody who pulls
//! levers.
//!
//! ```text
//!   cargo run --example observe --features prometheus                          then: curl localhost:9464/metrics
//!   cargo run --example observe --features prometheus -- --redis redis://localhost
//!   cargo run --example observe --all-features -- --config levers.toml         edit it while it runs
//!   docker compose --profile observe up                                        Prometheus and Grafana around it
//! ```
//!
//! The files: `story` (what happens when), `warehouse` (what is called), `policies` (what stands between), `customers`
//! (who calls), `operator` (who pulls levers), `following` (a file of levers), `lines` (how it is told), `../common`.

mod args;
mod customers;
mod following;
#[path = "../common/latencies.rs"]
mod latencies;
mod lines;
#[path = "../common/metrics.rs"]
mod metrics;
mod operator;
mod policies;
#[path = "../common/stop.rs"]
mod stop;
mod story;
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
use crate::lines::Lines;
use crate::story::Story;
use crate::warehouse::Warehouse;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    let listener = TcpListener::bind(args.listen).await?;
    println!("metrics: http://{}/metrics", listener.local_addr()?);

    let page = Page::install()?; // before the module is metered
    let story = Story::begin(args.phase);
    let lines = Arc::new(Lines::new(story));
    let scribe = lines.clone();
    let builder = store(&args)?
        .seed(args.seed)
        .policies(policies::all(&story))
        .metered()
        .on_event(move |event: &Event<'_>| scribe.note(event));
    let (module, _following) = following::build(builder, args.config.as_deref())?;

    let chance = Rng::seeded(args.seed);
    let warehouse = Arc::new(Warehouse::new(story, chance.fork()));
    tokio::select! {
        served = metrics::serve(listener, page) => served?,
        came = customers::come(&module, warehouse, story, &chance) => came.map_err(|why| why.to_string())?,
        watched = operator::watch(&module, story, &lines) => watched?,
        printed = lines.print(&module) => printed?,
        stopped = stop::stopped() => stopped?,
        () = over(args.seconds) => {}
    }
    leave(&module).await;
    Ok(())
}

async fn over(seconds: Option<u64>) {
    match seconds {
        Some(seconds) => sleep(Duration::from_secs(seconds)).await,
        None => pending().await,
    }
}

#[cfg(feature = "redis")]
fn store(args: &Args) -> Result<ModuleBuilder, Box<dyn Error>> {
    // A debug build beside a compiler deserves more patience than the default of 20 ms.
    let patience = Duration::from_millis(50);
    Ok(match &args.redis {
        Some(url) => ResilienceModule::with_redis(redis::Client::open(url.as_str())?)
            .environment(&args.environment)
            .store_budget(patience),
        None => ResilienceModule::in_memory(),
    })
}

#[cfg(feature = "redis")]
async fn leave(module: &ResilienceModule) {
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
async fn leave(_: &ResilienceModule) {}
