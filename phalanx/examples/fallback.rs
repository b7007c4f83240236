//! Fallback: what the caller gets when the dependency fails or a policy rejects: the last good value, or a default.
//!
//! `cargo run --example fallback` prints
//!
//! ```text
//! shoes: 42, fresh
//! ten minutes later the price service is down
//! shoes: 42, degraded: the value is 600s old
//! hats: 10, degraded: a default
//! boots: the error reaches the caller: 502 bad gateway
//! ```

use std::io;
use std::time::Duration;

use phalanx::{Policy, ResilienceModule, Served, StaleCache};

fn print(product: &str, price: &Served<u32>) {
    match price.degraded {
        None => println!("{product}: {}, fresh", price.value),
        Some(degraded) => match degraded.data_age {
            Some(age) => println!("{product}: {}, degraded: the value is {age:?} old", price.value),
            None => println!("{product}: {}, degraded: a default", price.value),
        },
    }
}

// The clock of tokio is paused and jumps from timer to timer: no time passes while the example waits.
#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let module = ResilienceModule::in_memory().policy(Policy::named("prices")).build()?;
    let last_prices = StaleCache::new(1_000, Duration::from_secs(3_600)); // entries, and the oldest value that is served
    let down = || async { Err::<u32, _>(io::Error::other("502 bad gateway")) };

    let fresh =
        module.call("prices", ()).fallback(last_prices.at("shoes")).run_served(|| async { Ok::<_, io::Error>(42) });
    print("shoes", &fresh.await?);
    println!("ten minutes later the price service is down");
    tokio::time::sleep(Duration::from_secs(600)).await;
    print("shoes", &module.call("prices", ()).fallback(last_prices.at("shoes")).run_served(down).await?);
    print("hats", &module.call("prices", ()).fallback_value(10).run_served(down).await?);

    let answer = module.run("prices", (), down).await;
    println!(
        "boots: the error reaches the caller: {}",
        answer.as_ref().map_or_else(ToString::to_string, u32::to_string)
    );
    assert!(answer.is_err(), "without a fallback");
    Ok(())
}
