//! Demo: what hedging does to the tail latency, and what it costs. The same calls to a dependency with a slow tail, without a
//! hedge and with two kinds of hedges, and again while the whole dependency is slow. For a small example see `hedge`.
//!
//! ```text
//!   cargo run --example hedge_demo               half a minute with each, in a few seconds
//!   cargo run --example hedge_demo -- --seed 8   other calls
//!   cargo run --example hedge_demo -- --check    status 1 if an expectation is not met
//! ```
//!
//! The files: `simulation` (the numbers and the hedges), `calls` (the calls and their results), `../common` (the printout).

#[path = "../common/args.rs"]
mod args;
mod calls;
#[path = "../common/latencies.rs"]
mod latencies;
#[path = "../common/printout.rs"]
mod printout;
mod simulation;

use std::error::Error;
use std::process::ExitCode;

use clap::Parser;

use crate::args::Args;
use crate::calls::Outcome;
use crate::printout::{Printout, millis, percent, row};
use crate::simulation::{
    CALLS_PER_SECOND, Condition, DURATION, OUTLIER_FACTOR, OUTLIER_RATIO, SLOWDOWN, TYPICAL_LATENCY,
};

const TAIL: &str = "\
A hedge is sent for the few calls that are late, and it is rarely late too. The p95 needs no tuning: five
calls in a hundred are slower, so that is how many are hedged.";

const BUDGET: &str = "\
With a fixed delay every call is late now and would be hedged. It helps here only because this dependency
does not slow down under load; a real one has no room for twice the calls. The budget stops hedges at a
fifth of the calls and one a second. The p95 follows the latency, so hedges stay few and the tail short.";

type Run = (&'static str, Outcome);

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    let args = Args::parse();
    let mut normal = run_all(Condition::Normal, args.seed).await?;
    let mut slow = run_all(Condition::Slow, args.seed).await?;
    let mut printout = Printout::new("hedging against a slow tail");
    printout.text(format_args!(
        "A dependency answers in about {}; {:.0} calls in a hundred take {OUTLIER_FACTOR} times as long.\n\
         {CALLS_PER_SECOND} calls a second, {} simulated seconds each, seed {}:",
        millis(TYPICAL_LATENCY),
        OUTLIER_RATIO * 100.0,
        DURATION.as_secs(),
        args.seed
    ));
    printout.blank();
    table(&mut printout, &mut normal);
    printout.text(TAIL);
    printout.blank();
    printout.text(format_args!("The same while everything takes {SLOWDOWN} times as long:"));
    printout.blank();
    table(&mut printout, &mut slow);
    printout.text(BUDGET);
    printout.blank();
    expectations(&mut printout, &mut normal, &mut slow);
    Ok(printout.write(args.check)?)
}

async fn run_all(condition: Condition, seed: u64) -> Result<Vec<Run>, Box<dyn Error>> {
    let mut runs = Vec::new();
    for (name, hedge) in simulation::hedges(condition) {
        runs.push((name, calls::run(condition, hedge, seed).await?));
    }
    Ok(runs)
}

/// The latencies, and the cost in extra calls.
fn table(printout: &mut Printout, runs: &mut [Run]) {
    let mut rows = vec![
        row(["", "latency", "", "", "", "extra", "hedges", "hedge"]),
        row(["", "p50", "p95", "p99", "p99.9", "calls", "that won", "delay"]),
    ];
    for (name, outcome) in runs {
        let mut cells = row([name]);
        cells.extend([0.50, 0.95, 0.99, 0.999].map(|share| millis(outcome.latencies.quantile(share))));
        cells.extend(match outcome.delay {
            Some(delay) => {
                [percent(outcome.hedges, outcome.calls), percent(outcome.won, outcome.hedges), millis(delay)]
            }
            None => ["-"; 3].map(str::to_owned),
        });
        rows.push(cells);
    }
    printout.table(&rows);
}

fn expectations(printout: &mut Printout, normal: &mut [Run], slow: &mut [Run]) {
    let whole = normal.iter().chain(&*slow).all(|(_, run)| run.runs == run.calls + run.hedges);
    printout.expect(whole, "the dependency received every call and every hedge, and nothing else");
    let share = |run: &Outcome| run.hedges as f64 * 100.0 / run.calls as f64;
    let [(_, plain), (_, fixed), (_, adaptive)] = normal else { return };
    let [tail, short, shorter] = [plain, &mut *fixed, &mut *adaptive].map(|run| run.latencies.quantile(0.99));
    let shares = [share(fixed), share(adaptive)];
    printout.expect(
        tail > 4 * short && tail > 4 * shorter && shares.iter().all(|share| *share < 8.0),
        format_args!("p99 from {} to {} and {}", millis(tail), millis(short), millis(shorter)),
    );
    let [_, (_, unlimited), (_, capped), (_, adaptive)] = slow else { return };
    let [unlimited, capped, adaptive] = [unlimited, capped, adaptive].map(|run| share(run));
    printout.expect(
        unlimited > 90.0 && capped < 22.0 && adaptive < 10.0,
        format_args!("hedges when everything is slow: {unlimited:.0} % without a budget, {capped:.0} % with one, {adaptive:.0} % at the p95"),
    );
}
