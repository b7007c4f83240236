//! A breaker trips, rejects, and recovers through a probe, all in virtual time; a recorder shows every event. In a project
//! this is a `#[tokio::test(start_paused = true)]`.
//!
//! `cargo run --example breaker_recovery` prints
//!
//! ```text
//! down: closed -> open after 3 calls
//! while it is open: circuit_open, and the dependency is not called
//! after 30 s: open -> half_open, half_open -> closed
//! all events of the probe: Transition, Transition, Finished
//! ```

use std::time::Duration;

use phalanx::{BreakerSpec, ConfigError, Policy, RejectionCode, ResilienceModule};
use phalanx_testkit::{Recorder, Scripted};

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> Result<(), ConfigError> {
    let recorder = Recorder::new();
    let breaker = BreakerSpec::consecutive_failures(3).break_for(Duration::from_secs(30));
    let module = ResilienceModule::in_memory()
        .policy(Policy::named("payments").breaker(breaker))
        .observer(recorder.clone())
        .build()?;
    let stripe = Scripted::new().fail(3).then_ok("paid");
    let pay = async || module.run("payments", "stripe", || stripe.call()).await;

    for _ in 0..3 {
        assert!(pay().await.is_err());
    }
    recorder.assert_transitions(["closed -> open"]);
    println!("down: {} after {} calls", recorder.transitions().join(", "), stripe.calls());

    assert!(pay().await.is_err());
    recorder.assert_rejected(RejectionCode::CircuitOpen);
    assert_eq!(stripe.calls(), 3);
    println!("while it is open: circuit_open, and the dependency is not called");

    recorder.clear();
    tokio::time::advance(Duration::from_secs(30)).await;
    assert_eq!(pay().await, Ok("paid")); // the probe
    recorder.assert_transitions(["open -> half_open", "half_open -> closed"]);
    println!("after 30 s: {}", recorder.transitions().join(", "));
    println!("all events of the probe: {}", recorder.kinds().join(", "));
    Ok(())
}
