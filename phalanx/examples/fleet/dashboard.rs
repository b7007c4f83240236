//! The live display: the table, the timeline and the latest milestones.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use phalanx::describe::{BreakerView, Phase};

use crate::recorder::Recorder;
use crate::screen::Screen;
use crate::style::{Line, Style};
use crate::{table, timeline};

/// The most milestones shown at a time.
const MAX_MILESTONES: usize = 9;

/// The live display and the terminal it is drawn on.
pub(crate) struct Dashboard {
    screen: Screen,
    recorder: Arc<Recorder>,
}

impl Dashboard {
    pub(crate) fn open(recorder: Arc<Recorder>) -> io::Result<Self> {
        Ok(Self { screen: Screen::open()?, recorder })
    }

    /// Draws the current state.
    pub(crate) fn draw(&mut self) -> io::Result<()> {
        let (width, height) = self.screen.size()?;
        let lines = self.lines(width, height);
        self.screen.draw(&lines)
    }

    fn lines(&self, width: usize, height: usize) -> Vec<Line> {
        let scenario = self.recorder.scenario();
        let now = scenario.now().min(scenario.length());
        let recording = self.recorder.lock();

        let first = recording.statuses.iter().flatten().next();
        let mut lines = vec![self.title(now, recording.replica_counts.len()), Line::new()];
        lines.extend(table::lines(&recording.replica_counts, &recording.statuses, scenario.state_at(now), now, width));
        lines.push(Line::new());
        lines.extend(recording.timeline.lines(&recording.phase_changes, now, width));
        if first.is_some_and(|status| status.fleet.is_some()) {
            lines.push(timeline::degraded_row(&recording.timeline, &recording.observations, now, width));
        }
        lines.push(self.breaker(first.map(|status| &status.circuit)));
        lines.push(Line::new());
        let room = height.saturating_sub(lines.len() + 1).min(MAX_MILESTONES);
        let first = recording.milestones.len().saturating_sub(room);
        lines.extend(recording.milestones[first..].iter().map(|milestone| {
            let text = format!("  {milestone}");
            Line::new().with(milestone.style(), text)
        }));
        lines
    }

    fn title(&self, now: Duration, replicas: usize) -> Line {
        let limit = self.recorder.policy().rate_limit.as_ref().map_or(0, |limit| limit.permits);
        let (now, length) = (now.as_secs_f64(), self.recorder.scenario().length().as_secs());
        Line::new()
            .with(Style::Bold, "  phalanx fleet demo")
            .with(Style::Plain, format!("  {now:4.1} of {length} s"))
            .with(Style::Dim, format!("  {replicas} replicas, one shared breaker, one shared limit of {limit} calls/s"))
    }

    /// Explains the phase of the breaker.
    fn breaker(&self, view: Option<&BreakerView>) -> Line {
        let spec = self.recorder.breaker();
        let Some(view) = view else { return Line::new() };
        let percent = |count: u64| count as f64 * 100.0 / view.calls.max(1) as f64;
        let limit = |ratio: Option<f64>| ratio.unwrap_or(1.0) * 100.0;
        let text = match view.phase {
            Phase::Closed => format!(
                "last {} attempts: {:.0} % failed (opens at {:.0}), {:.0} % slow (at {:.0})",
                view.calls,
                percent(view.failures),
                limit(spec.failure_ratio),
                percent(view.slow),
                limit(spec.slow_call_ratio),
            ),
            Phase::Open => {
                let wait = view.break_left.unwrap_or_default().as_secs_f64();
                format!("open on all replicas, probes in {wait:.1} s")
            }
            Phase::HalfOpen => {
                format!("probing: {} of the fleet's calls are admitted, the others are rejected", view.probes)
            }
        };
        timeline::labelled("", Style::Dim, text)
    }
}
