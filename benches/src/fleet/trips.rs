//! The time from the failure that trips a breaker in this process until another process rejects.
//!
//! The other process is this program again ([`watch`]): it reads a route, calls it, writes `ready`, and calls until it is
//! rejected; then it writes the time. Times are of the machine's monotonic clock, which both processes share.

use std::error::Error;
use std::io::{self, BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::Duration;

use phalanx::{Pipeline, ResilienceModule};
use tokio::runtime::Runtime;

use super::callers::quantile_of;
use super::policies::{self, NAME};
use super::two_workers;
use crate::figures::{Bar, Row};
use crate::monotonic::monotonic;
use crate::operation::{OperationError, ready};
use crate::server::Server;

pub(crate) const CASES: &[&str] = &["trip_p99"];

const ENVIRONMENT: &str = "trips";
/// The measured trips, each on a route of its own, and the warm-up trips, in which connections are opened.
const TRIPS: usize = 300;
const WARM_UPS: usize = 10;
/// The pause between two calls of the other process. It is part of the measured time.
const PAUSE: Duration = Duration::from_micros(100);
/// The longest wait for the rejection.
const MAX_WAIT: Duration = Duration::from_secs(5);

pub(crate) fn measure(runtime: &Runtime) -> Result<Vec<Row>, Box<dyn Error>> {
    let server = Server::start()?;
    let mut watcher = Watcher::start(server.url())?;
    let module = policies::module(&server, ENVIRONMENT, policies::trips_at_once())?;
    let mut took = Vec::new();
    for trip in 0..WARM_UPS + TRIPS {
        let route = format!("route-{trip}");
        let pipeline = module.pipeline(NAME, &route)?;
        runtime.block_on(pipeline.run(ready)).map_err(|_| "trip_p99: a new circuit rejected")?;
        watcher.begin(&route)?;
        let failed = fail(runtime, &pipeline)?;
        let rejected = watcher.rejection_time()?;
        if trip >= WARM_UPS {
            took.push(rejected.saturating_sub(failed) as f64 / 1e6);
        }
    }
    took.sort_by(f64::total_cmp);
    let row = Row::value(CASES[0], quantile_of(&took, 0.99), "ms").bar(Bar::AtMost(20.0));
    let row = row.with("p50_ms", quantile_of(&took, 0.5)).with("worst_ms", quantile_of(&took, 1.0));
    Ok(vec![row.with("trips", took.len() as f64)])
}

/// Makes a failing call. Returns the time just before the failure is recorded.
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

/// The handle of the other process, which exits when its input is closed.
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

    /// Waits until the other process has called the route and continues to do so.
    fn begin(&mut self, route: &str) -> Result<(), Box<dyn Error>> {
        let to = self.to.as_mut().ok_or("no input")?;
        writeln!(to, "{route}")?;
        match self.line()?.as_str() {
            "ready" => Ok(()),
            other => Err(format!("trip_p99: the watcher wrote {other:?}").into()),
        }
    }

    fn rejection_time(&mut self) -> Result<u64, Box<dyn Error>> {
        Ok(self.line()?.parse().map_err(|_| "trip_p99: the other process was never rejected")?)
    }

    fn line(&mut self) -> Result<String, Box<dyn Error>> {
        Ok(self.from.next().ok_or("trip_p99: the watcher exited")??)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.to = None;
        let _ = self.process.wait();
    }
}

/// Runs the other process.
pub(crate) fn watch(url: &str) -> Result<(), Box<dyn Error>> {
    let runtime = two_workers()?;
    let client = redis::Client::open(url)?;
    let module =
        ResilienceModule::with_redis(client).environment(ENVIRONMENT).policy(policies::trips_at_once()).build()?;
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

/// Calls until a rejection and returns its time.
fn rejection(runtime: &Runtime, pipeline: &Pipeline) -> Option<u64> {
    for _ in 0..MAX_WAIT.as_micros() / PAUSE.as_micros() {
        if runtime.block_on(pipeline.run(ready)).is_err() {
            return Some(monotonic());
        }
        sleep(PAUSE);
    }
    None
}
