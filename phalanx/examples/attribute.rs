//! Attribute: `#[resilient]` runs a method under a policy. `ports` is a larger example, with a policy on a whole trait.
//!
//! `cargo run --example attribute` prints
//!
//! ```text
//! attempt 1 for acme: connection reset
//! attempt 2 for acme: ok
//! charged 100 cents
//! zero cents: validation, 0 further attempts
//! ```

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use phalanx::{Backoff, Error, Kind, Policy, ResilienceModule, Resilient, RetrySpec, resilient};

struct Stripe {
    resilience: ResilienceModule,
    attempts: AtomicU32,
}

/// The attribute takes the policies from here.
impl Resilient for Stripe {
    fn resilience(&self) -> &ResilienceModule {
        &self.resilience
    }
}

impl Stripe {
    #[resilient(policy = "payments", route = account)] // the body runs once for each attempt
    async fn charge(&self, account: &str, cents: u32) -> Result<u32, Error<Kind>> {
        if cents == 0 {
            return Err(Kind::Validation);
        }
        let attempt = self.attempts.fetch_add(1, Relaxed) + 1;
        println!("attempt {attempt} for {account}: {}", if attempt == 1 { "connection reset" } else { "ok" });
        if attempt == 1 { Err(Kind::Infrastructure) } else { Ok(cents) }
    }
}

// The clock of tokio is paused and jumps from timer to timer: no time passes while the example waits.
#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let backoff = Backoff::exponential(Duration::from_millis(100));
    let policy = Policy::named("payments").retry(RetrySpec::attempts(3).on([Kind::Infrastructure]).backoff(backoff));
    let resilience = ResilienceModule::in_memory().policy(policy).build()?;
    let stripe = Stripe { resilience, attempts: AtomicU32::new(0) };

    let cents = stripe.charge("acme", 100).await.map_err(|error| error.to_string())?;
    println!("charged {cents} cents");
    assert_eq!(stripe.attempts.load(Relaxed), 2);

    assert_eq!(stripe.charge("acme", 0).await, Err(Error::Inner(Kind::Validation)));
    println!("zero cents: validation, {} further attempts", stripe.attempts.load(Relaxed) - 2);
    Ok(())
}
