//! Redis stops and comes back, in virtual time and without a server: calls go on, and the fleet decides again. In a project
//! this is a `#[tokio::test(start_paused = true)]`.
//!
//! `cargo run --example redis_outage` prints
//!
//! ```text
//! before: fleet, Shared
//! stopped: degraded, Degraded
//! three seconds after its start: fleet, Shared
//! ```

use std::time::Duration;

use phalanx::{Policy, RateLimitSpec, ResilienceModule};
use phalanx_testkit::{FaultyRedis, Scripted};

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let redis = FaultyRedis::new();
    let policy = Policy::named("vendor").rate_limit(RateLimitSpec::per_second(10));
    let module = ResilienceModule::with_redis(&redis).policy(policy).build()?;
    let vendor = Scripted::new().then_ok("done");
    let call = async || module.call("vendor", "eu").run_recorded(|| vendor.call()).await.1.source;

    let mode = || module.store_mode().ok_or("a module over Redis has a mode");
    println!("before: {}, {:?}", call().await, mode()?);
    redis.stop();
    call().await;
    call().await;
    println!("stopped: {}, {:?}", call().await, mode()?);
    redis.start();
    tokio::time::sleep(Duration::from_secs(3)).await;
    println!("three seconds after its start: {}, {:?}", call().await, mode()?);
    Ok(())
}
