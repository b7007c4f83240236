//! A plan on a real Redis: every replica is a process, faults are signals and a network that fails, and the same oracles
//! judge.
//!
//! ```text
//!   plan ──► ServerRun: redis-server ◄── relay ◄── process of a replica (child.rs)
//!              │  signals, restarts         │ every reply       │ calls, events: lines of its output
//!              │        MONITOR: what the server executed       │
//!              └──────────────► History ◄───────────────────────┘ ──► oracles
//! ```
//!
//! Time is real, so a history is not repeatable, and promises about time get some slack. Plans for it are short.

mod child;
mod monitor;
mod relay;
mod resp;

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use rustix::time::{ClockId, clock_gettime};
use tokio::time::{Instant, sleep_until};

pub use self::child::ReplicaProcess;
use self::monitor::{Executed, Log, Monitor};
use self::relay::{Bounds, Exchange, Relay, Rules};
use super::history::{Entry, EntryKind, Recorder};
use super::plan::{FaultKind, Plan};
use super::{Case, Run, report};
use crate::lua_server::Reply;
use crate::redis_model::{Effects, ScriptRun, cells_of, reported};
use crate::server::{ChildProcess, Options, RedisProcess};

/// How much longer than in virtual time something may take, in microseconds: the processes share a busy machine.
const SLACK: u64 = 1_000_000;

/// How long a killed process may take to be gone.
const PATIENCE: Duration = Duration::from_secs(10);

/// Microseconds of the monotonic clock, which all processes of a machine share.
fn monotonic_micros() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1_000
}

fn unix_micros() -> u64 {
    let time = clock_gettime(ClockId::Realtime);
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1_000
}

/// Plays a plan on real servers, with a process for each replica: `program` is `simulate`, which is started with
/// `--replica`.
///
/// # Errors
/// Returns everything in the plan that real servers cannot play, or why the servers could not be started.
pub fn play_on_servers(plan: &Plan, program: &Path) -> Result<Run, String> {
    let mut mistakes = plan.mistakes();
    if plan.masters > 1 {
        mistakes.push("masters: a Cluster is played in the simulator only".to_owned());
    }
    for (index, fault) in plan.faults.iter().enumerate() {
        if let Some(reason) = needs_simulator(&fault.kind) {
            mistakes.push(format!("faults[{index}]: {} {reason}", fault.kind.name()));
        }
    }
    if !mistakes.is_empty() {
        return Err(mistakes.join("\n"));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    runtime.block_on(async {
        let run = ServerRun::start(plan, program).await.map_err(|error| error.to_string())?;
        run.play().await.map_err(|error| error.to_string())
    })
}

/// Why a fault cannot be played on a real server.
fn needs_simulator(kind: &FaultKind) -> Option<&'static str> {
    match kind {
        FaultKind::StepServerClock { .. } => Some("needs a server with a clock of its own"),
        FaultKind::FailOver { skew_ms, .. } if *skew_ms != 0 => {
            Some("with a skew needs servers with clocks of their own")
        }
        FaultKind::NextRelease { .. } => Some("needs a second release"),
        FaultKind::MoveSlots { .. } | FaultKind::StopMaster { .. } => Some("needs a Cluster"),
        FaultKind::RedisError { error } if !error.starts_with("READONLY") && !error.starts_with("OOM") => {
            Some("can only be READONLY or OOM")
        }
        _ => None,
    }
}

async fn start_server() -> RedisProcess {
    // A replica is synchronized at once, not after five seconds.
    RedisProcess::with(Options::new().set("repl-diskless-sync-delay", &["0"])).await
}

/// A run under way.
struct ServerRun {
    plan: Plan,
    plan_file: PathBuf,
    program: PathBuf,
    began: Instant,
    began_monotonic: u64,
    began_unix: u64,
    recorder: Recorder,
    server: RedisProcess,
    /// Takes over at the next failover.
    standby: Option<RedisProcess>,
    log: Log,
    monitor: Monitor,
    relays: Vec<Relay>,
    children: Vec<ChildProcess>,
    incarnations: Vec<u64>,
    /// Processes that were killed; what they have written is read at the end.
    former: Vec<ChildProcess>,
    /// Faults that have begun and not ended.
    active: BTreeSet<usize>,
}

/// What happens next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Moment {
    /// The state to which this fault will go back.
    Save(usize),
    Begin(usize),
    End(usize),
}

