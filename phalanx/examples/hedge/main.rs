//! What a hedge does for the tail, and what it costs: the same calls to a dependency with a slow tail, without a hedge
//! and with two, and once more on a day when everything is slow.
//!
//! ```text
//!   cargo run --example hedge               half a minute with each, in a few seconds
//!   cargo run --example hedge -- --seed 8   other calls
//!   cargo run --example hedge -- --check    status 1 if a promise was broken
//! ```
//!
//! The files: `scene` (the numbers and the hedges), `calls` (who asks, and what came of it), `../common` (how it is
//! shown).

#[path = "../common/args.rs"]
mod args;
mod calls;
#[path = "../common/latencies.rs"]
mod latencies;
#[path = "../common/page.rs"]
mod page;
mod scene;

use std::error::Error;
use std::process::ExitCode;

use clap::Parser;

use crate::args::Args;
use crate::calls::Outcome;
use crate::page::{Page, millis, percent, row};
use crate::scene::{ACCIDENT, ACCIDENTS, BAD_DAY, Day, LENGTH, RATE, TYPICAL};

const TAIL: &str = "\
A copy is sent for the few calls that are late, and it is rarely late too. The p95 needs no guess: it is
the latency that five calls in a hundred exceed, so that is how many are asked twice.";

const BUDGET: &str = "\
Every call is late by yesterday's measure, so each would be asked twice. That looks well here only because
this dependency does not mind; a real one that is slow has no room for twice the calls. The budget stops
it at a fifth, and one a second. The p95 is today's, so its copies stay few and the tail short.";

type Run = (&'static str, Outcome);

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    let args = Args::parse();
    let mut usual = play(Day::Usual, args.seed).await?;
    let mut bad = play(Day::Bad, args.seed).await?;
    let mut page = Page::new();
    page.say(format_args!(
        "A dependency answers in about {}; {:.0} calls in a hundred take {ACCIDENT} times as long, by accident.\n\
         {RATE} calls a second, {} simulated seconds each, seed {}:",
        millis(TYPICAL),
        ACCIDENTS * 100.0,
        LENGTH.as_secs(),
        args.seed
    ));
    page.blank();
    table(&mut page, &mut usual);
    page.say(TAIL);
    page.blank();
    page.say(format_args!("And when everything takes {BAD_DAY} times as long:"));
    page.blank();
    table(&mut page, &mut bad);
    page.say(BUDGET);
    page.blank();
    promises(&mut page, &mut usual, &mut bad);
    Ok(page.write(args.check)?)
}

async fn play(day: Day, seed: u64) -> Result<Vec<Run>, Box<dyn Error>> {
    let mut runs = Vec::new();
    for (name, hedge) in scene::hedges(day) {
        runs.push((name, calls::run(day, hedge, seed).await?));
    }
    Ok(runs)
}

/// How long answers took, and what that cost.
fn table(page: &mut Page, runs: &mut [Run]) {
    let mut rows = vec![
        row(["", "latency", "", "", "", "extra", "copies", "hedge"]),
        row(["", "p50", "p95", "p99", "p99.9", "calls", "that won", "delay"]),
    ];
    for (name, outcome) in runs {
        let mut cells = row([name]);
        cells.extend([0.50, 0.95, 0.99, 0.999].map(|share| millis(outcome.latencies.quantile(share))));
        cells.extend(match outcome.delay {
            Some(delay) => {
                [percent(outcome.copies, outcome.calls), percent(outcome.won, outcome.copies), millis(delay)]
            }
            None => ["-"; 3].map(str::to_owned),
        });
        rows.push(cells);
    }
    page.table(&rows);
}

fn promises(page: &mut Page, usual: &mut [Run], bad: &mut [Run]) {
    let whole = usual.iter().chain(&*bad).all(|(_, run)| run.runs == run.calls + run.copies);
    page.promise(whole, "the dependency saw the calls and the copies, and nothing else");
    let share = |run: &Outcome| run.copies as f64 * 100.0 / run.calls as f64;
    let [(_, plain), (_, fixed), (_, adaptive)] = usual else { return };
    let [tail, short, shorter] = [plain, &mut *fixed, &mut *adaptive].map(|run| run.latencies.quantile(0.99));
    let shares = [share(fixed), share(adaptive)];
    page.promise(
        tail > 4 * short && tail > 4 * shorter && shares.iter().all(|share| *share < 8.0),
        format_args!("p99 from {} to {} and {}", millis(tail), millis(short), millis(shorter)),
    );
    let [_, (_, boundless), (_, capped), (_, adaptive)] = bad else { return };
    let [boundless, capped, adaptive] = [boundless, capped, adaptive].map(|run| share(run));
    page.promise(
        boundless > 90.0 && capped < 22.0 && adaptive < 10.0,
        format_args!("copies when all is slow: {boundless:.0} % without a budget, {capped:.0} % with one, {adaptive:.0} % at the p95"),
    );
}
