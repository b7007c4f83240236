//! A Redis that is milliseconds away, behind a relay that delays every byte: how long callers of an exact limit wait, and how many decisions are made without Redis. Beside them, at the same rate, a bare client sends one script
//! a call with the same time limit.

// This program measures real time; `phalanx_core::Clock` is part of what is measured.
#![allow(clippy::disallowed_methods)]

use std::error::Error;
use std::future::Future;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use phalanx::{Policy, ResilienceModule};
use redis::aio::MultiplexedConnection;
use tokio::runtime::Runtime;
use tokio::time::{sleep, timeout};

use super::callers::quantile_of;
use super::degraded::Degraded;
use super::policies::{self, NAME};
use crate::figures::{Bar, Row};
use crate::operation::ready;
use crate::server::Server;

pub(crate) const CASES: &[&str] = &["away_5ms", "away_10ms", "away_15ms"];

const BUDGET: Duration = Duration::from_millis(20);
const RATE: f64 = 300.0;
const ROUTES: usize = 20;
const WARM_UP: Duration = Duration::from_secs(3);
const SPAN: Duration = Duration::from_secs(10);

pub(crate) fn measure(runtime: &Runtime) -> Result<Vec<Row>, Box<dyn Error>> {
    let [five, ten, fifteen] = [5, 10, 15].map(|away| runtime.block_on(at(Duration::from_millis(away))));
    let (five, ten, fifteen) = (five?, ten?, fifteen?);
    let waits = Row::value(CASES[0], five.round_trips(), "round trips").bar(Bar::AtMost(1.3));
    let row = |case, seen: &Seen| Row::value(case, seen.excess_percent(), "% more").bar(Bar::AtMost(1.0));
    Ok(vec![five.figures(waits), ten.figures(row(CASES[1], &ten)), fifteen.figures(row(CASES[2], &fifteen))])
}

/// What the callers of one distance have seen.
struct Seen {
    /// Microseconds that callers waited, sorted; of a bare client too.
    waits: Vec<u64>,
    bare: Vec<u64>,
    degraded: u64,
    outages: u64,
    timed_out: u64,
}

impl Seen {
    /// The median wait, in round trips of the bare client.
    fn round_trips(&self) -> f64 {
        quantile_of(&self.waits, 0.5) as f64 / quantile_of(&self.bare, 0.5).max(1) as f64
    }

    /// Decisions without Redis, in percent, above those that a bare client had to make.
    fn excess_percent(&self) -> f64 {
        let percent = |part: u64, all: &[u64]| part as f64 * 100.0 / all.len().max(1) as f64;
        percent(self.degraded, &self.waits) - percent(self.timed_out, &self.bare)
    }

    fn figures(&self, row: Row) -> Row {
        row.with("p50_us", quantile_of(&self.waits, 0.5) as f64)
            .with("bare_p50_us", quantile_of(&self.bare, 0.5) as f64)
            .with("calls", self.waits.len() as f64)
            .with("degraded", self.degraded as f64)
            .with("bare_timeouts", self.timed_out as f64)
            .with("outages", self.outages as f64)
    }
}

async fn at(away: Duration) -> Result<Seen, Box<dyn Error>> {
    let server = Server::start()?;
    let address = server.url().trim_start_matches("redis://").trim_end_matches('/').to_owned();
    let relay = relay(address, away / 2)?;
    let client = redis::Client::open(format!("redis://{relay}"))?;
    let counters = Arc::new(Degraded::default());
    let recorder = counters.clone();
    let module = ResilienceModule::with_redis(client.clone())
        .environment("away")
        .store_budget(BUDGET)
        .policy(Policy::named(NAME).rate_limit(policies::limit()))
        .on_event(move |event| recorder.note(event))
        .build()?;
    let route = |number: usize| module.pipeline(NAME, &format!("route-{number}"));
    let pipelines = (0..ROUTES).map(route).collect::<Result<Vec<_>, _>>()?;
    let bare = Bare::connect(&client).await?;
    let call = |number: usize| {
        let pipeline = pipelines[number % ROUTES].clone();
        async move { drop(pipeline.run(ready).await) }
    };
    let bare_call = |_| {
        let bare = bare.clone();
        async move { bare.call().await }
    };
    tokio::join!(at_rate(WARM_UP, &call), at_rate(WARM_UP, &bare_call));
    let (degraded, outages) = counters.read();
    let timed_out = bare.timed_out.load(Ordering::Relaxed);
    let (waits, bare_waits) = tokio::join!(at_rate(SPAN, &call), at_rate(SPAN, &bare_call));
    let (degraded_after, outages_after) = counters.read();
    Ok(Seen {
        waits,
        bare: bare_waits,
        degraded: degraded_after - degraded,
        outages: outages_after - outages,
        timed_out: bare.timed_out.load(Ordering::Relaxed) - timed_out,
    })
}