impl ServerRun {
    async fn start(plan: &Plan, program: &Path) -> std::io::Result<Self> {
        let server = start_server().await;
        let plan_file = server.directory().join("plan.toml");
        std::fs::write(&plan_file, plan.to_toml())?;
        let log = Log::default();
        let monitor = Monitor::attach(&server.address(), &log).await?;
        let mut relays = Vec::new();
        for _ in 0..plan.replicas {
            let relay = Relay::start(&server.address()).await?;
            // Half of the round trip is not there to be delayed: replies take both ways.
            relay.change(|rules| rules.delay = Duration::from_millis(2 * plan.latency_ms));
            relays.push(relay);
        }
        let mut run = Self {
            plan: plan.clone(),
            plan_file,
            program: program.to_owned(),
            began: Instant::now(),
            began_monotonic: monotonic_micros(),
            began_unix: unix_micros(),
            recorder: Recorder::new(false),
            server,
            standby: None,
            log,
            monitor,
            relays,
            children: Vec::new(),
            incarnations: vec![0; plan.replicas],
            former: Vec::new(),
            active: BTreeSet::new(),
        };
        run.start_standby().await;
        (run.began, run.began_monotonic, run.began_unix) = (Instant::now(), monotonic_micros(), unix_micros());
        run.recorder = Recorder::new(false);
        for number in 0..plan.replicas {
            let child = run.start_replica(number);
            run.children.push(child);
        }
        Ok(run)
    }

    fn start_replica(&self, number: usize) -> ChildProcess {
        self.recorder.add(EntryKind::ProcessStarted { replica: number });
        let (plan, url) = (self.plan_file.display().to_string(), self.relays[number].url());
        let (replica, incarnation) = (number.to_string(), self.incarnations[number].to_string());
        let began = self.began_monotonic.to_string();
        #[rustfmt::skip]
        let arguments = [
            "--plan", &plan, "--replica", &replica, "--incarnation", &incarnation, "--redis", &url, "--began", &began,
        ];
        let child = ChildProcess::start(&self.program, &arguments);
        // What happens inside all replicas happens in a new one too.
        self.active.iter().for_each(|fault| child.send(&format!("begin {fault}")));
        child
    }

    /// Starts the server that takes over, if the plan has a failover that is still to come.
    async fn start_standby(&mut self) {
        let passed = self.began.elapsed().as_millis() as u64;
        let to_come =
            |fault: &super::plan::Fault| matches!(fault.kind, FaultKind::FailOver { .. }) && fault.at_ms >= passed;
        if !self.plan.faults.iter().any(to_come) {
            return;
        }
        let standby = start_server().await;
        let port = self.server.port().to_string();
        standby.cli(&["REPLICAOF", "127.0.0.1", &port]).await;
        standby.until(&["INFO", "replication"], |info| info.contains("master_link_status:up")).await;
        self.standby = Some(standby);
    }

    fn moments(&self) -> Vec<(u64, Moment)> {
        let mut moments = Vec::new();
        for (index, fault) in self.plan.faults.iter().enumerate() {
            let (begin, end) = (fault.at_ms, fault.at_ms + fault.for_ms);
            match fault.kind {
                FaultKind::RestartOld { age_ms } => {
                    moments.push((end.saturating_sub(age_ms).min(begin), Moment::Save(index)));
                }
                FaultKind::FailOver { lost_ms, .. } => {
                    moments.push((begin.saturating_sub(lost_ms), Moment::Save(index)));
                }
                _ => {}
            }
            moments.push((begin, Moment::Begin(index)));
            moments.push((end, Moment::End(index)));
        }
        moments.sort_by_key(|(at, moment)| match moment {
            Moment::Save(index) => (*at, *index, 0),
            Moment::Begin(index) => (*at, *index, 1),
            Moment::End(index) => (*at, *index, 2),
        });
        moments
    }

    async fn play(mut self) -> std::io::Result<Run> {
        for (at, moment) in self.moments() {
            sleep_until(self.began + Duration::from_millis(at)).await;
            match moment {
                Moment::Save(fault) => self.save(fault).await,
                Moment::Begin(fault) => {
                    self.recorder.add(EntryKind::FaultBegins { fault });
                    self.active.insert(fault);
                    self.begin(fault).await?;
                }
                Moment::End(fault) => {
                    self.active.remove(&fault);
                    self.end(fault).await?;
                    self.recorder.add(EntryKind::FaultEnds { fault });
                }
            }
        }
        sleep_until(self.began + Duration::from_secs(self.plan.seconds)).await;
        self.finish().await
    }

    fn change_relays(&self, change: impl Fn(&mut Rules)) {
        self.relays.iter().for_each(|relay| relay.change(&change));
    }

