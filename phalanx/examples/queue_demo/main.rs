//! Demo: what a queue does under overload. A dependency gets three times the calls it can serve, once behind each of five
//! queues. For a small example see `bulkhead`.
//!
//! ```text
//!   cargo run --example queue_demo               half a minute of overload with each, in a few seconds
//!   cargo run --example queue_demo -- --seed 8   other users
//!   cargo run --example queue_demo -- --check    status 1 if an expectation is not met
//! ```
//!
//! The files: `simulation` (the numbers and the queues), `clients` (the load and its results), `../common` (the printout).

#[path = "../common/args.rs"]
mod args;
mod clients;
#[path = "../common/latencies.rs"]
mod latencies;
#[path = "../common/printout.rs"]
mod printout;
mod simulation;

use std::error::Error;
use std::process::ExitCode;

use clap::Parser;
use phalanx::{Criticality, RejectionCode};

use crate::args::Args;
use crate::clients::Outcome;
use crate::printout::{Printout, millis, percent, row};
use crate::simulation::{CALLS_PER_SECOND, CAPACITY_PER_SECOND, CLIENT_TIMEOUT, DURATION, SLOTS, TIERS, USERS};

const CONCLUSION: &str = "\
A long queue answers users who have given up. A shorter one answers in time, but only as long as the
dependency is as fast as when its length was chosen. CoDel bounds the wait itself; with the newest call
first, most calls hardly wait. All queues reject two calls in three; priorities decide which:";

type Run = (&'static str, Outcome);

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    let args = Args::parse();
    let mut runs = Vec::new();
    for (name, queue) in simulation::queues() {
        runs.push((name, clients::load(queue, args.seed).await?));
    }
    let mut printout = Printout::new("five queues under overload");
    printout.text(format_args!(
        "A dependency can answer {CAPACITY_PER_SECOND} calls a second, {SLOTS} at a time. {USERS} users send {CALLS_PER_SECOND} a second;\n\
         each gives up after {} s and comes back some seconds later.\n\
         {} simulated seconds behind each of five queues, seed {}:",
        CLIENT_TIMEOUT.as_secs(),
        DURATION.as_secs(),
        args.seed
    ));
    printout.blank();
    answers(&mut printout, &mut runs);
    printout.text(CONCLUSION);
    printout.blank();
    tiers(&mut printout, &runs);
    expectations(&mut printout, &mut runs);
    Ok(printout.write(args.check)?)
}

/// The latencies of the answers, their number, and the reasons for rejections.
fn answers(printout: &mut Printout, runs: &mut [Run]) {
    let mut rows = vec![
        row(["", "latency", "", "", "answered", "answered", "bulkhead_", "bulkhead_"]),
        row(["queue", "p50", "p95", "p99", "in time", "too late", "full", "queue_shed"]),
    ];
    for (name, outcome) in runs {
        let mut cells = row([name]);
        cells.extend([0.50, 0.95, 0.99].map(|share| millis(outcome.all.latencies.quantile(share))));
        let all = &outcome.all;
        cells.extend([all.in_time, all.late].map(|calls| format!("{:.0}/s", outcome.per_second(calls))));
        let rejected = [RejectionCode::BulkheadFull, RejectionCode::BulkheadQueueShed].map(|code| all.rejections(code));
        cells.extend(rejected.map(|calls| percent(calls, all.sent)));
        rows.push(cells);
    }
    printout.table(&rows);
}

/// The calls answered in time, by criticality.
fn tiers(printout: &mut Printout, runs: &[Run]) {
    let (mut heads, mut sent) = (row([""]), row(["answered in time, of"]));
    for (name, _, users) in TIERS {
        heads.push(name.to_owned());
        sent.push(format!("{}/s", CALLS_PER_SECOND * users / 10));
    }
    let mut rows = vec![heads, sent];
    for (name, outcome) in runs {
        let mut cells = row([name]);
        cells.extend(TIERS.map(|(_, tier, _)| outcome.tier(tier)).map(|(in_time, sent)| percent(in_time, sent)));
        rows.push(cells);
    }
    printout.table(&rows);
}

/// Compares the first queue with the last.
fn expectations(printout: &mut Printout, runs: &mut [Run]) {
    let whole = runs.iter().all(|(_, run)| run.all.sent == run.all.ended() && run.unfinished == 0);
    printout.expect(whole, "every call ended exactly once, and every slot is free again");
    let [(_, before), .., (_, after)] = runs else { return };
    let [old, new] = [&before, &after].map(|run| run.per_second(run.all.in_time) * 100.0 / CAPACITY_PER_SECOND);
    printout.expect(
        old < 10.0 && new > 95.0,
        format_args!("answers in time: {old:.0} % of the capacity in the first row, {new:.0} % in the last"),
    );
    let [old, new] = [&mut *before, &mut *after].map(|run| run.all.latencies.quantile(0.99).as_secs_f64());
    printout.expect(old > 5.0 * new, format_args!("p99 of the answers: {:.0} times shorter", old / new));
    let [critical, best_effort] = [Criticality::Critical, Criticality::BestEffort].map(|tier| {
        let (in_time, sent) = after.tier(tier);
        (sent - in_time, sent)
    });
    printout.expect(
        critical.0 == 0 && best_effort.0 * 10 > best_effort.1 * 9,
        format_args!(
            "critical calls lost: {} of {}; best effort: {} of {}",
            critical.0, critical.1, best_effort.0, best_effort.1
        ),
    );
}
