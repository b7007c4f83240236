//! A Redis server on a free loopback port, without persistence, which ends with this process however it ends.
//!
//! The program starts itself as [`become_redis`], which requests to be killed with its parent and then execs
//! `redis-server`: so a panic, a ctrl-c or a `kill -9` leaves no server behind.

use std::error::Error;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use redis::Client;
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};

const PROGRAM: &str = "redis-server";

/// The longest wait for a started server to reply.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// A running server.
pub(crate) struct Server {
    process: Child,
    url: String,
}

impl Server {
    pub(crate) fn start() -> Result<Self, Box<dyn Error>> {
        require_installed()?;
        let port = free_port()?;
        let process = Command::new(std::env::current_exe()?)
            .args(["serve-redis", &port.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()?;
        let server = Self { process, url: format!("redis://127.0.0.1:{port}") };
        server.wait_until_ready()?;
        Ok(server)
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn client(&self) -> Result<Client, Box<dyn Error>> {
        Ok(Client::open(self.url())?)
    }

    /// Sends SIGSTOP; all connections stay open.
    pub(crate) fn stop(&self) -> io::Result<()> {
        self.signal(Signal::STOP)
    }

    /// Sends SIGCONT.
    pub(crate) fn resume(&self) -> io::Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        let pid = i32::try_from(self.process.id()).ok().and_then(Pid::from_raw);
        Ok(kill_process(pid.ok_or(ErrorKind::InvalidInput)?, signal)?)
    }

    fn wait_until_ready(&self) -> Result<(), Box<dyn Error>> {
        let (client, pause) = (self.client()?, Duration::from_millis(10));
        for _ in 0..START_TIMEOUT.as_millis() / pause.as_millis() {
            let answer = client.get_connection_with_timeout(Duration::from_secs(1));
            if answer.and_then(|mut connection| redis::cmd("PING").query::<String>(&mut connection)).is_ok() {
                return Ok(());
            }
            sleep(pause);
        }
        Err(format!("{PROGRAM} did not answer at {} within {START_TIMEOUT:?}", self.url).into())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // SIGKILL also ends a stopped process.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Turns this process into a server that exits with its parent.
pub(crate) fn become_redis(port: u16) -> Result<(), Box<dyn Error>> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let mut redis = Command::new(PROGRAM);
    redis.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
    redis.args(["--loglevel", "warning", "--daemonize", "no"]);
    Err(redis.exec().into())
}

fn require_installed() -> Result<(), Box<dyn Error>> {
    match Command::new(PROGRAM).arg("--version").output() {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err(format!("this needs {PROGRAM} 7 or newer in PATH; on Debian: apt-get install redis-server").into())
        }
        Err(error) => Err(error.into()),
    }
}

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}
