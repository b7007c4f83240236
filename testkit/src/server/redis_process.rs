//! A `redis-server` process on loopback, controlled by the test. [`Engine`] is the program: Redis or Valkey.
//!
//! It has a port and a directory of its own, saves nothing unless configured to, and dies with the test process. If another
//! program takes the port at the last moment, the start is retried: a server counts as started only when the process that
//! replies is the one that was started.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::RedisResult;
use tokio::time::sleep;

use super::engine::Engine;
use super::port::Port;
use super::process::{self, Process};
use super::redis_cli::{field, redis_command};

/// Configuration of a server.
#[derive(Clone, Debug, Default)]
pub struct Options {
    config_file: Option<String>,
    settings: Vec<(String, Vec<String>)>,
    ports: Vec<String>,
    files: Vec<(String, String)>,
    password: Option<String>,
}

impl Options {
    /// Returns the default configuration.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a line of redis.conf, e.g. `("maxmemory", &["2mb"])`. The last one of a name wins.
    pub fn set(mut self, name: &str, values: &[&str]) -> Self {
        self.settings.push((name.to_owned(), values.iter().map(|&value| value.to_owned()).collect()));
        self
    }

    /// Sets the password of the default user.
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self.set("requirepass", &[password])
    }

    /// Adds a setting whose value is a reserved port, e.g. `tls-port`; see [`RedisProcess::port_of`].
    pub fn port(mut self, name: &str) -> Self {
        self.ports.push(name.to_owned());
        self
    }

    /// Adds a file to the server's working directory.
    pub fn file(mut self, name: &str, content: impl Into<String>) -> Self {
        self.files.push((name.to_owned(), content.into()));
        self
    }

    /// Adds other options, which win over these.
    pub fn merge(mut self, others: Self) -> Self {
        self.config_file = others.config_file.or(self.config_file);
        self.password = others.password.or(self.password);
        self.settings.extend(others.settings);
        self.ports.extend(others.ports);
        self.files.extend(others.files);
        self
    }

    /// Sets the configuration file, which the server may rewrite, as sentinels do.
    pub fn config_file(mut self, name: &str, content: impl Into<String>) -> Self {
        self.config_file = Some(name.to_owned());
        self.file(name, content)
    }
}

/// A running server.
#[derive(Debug)]
pub struct RedisProcess {
    process: Mutex<Process>,
    reservation: Reservation,
    options: Options,
}

impl RedisProcess {
    /// Starts a server with the default configuration.
    pub async fn start() -> Self {
        Self::with(Options::new()).await
    }

    /// Returns whether `redis-server` is installed.
    pub fn is_installed() -> bool {
        Engine::installed().is_some()
    }

    /// Starts a server with options. Panics with the server's log if it does not start.
    pub async fn with(options: Options) -> Self {
        assert!(
            Self::is_installed(),
            "redis-server is not installed: run scripts/setup or apt-get install redis-server"
        );
        // Only another program can take the port between the check and the bind; three times in a row would be a bug.
        let mut log = String::new();
        for _ in 0..3 {
            let reservation = Reservation::reserve(&options);
            match reservation.launch(&options).await {
                Ok(process) => return Self { process: Mutex::new(process), reservation, options },
                Err(error) => log = error,
            }
            if !log.contains("Address already in use") {
                break;
            }
        }
        panic!("redis-server did not start:\n{log}");
    }

    /// Returns the port for plain connections.
    pub fn port(&self) -> u16 {
        self.reservation.port.number()
    }

    /// Returns the port of a setting added by [`Options::port`].
    pub fn port_of(&self, name: &str) -> u16 {
        let of_name = |(candidate, _): &&(String, Port)| candidate == name;
        self.reservation.extra_ports.iter().find(of_name).expect("a port added by Options::port").1.number()
    }

