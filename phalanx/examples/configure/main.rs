//! Policies from a file: what is in force and who said so, a variable above the file, a lever above both.
//!
//! `cargo run --example configure --features toml,reload`, and with `-- --follow` it goes on until Ctrl-C: change the file
//! beside this one and see what becomes of it.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use phalanx::config::Config;
use phalanx::policy::LeverSpec;
use phalanx::{ConfigError, Event, EventKind, ResilienceModule};

#[rustfmt::skip] // as in the README
fn configure(path: &Path) -> Result<ResilienceModule, ConfigError> {
    let loader = Config::loader().file(path).env();      // what is read later wins, value by value
    let module = ResilienceModule::in_memory()
        .config(loader.load()?)                          // every mistake at once: file, line and the nearest name
        .on_event(say)
        .build()?;
    println!("{}", module.describe());                   // what is in force, and who said so
    Ok(module)
}

#[rustfmt::skip] // as in the README
async fn operate(module: &ResilienceModule) -> Result<(), ConfigError> {
    module.pull("payments", LeverSpec::force_open().reason("INC-4711"))?;
    if let Err(rejected) = module.run("payments", "stripe", charge).await {
        println!("{rejected}");                           // … (forced_open)
    }
    module.release("payments");                          // what the file says holds again
    Ok(())
}

async fn charge() -> std::io::Result<u32> {
    Ok(1)
}

/// What an operator would like to be told.
fn say(event: &Event<'_>) {
    match event.kind {
        EventKind::ConfigApplied { changed } => println!("{changed} changed"),
        EventKind::ConfigRejected { reason } => println!("nothing changed: {reason}"),
        EventKind::Lever { policy, lever: Some(lever) } => {
            let pulled: Vec<_> = lever.pulled().collect();
            println!("lever of {policy}: {}", pulled.join(", "));
        }
        EventKind::Lever { policy, lever: None } => println!("lever of {policy}: released"),
        _ => {}
    }
}

async fn run(path: &Path, follow: bool) -> Result<(), Box<dyn Error>> {
    let module = configure(path)?;
    operate(&module).await?;
    if follow {
        let following = module.watch_config(Config::loader().file(path).env())?;
        println!("following {}", path.display());
        tokio::signal::ctrl_c().await?;
        drop(following);
    }
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/configure/phalanx.toml"));
    let follow = arguments.any(|argument| argument == "--follow");
    match run(&path, follow).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
