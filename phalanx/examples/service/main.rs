//! A service with everything a rollout needs: a guarded route to a flaky upstream, readiness, a loop, and a drain.
//!
//! ```sh
//! cargo run --example service                                  # then, in another terminal:
//! curl -i localhost:8080/quote/eu                              # a price, or why there is none
//! curl -i localhost:8080/readyz                                # 200 ready
//! kill -TERM $(pgrep -x service)                               # or Ctrl-C: 503 draining, and what is in flight ends first
//! cargo run --example service -- --redis redis://127.0.0.1     # circuits, limits and the singleton step shared by all
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
use phalanx::*;
use tokio::net::TcpListener;

use crate::upstream::Upstream;

/// A service behind a balancer.
#[derive(Debug, Parser)]
struct Args {
    /// Where it listens.
    #[arg(long, default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// The Redis that its replicas share; without one it is alone.
    #[arg(long)]
    redis: Option<String>,
    /// How long calls in flight may go on when it is told to stop.
    #[arg(long, default_value_t = 10)]
    drain_seconds: u64,
    /// How long the upstream takes, in milliseconds.
    #[arg(long, default_value_t = 120)]
    upstream_millis: u64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let served = runtime.block_on(serve(Args::parse()));
    runtime.shutdown_background(); // what did not end in its time is not waited for
    served
}

async fn serve(args: Args) -> Result<(), Box<dyn Error>> {
    let builder = match &args.redis {
        Some(url) => ResilienceModule::with_redis(redis::Client::open(url.as_str())?).environment("example"),
        None => ResilienceModule::in_memory(),
    };
    let module = builder.policy(vendor()).on_event(log).build()?;
    let profile = if args.redis.is_some() { DeploymentProfile::Fleet } else { DeploymentProfile::SingleProcess };
    let listener = TcpListener::bind(args.listen).await?;
    let address = listener.local_addr()?;

    // What the whole fleet needs once, by one replica; then what every replica needs; then the door is opened.
    let seed = Step::new("seed-prices").mutates_shared_state().on_start(async || {
        println!("seeding prices, for all replicas");
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
        .step(Step::background("http", move |scene, stopping| http(listener, app, scene, stopping)))
        .build()?;

    println!("http://{address}/quote/eu, /readyz and /livez; Ctrl-C drains");
    let ended = runtime.run_until_signal().await?;
    println!("{ended}");
    Ok(())
}

/// Serves until the drain is over: until then new requests are answered too, with a 503 that says when to come back.
async fn http(listener: TcpListener, app: Router, scene: StepContext, stopping: StopSignal) -> std::io::Result<()> {
    let app = app.merge(health_routes(scene.runtime()));
    axum::serve(listener, app).with_graceful_shutdown(stopping.wait()).await
}

/// At most two hundred calls a second, two attempts, and no calls at all while half of them fail.
fn vendor() -> Policy {
    Policy::named("vendor")
        .rate_limit(RateLimitSpec::per_second(200).burst(400))
        .breaker(BreakerSpec::failure_ratio(0.5).min_throughput(20).break_for(Duration::from_secs(5)))
        .retry(
            RetrySpec::attempts(2).on([Kind::Infrastructure]).backoff(Backoff::exponential(Duration::from_millis(50))),
        )
        .timeout(Duration::from_secs(2))
}

/// What concerns the process or a circuit; single calls are not worth a line.
fn log(event: &Event<'_>) {
    match event.kind {
        EventKind::Transition(change) => println!("circuit {:?}: {:?} -> {:?}", event.key, change.from, change.to),
        EventKind::StoreDegraded { reason } => println!("redis is away ({reason}): deciding alone"),
        EventKind::StoreRecovered { outage, .. } => println!("redis is back after {outage:?}"),
        EventKind::Draining { in_flight } => println!("draining: {in_flight} calls in flight, no new ones"),
        EventKind::Drained(drained) => println!("drained in {:?}, {} cancelled", drained.elapsed, drained.leftovers),
        EventKind::StepFailed { step, reason } => println!("step {step}: {reason}"),
        _ => {}
    }
}