/// Makes calls at the rate, each in a task of its own, and returns how long each took in microseconds, sorted.
async fn at_rate<F>(span: Duration, call: &impl Fn(usize) -> F) -> Vec<u64>
where
    F: Future<Output = ()> + Send + 'static,
{
    let waits: Arc<Mutex<Vec<u64>>> = Arc::default();
    let (start, mut made) = (Instant::now(), 0);
    let mut calls = tokio::task::JoinSet::new();
    while start.elapsed() < span {
        let due = (start.elapsed().as_secs_f64() * RATE) as usize;
        while made < due {
            let (call, waits) = (call(made), waits.clone());
            calls.spawn(async move {
                let sent = Instant::now();
                call.await;
                waits.lock().unwrap_or_else(PoisonError::into_inner).push(sent.elapsed().as_micros() as u64);
            });
            made += 1;
        }
        sleep(Duration::from_millis(1)).await;
    }
    while calls.join_next().await.is_some() {}
    let mut waits = std::mem::take(&mut *waits.lock().unwrap_or_else(PoisonError::into_inner));
    waits.sort_unstable();
    waits
}

/// A client that sends a script a call, and waits no longer than the budget.
#[derive(Clone)]
struct Bare {
    connection: MultiplexedConnection,
    script: String,
    timed_out: Arc<AtomicU64>,
}

impl Bare {
    async fn connect(client: &redis::Client) -> Result<Self, Box<dyn Error>> {
        let mut connection = client.get_multiplexed_async_connection().await?;
        let source = "return redis.call('INCR', KEYS[1])";
        let script = redis::cmd("SCRIPT").arg("LOAD").arg(source).query_async(&mut connection).await?;
        Ok(Self { connection, script, timed_out: Arc::default() })
    }

    async fn call(&self) {
        let mut connection = self.connection.clone();
        let mut command = redis::cmd("EVALSHA");
        let counted = command.arg(&self.script).arg(1).arg("bare").query_async::<i64>(&mut connection);
        if !matches!(timeout(BUDGET, counted).await, Ok(Ok(_))) {
            self.timed_out.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Relays connections to the server, and delivers every byte this much later, in both directions. On threads, which wake
/// within microseconds; a runtime's timer would add a millisecond to each way.
fn relay(server: String, one_way: Duration) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        while let Ok((client, _)) = listener.accept() {
            let relayed = TcpStream::connect(&server).and_then(|server| {
                client.set_nodelay(true)?;
                server.set_nodelay(true)?;
                deliver(client.try_clone()?, server.try_clone()?, one_way);
                deliver(server, client, one_way);
                Ok(())
            });
            if relayed.is_err() {
                return;
            }
        }
    });
    Ok(address)
}

fn deliver(mut from: TcpStream, mut to: TcpStream, later: Duration) {
    let (queue, due) = mpsc::channel::<(Instant, Vec<u8>)>();
    thread::spawn(move || {
        for (at, bytes) in due {
            thread::sleep(at.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                return;
            }
        }
        drop(to.shutdown(Shutdown::Both));
    });
    thread::spawn(move || {
        let mut buffer = vec![0; 16_384];
        while let Ok(read @ 1..) = from.read(&mut buffer) {
            if queue.send((Instant::now() + later, buffer[..read].to_vec())).is_err() {
                return;
            }
        }
    });
}
