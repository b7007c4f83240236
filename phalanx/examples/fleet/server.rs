//! A redis-server of our own: started, stopped, killed and started again by words.
//!
//! It is kept by a process of its own that obeys its standard input and ends, with the server, when that is closed. So
//! no server outlives the show, whatever ended it.

use std::io::{self, BufRead, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{ChildStdin, ChildStdout};

use crate::processes::itself;

/// How often a starting server is knocked at, and how long.
const KNOCK: Duration = Duration::from_millis(20);
const KNOCKS: u32 = 250;

/// The show's handle on the keeper.
pub(crate) struct Server {
    port: u16,
    words: ChildStdin,
    replies: Lines<BufReader<ChildStdout>>,
    _keeper: tokio::process::Child,
}

impl Server {
    /// Starts a server on a free port of the loopback and waits until it listens.
    pub(crate) async fn start() -> io::Result<Self> {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let mut command = itself()?;
        // Not killed with its handle: it has a server to end first.
        command.kill_on_drop(false).arg("redis-keeper").args(["--port", &port.to_string()]);
        let mut keeper = command.spawn()?;
        let (Some(words), Some(replies)) = (keeper.stdin.take(), keeper.stdout.take()) else {
            return Err(io::Error::other("the keeper of redis-server has no pipes"));
        };
        let mut server = Self { port, words, replies: BufReader::new(replies).lines(), _keeper: keeper };
        server.tell("start").await?;
        Ok(server)
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// One word to the keeper: `start`, `kill`, `stop`, `cont`. Returns when it is done.
    pub(crate) async fn tell(&mut self, word: &str) -> io::Result<()> {
        self.words.write_all(format!("{word}\n").as_bytes()).await?;
        match self.replies.next_line().await? {
            Some(reply) if reply == "done" => Ok(()),
            Some(complaint) => Err(io::Error::other(complaint)),
            None => Err(io::Error::other("the keeper of redis-server is gone")),
        }
    }
}

/// The keeper's whole life.
pub(crate) fn keep(port: u16) -> io::Result<()> {
    let mut server = None;
    for word in io::stdin().lock().lines() {
        let done = obey(&word?, port, &mut server);
        let reply = done.map_or_else(|complaint| complaint.to_string(), |()| "done".to_owned());
        let mut out = io::stdout().lock();
        writeln!(out, "{reply}").and_then(|()| out.flush())?;
    }
    end(&mut server)
}

fn obey(word: &str, port: u16, server: &mut Option<Child>) -> io::Result<()> {
    match (word, &*server) {
        ("start", None) => {
            *server = Some(launch(port)?);
            wait_for(port)
        }
        ("kill", _) => end(server),
        #[cfg(unix)]
        ("stop", Some(server)) => signal(server, rustix::process::Signal::STOP),
        #[cfg(unix)]
        ("cont", Some(server)) => signal(server, rustix::process::Signal::CONT),
        _ => Err(io::Error::other(format!("redis-server cannot be told to {word} now"))),
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
    for _ in 0..KNOCKS {
        if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(());
        }
        thread::sleep(KNOCK);
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