    fn saved_file(&self, fault: usize) -> PathBuf {
        self.server.directory().join(format!("saved-{fault}.rdb"))
    }

    fn data_file(&self) -> PathBuf {
        self.server.directory().join("dump.rdb")
    }

    async fn save(&mut self, fault: usize) {
        match (&self.plan.faults[fault].kind, &self.standby) {
            // Nothing that the server writes from now on reaches the one that will take over.
            (FaultKind::FailOver { .. }, Some(standby)) => drop(standby.cli(&["REPLICAOF", "NO", "ONE"]).await),
            _ => {
                self.server.cli(&["SAVE"]).await;
                drop(std::fs::copy(self.data_file(), self.saved_file(fault)));
            }
        }
    }

    async fn begin(&mut self, fault: usize) -> std::io::Result<()> {
        let kind = self.plan.faults[fault].kind.clone();
        let millis = Duration::from_millis;
        match &kind {
            FaultKind::KillReplica { replica } => self.kill(*replica),
            FaultKind::PauseReplica { replica } => self.children[*replica].stop(),
            FaultKind::Partition { replicas } => self.partition(*replicas, true),
            FaultKind::StopRedis | FaultKind::RestartEmpty | FaultKind::RestartOld { .. } => {
                self.change_relays(|rules| rules.refused = true);
                self.server.cli(&["SAVE"]).await;
                self.server.kill();
            }
            FaultKind::HangRedis => self.server.stop(),
            FaultKind::SlowRedis { by_ms } => self.change_relays(|rules| rules.delay += millis(*by_ms)),
            FaultKind::LateReplies { every, by_ms } => {
                self.change_relays(|rules| rules.network.late_replies = Some((*every, millis(*by_ms))));
            }
            FaultKind::LoseReplies { every } => {
                self.change_relays(|rules| rules.network.lost_replies = Some(*every));
            }
            FaultKind::ExecuteLater { every, by_ms } => {
                self.change_relays(|rules| rules.network.late_requests = Some((*every, millis(*by_ms))));
            }
            FaultKind::LosePushes => self.change_relays(|rules| rules.network.lose_pushes = true),
            FaultKind::DelayPushes { by_ms } => {
                self.change_relays(|rules| rules.network.push_delay = millis(*by_ms));
            }
            FaultKind::DoublePushes => self.change_relays(|rules| rules.network.double_pushes = true),
            FaultKind::FailOver { .. } => self.fail_over().await?,
            FaultKind::Flush => drop(self.server.cli(&["FLUSHALL"]).await),
            FaultKind::FlushScripts => drop(self.server.cli(&["SCRIPT", "FLUSH"]).await),
            FaultKind::RedisError { error } if error.starts_with("READONLY") => {
                // A replica of a master that does not exist: it keeps its data and rejects writes.
                self.server.cli(&["REPLICAOF", "127.0.0.1", "1"]).await;
            }
            FaultKind::RedisError { .. } => drop(self.server.cli(&["CONFIG", "SET", "maxmemory", "1"]).await),
            _ => self.children.iter().for_each(|child| child.send(&format!("begin {fault}"))),
        }
        Ok(())
    }

    async fn end(&mut self, fault: usize) -> std::io::Result<()> {
        let kind = self.plan.faults[fault].kind.clone();
        match &kind {
            FaultKind::KillReplica { replica } => self.restart(*replica),
            FaultKind::PauseReplica { replica } => self.children[*replica].resume(),
            FaultKind::Partition { replicas } => self.partition(*replicas, false),
            FaultKind::StopRedis => self.restart_server().await?,
            FaultKind::RestartEmpty => {
                drop(std::fs::remove_file(self.data_file()));
                self.restart_server().await?;
            }
            FaultKind::RestartOld { .. } => {
                std::fs::copy(self.saved_file(fault), self.data_file())?;
                self.restart_server().await?;
            }
            FaultKind::HangRedis => self.server.resume(),
            FaultKind::SlowRedis { by_ms } => {
                self.change_relays(|rules| rules.delay -= Duration::from_millis(*by_ms));
            }
            FaultKind::LateReplies { .. } => self.change_relays(|rules| rules.network.late_replies = None),
            FaultKind::LoseReplies { .. } => self.change_relays(|rules| rules.network.lost_replies = None),
            FaultKind::ExecuteLater { .. } => self.change_relays(|rules| rules.network.late_requests = None),
            FaultKind::LosePushes => self.change_relays(|rules| rules.network.lose_pushes = false),
            FaultKind::DelayPushes { .. } => self.change_relays(|rules| rules.network.push_delay = Duration::ZERO),
            FaultKind::DoublePushes => self.change_relays(|rules| rules.network.double_pushes = false),
            FaultKind::FailOver { .. } | FaultKind::Flush | FaultKind::FlushScripts => {}
            FaultKind::RedisError { error } if error.starts_with("READONLY") => {
                self.server.cli(&["REPLICAOF", "NO", "ONE"]).await;
            }
            FaultKind::RedisError { .. } => drop(self.server.cli(&["CONFIG", "SET", "maxmemory", "0"]).await),
            _ => self.children.iter().for_each(|child| child.send(&format!("end {fault}"))),
        }
        Ok(())
    }

