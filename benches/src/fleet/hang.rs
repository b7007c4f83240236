//! The cost of a stopped Redis to a caller: SIGSTOP under full load leaves all connections open and without replies.
//!
//! Measured are the longest call until the store degrades, and the duration of calls after that, at the 99.9th percentile:
//! among millions of calls on two cores the scheduler delays some, whatever they do. The longest is reported too.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::sleep;
use std::time::Duration;

use phalanx::{Event, EventKind, Policy, ResilienceModule};
use quanta::Clock;
use tokio::runtime::Runtime;

use super::callers::quantile_of;
use super::policies::{self, NAME, PipelineCaller};
use crate::contender::Caller;
use crate::figures::{Bar, Row};
use crate::server::Server;

pub(crate) const CASES: &[&str] = &["hang_worst_wait", "hang_after_latch"];

const STORE_BUDGET: Duration = Duration::from_millis(20);
const RUNS: usize = 2;
const HEALTHY: Duration = Duration::from_millis(400);
const STOPPED: Duration = Duration::from_millis(600);
/// The pause between two calls of a caller. Without it, a thousand callers that no longer wait for Redis would fill both
/// workers, and calls would wait for the scheduler.
const PAUSE: Duration = Duration::from_millis(5);
const MAX_RECOVERY: Duration = Duration::from_secs(15);

/// The value of a time that has not been reached.
const NEVER: u64 = u64::MAX;

pub(crate) fn measure(runtime: &Runtime) -> Result<Vec<Row>, Box<dyn Error>> {
    let (few, many) = (hangs(runtime, 64)?, hangs(runtime, 1_000)?);
    let bar = 3.0 * STORE_BUDGET.as_secs_f64() * 1e3 + 5.0;
    let worst = Row::value(CASES[0], few.worst_wait_ms.max(many.worst_wait_ms), "ms")
        .bar(Bar::AtMost(bar))
        .with("callers_64_ms", few.worst_wait_ms)
        .with("callers_1000_ms", many.worst_wait_ms)
        .with("recovery_ms", few.recovery_ms.max(many.recovery_ms));
    let after = Row::value(CASES[1], few.after_us(0.999).max(many.after_us(0.999)), "us")
        .bar(Bar::AtMost(50.0))
        .with("p50_us", few.after_us(0.5).max(many.after_us(0.5)))
        .with("callers_64_worst_us", few.after_us(1.0))
        .with("callers_1000_worst_us", many.after_us(1.0))
        .with("calls", (few.after.len() + many.after.len()) as f64);
    Ok(vec![worst, after])
}

/// Times of callers, the worst of all runs.
#[derive(Default)]
struct Hang {
    worst_wait_ms: f64,
    recovery_ms: f64,
    /// Nanoseconds of calls after the store degraded, sorted.
    after: Vec<u32>,
}

impl Hang {
    fn after_us(&self, quantile: f64) -> f64 {
        f64::from(quantile_of(&self.after, quantile)) / 1e3
    }
}

/// The times of all events, on one clock.
struct Moments {
    clock: Clock,
    stopped: AtomicU64,
    latched: AtomicU64,
    resumed: AtomicU64,
    recovered: AtomicU64,
    over: AtomicBool,
}

impl Moments {
    fn new() -> Arc<Self> {
        let [stopped, latched, resumed, recovered] = [NEVER; 4].map(AtomicU64::new);
        Arc::new(Self { clock: Clock::new(), stopped, latched, resumed, recovered, over: AtomicBool::new(false) })
    }

    fn mark(&self, moment: &AtomicU64) {
        moment.store(self.clock.raw(), Ordering::Relaxed);
    }

    fn nanoseconds(&self, from: u64, to: u64) -> u64 {
        self.clock.delta_as_nanos(from, to)
    }

    fn record(&self, event: &Event<'_>) {
        match event.kind {
            EventKind::StoreDegraded { .. } => self.mark(&self.latched),
            EventKind::StoreRecovered { .. } => self.mark(&self.recovered),
            _ => {}
        }
    }
}

fn hangs(runtime: &Runtime, callers: usize) -> Result<Hang, Box<dyn Error>> {
    let mut all = Hang::default();
    for _ in 0..RUNS {
        let hang = hang(runtime, callers)?;
        all.worst_wait_ms = all.worst_wait_ms.max(hang.worst_wait_ms);
        all.recovery_ms = all.recovery_ms.max(hang.recovery_ms);
        all.after.extend(hang.after);
    }
    all.after.sort_unstable();
    Ok(all)
}

fn hang(runtime: &Runtime, callers: usize) -> Result<Hang, Box<dyn Error>> {
    let (server, moments) = (Server::start()?, Moments::new());
    let module = module(&server, &moments, policies::stack())?;
    let caller = PipelineCaller(module.pipeline(NAME, "route")?);
    let start = |_| runtime.spawn(closed_loop(caller.clone(), moments.clone()));
    let tasks: Vec<_> = (0..callers).map(start).collect();

    sleep(HEALTHY);
    if moments.latched.load(Ordering::Relaxed) != NEVER {
        return Err(format!("hang: {callers} callers degraded a healthy Redis").into());
    }
    moments.mark(&moments.stopped);
    server.stop()?;
    sleep(STOPPED);
    moments.mark(&moments.resumed);
    server.resume()?;
    let recovery_ms = recovery(&moments)?;
    moments.over.store(true, Ordering::Relaxed);

    let mut hang = Hang { recovery_ms, ..Hang::default() };
    for task in tasks {
        let stats = runtime.block_on(task)?;
        hang.worst_wait_ms = hang.worst_wait_ms.max(stats.worst_wait_ms);
        hang.after.extend(stats.after);
    }
    Ok(hang)
}

fn module(server: &Server, moments: &Arc<Moments>, policy: Policy) -> Result<ResilienceModule, Box<dyn Error>> {
    let recorder = moments.clone();
    let module = ResilienceModule::with_redis(server.client()?).environment("hang").store_budget(STORE_BUDGET);
    Ok(module.policy(policy).on_event(move |event| recorder.record(event)).build()?)
}

/// Returns the milliseconds from SIGCONT until Redis decides again.
fn recovery(moments: &Moments) -> Result<f64, Box<dyn Error>> {
    let pause = Duration::from_millis(5);
    for _ in 0..MAX_RECOVERY.as_millis() / pause.as_millis() {
        let (resumed, recovered) = (moments.resumed.load(Ordering::Relaxed), moments.recovered.load(Ordering::Relaxed));
        if recovered != NEVER {
            return Ok(moments.nanoseconds(resumed, recovered) as f64 / 1e6);
        }
        sleep(pause);
    }
    Err(format!("hang: not recovered {MAX_RECOVERY:?} after SIGCONT").into())
}

/// Runs one caller and returns its times.
async fn closed_loop(mut caller: PipelineCaller, moments: Arc<Moments>) -> Hang {
    let (mut stats, clock) = (Hang::default(), &moments.clock);
    let moment = |moment: &AtomicU64| moment.load(Ordering::Relaxed);
    while !moments.over.load(Ordering::Relaxed) {
        let sent = clock.raw();
        let _answer = caller.call().await;
        let done = clock.raw();
        let took = moments.nanoseconds(sent, done);
        if sent >= moment(&moments.latched) && done < moment(&moments.resumed) {
            stats.after.push(u32::try_from(took).unwrap_or(u32::MAX));
        } else if done >= moment(&moments.stopped) && sent < moment(&moments.resumed) {
            stats.worst_wait_ms = stats.worst_wait_ms.max(took as f64 / 1e6);
        }
        tokio::time::sleep(PAUSE).await;
    }
    stats
}
