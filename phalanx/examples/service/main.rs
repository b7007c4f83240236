//! Demo: a service with what a rollout needs: a guarded route to a flaky upstream, readiness, a background ticker and a drain.
//!
//! ```sh
//! cargo run --example service                                  # then, in another terminal:
//! curl -i localhost:8080/quote/eu                              # a price, or the code of the rejection
//! curl -i localhost:8080/readyz                                # 200 ready
//! kill -TERM $(pgrep -x service)                               # or Ctrl-C: 503 draining, and calls in flight end first
//! cargo run --example service -- --redis redis://127.0.0.1     # breakers, limits and the singleton step are shared by all replicas
//! ```

mod quotes;
mod upstream;

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use clap::Parser;
use phalanx::lifecycle::{
    DeploymentProfile, Runtime, SingletonSpec, Step, StepContext, StopSignal, Ticker, health_routes, singleton,
};
use phalanx::{Backoff, BreakerSpec, Event, EventKind, Kind, Policy, RateLimitSpec, ResilienceModule, RetrySpec};
use tokio::net::TcpListener;

use crate::upstream::Upstream;

/// Demo: a service behind a load balancer.
#[derive(Debug, Parser)]
struct Args {
    /// The address to listen on.
    #[arg(long, default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// The Redis that its replicas share. Without it the state is in memory.
    #[arg(long)]
    redis: Option<String>,
    /// How long calls in flight may continue after the stop signal.
    #[arg(long, default_value_t = 10)]
    drain_seconds: u64,
    /// The longest time the upstream takes, in milliseconds.
    #[arg(long, default_value_t = 120)]
    upstream_millis: u64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let served = runtime.block_on(serve(Args::parse()));
    runtime.shutdown_background(); // does not wait for tasks that outlived the drain
    served
}

async fn serve(args: Args) -> Result<(), Box<dyn Error>> {
    let builder = match &args.redis {
        Some(url) => {
            ResilienceModule::with_redis(redis::Client::open(url.as_str())?).environment("example").expected_replicas(8)
        }
        None => ResilienceModule::in_memory(),
    };
    let module = builder.policy(vendor()).on_event(log).build()?;
    let profile = if args.redis.is_some() { DeploymentProfile::Fleet } else { DeploymentProfile::SingleProcess };
    let listener = TcpListener::bind(args.listen).await?;
    let address = listener.local_addr()?;

    // The singleton step runs on one replica for the whole fleet; then every replica starts to listen.
    let seed = Step::new("seed-prices").mutates_shared_state().on_start(async || {
        println!("seeding prices for all replicas");
        std::io::Result::Ok(())
    });
    let upstream = Upstream::new(Duration::from_millis(args.upstream_millis));
    let app = quotes::routes(module.clone(), upstream);
    let runtime = Runtime::builder()
        .profile(profile)
        .module(module.clone())
        .drain_timeout(Duration::from_secs(args.drain_seconds))
        .step(singleton(seed, module.locks(), SingletonSpec::version(env!("CARGO_PKG_VERSION"))))
        .ticker(Ticker::every("refresh", Duration::from_secs(30), async || std::io::Result::Ok(())))
        .step(Step::background("http", move |context, stop| http(listener, app, context, stop)))
        .build()?;

    println!("demo: http://{address}/quote/eu, /readyz and /livez; Ctrl-C drains and ends it");
    let ended = runtime.run_until_signal().await?;
    println!("{ended}");
    Ok(())
}

/// Serves until the drain is over. New requests during the drain get a 503 with a `Retry-After`.
async fn http(listener: TcpListener, app: Router, context: StepContext, stop: StopSignal) -> std::io::Result<()> {
    let app = app.merge(health_routes(context.runtime()));
    axum::serve(listener, app).with_graceful_shutdown(stop.wait()).await
}

/// At most 200 calls a second, two attempts each, and a breaker that opens when half of the calls fail.
fn vendor() -> Policy {
    Policy::named("vendor")
        .rate_limit(RateLimitSpec::per_second(200).burst(400))
        .breaker(BreakerSpec::failure_ratio(0.5).min_throughput(20).break_for(Duration::from_secs(5)))
        .retry(
            RetrySpec::attempts(2).on([Kind::Infrastructure]).backoff(Backoff::exponential(Duration::from_millis(50))),
        )
        .timeout(Duration::from_secs(2))
}

/// Prints events about the process or a breaker, not about single calls.
fn log(event: &Event<'_>) {
    match event.kind {
        EventKind::Transition(change) => {
            let key = event.key.map(ToString::to_string).unwrap_or_default();
            println!("{key}: breaker {} -> {}", change.from.name(), change.to.name());
        }
        EventKind::StoreDegraded { reason } => println!("redis is unavailable ({reason}): degraded"),
        EventKind::StoreRecovered { outage, .. } => println!("redis is available again after {outage:?}"),
        EventKind::Draining { in_flight } => println!("draining: {in_flight} calls in flight, new ones are rejected"),
        EventKind::Drained(drained) => println!("drained in {:?}, {} cancelled", drained.elapsed, drained.leftovers),
        EventKind::StepFailed { step, reason } => println!("step {step}: {reason}"),
        _ => {}
    }
}
