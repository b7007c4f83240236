//! Circuit breaker: after two failures in a row calls are rejected without reaching the dependency, until a probe succeeds.
//!
//! `cargo run --example breaker` prints
//!
//! ```text
//! call 1: failed, the breaker is closed
//! call 2: failed, the breaker is open
//! call 3: rejected (circuit_open), retry after 30s
//! 30 seconds later
//! call 4: ok, the breaker is closed
//! the dependency was called 3 times
//! ```

use std::cell::Cell;
use std::time::Duration;

use phalanx::{BreakerSpec, Error, Kind, Policy, ResilienceModule};

// The clock of tokio is paused and jumps from timer to timer: no time passes while the example waits.
#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let breaker = BreakerSpec::consecutive_failures(2).break_for(Duration::from_secs(30));
    let module = ResilienceModule::in_memory().policy(Policy::named("payments").breaker(breaker)).build()?;
    let payments = module.pipeline("payments", "stripe")?; // one policy on one route, to be kept

    let called = Cell::new(0);
    let charge = || async {
        called.set(called.get() + 1);
        if called.get() <= 2 { Err(Kind::Infrastructure) } else { Ok("ok") }
    };
    for number in 1..=4 {
        if number == 4 {
            println!("30 seconds later");
            tokio::time::sleep(Duration::from_secs(30)).await; // the next call is a probe
        }
        let result = match payments.run(charge).await {
            Err(Error::Rejected(rejection)) => {
                let wait = rejection.retry_after().unwrap_or_default();
                println!("call {number}: rejected ({}), retry after {wait:?}", rejection.code());
                continue;
            }
            Err(Error::Inner(_)) => "failed",
            Ok(answer) => answer,
        };
        let phase = payments.circuit().await.map_or("-", |view| view.phase.name());
        println!("call {number}: {result}, the breaker is {phase}");
    }
    println!("the dependency was called {} times", called.get());
    assert_eq!(called.get(), 3);
    Ok(())
}
