//! A Redis of our own: started on a free loopback port, keeping nothing, and ended with us, however we end.
//!
//! The program starts itself as [`become_redis`], which asks the kernel to be killed with its parent and then turns
//! into `redis-server`: so a panic, a ctrl-c or a `kill -9` leaves no server behind.

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

/// How long a server may take until it answers.
const STARTING: Duration = Duration::from_secs(10);

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
            .args(["fleet-child", "serve", &port.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()?;
        let server = Self { process, url: format!("redis://127.0.0.1:{port}") };
        server.wait_until_it_answers()?;
        Ok(server)
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn client(&self) -> Result<Client, Box<dyn Error>> {
        Ok(Client::open(self.url())?)
    }

    /// Stops it where it stands, with all connections open.
    pub(crate) fn halt(&self) -> io::Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets it go on.
    pub(crate) fn go_on(&self) -> io::Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        let pid = i32::try_from(self.process.id()).ok().and_then(Pid::from_raw);
        Ok(kill_process(pid.ok_or(ErrorKind::InvalidInput)?, signal)?)
    }

    fn wait_until_it_answers(&self) -> Result<(), Box<dyn Error>> {
        let (client, pause) = (self.client()?, Duration::from_millis(10));
        for _ in 0..STARTING.as_millis() / pause.as_millis() {
            let answer = client.get_connection_with_timeout(Duration::from_secs(1));
            if answer.and_then(|mut connection| redis::cmd("PING").query::<String>(&mut connection)).is_ok() {
                return Ok(());
            }
            sleep(pause);
        }
        Err(format!("{PROGRAM} did not answer at {} within {STARTING:?}", self.url).into())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // SIGKILL, which ends a halted process too.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Turns this process into a server that ends with its parent.
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
            Err(format!("`fleet` needs {PROGRAM} 7 or newer in PATH; on Debian: apt-get install redis-server").into())
        }
        Err(error) => Err(error.into()),
    }
}

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}
