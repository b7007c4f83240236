//! What a replica process prints without the demo: one line a second, and one for each milestone.

use std::io::{self, Write};
use std::time::Duration;

use crate::call_counts::CallCounts;
use crate::message::{Message, ReplicaStatus};
use crate::milestone::MilestoneKind;
use crate::scenario::Scenario;
use crate::table::millis;

/// The log of one process.
pub(crate) struct Log {
    name: String,
    scenario: Scenario,
    seconds: u64,
    counts: CallCounts,
    before: CallCounts,
}

impl Log {
    pub(crate) fn new(name: String, scenario: Scenario) -> Self {
        Self { name, scenario, seconds: 0, counts: CallCounts::default(), before: CallCounts::default() }
    }

    pub(crate) fn print(&mut self, at: Duration, message: Message, out: &mut impl Write) -> io::Result<()> {
        let replica = 0; // a process knows only itself
        let milestone = match message {
            Message::Finished(call) => {
                self.counts.add(at, &call);
                return Ok(());
            }
            Message::Status(status) => return self.print_second(&status, out),
            Message::BreakerChanged { change, degraded } => {
                let scope = if degraded { "degraded" } else { "fleet" };
                let (from, to) = (change.from.name(), change.to.name());
                return self.line(at, out, &format!("breaker {from} -> {to} ({scope})"));
            }
            Message::Degraded(reason) => MilestoneKind::Degraded { replica, reason },
            Message::Recovered { outage, degraded_decisions } => {
                MilestoneKind::Recovered { replica, outage, degraded_decisions }
            }
            Message::StateLost => MilestoneKind::StateLost { replica },
            Message::Retried
            | Message::RetryDenied
            | Message::Probed { .. }
            | Message::Rejected(_)
            | Message::Ended => {
                return Ok(());
            }
        };
        let sentence = milestone.to_string();
        self.line(at, out, sentence.trim_start_matches("replica 1 "))
    }

    fn line(&self, at: Duration, out: &mut impl Write, text: &str) -> io::Result<()> {
        writeln!(out, "{}  {:6.1}s  {text}", self.name, at.as_secs_f64()).and_then(|()| out.flush())
    }

    /// Prints the last second, once.
    fn print_second(&mut self, status: &ReplicaStatus, out: &mut impl Write) -> io::Result<()> {
        let now = self.scenario.now();
        if now.as_secs() <= self.seconds {
            return Ok(());
        }
        self.seconds = now.as_secs();
        let (counts, before) = (&self.counts, &self.before);
        let store = match status.fleet {
            Some(fleet) if !fleet.degraded => format!("1 of {}", fleet.live),
            _ => "degraded".to_owned(),
        };
        write!(
            out,
            "{}  {:6.1}s  {store:8}  breaker {:9}  {:3} calls/s  {:3} admitted  p95 {:>6}",
            self.name,
            self.seconds as f64,
            status.circuit.phase.name(),
            counts.calls - before.calls,
            counts.admitted - before.admitted,
            counts.p95(now).map_or_else(|| "-".to_owned(), millis),
        )?;
        let failed = counts.failed - before.failed;
        if failed > 0 {
            write!(out, "  failed {failed}")?;
        }
        counts.write_codes_since(before, out)?;
        self.before = self.counts.clone();
        writeln!(out).and_then(|()| out.flush())
    }
}