    fn partition(&self, replicas: usize, cut: bool) {
        self.relays.iter().take(replicas).for_each(|relay| relay.change(|rules| rules.partitioned = cut));
    }

    fn kill(&mut self, number: usize) {
        self.children[number].kill();
        self.recorder.add(EntryKind::ProcessEnded { replica: number });
    }

    fn restart(&mut self, number: usize) {
        self.incarnations[number] += 1;
        let child = self.start_replica(number);
        self.former.push(std::mem::replace(&mut self.children[number], child));
    }

    /// Starts the server again. No replica reaches it before the monitor watches it.
    async fn restart_server(&mut self) -> std::io::Result<()> {
        self.server.restart().await;
        self.monitor = Monitor::attach(&self.server.address(), &self.log).await?;
        self.change_relays(|rules| rules.refused = false);
        Ok(())
    }

    /// Sends all replicas to the server that takes over, and kills the former one.
    async fn fail_over(&mut self) -> std::io::Result<()> {
        let Some(standby) = self.standby.take() else { return Ok(()) };
        self.change_relays(|rules| rules.refused = true);
        self.relays.iter().for_each(Relay::cut);
        self.see_everything().await;
        self.monitor = Monitor::attach(&standby.address(), &self.log).await?;
        let address = standby.address();
        self.change_relays(|rules| {
            rules.target.clone_from(&address);
            rules.refused = false;
        });
        let former = std::mem::replace(&mut self.server, standby);
        std::fs::write(self.server.directory().join("plan.toml"), self.plan.to_toml())?;
        self.plan_file = self.server.directory().join("plan.toml");
        former.kill();
        self.start_standby().await;
        Ok(())
    }

    /// Waits until everything that the server has executed is in the log.
    async fn see_everything(&mut self) {
        let mark = format!("seen-{}", unix_micros());
        if self.server.try_cli(&["ECHO", &mark]).await.is_ok() {
            self.monitor.until(&mark).await;
        }
    }

    /// Ends all processes, reads what they have written, and judges.
    async fn finish(mut self) -> std::io::Result<Run> {
        self.children.iter().for_each(ChildProcess::kill);
        self.see_everything().await;
        for child in self.former.iter().chain(&self.children) {
            while let Some(line) = child.recv_line(PATIENCE).await {
                // The last line of a killed process may be cut.
                if let Ok(entry) = serde_json::from_str::<Entry>(&line) {
                    self.recorder.add_entry(entry);
                }
            }
        }
        let (effects, unheard) = self.add_scripts();
        let (history, scripts_per_second) = self.recorder.finish();
        let mut case = Case::new(&self.plan, &history, effects);
        case.slack = SLACK;
        case.unheard = unheard;
        let broken = case.check(&[]);
        let faults = report::reached(&case);
        let broken = broken.into_iter().chain(report::unreached(&self.plan, &faults)).collect();
        Ok(Run { broken, faults, scripts: effects.scripts, scripts_per_second, history })
    }

    /// Microseconds since the beginning, from the time that the server's clock told for a script between these bounds.
    fn moment(&self, told: u64, bounds: Option<Bounds>) -> u64 {
        let told = told.saturating_sub(self.began_unix);
        bounds.map_or(told, |bounds| bounds.since(self.began_monotonic).contain(told))
    }

