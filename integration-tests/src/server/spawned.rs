//! A `redis-server` process of the test's own, on loopback, with its life in the test's hands.
//!
//! It has a port and a directory to itself, saves nothing unless it is told to, and dies with the test process. A port
//! that someone else takes at the last moment costs another try, not a failure: a server counts as started only when
//! the one that answers is the process we started.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::RedisResult;
use tokio::time::sleep;

use super::ask::{ask, field};
use super::port::Port;
use super::process::{self, Process};

/// How a server differs from the plain one.
#[derive(Clone, Debug, Default)]
pub struct Options {
    config_file: Option<String>,
    settings: Vec<(String, Vec<String>)>,
    ports: Vec<String>,
    files: Vec<(String, String)>,
    password: Option<String>,
}

impl Options {
    /// A plain server.
    pub fn new() -> Self {
        Self::default()
    }

    /// A line of redis.conf, e.g. `("maxmemory", &["2mb"])`. The last one of a name wins.
    pub fn set(mut self, name: &str, values: &[&str]) -> Self {
        self.settings.push((name.to_owned(), values.iter().map(|&value| value.to_owned()).collect()));
        self
    }

    /// The password of the default user.
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self.set("requirepass", &[password])
    }

    /// A setting that is given a free port of its own, e.g. `tls-port`; see [`Spawned::port_of`].
    pub fn port(mut self, name: &str) -> Self {
        self.ports.push(name.to_owned());
        self
    }

    /// A file in the server's directory, which is also its working directory.
    pub fn file(mut self, name: &str, content: impl Into<String>) -> Self {
        self.files.push((name.to_owned(), content.into()));
        self
    }

    /// These and then the others; where both set something, the others win.
    pub fn and(mut self, others: Self) -> Self {
        self.config_file = others.config_file.or(self.config_file);
        self.password = others.password.or(self.password);
        self.settings.extend(others.settings);
        self.ports.extend(others.ports);
        self.files.extend(others.files);
        self
    }

    /// A file that the server starts from and may rewrite, as sentinels do.
    pub fn config_file(mut self, name: &str, content: impl Into<String>) -> Self {
        self.config_file = Some(name.to_owned());
        self.file(name, content)
    }
}

/// The server.
#[derive(Debug)]
pub struct Spawned {
    process: Mutex<Process>,
    berth: Berth,
    options: Options,
}

impl Spawned {
    /// A plain server.
    pub async fn start() -> Self {
        Self::with(Options::new()).await
    }

    /// Whether there is a program to spawn.
    pub fn possible() -> bool {
        process::find("redis-server").is_some()
    }

    /// A server with options. Panics, with what the server said, if it does not come up.
    pub async fn with(options: Options) -> Self {
        assert!(Self::possible(), "redis-server is not installed: run scripts/setup or apt-get install redis-server");
        // It takes a foreign program to lose a port between the look and the bind; twice is bad luck, thrice a bug.
        let mut said = String::new();
        for _ in 0..3 {
            let berth = Berth::take(&options);
            match berth.launch(&options).await {
                Ok(process) => return Self { process: Mutex::new(process), berth, options },
                Err(log) => said = log,
            }
            if !said.contains("Address already in use") {
                break;
            }
        }
        panic!("redis-server did not start:\n{said}");
    }

    /// Where it listens for plain connections.
    pub fn port(&self) -> u16 {
        self.berth.port.number()
    }

    /// The port given to a setting of [`Options::port`].
    pub fn port_of(&self, name: &str) -> u16 {
        let of_name = |(candidate, _): &&(String, Port)| candidate == name;
        self.berth.more.iter().find(of_name).expect("a port that was asked for").1.number()
    }

