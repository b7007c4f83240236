//! Retry: an attempt that fails for a reason that may pass is repeated, each time after a longer delay.
//!
//! `cargo run --example retry` prints
//!
//! ```text
//! attempt 1 at 0 ms: connection reset
//! attempt 2 at 100 ms: connection reset
//! attempt 3 at 300 ms: ok
//! the caller waited 300 ms for 42
//! a missing price is an answer: 1 attempt
//! ```

use std::cell::Cell;
use std::io::{Error, ErrorKind};
use std::time::Duration;

use phalanx::policy::Jitter;
use phalanx::{Backoff, Kind, Policy, ResilienceModule, RetrySpec};
use tokio::time::Instant;

// The clock of tokio is paused and jumps from timer to timer: no time passes while the example waits.
#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let backoff = Backoff::exponential(Duration::from_millis(100)).jitter(Jitter::None); // jitter is on by default
    let retry = RetrySpec::attempts(3).on([Kind::Infrastructure]).backoff(backoff);
    let module = ResilienceModule::in_memory().policy(Policy::named("prices").retry(retry)).build()?;

    let (start, attempts) = (Instant::now(), Cell::new(0));
    let flaky = || async {
        attempts.set(attempts.get() + 1);
        let failed = attempts.get() < 3;
        let result = if failed { "connection reset" } else { "ok" };
        println!("attempt {} at {} ms: {result}", attempts.get(), start.elapsed().as_millis());
        if failed { Err(Error::from(ErrorKind::ConnectionReset)) } else { Ok(42) }
    };
    let (price, record) = module.call("prices", "shoes").run_recorded(flaky).await;
    println!("the caller waited {} ms for {}", record.elapsed.as_millis(), price?);
    assert_eq!(record.attempts, 3);

    let missing = || async { Err::<u32, _>(Error::from(ErrorKind::NotFound)) };
    let (_, record) = module.call("prices", "unicorns").run_recorded(missing).await;
    println!("a missing price is an answer: {} attempt", record.attempts);
    assert_eq!(record.attempts, 1);
    Ok(())
}