    /// Adds the scripts that the servers have executed. Returns what the network did, and the times of scripts without a
    /// received reply.
    fn add_scripts(&self) -> (Effects, Vec<u64>) {
        let (mut effects, mut unheard) = (Effects::default(), Vec::new());
        let mut replies: HashMap<u16, (usize, std::vec::IntoIter<Exchange>)> = HashMap::new();
        for (number, relay) in self.relays.iter().enumerate() {
            self.recorder.add_link(number, number);
            effects.add(relay.effects());
            let heard = relay.take_heard().into_iter();
            replies.extend(heard.map(|(port, heard)| (port, (number, heard.into_iter()))));
        }
        let log = self.log.take();
        let mut commands = log.iter().peekable();
        while let Some(command) = commands.next() {
            let Some((link, heard)) = command.client.and_then(|port| replies.get_mut(&port)) else { continue };
            let Some(script) = ScriptCall::of(command) else { continue };
            let inner: Vec<&Executed> =
                std::iter::from_fn(|| commands.next_if(|inner| inner.client.is_none())).collect();
            let exchange = heard.next();
            let bounds = exchange.as_ref().map(Exchange::bounds);
            let at = self.moment(command.at, bounds);
            let reply = match exchange.and_then(Exchange::reply) {
                Some(Value::ServerError(error)) => Err(error.to_string()),
                Some(value) => Ok(reply_of(value)),
                None => {
                    unheard.push(at);
                    Err("the reply was not received".to_owned())
                }
            };
            effects.scripts += 1;
            for (keys, args, reply) in cells_of(script.cells, script.keys, script.args, &reply) {
                // Every reply begins with the time that the script has read.
                let server = match &reply {
                    Ok(Reply::Array(parts)) => match parts.first() {
                        Some(Reply::Int(now)) => u64::try_from(*now).unwrap_or(command.at),
                        _ => command.at,
                    },
                    _ => command.at,
                };
                // By the time that the script has read, as the promises are: `MONITOR` writes its line a little earlier or
                // later.
                let at = self.moment(server, bounds);
                let (link, name) = (*link, script.name);
                for (keys, place) in reported(name, keys) {
                    let own = |command: &&&Executed| command.words.get(1).is_some_and(|key| keys.contains(key));
                    let state = |command: &&&Executed| command.words.get(1) == keys.first();
                    let writes = inner.iter().filter(state).filter(|command| is_write(command)).count() as u64;
                    let stored = inner.iter().filter(own).rev().find_map(|command| match &command.words[..] {
                        [set, key, value, ..] if set == b"SET" && keys.first() == Some(key) => Some(value.as_slice()),
                        _ => None,
                    });
                    self.recorder.add_script_at(
                        at,
                        &ScriptRun { at: server, link, name, keys, args, reply: &reply, writes, stored, place },
                    );
                }
            }
        }
        (effects, unheard)
    }
}

/// A script call in the words of a command.
struct ScriptCall<'a> {
    name: &'static str,
    cells: usize,
    keys: &'a [Vec<u8>],
    args: &'a [Vec<u8>],
}

impl<'a> ScriptCall<'a> {
    fn of(command: &'a Executed) -> Option<Self> {
        let [verb, script, count, rest @ ..] = &command.words[..] else { return None };
        let by_source = verb.eq_ignore_ascii_case(b"EVAL");
        if !by_source && !verb.eq_ignore_ascii_case(b"EVALSHA") {
            return None;
        }
        let known = phalanx_lua::ALL.iter().find(|known| {
            if by_source { known.source.as_bytes() == script } else { digest(known.source).as_bytes() == script }
        });
        let count: usize = std::str::from_utf8(count).ok()?.parse().ok()?;
        let (keys, args) = rest.split_at_checked(count)?;
        let (name, keys_of_cell) = known.map_or(("unknown", count), |known| (known.name, known.keys));
        Some(Self { name, cells: (count / keys_of_cell.max(1)).max(1), keys, args })
    }
}

/// The digest of a script, computed once.
fn digest(source: &'static str) -> Arc<str> {
    static DIGESTS: parking_lot::Mutex<Option<HashMap<usize, Arc<str>>>> = parking_lot::Mutex::new(None);
    let mut digests = DIGESTS.lock();
    let known = digests.get_or_insert_default();
    known.entry(source.as_ptr().addr()).or_insert_with(|| sha1_smol::Sha1::from(source).hexdigest().into()).clone()
}

fn is_write(command: &Executed) -> bool {
    const WRITES: [&str; 6] = ["SET", "DEL", "PEXPIRE", "ZADD", "ZREM", "ZREMRANGEBYSCORE"];
    command.words.first().is_some_and(|verb| WRITES.iter().any(|write| verb == write.as_bytes()))
}

fn reply_of(value: Value) -> Reply {
    match value {
        Value::Int(int) => Reply::Int(int),
        Value::BulkString(bytes) => Reply::Bytes(bytes),
        Value::SimpleString(text) => Reply::Bytes(text.into_bytes()),
        Value::Array(parts) => Reply::Array(parts.into_iter().map(reply_of).collect()),
        _ => Reply::Nil,
    }
}
