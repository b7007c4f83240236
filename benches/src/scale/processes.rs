//! Starts the processes of a case, writes orders to them and collects their replies.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, sleep};
use std::time::Duration;

use super::Case;
use super::load::{Assignment, Count, Load, Order, Reply};
use crate::server::Server;

/// The longest wait for a reply: for all replicas to join, or for every circuit to open.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// First calls of circuits of all replicas together. Each asks Redis about its circuit.
const FIRST_CALLS_PER_S: f64 = 15_000.0;
/// The time after which nothing is left of what first calls cause.
const SETTLE: Duration = Duration::from_secs(5);

/// All processes of a case. They exit when this is dropped.
pub(crate) struct Processes(Vec<Process>);

struct Process {
    child: Child,
    orders: Option<ChildStdin>,
    replies: Receiver<String>,
}

impl Processes {
    /// Starts the processes and waits until all replicas have joined.
    pub(crate) fn start(case: &Case, server: &Server, load: Load) -> Result<Self, Box<dyn Error>> {
        let processes = case.processes.min(case.replicas);
        let start = |number| {
            // The first processes have one replica more if they cannot be divided evenly.
            let replicas = case.replicas / processes + u32::from(number < case.replicas % processes);
            let url = server.url().to_owned();
            Process::start(&Assignment { url, load, replicas, fleet: case.replicas, routes: case.routes })
        };
        let mut all = Self((0..processes).map(start).collect::<Result<_, _>>()?);
        match all.replies()?.iter().all(|reply| matches!(reply, Reply::Ready)) {
            true => Ok(all),
            false => Err("a process did not start".into()),
        }
    }

    /// Calls every circuit once, at a pace of all together, and waits until what that caused is over. Then calls each
    /// `per_s` times a second.
    pub(crate) fn warm_up_and_call(&mut self, case: &Case, per_s: f64) -> Result<(), Box<dyn Error>> {
        self.order(Order::CallOnce { per_s: FIRST_CALLS_PER_S / f64::from(case.circuits()) })?;
        self.order(Order::Call { per_s })?;
        sleep(SETTLE);
        Ok(())
    }

    /// Writes an order to all processes and waits for all replies.
    pub(crate) fn order(&mut self, order: Order) -> Result<Vec<Reply>, Box<dyn Error>> {
        self.0.iter_mut().try_for_each(|process| process.write(order))?;
        self.replies()
    }

    /// Writes an order to the first process and waits for its reply.
    pub(crate) fn order_first(&mut self, order: Order) -> Result<Reply, Box<dyn Error>> {
        let first = self.0.first_mut().ok_or("no process")?;
        first.write(order)?;
        first.reply()
    }

    /// Returns the calls of all processes since their start.
    pub(crate) fn count(&mut self) -> Result<Count, Box<dyn Error>> {
        let mut all = Count::default();
        for reply in self.order(Order::Count)? {
            match reply {
                Reply::Counted(count) => all = all.plus(count),
                other => return Err(format!("unexpected reply {other:?}").into()),
            }
        }
        Ok(all)
    }

    fn replies(&mut self) -> Result<Vec<Reply>, Box<dyn Error>> {
        self.0.iter_mut().map(Process::reply).collect()
    }
}

impl Process {
    fn start(assignment: &Assignment) -> Result<Self, Box<dyn Error>> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["scale-child", &serde_json::to_string(assignment)?])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (orders, lines) = (child.stdin.take(), child.stdout.take().ok_or("no output")?);
        let (sender, replies) = channel();
        // A thread of its own, because reading a line cannot be bounded in time.
        thread::spawn(move || {
            for line in BufReader::new(lines).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self { child, orders, replies })
    }

    fn write(&mut self, order: Order) -> Result<(), Box<dyn Error>> {
        let orders = self.orders.as_mut().ok_or("no input")?;
        Ok(writeln!(orders, "{}", serde_json::to_string(&order)?)?)
    }

    fn reply(&mut self) -> Result<Reply, Box<dyn Error>> {
        let line = self.replies.recv_timeout(MAX_WAIT);
        let line = line.map_err(|error| format!("a process does not reply: {error}"))?;
        match serde_json::from_str(&line)? {
            Reply::Failed(reason) => Err(reason.into()),
            reply => Ok(reply),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.orders = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
