//! What a queue does under overload: a dependency is asked for three times what it can do, once for each of five
//! queues before it.
//!
//! ```text
//!   cargo run --example queue               half a minute of overload before each, in a few seconds
//!   cargo run --example queue -- --seed 8   other users
//!   cargo run --example queue -- --check    status 1 if a promise was broken
//! ```
//!
//! The files: `scene` (the numbers and the queues), `clients` (who asks, and what came of it), `../common` (how it is
//! shown).

#[path = "../common/args.rs"]
mod args;
mod clients;
#[path = "../common/latencies.rs"]
mod latencies;
#[path = "../common/page.rs"]
mod page;
mod scene;

use std::error::Error;
use std::process::ExitCode;

use clap::Parser;
use phalanx::{Criticality, RejectionCode};

use crate::args::Args;
use crate::clients::Outcome;
use crate::page::{Page, millis, percent, row};
use crate::scene::{ASKED, CAPACITY, LENGTH, PATIENCE, SLOTS, TIERS, USERS};

const POINT: &str = "\
A long queue works as hard as any, for users who have given up. A shorter one answers in time, as long
as the dependency is as quick as when its places were counted. CoDel bounds the wait itself; with the
newest first, hardly anybody waits. All reject two calls in three; priorities say which:";

type Run = (&'static str, Outcome);

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    let args = Args::parse();
    let mut runs = Vec::new();
    for (name, queue) in scene::queues() {
        runs.push((name, clients::load(queue, args.seed).await?));
    }
    let mut page = Page::new();
    page.say(format_args!(
        "A dependency can answer {CAPACITY} calls a second, {SLOTS} at a time. {USERS} users ask for {ASKED} a second;\n\
         each gives up after {} s and comes back some seconds later.\n\
         {} simulated seconds before each of five queues, seed {}:",
        PATIENCE.as_secs(),
        LENGTH.as_secs(),
        args.seed
    ));
    page.blank();
    answers(&mut page, &mut runs);
    page.say(POINT);
    page.blank();
    tiers(&mut page, &runs);
    promises(&mut page, &mut runs);
    Ok(page.write(args.check)?)
}

/// How long answers took, how many there were, and why there were no more.
fn answers(page: &mut Page, runs: &mut [Run]) {
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
        cells.extend(rejected.map(|calls| percent(calls, all.asked)));
        rows.push(cells);
    }
    page.table(&rows);
}

/// Who was answered in time.
fn tiers(page: &mut Page, runs: &[Run]) {
    let (mut heads, mut asked) = (row([""]), row(["answered in time, of"]));
    for (name, _, users) in TIERS {
        heads.push(name.to_owned());
        asked.push(format!("{}/s", ASKED * users / 10));
    }
    let mut rows = vec![heads, asked];
    for (name, outcome) in runs {
        let mut cells = row([name]);
        cells.extend(TIERS.map(|(_, tier, _)| outcome.tier(tier)).map(|(in_time, asked)| percent(in_time, asked)));
        rows.push(cells);
    }
    page.table(&rows);
}

/// The first queue against the last.
fn promises(page: &mut Page, runs: &mut [Run]) {
    let whole = runs.iter().all(|(_, run)| run.all.asked == run.all.ended() && run.lost == 0);
    page.promise(whole, "every call ended exactly once, and every slot came back");
    let [(_, before), .., (_, after)] = runs else { return };
    let [old, new] = [&before, &after].map(|run| run.per_second(run.all.in_time) * 100.0 / CAPACITY);
    page.promise(
        old < 10.0 && new > 95.0,
        format_args!("answers in time: {old:.0} % of the capacity in the first row, {new:.0} % in the last"),
    );
    let [old, new] = [&mut *before, &mut *after].map(|run| run.all.latencies.quantile(0.99).as_secs_f64());
    page.promise(old > 5.0 * new, format_args!("p99 of the answers: {:.0} times shorter", old / new));
    let [lost, shed] = [Criticality::Critical, Criticality::BestEffort].map(|tier| {
        let (in_time, asked) = after.tier(tier);
        (asked - in_time, asked)
    });
    page.promise(
        lost.0 == 0 && shed.0 * 10 > shed.1 * 9,
        format_args!("critical lost {} of {} calls, best effort {} of {}", lost.0, lost.1, shed.0, shed.1),
    );
}
