//! The code of the README, so that it compiles and runs.

use std::error::Error;
use std::io;
use std::time::Duration;

use phalanx::lifecycle::{DeploymentProfile, Runtime, SingletonSpec, Step, StepContext, StopSignal, Ticker, singleton};
use phalanx::{
    Backoff, BreakerSpec, BulkheadSpec, Class, Classify, Context, Criticality, HedgeSpec, Kind, Policy, RateLimitSpec,
    ResilienceModule, RetrySpec, scope,
};

struct Order {
    amount: u32,
}

async fn charge(order: &Order) -> io::Result<u32> {
    Ok(order.amount)
}

async fn fetch(sku: &str) -> io::Result<u16> {
    Ok(if sku.is_empty() { 503 } else { 200 })
}

#[rustfmt::skip] // as in the README
async fn pay(order: &Order) -> Result<ResilienceModule, Box<dyn Error>> {
    let module = ResilienceModule::in_memory()
        .policy(Policy::named("payments")
            .rate_limit(RateLimitSpec::per_second(100).burst(200))
            .breaker(BreakerSpec::failure_ratio(0.5).window(Duration::from_secs(10)).min_throughput(20).break_for(Duration::from_secs(30)))
            .retry(RetrySpec::attempts(3).on([Kind::Infrastructure]).backoff(Backoff::exponential(Duration::from_millis(100)).max(Duration::from_secs(2))))
            .timeout(Duration::from_secs(1)))
        .policy(Policy::named("prices").deadline(Duration::from_secs(2)))
        .build()?;                                   // every mistake at once, each with its path

    let receipt = module.run("payments", "stripe", || charge(order)).await?;
    println!("charged {receipt}");
    Ok(module)
}

#[rustfmt::skip] // as in the README
async fn price(module: &ResilienceModule, sku: &str) {
    let (answer, record) = module.call("prices", ())
        .classify(|result: &io::Result<u16>| match result {
            Ok(503) => Kind::Infrastructure.into(),
            Ok(_) => Class::SUCCESS,
            Err(error) => error.classify(),
        })
        .fallback_value(0)
        .run_recorded(|| fetch(sku))
        .await;
    println!("{answer:?} after {} attempts in {:?}", record.attempts, record.elapsed);
}

#[rustfmt::skip] // as in the README
fn fleet(payments: Policy) -> Result<ResilienceModule, Box<dyn Error>> {
    let module = ResilienceModule::with_redis(redis::Client::open("redis://redis.internal")?)
        .environment("prod")                         // part of every key: fleets on one Redis keep apart
        .policy(payments)
        .build()?;                                   // no I/O: Redis need not be there
    Ok(module)
}

#[rustfmt::skip] // as in the README
fn search() -> Policy {
    let search = Policy::named("search")
        .bulkhead(BulkheadSpec::fixed(64).queue(256).queue_target(Duration::from_millis(20)).adaptive_lifo().prioritized())
        .hedge(HedgeSpec::after(Duration::from_millis(200)).at_quantile(0.95).between(Duration::from_millis(10), Duration::from_secs(1)))
        .idempotent();                               // a hedge needs the word that running twice is safe
    search
}

async fn prefetch(module: &ResilienceModule, sku: &str) -> Result<u16, Box<dyn Error>> {
    let background = Context::EMPTY.with_criticality(Criticality::BestEffort);
    Ok(scope(background, module.run("search", (), || fetch(sku))).await?)
}

async fn relay() -> io::Result<()> {
    Ok(())
}

async fn serve(_: StepContext, stopping: StopSignal) -> io::Result<()> {
    stopping.wait().await;
    Ok(())
}

#[rustfmt::skip] // as in the README
async fn deploy(module: ResilienceModule, indexes: Step) -> Result<(), Box<dyn Error>> {
    let runtime = Runtime::builder()
        .profile(DeploymentProfile::Fleet)           // every step that does not fit is named, at assembly
        .module(module.clone())                      // its calls are drained, its fleet is left
        .drain_timeout(Duration::from_secs(10))
        .step(singleton(indexes, module.locks(), SingletonSpec::version("7")))   // one replica runs it, the others wait
        .ticker(Ticker::every("relay", Duration::from_secs(5), relay))           // ±20 %: replicas do not tick in step
        .step(Step::background("http", serve))       // stopped last to first, after the drain
        .build()?;
    let ended = runtime.run_until_signal().await?;   // SIGTERM and Ctrl-C
    println!("{ended}");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let module = pay(&Order { amount: 42 }).await?;
    price(&module, "shoes").await;
    price(&module, "").await;
    module.add(search())?;
    println!("found {}", prefetch(&module, "shoes").await?);
    let shared = fleet(Policy::named("payments").timeout(Duration::from_secs(1)))?;
    println!("decided by {:?}", shared.store_mode());
    if std::env::args().any(|arg| arg == "deploy") {
        deploy(shared, Step::new("indexes").mutates_shared_state()).await?; // waits for a Redis, and then for a signal
    }
    Ok(())
}
