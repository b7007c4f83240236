//! Retries against a scripted dependency: which attempts are made, and when. In a project this is a `#[tokio::test]`.
//!
//! `cargo run --example scripted_retry` prints
//!
//! ```text
//! two failures, then 42: attempts at 0ns, 110ms, 320ms
//! down for good: 3 attempts, then the dependency's own error (infrastructure)
//! a validation error is not retried: 1 attempt
//! ```

use std::time::Duration;

use phalanx::policy::Jitter;
use phalanx::{Backoff, ConfigError, Error, Kind, Policy, ResilienceModule, RetrySpec};
use phalanx_testkit::{AssertDecision, Scripted};

/// The policy of the service: what is tested is what runs in production. Only the jitter is switched off.
fn prices() -> Policy {
    let backoff = Backoff::exponential(Duration::from_millis(100)).jitter(Jitter::None);
    Policy::named("prices").retry(RetrySpec::attempts(3).on([Kind::Infrastructure]).backoff(backoff))
}

// The clock of tokio is paused and jumps from timer to timer: no time passes while the example waits.
#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> Result<(), ConfigError> {
    let module = ResilienceModule::in_memory().policy(prices()).build()?;

    let shop = Scripted::new().fail(2).taking(Duration::from_millis(10)).then_ok(42);
    assert_eq!(module.run("prices", "shoes", || shop.call()).await, Ok(42));
    let starts: Vec<_> = shop.started_at().iter().map(|at| format!("{at:?}")).collect();
    println!("two failures, then 42: attempts at {}", starts.join(", "));

    let down = Scripted::<u32>::new().then_fail();
    let (answer, record) = module.call("prices", "hats").run_recorded(|| down.call()).await;
    record.assert_attempts(3);
    assert_eq!(answer, Err(Error::Inner(Kind::Infrastructure)));
    println!("down for good: {} attempts, then the dependency's own error (infrastructure)", down.calls());

    let picky = Scripted::<u32>::failing_with(Kind::Validation).then_fail();
    let (_, record) = module.call("prices", "ties").run_recorded(|| picky.call()).await;
    record.assert_attempts(1);
    println!("a validation error is not retried: {} attempt", picky.calls());
    Ok(())
}
