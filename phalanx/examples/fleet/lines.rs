//! The output for a file or a pipe: one line a second, and one for each milestone.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use crate::call_counts::CallCounts;
use crate::recorder::{Recorder, Recording};
use crate::table::millis;

/// What has been printed so far.
pub(crate) struct Lines {
    recorder: Arc<Recorder>,
    /// Seconds printed.
    seconds: u64,
    /// Milestones printed.
    milestones: usize,
    has_title: bool,
    before: CallCounts,
}

impl Lines {
    pub(crate) fn new(recorder: Arc<Recorder>) -> Self {
        Self { recorder, seconds: 0, milestones: 0, has_title: false, before: CallCounts::default() }
    }

    /// Prints what is new.
    pub(crate) fn print(&mut self, out: &mut impl Write) -> io::Result<()> {
        let recorder = self.recorder.clone();
        let recording = recorder.lock();
        let now = recorder.scenario().now();
        if !self.has_title {
            self.has_title = true;
            let replicas = recording.replica_counts.len();
            writeln!(
                out,
                "demo: {replicas} replicas share one breaker and one rate limit while their upstream fails and recovers"
            )?;
        }
        // A second is printed up to a frame late; milestones before its end still come first.
        let second = Duration::from_secs(self.seconds + 1);
        let due = now >= second && second <= recorder.scenario().length();
        let until = if due { second } else { now };
        self.print_milestones(&recording, until, out)?;
        if due {
            self.print_second(&recording, out)?;
            self.print_milestones(&recording, now, out)?;
        }
        out.flush()
    }

    fn print_milestones(&mut self, recording: &Recording, until: Duration, out: &mut impl Write) -> io::Result<()> {
        for milestone in recording.milestones.iter().skip(self.milestones).take_while(|milestone| milestone.at <= until)
        {
            writeln!(out, "{milestone}")?;
            self.milestones += 1;
        }
        Ok(())
    }

    fn print_second(&mut self, recording: &Recording, out: &mut impl Write) -> io::Result<()> {
        self.seconds += 1;
        let scenario = self.recorder.scenario();
        let at = Duration::from_secs(self.seconds);
        let fleet = CallCounts::sum(&recording.replica_counts);
        let phase = recording.phase();
        let p95 = fleet.p95(scenario.now()).map_or_else(|| "-".to_owned(), millis);
        write!(
            out,
            "{:5.1}s  {:9}  breaker {:9}  {:3} calls/s  {:3} admitted  p95 {p95:>6}",
            at.as_secs_f64(),
            scenario.state_at(at).name(),
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
