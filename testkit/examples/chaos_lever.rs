//! Chaos behind a lever: the policy of a staging environment carries the faults, an operator pulls the lever, and callers
//! show whether they cope. Needs the feature `chaos` of `phalanx`; the kit is used only to count.
//!
//! `cargo run --example chaos_lever` prints
//!
//! ```text
//! lever off: 1000 of 1000 answered, 1000 attempts
//! lever on: 992 of 1000 answered, 1227 attempts, 235 faults injected
//! lever off: 1000 of 1000 answered, 1000 attempts
//! ```

use std::time::Duration;

use phalanx::policy::{ChaosSpec, LeverSpec};
use phalanx::{ConfigError, EventKind, Kind, Policy, ResilienceModule, RetrySpec};
use phalanx_testkit::{Recorder, Scripted};

async fn thousand_calls(module: &ResilienceModule, label: &str) {
    let search = Scripted::new().then_ok("shoes");
    let (mut answered, mut attempts) = (0, 0);
    for _ in 0..1_000 {
        let (answer, record) = module.call("search", "eu").run_recorded(|| search.call()).await;
        answered += u32::from(answer.is_ok());
        attempts += record.attempts;
    }
    print!("{label}: {answered} of 1000 answered, {attempts} attempts");
}

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> Result<(), ConfigError> {
    let chaos = ChaosSpec::default().latency(0.1, Duration::from_millis(300)).errors(0.1);
    let policy = Policy::named("search")
        .timeout(Duration::from_millis(200)) // shorter than the injected latency
        .retry(RetrySpec::attempts(3).on([Kind::Infrastructure]))
        .chaos(chaos); // in a file: [policies.search.chaos]
    let recorder = Recorder::new();
    let module = ResilienceModule::in_memory().policy(policy).seed(7).observer(recorder.clone()).build()?;

    thousand_calls(&module, "lever off").await;
    println!();
    module.pull("search", LeverSpec::default().with_chaos().reason("game day"))?;
    thousand_calls(&module, "lever on").await;
    println!(", {} faults injected", recorder.count(|event| matches!(event.kind, EventKind::FaultInjected(_))));
    module.release("search");
    thousand_calls(&module, "lever off").await;
    println!();
    Ok(())
}
