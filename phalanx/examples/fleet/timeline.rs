//! The timeline: progress, the phase of the breaker, what reached the upstream and what was rejected.

use std::time::Duration;

use phalanx::describe::Phase;

use crate::observations::Observations;
use crate::scenario::{Scenario, UpstreamState};
use crate::style::{Line, Style};

/// The resolution that is recorded; terminals have fewer columns.
const BUCKETS: usize = 480;
const MAX_COLUMNS: usize = 100;
const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const LABEL_WIDTH: usize = 12;

#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    attempts: u32,
    failed: u32,
    rejected: u32,
}

/// Counts over the length of the scenario.
#[derive(Clone, Debug)]
pub(crate) struct Timeline {
    scenario: Scenario,
    /// Calls per second of all replicas together.
    demand: f64,
    buckets: Vec<Bucket>,
}

impl Timeline {
    pub(crate) fn new(scenario: Scenario, demand: f64) -> Self {
        Self { scenario, demand, buckets: vec![Bucket::default(); BUCKETS] }
    }

    pub(crate) fn record_attempt(&mut self, at: Duration) {
        self.bucket(at).attempts += 1;
    }

    pub(crate) fn failed(&mut self, at: Duration) {
        self.bucket(at).failed += 1;
    }

    pub(crate) fn rejected(&mut self, at: Duration) {
        self.bucket(at).rejected += 1;
    }

    fn bucket(&mut self, at: Duration) -> &mut Bucket {
        let index = at.as_secs_f64() / self.scenario.length().as_secs_f64() * BUCKETS as f64;
        &mut self.buckets[(index as usize).min(BUCKETS - 1)]
    }

    /// Renders the timeline up to `now`.
    pub(crate) fn lines(&self, phase_changes: &[(Duration, Phase)], now: Duration, width: usize) -> Vec<Line> {
        let strip = Strip { timeline: self, columns: columns(width), now };
        vec![
            strip.progress(),
            strip.state_names(),
            strip.row("breaker", |column| strip.breaker(column, phase_changes)),
            strip.row("upstream", |column| strip.upstream(column)),
            strip.row("rejected", |column| (Style::Yellow, strip.height(column, |bucket| bucket.rejected))),
        ]
    }
}

/// The row that shows how many processes were degraded.
pub(crate) fn degraded_row(timeline: &Timeline, observations: &Observations, now: Duration, width: usize) -> Line {
    let strip = Strip { timeline, columns: columns(width), now };
    strip.row("redis", |column| {
        let (degraded, all) = (observations.degraded_at(strip.time(column)), observations.outages.len().max(1));
        let style = if degraded == 0 { Style::Green } else { Style::Red };
        (style, BARS[(degraded * (BARS.len() - 1)).div_ceil(all).max(1)])
    })
}

fn columns(width: usize) -> usize {
    width.saturating_sub(LABEL_WIDTH + 3).clamp(1, MAX_COLUMNS)
}

fn label(text: &str) -> Line {
    Line::new().with(Style::Dim, format!("  {text:<LABEL_WIDTH$}"))
}

/// A remark, aligned with the rows.
pub(crate) fn labelled(text: &str, style: Style, remark: String) -> Line {
    label(text).with(style, remark)
}

/// The timeline on a number of columns.
struct Strip<'a> {
    timeline: &'a Timeline,
    columns: usize,
    now: Duration,
}

impl Strip<'_> {
    /// The time at which a column starts.
    fn time(&self, column: usize) -> Duration {
        self.timeline.scenario.fraction(column as u32, self.columns as u32)
    }

    fn progress(&self) -> Line {
        let scenario = self.timeline.scenario;
        (0..self.columns).fold(label("scenario"), |line, column| {
            let at = self.time(column);
            let style = match scenario.state_at(at) {
                _ if at > self.now => Style::Dim,
                UpstreamState::Healthy | UpstreamState::Recovered => Style::Green,
                UpstreamState::Slow => Style::Yellow,
                UpstreamState::Failing => Style::Red,
            };
            line.with(style, if at > self.now { "─" } else { "━" })
        })
    }

    /// The name of each state of the upstream, below its start.
    fn state_names(&self) -> Line {
        let scenario = self.timeline.scenario;
        UpstreamState::ALL.into_iter().fold(label(""), |line, state| {
            let column = |at: Duration| at.as_secs_f64() / scenario.length().as_secs_f64() * self.columns as f64;
            let (from, to) =
                (column(scenario.start_of(state)).ceil() as usize, column(scenario.end_of(state)).ceil() as usize);
            let room = to.saturating_sub(from);
            let name: String = state.name().chars().take(room.saturating_sub(1)).collect();
            let style = if scenario.state_at(self.now) == state { Style::Bold } else { Style::Dim };
            line.with(style, format!("{name:<room$}"))
        })
    }

    /// A row of one character per column, up to now.
    fn row(&self, name: &str, cell: impl Fn(usize) -> (Style, char)) -> Line {
        let played = (0..self.columns).take_while(|column| self.time(*column) <= self.now);
        played.fold(label(name), |line, column| {
            let (style, glyph) = cell(column);
            line.with(style, glyph)
        })
    }

    /// Three heights as well as three colours, for output without colours.
    fn breaker(&self, column: usize, phase_changes: &[(Duration, Phase)]) -> (Style, char) {
        let (start, end) = (self.time(column), self.time(column + 1));
        let mut phase_changes = phase_changes.iter().filter(|(at, _)| *at < end);
        // Probing can be shorter than a column and must still show.
        let probed = phase_changes.clone().any(|(at, phase)| *at >= start && *phase == Phase::HalfOpen);
        let last = phase_changes.next_back().map(|(_, phase)| *phase);
        let phase = if probed { Phase::HalfOpen } else { last.unwrap_or(Phase::Closed) };
        let glyph = match phase {
            Phase::Closed => '▁',
            Phase::HalfOpen => '▄',
            Phase::Open => '█',
        };
        (Style::of_phase(phase), glyph)
    }

    fn upstream(&self, column: usize) -> (Style, char) {
        let buckets = self.buckets(column);
        let (attempts, failed) = buckets.iter().fold((0, 0), |(a, f), bucket| (a + bucket.attempts, f + bucket.failed));
        let style = if failed * 2 > attempts { Style::Red } else { Style::Green };
        (style, self.height(column, |bucket| bucket.attempts))
    }

    /// Attempts and rejections have the same scale, so that a call rejected is seen to be a call that no longer arrives.
    fn height(&self, column: usize, count: impl Fn(&Bucket) -> u32) -> char {
        let span = self.timeline.scenario.length().as_secs_f64() / self.columns as f64;
        let full = self.timeline.demand * span * 1.2;
        let here: u32 = self.buckets(column).iter().map(count).sum();
        let height = (f64::from(here) / full * (BARS.len() - 1) as f64).ceil() as usize;
        BARS[height.min(BARS.len() - 1)]
    }

    fn buckets(&self, column: usize) -> &[Bucket] {
        let index = |column: usize| column * BUCKETS / self.columns;
        &self.timeline.buckets[index(column)..index(column + 1)]
    }
}
