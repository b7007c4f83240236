//! Bulkhead: at most two calls run at a time, one more waits in the queue, and the rest are rejected at once.
//!
//! `cargo run --example bulkhead` prints
//!
//! ```text
//! four calls start together, each takes 100 ms
//! call 1: answered after 100 ms
//! call 2: answered after 100 ms
//! call 3: answered after 200 ms
//! call 4: rejected (bulkhead_full) after 0 ms
//! ```

use std::convert::Infallible;
use std::time::Duration;

use phalanx::{BulkheadSpec, Policy, ResilienceModule};

async fn report() -> Result<(), Infallible> {
    tokio::time::sleep(Duration::from_millis(100)).await;
    Ok(())
}

// The clock of tokio is paused and jumps from timer to timer: no time passes while the example waits.
#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let bulkhead = BulkheadSpec::fixed(2).queue(1).queue_timeout(Duration::from_secs(1));
    let module = ResilienceModule::in_memory().policy(Policy::named("reports").bulkhead(bulkhead)).build()?;
    let reports = module.pipeline("reports", ())?;

    println!("four calls start together, each takes 100 ms");
    let call = || reports.call().run_recorded(report);
    let calls: [_; 4] = tokio::join!(call(), call(), call(), call()).into();
    for (number, (answer, record)) in (1..).zip(&calls) {
        let result = match answer {
            Ok(()) => "answered".to_owned(),
            Err(error) => format!("rejected ({})", error.rejection().map_or("-", |rejection| rejection.code().name())),
        };
        println!("call {number}: {result} after {} ms", record.elapsed.as_millis());
    }
    assert_eq!(calls.iter().filter(|(answer, _)| answer.is_ok()).count(), 3);
    assert_eq!(reports.available_slots(), Some(2), "every slot is free again");
    Ok(())
}
