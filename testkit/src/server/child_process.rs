//! A child process that exchanges lines with the test and can be stopped and killed.
//!
//! The test writes lines to the child's standard input and reads lines from its standard output; standard error is
//! inherited. The child dies with the test process (see [`super::process`]); programs should also exit when their input is
//! closed.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::timeout;

use super::process::{self, Process};

/// A running child.
#[derive(Debug)]
pub struct ChildProcess {
    process: Process,
    input: Mutex<Option<ChildStdin>>,
    lines: tokio::sync::Mutex<UnboundedReceiver<String>>,
}

impl ChildProcess {
    /// Starts a program, e.g. `env!("CARGO_BIN_EXE_replica")`.
    pub fn start(program: impl AsRef<Path>, arguments: &[&str]) -> Self {
        Self::with(program, arguments, &[])
    }

    /// Starts a program with environment variables.
    pub fn with(program: impl AsRef<Path>, arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let mut command = process::command(program.as_ref());
        command.args(arguments).envs(environment.iter().copied());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let process = Process::start(command).expect("the program can be started");
        let (input, output) = process.take_pipes();
        Self { process, input: Mutex::new(Some(input)), lines: read_lines(output) }
    }

    /// Returns the process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Writes a line. If the child has exited, the missing reply shows at the next [`ChildProcess::recv_line`].
    pub fn send(&self, line: &str) {
        if let Some(input) = self.input().as_mut() {
            let _ = writeln!(input, "{line}").and_then(|()| input.flush());
        }
    }

    /// Closes the child's standard input, which asks it to exit.
    pub fn end_input(&self) {
        *self.input() = None;
    }

    /// Waits for the child's next line; none when it has exited. Panics after `max_wait`.
    pub async fn recv_line(&self, max_wait: Duration) -> Option<String> {
        let next = async { self.lines.lock().await.recv().await };
        timeout(max_wait, next).await.unwrap_or_else(|_| panic!("process {} wrote nothing for {max_wait:?}", self.id()))
    }

    /// Writes a line and waits for the next line from the child. Panics if it has exited or after `max_wait`.
    pub async fn ask(&self, line: &str, max_wait: Duration) -> String {
        self.send(line);
        self.recv_line(max_wait).await.unwrap_or_else(|| panic!("process {} exited without a reply", self.id()))
    }

    /// Returns whether it has not exited.
    pub fn is_running(&self) -> bool {
        self.process.is_running()
    }

    /// Sends SIGSTOP and waits until it has stopped.
    pub fn stop(&self) {
        self.process.stop();
    }

    /// Sends SIGCONT.
    pub fn resume(&self) {
        self.process.resume();
    }

    /// Sends SIGTERM, as an orchestrator does.
    pub fn terminate(&self) {
        self.process.terminate();
    }

    /// Sends SIGKILL and waits until it is gone. Lines it had written can still be received.
    pub fn kill(&self) {
        self.process.kill();
    }

    fn input(&self) -> MutexGuard<'_, Option<ChildStdin>> {
        self.input.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads lines on a thread, so that a child is not bound to the runtime that started it.
fn read_lines(output: ChildStdout) -> tokio::sync::Mutex<UnboundedReceiver<String>> {
    let (line, lines) = unbounded_channel();
    thread::spawn(move || {
        let read = BufReader::new(output).lines().map_while(Result::ok);
        read.map_while(|text| line.send(text).ok()).for_each(drop);
    });
    tokio::sync::Mutex::new(lines)
}
