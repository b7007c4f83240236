//! What a replica on its own prints: one line a second, and one for each turning point.

use std::io::{self, Write};
use std::time::Duration;

use crate::moment::Turn;
use crate::report::{Report, Standing};
use crate::story::Story;
use crate::table::millis;
use crate::tally::Tally;

/// The log of one process.
pub(crate) struct Log {
    name: String,
    story: Story,
    seconds: u64,
    tally: Tally,
    before: Tally,
}

impl Log {
    pub(crate) fn new(name: String, story: Story) -> Self {
        Self { name, story, seconds: 0, tally: Tally::default(), before: Tally::default() }
    }

    pub(crate) fn note(&mut self, at: Duration, report: Report, out: &mut impl Write) -> io::Result<()> {
        let replica = 0; // there is no other here
        let what = match report {
            Report::Finished(call) => {
                self.tally.add(at, &call);
                return Ok(());
            }
            Report::Stands(standing) => return self.tell_second(&standing, out),
            Report::Changed { change, alone } => {
                let whose = if alone { "alone" } else { "the fleet" };
                let (from, to) = (change.from.name(), change.to.name());
                return self.line(at, out, &format!("circuit {from} -> {to} ({whose})"));
            }
            Report::Degraded(reason) => Turn::Alone { replica, reason },
            Report::Recovered { outage, decided } => Turn::Back { replica, outage, decided },
            Report::Lost => Turn::Lost { replica },
            Report::Retried | Report::Withheld | Report::Probed { .. } | Report::Rejected(_) | Report::Ended => {
                return Ok(());
            }
        };
        let sentence = what.to_string();
        self.line(at, out, sentence.trim_start_matches("replica 1 "))
    }

    fn line(&self, at: Duration, out: &mut impl Write, text: &str) -> io::Result<()> {
        writeln!(out, "{}  {:6.1}s  {text}", self.name, at.as_secs_f64()).and_then(|()| out.flush())
    }

    /// The second that is over, if it has no line yet.
    fn tell_second(&mut self, standing: &Standing, out: &mut impl Write) -> io::Result<()> {
        let now = self.story.now();
        if now.as_secs() <= self.seconds {
            return Ok(());
        }
        self.seconds = now.as_secs();
        let (tally, before) = (&self.tally, &self.before);
        let store = match standing.fleet {
            Some(fleet) if !fleet.alone => format!("1 of {}", fleet.live),
            _ => "alone".to_owned(),
        };
        write!(
            out,
            "{}  {:6.1}s  {store:6}  circuit {:9}  {:3} calls/s  {:3} admitted  p95 {:>6}",
            self.name,
            self.seconds as f64,
            standing.circuit.phase.name(),
            tally.calls - before.calls,
            tally.admitted - before.admitted,
            tally.p95(now).map_or_else(|| "-".to_owned(), millis),
        )?;
        let failed = tally.failed - before.failed;
        if failed > 0 {
            write!(out, "  failed {failed}")?;
        }
        tally.write_codes_since(before, out)?;
        self.before = self.tally.clone();
        writeln!(out).and_then(|()| out.flush())
    }
}
