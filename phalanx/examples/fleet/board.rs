//! The live picture: table, strip, and the last turning points.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use phalanx::describe::{BreakerView, Phase};

use crate::ledger::Ledger;
use crate::paint::{Ink, Line};
use crate::screen::Screen;
use crate::{table, timeline};

/// Turning points that are shown at most.
const MOMENTS: usize = 9;

/// The picture and where it is drawn.
pub(crate) struct Board {
    screen: Screen,
    ledger: Arc<Ledger>,
}

impl Board {
    pub(crate) fn open(ledger: Arc<Ledger>) -> io::Result<Self> {
        Ok(Self { screen: Screen::open()?, ledger })
    }

    /// Draws the present moment.
    pub(crate) fn draw(&mut self) -> io::Result<()> {
        let (width, height) = self.screen.size()?;
        let lines = self.lines(width, height);
        self.screen.draw(&lines)
    }

    fn lines(&self, width: usize, height: usize) -> Vec<Line> {
        let story = self.ledger.story();
        let now = story.now().min(story.length());
        let pages = self.ledger.read();

        let first = pages.standings.iter().flatten().next();
        let mut lines = vec![self.title(now, pages.tallies.len()), Line::new()];
        lines.extend(table::lines(&pages.tallies, &pages.standings, story.act_at(now), now, width));
        lines.push(Line::new());
        lines.extend(pages.timeline.lines(&pages.turns, now, width));
        if first.is_some_and(|standing| standing.fleet.is_some()) {
            lines.push(timeline::alone(&pages.timeline, &pages.evidence, now, width));
        }
        lines.push(self.circuit(first.map(|standing| &standing.circuit)));
        lines.push(Line::new());
        let room = height.saturating_sub(lines.len() + 1).min(MOMENTS);
        let first = pages.moments.len().saturating_sub(room);
        lines.extend(pages.moments[first..].iter().map(|moment| {
            let text = format!("  {moment}");
            Line::new().with(moment.ink(), text)
        }));
        lines
    }

    fn title(&self, now: Duration, replicas: usize) -> Line {
        let limit = self.ledger.policy().rate_limit.as_ref().map_or(0, |limit| limit.permits);
        let (now, length) = (now.as_secs_f64(), self.ledger.story().length().as_secs());
        Line::new()
            .with(Ink::Bold, "  phalanx fleet")
            .with(Ink::Plain, format!("  {now:4.1} of {length} s"))
            .with(Ink::Dim, format!("  {replicas} replicas, one circuit, {limit} calls/s for all"))
    }

    /// Why the circuit stands where it stands.
    fn circuit(&self, view: Option<&BreakerView>) -> Line {
        let spec = self.ledger.breaker();
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
                format!("open for all, probes in {wait:.1} s")
            }
            Phase::HalfOpen => format!("{} of the fleet's calls try it out, the others fail fast", view.probes),
        };
        timeline::labelled("", Ink::Dim, text)
    }
}
