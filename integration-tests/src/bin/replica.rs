//! A replica of the fleet under test as a process.
//!
//! Its only argument is its setup as JSON. It reads one command per line from standard input and writes one report per
//! command to standard output. It exits when its input is closed.

#![allow(clippy::expect_used)] // test code: a failed expectation panics

use std::io::{BufRead, Write, stdin, stdout};

use phalanx_integration_tests::replica::{Command, LocalReplica, Setup};
use tokio::runtime::Builder;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

fn main() {
    let setup = std::env::args().nth(1).expect("a setup as the first argument");
    let setup: Setup = serde_json::from_str(&setup).expect("a setup as JSON");
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(serve(&setup));
}

async fn serve(setup: &Setup) {
    let mut replica = LocalReplica::new(setup);
    let mut commands = read_commands();
    while let Some(command) = commands.recv().await {
        let report = replica.execute(command).await;
        let line = serde_json::to_string(&report).expect("reports serialize");
        writeln!(stdout(), "{line}").expect("the parent reads standard output");
    }
}

/// Reads commands on a thread of its own, so that the end of the input is noticed while a command runs.
fn read_commands() -> UnboundedReceiver<Command> {
    let (command, commands) = unbounded_channel();
    std::thread::spawn(move || {
        for line in stdin().lock().lines().map_while(Result::ok) {
            let read = serde_json::from_str(&line).expect("a command as JSON");
            if command.send(read).is_err() {
                return;
            }
        }
        // Exit at once: a running command may still wait for callers.
        std::process::exit(0);
    });
    commands
}
