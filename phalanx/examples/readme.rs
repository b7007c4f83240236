//! The code of the README, so that it compiles and runs. A test compares the two line by line.

use std::error::Error;
use std::io;
use std::time::Duration;

use phalanx::{Backoff, BreakerSpec, Class, Classify, Kind, Policy, RateLimitSpec, ResilienceModule, RetrySpec};

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

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let module = pay(&Order { amount: 42 }).await?;
    price(&module, "shoes").await;
    price(&module, "").await;
    let shared = fleet(Policy::named("payments").timeout(Duration::from_secs(1)))?;
    println!("decided by {:?}", shared.store_mode());
    Ok(())
}