    /// Host and port, for a [`Proxy`](super::Proxy) in front of it.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port())
    }

    /// How the default user reaches it.
    pub fn url(&self) -> String {
        self.berth.url(&self.options)
    }

    /// Its working directory.
    pub fn directory(&self) -> &Path {
        &self.berth.directory
    }

    /// The id of the present process; another one after a restart.
    pub fn process_id(&self) -> u32 {
        self.process().id()
    }

    /// SIGSTOP: it hangs, its connections stay open, the kernel still accepts new ones.
    pub fn stop(&self) {
        self.process().stop();
    }

    /// SIGCONT: it goes on and answers what has piled up.
    pub fn cont(&self) {
        self.process().cont();
    }

    /// SIGKILL: gone without a word; its port rejects connections.
    pub fn kill(&self) {
        self.process().kill();
    }

    /// Kills it if it runs and starts it again on the same port; empty, unless its options have it save.
    pub async fn restart(&self) {
        self.kill();
        match self.berth.launch(&self.options).await {
            Ok(process) => *self.process() = process,
            Err(said) => panic!("redis-server did not start again:\n{said}"),
        }
    }

    /// The answer to a command, as text. Panics on an error.
    pub async fn cli(&self, words: &[&str]) -> String {
        self.try_cli(words).await.unwrap_or_else(|error| panic!("{words:?}: {error}\n{}", self.berth.log()))
    }

    /// The answer to a command or the error.
    pub async fn try_cli(&self, words: &[&str]) -> RedisResult<String> {
        ask(&self.url(), words).await
    }

    /// Polls with a command until the answer is as wanted. Panics with the last answer after ten seconds.
    pub async fn until(&self, words: &[&str], wanted: impl Fn(&str) -> bool) -> String {
        let mut last = String::new();
        for _ in 0..1_000 {
            last = self.try_cli(words).await.unwrap_or_else(|error| error.to_string());
            if wanted(&last) {
                return last;
            }
            sleep(Duration::from_millis(10)).await;
        }
        panic!("{words:?} on port {} still says:\n{last}\nand the server:\n{}", self.port(), self.berth.log());
    }

    /// Removes the directory now. A static is never dropped, and a server that saves nothing does not miss it.
    pub(super) fn forget_directory(&self) {
        let _ = fs::remove_dir_all(&self.berth.directory);
    }

    fn process(&self) -> MutexGuard<'_, Process> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What stays when the process goes: the ports and the directory.
#[derive(Debug)]
struct Berth {
    port: Port,
    more: Vec<(String, Port)>,
    directory: PathBuf,
}

impl Berth {
    fn take(options: &Options) -> Self {
        let port = Port::take();
        // Whoever holds the port owns the directory of that name; what a killed test left there is rubbish.
        let directory = std::env::temp_dir().join(format!("phalanx-redis-{}", port.number()));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).expect("a directory for the server");
        for (name, content) in &options.files {
            fs::write(directory.join(name), content).expect("a file for the server");
        }
        let more = options.ports.iter().map(|name| (name.clone(), Port::take())).collect();
        Self { port, more, directory }
    }

    fn url(&self, options: &Options) -> String {
        let login = options.password.as_ref().map(|password| format!(":{password}@")).unwrap_or_default();
        format!("redis://{login}127.0.0.1:{}", self.port.number())
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.join("log")).unwrap_or_default()
    }

    /// A process that answers; or its last words.
    async fn launch(&self, options: &Options) -> Result<Process, String> {
        let process = Process::start(self.command(options)).map_err(|error| error.to_string())?;
        let url = self.url(options);
        for _ in 0..2_000 {
            // First alive, then asked: an answer from a process that has ended is somebody else's.
            if !process.runs() {
                return Err(self.log());
            }
            let answer = ask(&url, &["INFO", "server"]).await.unwrap_or_default();
            if field(&answer, "process_id") == Some(&process.id().to_string()) {
                return Ok(process);
            }
            sleep(Duration::from_millis(5)).await;
        }
        Err(format!("it never answered\n{}", self.log()))
    }

    fn command(&self, options: &Options) -> std::process::Command {
        let log = File::create(self.directory.join("log")).expect("a log for the server");
        let mut command = process::command("redis-server");
        command.current_dir(&self.directory).args(&options.config_file);
        let (port, directory) = (self.port.number().to_string(), self.directory.display().to_string());
        command.args(["--port", &port, "--dir", &directory, "--bind", "127.0.0.1", "-::1"]);
        command.args(["--save", "", "--appendonly", "no", "--enable-debug-command", "local"]);
        for (name, port) in &self.more {
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

impl Drop for Berth {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}
