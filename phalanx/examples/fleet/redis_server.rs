//! A redis-server for the demo: started, stopped, killed and started again by commands.
//!
//! A supervisor process runs it, reads commands from its standard input and ends the server when the input is closed. So the
//! server never outlives the demo, however the demo ends.

use std::io::{self, BufRead, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{ChildStdin, ChildStdout};

use crate::processes::own_command;

/// How often and how many times to try to connect to a starting server.
const CONNECT_INTERVAL: Duration = Duration::from_millis(20);
const CONNECT_ATTEMPTS: u32 = 250;

/// The handle on the supervisor.
pub(crate) struct Server {
    port: u16,
    commands: ChildStdin,
    replies: Lines<BufReader<ChildStdout>>,
    _supervisor: tokio::process::Child,
}

impl Server {
    /// Starts a server on a free port of the loopback and waits until it listens.
    pub(crate) async fn start() -> io::Result<Self> {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let mut command = own_command()?;
        // Not killed with its handle: it must end the server first.
        command.kill_on_drop(false).arg("redis-supervisor").args(["--port", &port.to_string()]);
        let mut supervisor = command.spawn()?;
        let (Some(commands), Some(replies)) = (supervisor.stdin.take(), supervisor.stdout.take()) else {
            return Err(io::Error::other("the supervisor of redis-server has no pipes"));
        };
        let mut server = Self { port, commands, replies: BufReader::new(replies).lines(), _supervisor: supervisor };
        server.send("start").await?;
        Ok(server)
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Sends a command, `start`, `kill`, `stop` or `cont`, and waits until it is done.
    pub(crate) async fn send(&mut self, command: &str) -> io::Result<()> {
        self.commands.write_all(format!("{command}\n").as_bytes()).await?;
        match self.replies.next_line().await? {
            Some(reply) if reply == "done" => Ok(()),
            Some(error) => Err(io::Error::other(error)),
            None => Err(io::Error::other("the supervisor of redis-server has ended")),
        }
    }
}

/// Runs the supervisor until its standard input is closed.
pub(crate) fn supervise(port: u16) -> io::Result<()> {
    let mut server = None;
    for command in io::stdin().lock().lines() {
        let done = execute(&command?, port, &mut server);
        let reply = done.map_or_else(|error| error.to_string(), |()| "done".to_owned());
        let mut out = io::stdout().lock();
        writeln!(out, "{reply}").and_then(|()| out.flush())?;
    }
    end(&mut server)
}

fn execute(command: &str, port: u16, server: &mut Option<Child>) -> io::Result<()> {
    match (command, &*server) {
        ("start", None) => {
            *server = Some(launch(port)?);
            wait_for(port)
        }
        ("kill", _) => end(server),
        #[cfg(unix)]
        ("stop", Some(server)) => signal(server, rustix::process::Signal::STOP),
        #[cfg(unix)]
        ("cont", Some(server)) => signal(server, rustix::process::Signal::CONT),
        _ => Err(io::Error::other(format!("redis-server cannot {command} now"))),
    }
}

fn launch(port: u16) -> io::Result<Child> {
    let mut command = Command::new("redis-server");
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
    let command = command.current_dir(std::env::temp_dir()).stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => io::Error::other(
            "redis-server is not installed (Debian: apt install redis-server); or use a Redis you have: --redis URL",
        ),
        _ => io::Error::other(format!("redis-server does not start: {error}")),
    })
}

fn wait_for(port: u16) -> io::Result<()> {
    for _ in 0..CONNECT_ATTEMPTS {
        if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(());
        }
        thread::sleep(CONNECT_INTERVAL);
    }
    Err(io::Error::other(format!("redis-server does not listen on port {port}")))
}

fn end(server: &mut Option<Child>) -> io::Result<()> {
    let Some(mut server) = server.take() else { return Ok(()) };
    server.kill()?;
    server.wait().map(drop)
}

#[cfg(unix)]
fn signal(server: &Child, signal: rustix::process::Signal) -> io::Result<()> {
    let pid = i32::try_from(server.id()).ok().and_then(rustix::process::Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::other("redis-server has no process id"))?;
    Ok(rustix::process::kill_process(pid, signal)?)
}
