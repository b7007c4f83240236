//! The story as a strip: how far it is, where the circuit stood, what reached the upstream, what was rejected.

use std::time::Duration;

use phalanx::describe::Phase;

use crate::evidence::Evidence;
use crate::paint::{Ink, Line};
use crate::story::{Act, Story};

/// The finest resolution there is; terminals have fewer columns.
const SLOTS: usize = 480;
const WIDEST: usize = 100;
const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const LABEL: usize = 12;

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    reached: u32,
    failed: u32,
    rejected: u32,
}

/// Counts over the length of the story.
#[derive(Clone, Debug)]
pub(crate) struct Timeline {
    story: Story,
    /// Calls a second that all replicas together want to make.
    demand: f64,
    slots: Vec<Slot>,
}

impl Timeline {
    pub(crate) fn new(story: Story, demand: f64) -> Self {
        Self { story, demand, slots: vec![Slot::default(); SLOTS] }
    }

    pub(crate) fn reached(&mut self, at: Duration) {
        self.slot(at).reached += 1;
    }

    pub(crate) fn failed(&mut self, at: Duration) {
        self.slot(at).failed += 1;
    }

    pub(crate) fn rejected(&mut self, at: Duration) {
        self.slot(at).rejected += 1;
    }

    fn slot(&mut self, at: Duration) -> &mut Slot {
        let place = at.as_secs_f64() / self.story.length().as_secs_f64() * SLOTS as f64;
        &mut self.slots[(place as usize).min(SLOTS - 1)]
    }

    /// The strip, drawn up to `now`.
    pub(crate) fn lines(&self, turns: &[(Duration, Phase)], now: Duration, width: usize) -> Vec<Line> {
        let strip = Strip { timeline: self, columns: columns(width), now };
        vec![
            strip.bar(),
            strip.names(),
            strip.row("circuit", |column| strip.circuit(column, turns)),
            strip.row("upstream", |column| strip.upstream(column)),
            strip.row("rejected", |column| (Ink::Yellow, strip.height(column, |slot| slot.rejected))),
        ]
    }
}

/// How many of the fleet's processes had to decide alone, under the strip.
pub(crate) fn alone(timeline: &Timeline, evidence: &Evidence, now: Duration, width: usize) -> Line {
    let strip = Strip { timeline, columns: columns(width), now };
    strip.row("redis", |column| {
        let (alone, all) = (evidence.alone_at(strip.time(column)), evidence.outages.len().max(1));
        let ink = if alone == 0 { Ink::Green } else { Ink::Red };
        (ink, BARS[(alone * (BARS.len() - 1)).div_ceil(all).max(1)])
    })
}

fn columns(width: usize) -> usize {
    width.saturating_sub(LABEL + 3).clamp(1, WIDEST)
}

fn label(text: &str) -> Line {
    Line::new().with(Ink::Dim, format!("  {text:<LABEL$}"))
}

/// A remark that stands in line with the strip.
pub(crate) fn labelled(text: &str, ink: Ink, remark: String) -> Line {
    label(text).with(ink, remark)
}

/// The timeline on so many columns.
struct Strip<'a> {
    timeline: &'a Timeline,
    columns: usize,
    now: Duration,
}

impl Strip<'_> {
    /// When a column begins.
    fn time(&self, column: usize) -> Duration {
        self.timeline.story.share(column as u32, self.columns as u32)
    }

    fn bar(&self) -> Line {
        let story = self.timeline.story;
        (0..self.columns).fold(label("story"), |line, column| {
            let at = self.time(column);
            let ink = match story.act_at(at) {
                _ if at > self.now => Ink::Dim,
                Act::Healthy | Act::Recovered => Ink::Green,
                Act::Slow => Ink::Yellow,
                Act::Failing => Ink::Red,
            };
            line.with(ink, if at > self.now { "─" } else { "━" })
        })
    }

    /// Each act's name under its beginning.
    fn names(&self) -> Line {
        let story = self.timeline.story;
        Act::ALL.into_iter().fold(label(""), |line, act| {
            let column = |at: Duration| at.as_secs_f64() / story.length().as_secs_f64() * self.columns as f64;
            let (from, to) = (column(story.start_of(act)).ceil() as usize, column(story.end_of(act)).ceil() as usize);
            let room = to.saturating_sub(from);
            let name: String = act.name().chars().take(room.saturating_sub(1)).collect();
            let ink = if story.act_at(self.now) == act { Ink::Bold } else { Ink::Dim };
            line.with(ink, format!("{name:<room$}"))
        })
    }

    /// A row of one character a column, up to now.
    fn row(&self, name: &str, cell: impl Fn(usize) -> (Ink, char)) -> Line {
        let played = (0..self.columns).take_while(|column| self.time(*column) <= self.now);
        played.fold(label(name), |line, column| {
            let (ink, glyph) = cell(column);
            line.with(ink, glyph)
        })
    }

    /// Three heights as well as three colours, for those who see no colours.
    fn circuit(&self, column: usize, turns: &[(Duration, Phase)]) -> (Ink, char) {
        let (start, end) = (self.time(column), self.time(column + 1));
        let mut turns = turns.iter().filter(|(at, _)| *at < end);
        // Probes are over in a blink; they must not be lost between two columns.
        let probed = turns.clone().any(|(at, phase)| *at >= start && *phase == Phase::HalfOpen);
        let last = turns.next_back().map(|(_, phase)| *phase);
        let phase = if probed { Phase::HalfOpen } else { last.unwrap_or(Phase::Closed) };
        let glyph = match phase {
            Phase::Closed => '▁',
            Phase::HalfOpen => '▄',
            Phase::Open => '█',
        };
        (Ink::of_phase(phase), glyph)
    }

    fn upstream(&self, column: usize) -> (Ink, char) {
        let slots = self.slots(column);
        let (reached, failed) = slots.iter().fold((0, 0), |(r, f), slot| (r + slot.reached, f + slot.failed));
        let ink = if failed * 2 > reached { Ink::Red } else { Ink::Green };
        (ink, self.height(column, |slot| slot.reached))
    }

    /// Both strips are drawn to the scale of what the fleet wants, so that what is rejected can be seen to be what no
    /// longer arrives.
    fn height(&self, column: usize, count: impl Fn(&Slot) -> u32) -> char {
        let span = self.timeline.story.length().as_secs_f64() / self.columns as f64;
        let full = self.timeline.demand * span * 1.2;
        let here: u32 = self.slots(column).iter().map(count).sum();
        let height = (f64::from(here) / full * (BARS.len() - 1) as f64).ceil() as usize;
        BARS[height.min(BARS.len() - 1)]
    }

    fn slots(&self, column: usize) -> &[Slot] {
        let place = |column: usize| column * SLOTS / self.columns;
        &self.timeline.slots[place(column)..place(column + 1)]
    }
}
