//! The story for a file or a pipe: one line a second, and one for each turning point.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use crate::ledger::{Ledger, Pages};
use crate::table::millis;
use crate::tally::Tally;

/// How far it has been told.
pub(crate) struct Lines {
    ledger: Arc<Ledger>,
    /// Seconds that have their line.
    seconds: u64,
    /// Turning points that have theirs.
    moments: usize,
    before: Tally,
}

impl Lines {
    pub(crate) fn new(ledger: Arc<Ledger>) -> Self {
        Self { ledger, seconds: 0, moments: 0, before: Tally::default() }
    }

    /// Tells what is new.
    pub(crate) fn print(&mut self, out: &mut impl Write) -> io::Result<()> {
        let ledger = self.ledger.clone();
        let pages = ledger.read();
        let now = ledger.story().now();
        // Both in the order of time, though a second is told up to a frame late.
        let second = Duration::from_secs(self.seconds + 1);
        let due = now >= second && second <= ledger.story().length();
        let until = if due { second } else { now };
        self.tell_moments(&pages, until, out)?;
        if due {
            self.tell_second(&pages, out)?;
            self.tell_moments(&pages, now, out)?;
        }
        out.flush()
    }

    fn tell_moments(&mut self, pages: &Pages, until: Duration, out: &mut impl Write) -> io::Result<()> {
        for moment in pages.moments.iter().skip(self.moments).take_while(|moment| moment.at <= until) {
            writeln!(out, "{moment}")?;
            self.moments += 1;
        }
        Ok(())
    }

    fn tell_second(&mut self, pages: &Pages, out: &mut impl Write) -> io::Result<()> {
        self.seconds += 1;
        let story = self.ledger.story();
        let at = Duration::from_secs(self.seconds);
        let fleet = Tally::sum(&pages.tallies);
        let phase = pages.phase();
        let p95 = fleet.p95(story.now()).map_or_else(|| "-".to_owned(), millis);
        write!(
            out,
            "{:5.1}s  {:9}  circuit {:9}  {:3} calls/s  {:3} admitted  p95 {p95:>6}",
            at.as_secs_f64(),
            story.act_at(at).name(),
            phase.name(),
            fleet.calls - self.before.calls,
            fleet.admitted - self.before.admitted,
        )?;
        let failed = fleet.failed - self.before.failed;
        if failed > 0 {
            write!(out, "  failed {failed}")?;
        }
        fleet.write_codes_since(&self.before, out)?;
        self.before = fleet;
        writeln!(out)
    }
}
