//! Rate limit: a token bucket for each route. A call that finds it empty is rejected, or waits if the policy allows it.
//!
//! `cargo run --example rate_limit` prints
//!
//! ```text
//! eu: admitted, 1 permit left
//! eu: admitted, 0 permits left
//! eu: rejected (rate_limited), retry after 100 ms
//! us: admitted, 1 permit left
//! patient: admitted after 0 ms
//! patient: admitted after 0 ms
//! patient: admitted after 100 ms
//! ```

use std::convert::Infallible;
use std::time::Duration;

use phalanx::{Error, Policy, RateLimitSpec, ResilienceModule};

async fn search() -> Result<(), Infallible> {
    Ok(())
}

// The clock of tokio is paused and jumps from timer to timer: no time passes while the example waits.
#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limit = RateLimitSpec::per_second(10).burst(2);
    let module = ResilienceModule::in_memory()
        .policy(Policy::named("search").rate_limit(limit.clone()))
        .policy(Policy::named("patient").rate_limit(limit.max_wait(Duration::from_secs(1))))
        .build()?;

    let mut rejected = 0;
    for region in ["eu", "eu", "eu", "us"] {
        match module.call("search", region).run_recorded(search).await {
            (Ok(()), record) => {
                let left = record.remaining.unwrap_or_default();
                println!("{region}: admitted, {left} permit{} left", if left == 1 { "" } else { "s" });
            }
            (Err(Error::Rejected(rejection)), _) => {
                rejected += 1;
                let wait = rejection.retry_after().unwrap_or_default().as_millis();
                println!("{region}: rejected ({}), retry after {wait} ms", rejection.code());
            }
            (Err(Error::Inner(never)), _) => match never {},
        }
    }
    assert_eq!(rejected, 1);

    for _ in 0..3 {
        let (answer, record) = module.call("patient", ()).run_recorded(search).await;
        assert!(answer.is_ok());
        println!("patient: admitted after {} ms", record.elapsed.as_millis());
    }
    Ok(())
}