    /// Returns host and port, for a [`Proxy`](super::Proxy) in front of it.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port())
    }

    /// Returns the URL of the default user.
    pub fn url(&self) -> String {
        self.reservation.url(&self.options)
    }

    /// Returns its working directory.
    pub fn directory(&self) -> &Path {
        &self.reservation.directory
    }

    /// Returns the current process id, which changes on a restart.
    pub fn process_id(&self) -> u32 {
        self.process().id()
    }

    /// Sends SIGSTOP: the server hangs, its connections stay open, and the kernel still accepts new ones.
    pub fn stop(&self) {
        self.process().stop();
    }

    /// Sends SIGCONT: the server continues and processes what has queued up.
    pub fn resume(&self) {
        self.process().resume();
    }

    /// Sends SIGKILL. Connections to its port fail from then on.
    pub fn kill(&self) {
        self.process().kill();
    }

    /// Kills the server if it runs and starts it again on the same port, without its data unless it is configured to save.
    pub async fn restart(&self) {
        self.kill();
        match self.reservation.launch(&self.options).await {
            Ok(process) => *self.process() = process,
            Err(log) => panic!("redis-server did not restart:\n{log}"),
        }
    }

    /// Runs a command and returns the reply as text. Panics on an error.
    pub async fn cli(&self, words: &[&str]) -> String {
        self.try_cli(words).await.unwrap_or_else(|error| panic!("{words:?}: {error}\n{}", self.reservation.log()))
    }

    /// Runs a command and returns the reply as text, or the error.
    pub async fn try_cli(&self, words: &[&str]) -> RedisResult<String> {
        redis_command(&self.url(), words).await
    }

    /// Repeats a command until its reply satisfies `wanted`. Panics with the last reply after ten seconds.
    pub async fn until(&self, words: &[&str], wanted: impl Fn(&str) -> bool) -> String {
        let mut last = String::new();
        for _ in 0..1_000 {
            last = self.try_cli(words).await.unwrap_or_else(|error| error.to_string());
            if wanted(&last) {
                return last;
            }
            sleep(Duration::from_millis(10)).await;
        }
        panic!("{words:?} on port {} still returns:\n{last}\nserver log:\n{}", self.port(), self.reservation.log());
    }

    /// Removes the directory now, for a server in a static, which is never dropped. A server that saves nothing does not
    /// need it.
    pub(super) fn forget_directory(&self) {
        let _ = fs::remove_dir_all(&self.reservation.directory);
    }

    fn process(&self) -> MutexGuard<'_, Process> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The ports and the directory of a server, which outlive its process.
#[derive(Debug)]
struct Reservation {
    port: Port,
    extra_ports: Vec<(String, Port)>,
    directory: PathBuf,
}

impl Reservation {
    fn reserve(options: &Options) -> Self {
        let port = Port::reserve();
        // The holder of the port owns the directory of that name; a killed test may have left files there.
        let directory = std::env::temp_dir().join(format!("phalanx-redis-{}", port.number()));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).expect("a directory for the server");
        for (name, content) in &options.files {
            fs::write(directory.join(name), content).expect("a file for the server");
        }
        let extra_ports = options.ports.iter().map(|name| (name.clone(), Port::reserve())).collect();
        Self { port, extra_ports, directory }
    }

    fn url(&self, options: &Options) -> String {
        let login = options.password.as_ref().map(|password| format!(":{password}@")).unwrap_or_default();
        format!("redis://{login}127.0.0.1:{}", self.port.number())
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.join("log")).unwrap_or_default()
    }

    /// Starts a process and waits until it replies. Returns its log if it does not.
    async fn launch(&self, options: &Options) -> Result<Process, String> {
        let process = Process::start(self.command(options)).map_err(|error| error.to_string())?;
        let url = self.url(options);
        for _ in 0..2_000 {
            // Checked before asking: if it has exited, the reply comes from another server.
            if !process.is_running() {
                return Err(self.log());
            }
            let info = redis_command(&url, &["INFO", "server"]).await.unwrap_or_default();
            if field(&info, "process_id") == Some(&process.id().to_string()) {
                return Ok(process);
            }
            sleep(Duration::from_millis(5)).await;
        }
        Err(format!("no reply\n{}", self.log()))
    }

    fn command(&self, options: &Options) -> std::process::Command {
        let log = File::create(self.directory.join("log")).expect("a log for the server");
        let engine = Engine::installed().expect("checked before the start");
        let mut command = process::command(engine.program());
        command.current_dir(&self.directory).args(&options.config_file);
        let (port, directory) = (self.port.number().to_string(), self.directory.display().to_string());
        command.args(["--port", &port, "--dir", &directory, "--bind", "127.0.0.1", "-::1"]);
        command.args(["--save", "", "--appendonly", "no"]);
        // Redis 6.2 allows DEBUG always and does not know the setting.
        if engine.is_redis_7_or_later() {
            command.args(["--enable-debug-command", "local"]);
        }
        for (name, port) in &self.extra_ports {
            command.arg(format!("--{name}")).arg(port.number().to_string());
        }
        for (name, values) in &options.settings {
            command.arg(format!("--{name}")).args(values);
        }
        let errors = log.try_clone().expect("a second handle to the log");
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        command
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}
