//! From the failure that trips a circuit in this process until another process rejects.
//!
//! The other is this program started once more ([`watch`]): told a route, it calls it, says `ready`, and goes on calling
//! until it is rejected; then it says at which moment. Moments are the machine's monotonic clock, which both share.

use std::error::Error;
use std::io::{self, BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::Duration;

use phalanx::{Pipeline, ResilienceModule};
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::Runtime;

use super::callers::quantile_of;
use super::figures::{Bar, Row};
use super::policies::{self, NAME};
use super::server::Server;
use super::two_workers;
use crate::operation::{OperationError, ready};

pub(crate) const CASES: &[&str] = &["trip_p99"];

const ENVIRONMENT: &str = "trips";
/// Trips that count, each on a route of its own, and those before them, in which connections are made.
const TRIPS: usize = 300;
const WARM_UPS: usize = 10;
/// Between two calls of the one who watches. Part of what is measured.
const PAUSE: Duration = Duration::from_micros(100);
/// After so long the other will not hear of it any more.
const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) fn measure(runtime: &Runtime) -> Result<Vec<Row>, Box<dyn Error>> {
    let server = Server::start()?;
    let mut watcher = Watcher::start(server.url())?;
    let module = policies::module(&server, ENVIRONMENT, policies::touchy())?;
    let mut took = Vec::new();
    for trip in 0..WARM_UPS + TRIPS {
        let route = format!("route-{trip}");
        let pipeline = module.pipeline(NAME, &route)?;
        runtime.block_on(pipeline.run(ready)).map_err(|_| "trip_p99: a new circuit rejected")?;
        watcher.begin(&route)?;
        let failed = fail(runtime, &pipeline)?;
        let rejected = watcher.moment_of_rejection()?;
        if trip >= WARM_UPS {
            took.push(rejected.saturating_sub(failed) as f64 / 1e6);
        }
    }
    took.sort_by(f64::total_cmp);
    let row = Row::value(CASES[0], quantile_of(&took, 0.99), "ms").bar(Bar::AtMost(20.0));
    let row = row.beside("p50_ms", quantile_of(&took, 0.5)).beside("worst_ms", quantile_of(&took, 1.0));
    Ok(vec![row.beside("trips", took.len() as f64)])
}

/// Fails once, and says when: just before the failure is recorded.
fn fail(runtime: &Runtime, pipeline: &Pipeline) -> Result<u64, Box<dyn Error>> {
    let failed = AtomicU64::new(0);
    let failing = pipeline.run(|| async {
        failed.store(monotonic(), Ordering::Relaxed);
        Err::<u32, _>(OperationError)
    });
    let _failed = runtime.block_on(failing);
    match failed.into_inner() {
        0 => Err("trip_p99: the call that should fail was rejected".into()),
        moment => Ok(moment),
    }
}

/// The other process, from here. It ends when its input does.
struct Watcher {
    process: Child,
    to: Option<ChildStdin>,
    from: Lines<BufReader<ChildStdout>>,
}

impl Watcher {
    fn start(url: &str) -> Result<Self, Box<dyn Error>> {
        let mut process = Command::new(std::env::current_exe()?)
            .args(["fleet-child", "watch", url])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (to, from) = (process.stdin.take(), process.stdout.take().ok_or("no output")?);
        Ok(Self { process, to, from: BufReader::new(from).lines() })
    }

    /// Returns when the other has called the route and goes on doing so.
    fn begin(&mut self, route: &str) -> Result<(), Box<dyn Error>> {
        let to = self.to.as_mut().ok_or("no input")?;
        writeln!(to, "{route}")?;
        match self.line()?.as_str() {
            "ready" => Ok(()),
            other => Err(format!("trip_p99: the watcher said {other:?}").into()),
        }
    }

    fn moment_of_rejection(&mut self) -> Result<u64, Box<dyn Error>> {
        Ok(self.line()?.parse().map_err(|_| "trip_p99: the other process was never rejected")?)
    }

    fn line(&mut self) -> Result<String, Box<dyn Error>> {
        Ok(self.from.next().ok_or("trip_p99: the watcher has gone")??)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.to = None;
        let _ = self.process.wait();
    }
}

/// The other process, from inside.
pub(crate) fn watch(url: &str) -> Result<(), Box<dyn Error>> {
    let runtime = two_workers()?;
    let client = redis::Client::open(url)?;
    let module = ResilienceModule::with_redis(client).environment(ENVIRONMENT).policy(policies::touchy()).build()?;
    for route in io::stdin().lock().lines() {
        let pipeline = module.pipeline(NAME, &route?)?;
        let admitted = runtime.block_on(pipeline.run(ready)).is_ok();
        println!("{}", if admitted { "ready" } else { "rejected at once" });
        match rejection(&runtime, &pipeline) {
            Some(moment) => println!("{moment}"),
            None => println!("never"),
        }
    }
    Ok(())
}

/// Calls until it is rejected.
fn rejection(runtime: &Runtime, pipeline: &Pipeline) -> Option<u64> {
    for _ in 0..PATIENCE.as_micros() / PAUSE.as_micros() {
        if runtime.block_on(pipeline.run(ready)).is_err() {
            return Some(monotonic());
        }
        sleep(PAUSE);
    }
    None
}

/// Nanoseconds on the clock that all processes of this machine share.
fn monotonic() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
