//! What it means: the figures of the whole run, and the point of it.

use std::io::{self, Write};
use std::time::Duration;

use phalanx::RejectionCode;
use phalanx::describe::Phase;

use crate::args::Show;
use crate::ledger::{Ledger, Pages};
use crate::moment::Turn;
use crate::paint::{Ink, Line};
use crate::promises;
use crate::story::{Act, Story};
use crate::table::millis;
use crate::tally::Tally;

/// Wide enough for every sentence here; what a narrower terminal wraps stays where it is.
const WIDTH: usize = 400;

/// The circuit's part in the story.
struct Course {
    /// When it first opened, and by whose hand.
    opened: Option<(Duration, usize)>,
    /// Whether that was by itself, without the fleet.
    alone: bool,
    /// When it last closed after that, and stayed so.
    closed: Option<Duration>,
}

/// Prints it, with the promises if the fleet is one of processes. Whether they were kept.
pub(crate) fn print(out: &mut impl Write, ledger: &Ledger, show: &Show, colour: bool) -> io::Result<bool> {
    let (story, pages) = (ledger.story(), ledger.read());
    let mut lines = vec![Line::new(), title(&pages, &story, show.scale.seed), Line::new()];
    lines.extend(figures(&Tally::sum(&pages.tallies)));
    lines.push(Line::new());
    let course = Course::of(&pages);
    let ramp = ledger.breaker().ramp.map(|ramp| ramp.over).unwrap_or_default();
    lines.extend(course.sentences(&pages, &story, ramp));
    lines.push(Line::new());
    let mut kept = true;
    if show.is_of_processes() {
        let (promises, all_kept) = promises::judge(ledger, &pages);
        (kept, lines) = (all_kept, lines.into_iter().chain(promises).chain([Line::new()]).collect());
    }
    lines.push(course.point(&pages));
    lines.iter().try_for_each(|line| writeln!(out, "{}", line.render(WIDTH, colour)))?;
    Ok(kept)
}

fn title(pages: &Pages, story: &Story, seed: u64) -> Line {
    let replicas = pages.tallies.len();
    let told = story.now().min(story.length()).as_secs_f64();
    let stopped = if story.is_over() { "" } else { ", stopped early" };
    let text = format!("  {replicas} replicas, {told:.0} s, seed {seed}{stopped}");
    Line::new().with(Ink::Bold, "  summary").with(Ink::Dim, text)
}

fn figures(fleet: &Tally) -> Vec<Line> {
    let percent = |count: u64| format!("{:.0} %", count as f64 * 100.0 / fleet.calls.max(1) as f64);
    let (mut cut_off, mut rejected) = (0, 0);
    let mut reasons = Vec::new();
    for (code, count) in &fleet.by_code {
        if *code == RejectionCode::AttemptTimeout {
            cut_off += count;
        } else {
            rejected += count;
            reasons.push(format!("{code} {count}"));
        }
    }
    let row = |label: &str, count: u64, note: String| {
        Line::new().with(Ink::Plain, format!("  {label:<9} {count:>7}   ")).with(Ink::Dim, note)
    };
    vec![
        row(
            "calls",
            fleet.calls,
            format!(
                "{} retries, {} more withheld by the budget, {} probes",
                fleet.retries, fleet.withheld, fleet.probes
            ),
        ),
        row("answered", fleet.answered, percent(fleet.answered)),
        row("failed", fleet.failed, "the upstream's own error".into()),
        row("cut off", cut_off, "attempt_timeout".into()),
        row("rejected", rejected, reasons.join(", ")),
    ]
}

impl Course {
    fn of(pages: &Pages) -> Self {
        let opening = pages.moments.iter().find(|moment| moment.phase() == Some(Phase::Open));
        let opened = opening.and_then(|moment| match moment.kind {
            Turn::Circuit { replica, .. } => Some((moment.at, replica)),
            _ => None,
        });
        let alone = opening.is_some_and(|moment| matches!(moment.kind, Turn::Circuit { alone: true, .. }));
        let last = pages.turns.last().filter(|(_, phase)| opened.is_some() && *phase == Phase::Closed);
        Self { opened, alone, closed: last.map(|(at, _)| *at) }
    }

    fn sentences(&self, pages: &Pages, story: &Story, ramp: Duration) -> Vec<Line> {
        let plain = |text: String| Line::new().with(Ink::Plain, format!("  {text}"));
        let seconds = |at: Duration| format!("{:.1} s", at.as_secs_f64());
        let (died, cured) = (story.start_of(Act::Failing), story.start_of(Act::Recovered));
        let Some((opened, replica)) = self.opened else {
            return vec![plain("The circuit never opened: the upstream was not seen to fail.".into())];
        };
        let died_at = seconds(died);
        let reaction = match opened.checked_sub(died) {
            Some(after) => format!("replica {} opened the circuit {} later.", replica + 1, millis(after)),
            None => format!("replica {} had opened the circuit before, at {}.", replica + 1, seconds(opened)),
        };
        let mut lines = vec![
            plain(format!("The upstream died at {died_at}; {reaction}")),
            plain(format!(
                "While dead it was spared {} calls; {} attempts reached it, {} were probes.",
                pages.spared, pages.into_the_dark, pages.vain_probes
            )),
        ];
        lines.push(plain(match self.closed {
            Some(closed) => {
                let full = closed + ramp;
                let traffic = if full <= story.now() {
                    format!("full traffic at {}", seconds(full))
                } else {
                    "full traffic not before the end".into()
                };
                format!(
                    "Back at {}: the circuit closed {} later, {traffic}.",
                    seconds(cured),
                    millis(closed.saturating_sub(cured))
                )
            }
            None => "The circuit had not closed again when the story ended.".into(),
        }));
        lines
    }

    /// One sentence to take home.
    fn point(&self, pages: &Pages) -> Line {
        let told = self.opened.and_then(|(opened, _)| {
            let told = pages.evidence.survivors().map(|replica| pages.told[replica]);
            let last = told.collect::<Option<Vec<_>>>()?.into_iter().max()?;
            Some(last.saturating_sub(opened))
        });
        let replicas = pages.evidence.survivors().count();
        let text = match told {
            Some(_) if self.alone => "Without Redis each replica had to find out for itself.".into(),
            Some(within) if replicas > 1 => {
                let within = millis(within.max(Duration::from_millis(1)));
                format!("One replica tripped and all {replicas} stopped, each at its next call, within {within}.")
            }
            Some(_) => "A fleet of one looks after itself; try --replicas 4.".into(),
            None => "Run it to the end to see the whole fleet stop at once.".into(),
        };
        Line::new().with(Ink::Bold, format!("  {text}"))
    }
}
