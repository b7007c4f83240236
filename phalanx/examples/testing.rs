//! Testing: how to test a policy without waiting and without chance. Paused tokio time moves every timer of phalanx, a
//! seed fixes the jitter, a decision record and events show what happened. In a project these are `#[tokio::test]`s.
//!
//! `cargo run --example testing` prints
//!
//! ```text
//! a hanging dependency costs the caller two attempts of 1 s and a pause: 2100 ms
//! half of 20 calls fail: closed -> open
//! an open breaker rejects after 0 ms (circuit_open)
//! 30 s later a probe closes it: open -> half_open, half_open -> closed
//! ```

use std::sync::{Arc, Mutex};
use std::time::Duration;

use phalanx::policy::Jitter;
use phalanx::{Backoff, BreakerSpec, EventKind, Kind, Pipeline, Policy, RejectionCode, ResilienceModule, RetrySpec};

/// The policy of the service: what is tested is what runs in production.
fn payments() -> Policy {
    Policy::named("payments")
        .breaker(BreakerSpec::failure_ratio(0.5).min_throughput(20).break_for(Duration::from_secs(30)))
        .retry(
            RetrySpec::attempts(2)
                .on([Kind::Infrastructure])
                .backoff(Backoff::constant(Duration::from_millis(100)).jitter(Jitter::None)),
        )
        .timeout(Duration::from_secs(1))
}

type Changes = Arc<Mutex<Vec<String>>>;

/// A fresh pipeline, and the changes of its breaker as they are emitted.
fn pipeline() -> Result<(Pipeline, Changes), Box<dyn std::error::Error>> {
    let changes = Arc::new(Mutex::new(Vec::new()));
    let log = changes.clone();
    let module = ResilienceModule::in_memory().policy(payments()).seed(7).on_event(move |event| {
        if let (EventKind::Transition(change), Ok(mut log)) = (event.kind, log.lock()) {
            log.push(format!("{} -> {}", change.from.name(), change.to.name()));
        }
    });
    Ok((module.build()?.pipeline("payments", "stripe")?, changes))
}

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (stripe, _) = pipeline()?;
    let hang = std::future::pending::<Result<(), Kind>>;
    let (_, record) = stripe.call().run_recorded(hang).await;
    assert_eq!((record.reason, record.attempts), (Some(RejectionCode::AttemptTimeout), 2));
    println!(
        "a hanging dependency costs the caller two attempts of 1 s and a pause: {} ms",
        record.elapsed.as_millis()
    );

    let (stripe, changes) = pipeline()?;
    let take = || changes.lock().map(|mut log| std::mem::take(&mut *log).join(", ")).unwrap_or_default();
    for number in 0..20 {
        let _ = stripe.run(|| async move { if number % 2 == 0 { Ok(()) } else { Err(Kind::Infrastructure) } }).await;
    }
    println!("half of 20 calls fail: {}", take());

    let (_, record) = stripe.call().run_recorded(|| async { Ok::<_, Kind>(()) }).await;
    assert_eq!(record.reason, Some(RejectionCode::CircuitOpen));
    println!("an open breaker rejects after {} ms ({})", record.elapsed.as_millis(), RejectionCode::CircuitOpen);

    tokio::time::advance(Duration::from_secs(30)).await;
    assert_eq!(stripe.run(|| async { Ok::<_, Kind>(()) }).await, Ok(()));
    println!("30 s later a probe closes it: {}", take());
    Ok(())
}
