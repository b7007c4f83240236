//! One process: its replicas, which are modules with a store and connections of their own, and the callers of their circuits.
//!
//! Everything runs on one thread, so that a few processes leave the server a core most of the time.

// This program measures real time; `phalanx_core::Clock` is part of what is measured.
#![allow(clippy::disallowed_methods)]

use std::collections::HashSet;
use std::error::Error;
use std::future::{Future, poll_fn};
use std::io::{self, BufRead};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use phalanx::store::{Phase, StoreMode};
use phalanx::{Event, EventKind, Pipeline, ResilienceModule};
use rustix::process::{Signal, set_parent_process_death_signal};
use tokio::runtime::Builder;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::sleep;

use super::load::{Assignment, Count, FirstCalls, Load, NAME, Opened, Order, PROBE, Reply};
use crate::fleet::quantile_of;
use crate::monotonic::monotonic;
use crate::operation::{Answer, OperationError};

/// How often due calls are made.
const TICK: Duration = Duration::from_millis(2);
/// The most calls at a time, as a multiple of those due in a tick: after a delay the stores must not wait until all late
/// calls are made.
const MAX_LATE: f64 = 8.0;
/// How often the replicas are looked at for degraded decisions.
const LOOK: Duration = Duration::from_millis(100);
/// The longest wait until all replicas have joined, or until every circuit is open.
const MAX_WAIT: Duration = Duration::from_secs(50);
/// The time after which what first calls left to be done in the background is done.
const SETTLE: Duration = Duration::from_secs(2);

/// Runs the process of an assignment.
pub(crate) fn run(assignment: &str) -> Result<(), Box<dyn Error>> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let assignment = serde_json::from_str(assignment)?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(serve(&assignment));
    if let Err(error) = &outcome {
        answer(&Reply::Failed(error.to_string()))?;
    }
    outcome
}

async fn serve(assignment: &Assignment) -> Result<(), Box<dyn Error>> {
    let mut replicas = Replicas::start(assignment).await?;
    answer(&Reply::Ready)?;
    let mut orders = orders();
    while let Some(order) = orders.recv().await {
        answer(&replicas.obey(order).await?)?;
    }
    Ok(())
}

fn answer(reply: &Reply) -> Result<(), Box<dyn Error>> {
    println!("{}", serde_json::to_string(reply)?);
    Ok(())
}

/// Reads orders on a thread of its own, until the input ends.
fn orders() -> UnboundedReceiver<Order> {
    let (sender, receiver) = unbounded_channel();
    thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            let Ok(order) = serde_json::from_str(&line) else { return };
            if sender.send(order).is_err() {
                return;
            }
        }
    });
    receiver
}

/// What callers and observers count.
#[derive(Default)]
struct Tally {
    failing: AtomicBool,
    made: AtomicU64,
    admitted: AtomicU64,
    rejected: AtomicU64,
    looks: AtomicU64,
    degraded: AtomicU64,
    outages: AtomicU64,
    open: Mutex<Open>,
}

/// The circuits that replicas have seen open.
#[derive(Default)]
struct Open {
    circuits: HashSet<(u32, String)>,
    first: u64,
    last: u64,
}

impl Tally {
    fn note(&self, replica: u32, event: &Event<'_>) {
        let route = event.key.and_then(|key| key.route());
        match (event.kind, route) {
            (EventKind::Transition(transition), Some(route)) if transition.to == Phase::Open => {
                self.note_open(replica, route);
            }
            (EventKind::StoreDegraded { .. }, _) => {
                self.outages.fetch_add(1, Ordering::Relaxed);
            }
            _ => {}
        }
    }

    fn note_open(&self, replica: u32, route: &str) {
        let now = monotonic();
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.circuits.insert((replica, route.to_owned())) {
            open.first = if open.first == 0 { now } else { open.first };
            open.last = now;
        }
    }

    fn opened(&self) -> Opened {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        Opened { circuits: open.circuits.len() as u32, first: open.first, last: open.last }
    }

    /// The operation behind every circuit.
    async fn operation(&self, takes: Duration) -> Answer {
        if self.failing.load(Ordering::Relaxed) {
            return Err(OperationError);
        }
        if !takes.is_zero() {
            self.admitted.fetch_add(1, Ordering::Relaxed);
            sleep(takes).await;
        }
        Ok(1)
    }

