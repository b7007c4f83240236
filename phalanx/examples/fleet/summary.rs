//! The summary of a run: its figures, its guarantees and one conclusion.

use std::io::{self, Write};
use std::time::Duration;

use phalanx::RejectionCode;
use phalanx::describe::Phase;

use crate::args::DemoArgs;
use crate::call_counts::CallCounts;
use crate::guarantees;
use crate::milestone::MilestoneKind;
use crate::recorder::{Recorder, Recording};
use crate::scenario::{Scenario, UpstreamState};
use crate::style::{Line, Style};
use crate::table::millis;

/// Wide enough for every sentence: here a narrower terminal may wrap.
const WIDTH: usize = 400;

/// What the breaker did.
struct BreakerHistory {
    /// When it first opened, and the replica that opened it.
    opened: Option<(Duration, usize)>,
    /// Whether that replica was degraded.
    degraded: bool,
    /// When it closed for good after that.
    closed: Option<Duration>,
}

/// Prints the summary, with the guarantees if the replicas are processes. Returns whether all guarantees held.
pub(crate) fn print(out: &mut impl Write, recorder: &Recorder, args: &DemoArgs, colour: bool) -> io::Result<bool> {
    let (scenario, recording) = (recorder.scenario(), recorder.lock());
    let mut lines = vec![Line::new(), title(&recording, &scenario, args.common.seed), Line::new()];
    lines.extend(figures(&CallCounts::sum(&recording.replica_counts)));
    lines.push(Line::new());
    let history = BreakerHistory::of(&recording);
    let ramp = recorder.breaker().ramp.map(|ramp| ramp.over).unwrap_or_default();
    lines.extend(history.sentences(&recording, &scenario, ramp));
    lines.push(Line::new());
    let mut all_held = true;
    if args.uses_processes() {
        let (guarantees, held) = guarantees::check(recorder, &recording);
        (all_held, lines) = (held, lines.into_iter().chain(guarantees).chain([Line::new()]).collect());
    }
    lines.push(history.conclusion(&recording));
    lines.iter().try_for_each(|line| writeln!(out, "{}", line.render(WIDTH, colour)))?;
    Ok(all_held)
}

fn title(recording: &Recording, scenario: &Scenario, seed: u64) -> Line {
    let replicas = recording.replica_counts.len();
    let elapsed = scenario.now().min(scenario.length()).as_secs_f64();
    let stopped = if scenario.is_over() { "" } else { ", stopped early" };
    let text = format!("  {replicas} replicas, {elapsed:.0} s, seed {seed}{stopped}");
    Line::new().with(Style::Bold, "  summary").with(Style::Dim, text)
}

fn figures(fleet: &CallCounts) -> Vec<Line> {
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
        Line::new().with(Style::Plain, format!("  {label:<9} {count:>7}   ")).with(Style::Dim, note)
    };
    vec![
        row(
            "calls",
            fleet.calls,
            format!(
                "{} retries, {} denied by the retry budget, {} probes",
                fleet.retries, fleet.retries_denied, fleet.probes
            ),
        ),
        row("answered", fleet.answered, percent(fleet.answered)),
        row("failed", fleet.failed, "the error of the upstream".into()),
        row("cut off", cut_off, "attempt_timeout".into()),
        row("rejected", rejected, reasons.join(", ")),
    ]
}

impl BreakerHistory {
    fn of(recording: &Recording) -> Self {
        let opening = recording.milestones.iter().find(|milestone| milestone.phase() == Some(Phase::Open));
        let opened = opening.and_then(|milestone| match milestone.kind {
            MilestoneKind::Breaker { replica, .. } => Some((milestone.at, replica)),
            _ => None,
        });
        let degraded =
            opening.is_some_and(|milestone| matches!(milestone.kind, MilestoneKind::Breaker { degraded: true, .. }));
        let last = recording.phase_changes.last().filter(|(_, phase)| opened.is_some() && *phase == Phase::Closed);
        Self { opened, degraded, closed: last.map(|(at, _)| *at) }
    }

    fn sentences(&self, recording: &Recording, scenario: &Scenario, ramp: Duration) -> Vec<Line> {
        let plain = |text: String| Line::new().with(Style::Plain, format!("  {text}"));
        let seconds = |at: Duration| format!("{:.1} s", at.as_secs_f64());
        let (failed, recovered) =
            (scenario.start_of(UpstreamState::Failing), scenario.start_of(UpstreamState::Recovered));
        let Some((opened, replica)) = self.opened else {
            return vec![plain("The breaker never opened.".into())];
        };
        let failed_at = seconds(failed);
        let reaction = match opened.checked_sub(failed) {
            Some(after) => format!("replica {} opened the breaker {} later.", replica + 1, millis(after)),
            None => format!("replica {} had opened the breaker before, at {}.", replica + 1, seconds(opened)),
        };
        let mut lines = vec![
            plain(format!("The upstream failed at {failed_at}; {reaction}")),
            plain(format!(
                "While it failed, the breaker rejected {} calls; {} attempts reached the upstream, {} of them probes.",
                recording.rejected_while_failing, recording.attempts_while_failing, recording.failed_probes
            )),
        ];
        lines.push(plain(match self.closed {
            Some(closed) => {
                let full = closed + ramp;
                let traffic = if full <= scenario.now() {
                    format!("full traffic at {}", seconds(full))
                } else {
                    "full traffic only after the end".into()
                };
                format!(
                    "The upstream recovered at {}: the breaker closed {} later, {traffic}.",
                    seconds(recovered),
                    millis(closed.saturating_sub(recovered))
                )
            }
            None => "The breaker had not closed again when the scenario ended.".into(),
        }));
        lines
    }

    /// The conclusion in one sentence.
    fn conclusion(&self, recording: &Recording) -> Line {
        let delay = self.opened.and_then(|(opened, _)| {
            let first_rejected = recording.observations.survivors().map(|replica| recording.first_rejected[replica]);
            let last = first_rejected.collect::<Option<Vec<_>>>()?.into_iter().max()?;
            Some(last.saturating_sub(opened))
        });
        let replicas = recording.observations.survivors().count();
        let text = match delay {
            Some(_) if self.degraded => "Without Redis each replica had to detect the failure by itself.".into(),
            Some(delay) if replicas > 1 => {
                let within = millis(delay.max(Duration::from_millis(1)));
                format!(
                    "One replica opened the breaker and all {replicas} stopped calling, each at its next call, within {within}."
                )
            }
            Some(_) => "With one replica there is nothing to share; try --replicas 4.".into(),
            None if self.opened.is_none() => {
                "No replica opened the breaker: run it to the end to see the fleet stop at once.".into()
            }
            None => "Not every replica had a call to reject yet: run it to the end to see the whole fleet stop.".into(),
        };
        Line::new().with(Style::Bold, format!("  {text}"))
    }
}
