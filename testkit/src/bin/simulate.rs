//! `simulate`: plays many seeds, or one plan, and checks every oracle.
//!
//! ```text
//! cargo run --release -p phalanx-testkit --features simulator --bin simulate -- --seeds 300
//! cargo run --release -p phalanx-testkit --features simulator --bin simulate -- --seed 17 --story
//! cargo run --release -p phalanx-testkit --features simulator --bin simulate -- --plan plan.toml --story
//! ```

#![allow(clippy::disallowed_methods)] // it measures how long simulations really take

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use clap::Parser;
use phalanx_testkit::simulator::{EntryKind, Plan, Plant, Report, Run, run, run_with, shrink};
#[cfg(feature = "servers")]
use phalanx_testkit::simulator::{ReplicaProcess, play_on_servers};

/// Scripts allocate many small strings; this allocator makes a run a quarter faster.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The command that plays one seed again.
const REPLAY: &str = "cargo run --release -p phalanx-testkit --features simulator --bin simulate --";

/// Plays fleets in virtual time and checks every promise.
#[derive(Parser)]
struct Arguments {
    /// Play this many seeds.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seeds: u64,
    /// The first of them.
    #[arg(long, value_name = "N", default_value_t = 1)]
    from: u64,
    /// Threads.
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads: u64,
    /// Play one seed.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Play the plan in this file.
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// Print the plan instead of playing it.
    #[arg(long)]
    print_plan: bool,
    /// Print what happened, without the scripts.
    #[arg(long)]
    story: bool,
    /// Check that every oracle finds its planted fault within a hundred seeds.
    #[arg(long)]
    plants: bool,
    /// Play with this planted fault.
    #[arg(long, value_name = "NAME")]
    plant: Option<String>,
    /// Print the scripts too.
    #[arg(long)]
    scripts: bool,
    /// Do not look for a shorter plan when a promise is broken.
    #[arg(long)]
    no_shrink: bool,
    /// Play a plan even if it takes longer than ten minutes.
    #[arg(long)]
    long: bool,
    /// Play the plan on a real redis-server, with a process for each replica. Takes as long as the plan says.
    #[cfg(feature = "servers")]
    #[arg(long)]
    real: bool,
    #[cfg(feature = "servers")]
    #[command(flatten)]
    replica: ReplicaArguments,
}

/// How a run on real servers starts the process of a replica.
#[cfg(feature = "servers")]
#[derive(clap::Args)]
struct ReplicaArguments {
    #[arg(long = "replica", value_name = "N", hide = true, requires = "plan")]
    number: Option<usize>,
    #[arg(long, value_name = "N", hide = true, default_value_t = 0)]
    incarnation: u64,
    #[arg(long, value_name = "URL", hide = true, default_value = "")]
    redis: String,
    #[arg(long, value_name = "MICROSECONDS", hide = true, default_value_t = 0)]
    began: u64,
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments = Arguments::parse();
    let plant = planted(&arguments)?;
    let plan = match (&arguments.plan, arguments.seed) {
        (Some(file), _) => Some(
            Plan::parse(&std::fs::read_to_string(file)?)
                .map_err(|mistakes| format!("{}:\n{mistakes}", file.display()))?,
        ),
        (None, Some(seed)) => Some(plant.map_or_else(|| Plan::of_seed(seed), |plant| plant.plan(seed))),
        (None, None) => None,
    };
    match plan {
        Some(plan) if arguments.print_plan => {
            print!("{}", plan.to_toml());
            Ok(ExitCode::SUCCESS)
        }
        #[cfg(feature = "servers")]
        Some(plan) if arguments.replica.number.is_some() => {
            let ReplicaArguments { number, incarnation, redis: url, began } = arguments.replica;
            let number = number.unwrap_or_default();
            ReplicaProcess { plan, number, incarnation, url, began }.run()?;
            Ok(ExitCode::SUCCESS)
        }
        Some(plan) => play_one(&plan, plant, &arguments),
        None if arguments.plants => Ok(find_plants()),
        None => Ok(play_many(&arguments)),
    }
}

/// Calls and polls of the plan, and the seconds they take at the speed of the slowest machine this was measured on.
fn estimate(plan: &Plan) -> f64 {
    let calls: f64 = plan
        .loads
        .iter()
        .map(|load| load.per_second * if load.replica.is_some() { 1.0 } else { plan.replicas as f64 })
        .sum();
    let polls = (plan.replicas * (plan.policies.len() * 4 + 1)) as f64;
    (calls + polls) * plan.seconds as f64 * 40e-6
}