    /// Makes one call and counts it.
    async fn call(&self, pipeline: &Pipeline, takes: Duration) {
        let rejected = match pipeline.run(|| self.operation(takes)).await {
            Ok(_) => false,
            Err(error) => error.rejection().is_some(),
        };
        let counter = if rejected { &self.rejected } else { &self.admitted };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

struct Replicas {
    load: Load,
    modules: Vec<ResilienceModule>,
    /// The circuits of all replicas, so ordered that the replicas take turns, each with another route.
    pipelines: Arc<[Pipeline]>,
    routes: u32,
    tally: Arc<Tally>,
    /// Since when circuits are called, and how many calls a second are made in all.
    calling: Option<(Instant, f64)>,
}

impl Replicas {
    /// Builds the replicas and waits until each knows the whole fleet.
    async fn start(assignment: &Assignment) -> Result<Self, Box<dyn Error>> {
        let &Assignment { load, replicas, routes, .. } = assignment;
        let tally = Arc::new(Tally::default());
        let module = |number| module(assignment, number, &tally);
        let modules = (0..replicas).map(module).collect::<Result<Vec<_>, _>>()?;
        join(assignment, &modules, &tally).await?;
        let mut pipelines = Vec::new();
        if load.has_known_routes() {
            for step in 0..routes {
                for (number, module) in (0..).zip(&modules) {
                    pipelines.push(module.pipeline(NAME, &route_name((step + number) % routes))?);
                }
            }
        }
        tokio::spawn(look(modules.clone(), tally.clone()));
        Ok(Self { load, modules, pipelines: pipelines.into(), routes, tally, calling: None })
    }

    async fn obey(&mut self, order: Order) -> Result<Reply, Box<dyn Error>> {
        match order {
            Order::CallOnce { per_s } => self.call_once(per_s).await,
            Order::Call { per_s } => self.call(per_s),
            Order::FailOnce => self.fail_once().await,
            Order::Fail => self.tally.failing.store(true, Ordering::Relaxed),
            Order::AwaitOpen => return Ok(Reply::Opened(self.open().await)),
            Order::FirstCalls => return self.first_calls().await.map(Reply::FirstCalls),
            Order::Count => return Ok(Reply::Counted(self.count())),
        }
        Ok(Reply::Done)
    }

    /// Calls every circuit once, so that a replica need not ask about all of them at once when calls are counted.
    async fn call_once(&self, per_s: f64) {
        let all = self.pipelines.len() as u64;
        let tally = Arc::default(); // these calls are not counted
        callers(self.load, self.pipelines.clone(), tally, Instant::now(), per_s * all as f64, all).await;
    }

    /// Begins to call every circuit.
    fn call(&mut self, per_s: f64) {
        let per_s = per_s * self.pipelines.len() as f64;
        let start = Instant::now();
        self.calling = Some((start, per_s));
        tokio::spawn(callers(self.load, self.pipelines.clone(), self.tally.clone(), start, per_s, u64::MAX));
    }

    /// Makes a failing call on every route, by the first replica.
    async fn fail_once(&self) {
        for pipeline in self.pipelines.iter().step_by(self.modules.len()) {
            let _failed = pipeline.run(|| async { Answer::Err(OperationError) }).await;
        }
    }

    /// Waits until every replica of this process has seen all its circuits open.
    async fn open(&self) -> Opened {
        let start = Instant::now();
        loop {
            let opened = self.tally.opened();
            if opened.circuits as usize == self.pipelines.len() || start.elapsed() > MAX_WAIT {
                return opened;
            }
            sleep(TICK).await;
        }
    }

    /// Calls every route of the first replica once, by name.
    async fn first_calls(&self) -> Result<FirstCalls, Box<dyn Error>> {
        let module = self.modules.first().ok_or("no replica")?;
        let mut took = vec![f64::MAX; self.routes as usize]; // written now, so that it is part of the memory before
        let rss_before = resident()?;
        for (number, took) in took.iter_mut().enumerate() {
            let route = route_name(number as u32);
            let start = Instant::now();
            let answer = module.run(NAME, &route, || self.tally.operation(Duration::ZERO)).await;
            *took = start.elapsed().as_secs_f64() * 1e6;
            answer.map_err(|_| "the first call of a route was rejected")?;
        }
        sleep(SETTLE).await;
        let rss_after = resident()?;
        took.sort_by(f64::total_cmp);
        Ok(FirstCalls { p50_us: quantile_of(&took, 0.5), p99_us: quantile_of(&took, 0.99), rss_before, rss_after })
    }

    fn count(&self) -> Count {
        let number = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let tally = &self.tally;
        Count {
            planned: self.calling.map_or(0.0, |(start, per_s)| start.elapsed().as_secs_f64() * per_s),
            made: number(&tally.made),
            admitted: number(&tally.admitted),
            rejected: number(&tally.rejected),
            looks: number(&tally.looks),
            degraded: number(&tally.degraded),
            outages: number(&tally.outages),
        }
    }
}

fn route_name(number: u32) -> String {
    format!("route-{number}")
}

fn module(assignment: &Assignment, number: u32, tally: &Arc<Tally>) -> Result<ResilienceModule, Box<dyn Error>> {
    let builder = ResilienceModule::with_redis(redis::Client::open(assignment.url.as_str())?)
        .environment("scale")
        .max_routes(2 * assignment.routes as usize + 100) // the table makes room by shards, which do not fill evenly
        .policy(assignment.load.policy());
    // An observer is part of the cost of each call, so there is none without need.
    if !matches!(assignment.load, Load::Failing | Load::Probes) {
        return Ok(builder.build()?);
    }
    let tally = tally.clone();
    Ok(builder.on_event(move |event| tally.note(number, event)).build()?)
}

/// Waits until every replica knows the whole fleet. A first call makes those join that did not when they were built.
async fn join(assignment: &Assignment, modules: &[ResilienceModule], tally: &Tally) -> Result<(), Box<dyn Error>> {
    for module in modules {
        let _answer = module.run(NAME, "join", || tally.operation(Duration::ZERO)).await;
    }
    let start = Instant::now();
    while modules.iter().any(|module| module.replicas() != Some(assignment.fleet)) {
        if start.elapsed() > MAX_WAIT {
            let known: HashSet<_> = modules.iter().map(ResilienceModule::replicas).collect();
            return Err(format!("{} replicas have not joined: {known:?} are known", assignment.fleet).into());
        }
        sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// Counts how often replicas are degraded.
async fn look(modules: Vec<ResilienceModule>, tally: Arc<Tally>) {
    loop {
        let degraded = modules.iter().filter(|module| module.store_mode() == Some(StoreMode::Degraded)).count();
        tally.looks.fetch_add(modules.len() as u64, Ordering::Relaxed);
        tally.degraded.fetch_add(degraded as u64, Ordering::Relaxed);
        sleep(LOOK).await;
    }
}

/// Calls all circuits in turn, `per_s` times a second together, until that are `calls`.
async fn callers(load: Load, pipelines: Arc<[Pipeline]>, tally: Arc<Tally>, start: Instant, per_s: f64, calls: u64) {
    let takes = if load == Load::Probes { PROBE } else { Duration::ZERO };
    let at_a_time = (MAX_LATE * per_s * TICK.as_secs_f64()).ceil() as u64;
    let mut made = 0;
    while made < calls {
        let due = ((start.elapsed().as_secs_f64() * per_s) as u64).min(calls);
        for _ in 0..(due - made).min(at_a_time) {
            let (pipeline, tally) = (pipelines[made as usize % pipelines.len()].clone(), tally.clone());
            let mut call = Box::pin(async move { tally.call(&pipeline, takes).await });
            // A call that waits must not hold up the next.
            if poll_fn(|context| Poll::Ready(call.as_mut().poll(context))).await.is_pending() {
                tokio::spawn(call);
            }
            made += 1;
        }
        tally.made.store(made, Ordering::Relaxed);
        sleep(TICK).await;
    }
}

/// Returns the resident memory of this process in bytes.
fn resident() -> Result<u64, Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    let kilobytes: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kilobytes * 1_024)
}
