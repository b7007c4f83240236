//! Hedge: an attempt that is slower than usual is sent once more, and the first answer wins. `hedge_demo` measures what
//! hedging does to the tail latency.
//!
//! `cargo run --example hedge` prints
//!
//! ```text
//! at 0 ms: the attempt is sent, it will take 1 s
//! at 50 ms: the hedge is sent, it will take 20 ms
//! at 70 ms: the hedge answered, the attempt was dropped
//! ```

use std::cell::Cell;
use std::convert::Infallible;
use std::time::Duration;

use phalanx::{HedgeSpec, Policy, ResilienceModule};
use tokio::time::{Instant, sleep};

// The clock of tokio is paused and jumps from timer to timer: no time passes while the example waits.
#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A hedge needs `idempotent`: the operation may run twice.
    let policy = Policy::named("search").hedge(HedgeSpec::after(Duration::from_millis(50))).idempotent();
    let module = ResilienceModule::in_memory().policy(policy).build()?;

    let (start, sent) = (Instant::now(), Cell::new(0));
    let search = || {
        sent.set(sent.get() + 1);
        let first = sent.get() == 1;
        let (name, takes) = if first { ("attempt", "1 s") } else { ("hedge", "20 ms") };
        println!("at {} ms: the {name} is sent, it will take {takes}", start.elapsed().as_millis());
        async move {
            sleep(Duration::from_millis(if first { 1_000 } else { 20 })).await;
            Ok::<_, Infallible>(name)
        }
    };
    let (answer, record) = module.call("search", ()).run_recorded(search).await;
    println!("at {} ms: the {} answered, the attempt was dropped", start.elapsed().as_millis(), answer?);
    assert_eq!((record.attempts, record.hedges, record.hedge_won), (1, 1, true));
    Ok(())
}