/// Returns the planted fault of this name.
fn planted(arguments: &Arguments) -> Result<Option<Plant>, Box<dyn Error>> {
    let Some(name) = &arguments.plant else { return Ok(None) };
    let found = Plant::ALL.iter().find(|(plant, _)| format!("{plant:?}") == *name);
    Ok(Some(found.ok_or_else(|| format!("no planted fault is named {name:?}"))?.0))
}

fn play_one(plan: &Plan, plant: Option<Plant>, arguments: &Arguments) -> Result<ExitCode, Box<dyn Error>> {
    let seconds = estimate(plan);
    if seconds > 10.0 {
        eprintln!("{} replicas for {} virtual seconds: about {seconds:.0} s", plan.replicas, plan.seconds);
    }
    if seconds > 600.0 && !arguments.long {
        return Err("that takes longer than ten minutes: pass --long to play it".into());
    }
    let start = Instant::now();
    let played = play(plan, plant, arguments)?;
    let took = start.elapsed();
    if arguments.story {
        for entry in &played.history.entries {
            if arguments.scripts || !matches!(entry.kind, EntryKind::Script(_)) {
                println!("{entry}");
            }
        }
    }
    let mut report = Report::default();
    report.add(plan.seed, &played);
    println!("{report}");
    println!(
        "digest {:016x}, {took:.1?}, {:.0} scripts a virtual second",
        played.history.digest(),
        played.scripts as f64 / plan.seconds as f64
    );
    let mut seconds = played.scripts_per_second.clone();
    seconds.sort_unstable();
    if let (Some(median), Some(most)) = (seconds.get(seconds.len() / 2), seconds.last()) {
        println!("scripts a second: median {median}, most {most}");
    }
    let trips = played.history.trip_times();
    if let (Some(median), Some(worst)) = (trips.get(trips.len() / 2), trips.last()) {
        let p99 = trips[(trips.len() * 99 / 100).min(trips.len() - 1)];
        let ms = |micros: u64| micros as f64 / 1_000.0;
        println!(
            "{} trips received: p50 {:.1} ms, p99 {:.1} ms, worst {:.1} ms",
            trips.len(),
            ms(*median),
            ms(p99),
            ms(*worst)
        );
    }
    Ok(if played.broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[cfg(feature = "servers")]
fn play(plan: &Plan, plant: Option<Plant>, arguments: &Arguments) -> Result<Run, Box<dyn Error>> {
    if arguments.real {
        return Ok(play_on_servers(plan, &std::env::current_exe()?)?);
    }
    Ok(run_with(plan, plant))
}

#[cfg(not(feature = "servers"))]
fn play(plan: &Plan, plant: Option<Plant>, _: &Arguments) -> Result<Run, Box<dyn Error>> {
    Ok(run_with(plan, plant))
}

/// Plays seeds with each planted fault until its oracle finds it.
fn find_plants() -> ExitCode {
    let mut missed = 0;
    for (plant, oracle) in Plant::ALL {
        let finds = |seed: &u64| run_with(&plant.plan(*seed), Some(plant)).broken.iter().any(|(id, _)| *id == oracle);
        match (1..=100).find(finds) {
            Some(seed) => println!("{oracle:<9} finds {plant:?} at seed {seed}"),
            None => {
                missed += 1;
                println!("{oracle:<9} does NOT find {plant:?} within 100 seeds");
            }
        }
    }
    if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn play_many(arguments: &Arguments) -> ExitCode {
    let (start, next) = (Instant::now(), AtomicU64::new(arguments.from));
    let end = arguments.from + arguments.seeds;
    let mut report = Report::default();
    std::thread::scope(|scope| {
        let play = || {
            let mut report = Report::default();
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= end {
                    return report;
                }
                report.add(seed, &run(&Plan::of_seed(seed)));
            }
        };
        let threads: Vec<_> = (0..arguments.threads.max(1)).map(|_| scope.spawn(play)).collect();
        for thread in threads {
            if let Ok(part) = thread.join() {
                report.merge(part);
            }
        }
    });
    let took = start.elapsed().as_secs_f64();
    println!("{report}");
    println!("{:.1} seeds a second", report.runs as f64 / took);
    if report.runs < arguments.seeds {
        println!("{} seeds panicked", arguments.seeds - report.runs);
        return ExitCode::FAILURE;
    }
    for (id, (_, seed, _)) in &report.broken {
        println!("\n{id}: {REPLAY} --seed {seed} --story");
        if arguments.no_shrink {
            continue;
        }
        let small = shrink(&Plan::of_seed(*seed), id);
        println!("the shortest plan that breaks it:\n{}", small.to_toml());
    }
    if report.broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
