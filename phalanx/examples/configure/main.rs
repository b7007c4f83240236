//! Demo: policies from a file. Prints every value with its origin; a variable overrides the file, a lever overrides both.
//! For a small example see `reload`.
//!
//! `cargo run --example configure --features toml,reload`; with `-- --watch` it runs until Ctrl-C and applies every change of
//! `configure/phalanx.toml`.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use phalanx::config::Config;
use phalanx::policy::LeverSpec;
use phalanx::{ConfigError, Event, EventKind, ResilienceModule};

fn configure(path: &Path) -> Result<ResilienceModule, ConfigError> {
    let loader = Config::loader().file(path).env(); // later sources override earlier ones, value by value
    let config = loader.load()?; // returns every mistake at once, with file, line and the nearest key
    let module = ResilienceModule::in_memory().config(config).on_event(print_event).build()?;
    println!("demo: the values in force, each with its origin\n\n{}", module.describe());
    Ok(module)
}

async fn operate(module: &ResilienceModule) -> Result<(), ConfigError> {
    module.pull("payments", LeverSpec::force_open().reason("INC-4711"))?;
    if let Err(rejected) = module.run("payments", "stripe", charge).await {
        println!("{rejected}"); // … (forced_open)
    }
    module.release("payments"); // the lever of the file applies again
    Ok(())
}

async fn charge() -> std::io::Result<u32> {
    Ok(1)
}

/// Prints the events that an operator wants to see.
fn print_event(event: &Event<'_>) {
    match event.kind {
        EventKind::ConfigApplied { changed } => println!("applied: {changed} changed"),
        EventKind::ConfigRejected { reason } => println!("rejected, nothing changed: {reason}"),
        EventKind::Lever { policy, lever: Some(lever) } => {
            let pulled: Vec<_> = lever.pulled().collect();
            println!("lever of {policy}: {}", pulled.join(", "));
        }
        EventKind::Lever { policy, lever: None } => println!("lever of {policy}: released"),
        _ => {}
    }
}

async fn run(path: &Path, watch: bool) -> Result<(), Box<dyn Error>> {
    let module = configure(path)?;
    operate(&module).await?;
    if watch {
        let watcher = module.watch_config(Config::loader().file(path).env())?;
        println!("watching {}", path.display());
        tokio::signal::ctrl_c().await?;
        drop(watcher);
    }
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/configure/phalanx.toml"));
    let watch = arguments.any(|argument| argument == "--watch");
    match run(&path, watch).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
