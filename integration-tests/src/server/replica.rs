//! A replica of the fleet under test as a process, so that it can be killed for good.
//!
//! The test and its child talk in lines: the test writes to the child's input, the child to its output. What it writes
//! to its errors goes to the test's. The child dies with the test process (see [`super::process`]); a well-behaved one
//! also ends when its input ends.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::timeout;

use super::process::{self, Process};

/// The child.
#[derive(Debug)]
pub struct Replica {
    process: Process,
    input: Mutex<Option<ChildStdin>>,
    lines: tokio::sync::Mutex<UnboundedReceiver<String>>,
}

impl Replica {
    /// Starts a program, e.g. `env!("CARGO_BIN_EXE_replica")`.
    pub fn start(program: impl AsRef<Path>, arguments: &[&str]) -> Self {
        Self::with(program, arguments, &[])
    }

    /// The same with variables in its environment.
    pub fn with(program: impl AsRef<Path>, arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let mut command = process::command(program.as_ref());
        command.args(arguments).envs(environment.iter().copied());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let process = Process::start(command).expect("a program that can be started");
        let (input, output) = process.take_pipes();
        Self { process, input: Mutex::new(Some(input)), lines: read_lines(output) }
    }

    /// The id of the process.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Writes a line. A child that is gone does not hear it: what it was asked for is missed at the next
    /// [`Replica::recv_line`].
    pub fn send(&self, line: &str) {
        if let Some(input) = self.input().as_mut() {
            let _ = writeln!(input, "{line}").and_then(|()| input.flush());
        }
    }

    /// Ends the child's input: how a well-behaved one is told to go.
    pub fn end_input(&self) {
        *self.input() = None;
    }

    /// The child's next line; none when it has ended. Panics when it stays silent for so long.
    pub async fn recv_line(&self, patience: Duration) -> Option<String> {
        let next = async { self.lines.lock().await.recv().await };
        timeout(patience, next).await.unwrap_or_else(|_| panic!("replica {} said nothing for {patience:?}", self.id()))
    }

    /// Writes a line and returns the next one that comes back. Panics if the child has ended or stays silent.
    pub async fn ask(&self, line: &str, patience: Duration) -> String {
        self.send(line);
        self.recv_line(patience).await.unwrap_or_else(|| panic!("replica {} ended instead of answering", self.id()))
    }

    /// Whether it has not ended.
    pub fn runs(&self) -> bool {
        self.process.runs()
    }

    /// SIGSTOP; returns when it stands still.
    pub fn stop(&self) {
        self.process.stop();
    }

    /// SIGCONT.
    pub fn cont(&self) {
        self.process.cont();
    }

    /// SIGTERM: what an orchestrator sends.
    pub fn term(&self) {
        self.process.term();
    }

    /// SIGKILL; returns when it is gone. What it had written can still be received.
    pub fn kill9(&self) {
        self.process.kill();
    }

    fn input(&self) -> MutexGuard<'_, Option<ChildStdin>> {
        self.input.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thread per child, because a pipe needs no runtime: a replica can be handed from one to another.
fn read_lines(output: ChildStdout) -> tokio::sync::Mutex<UnboundedReceiver<String>> {
    let (line, lines) = unbounded_channel();
    thread::spawn(move || {
        let read = BufReader::new(output).lines().map_while(Result::ok);
        read.map_while(|text| line.send(text).ok()).for_each(drop);
    });
    tokio::sync::Mutex::new(lines)
}
