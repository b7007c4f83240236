//! What a replica tells, and the same as one line of text between processes.

use std::fmt;
use std::time::Duration;

use phalanx::describe::Seen;
use phalanx::describe::{BreakerView, Outcome, Phase, Transition};
use phalanx::{Decision, Event, EventKind, RejectionCode, Source, Verdict};

/// One thing worth telling.
#[derive(Clone, Debug)]
pub(crate) enum Report {
    /// A call is over.
    Finished(Call),
    /// An attempt failed and another follows.
    Retried,
    /// An attempt failed and no other follows, because too many did already.
    Withheld,
    /// A probe was at the upstream; by this replica's own decision if it is alone.
    Probed { from: Duration, to: Duration, alone: bool },
    /// A call was rejected after so long.
    Rejected(Duration),
    /// The circuit changed its phase; by this replica's own decision if it is alone.
    Changed { change: Transition, alone: bool },
    /// How things stand, every now and then.
    Stands(Standing),
    /// The store is away.
    Degraded(String),
    /// The store is back.
    Recovered { outage: Duration, decided: u64 },
    /// The store came back empty.
    Lost,
    /// There is no more to tell.
    Ended,
}

/// What became of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) outcome: Option<Outcome>,
    pub(crate) reason: Option<RejectionCode>,
    pub(crate) admitted: bool,
    pub(crate) answered: bool,
    pub(crate) elapsed: Duration,
    /// Decided without the fleet, because its store was away.
    pub(crate) alone: bool,
}

/// How a replica sees its circuit and its fleet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing {
    pub(crate) circuit: BreakerView,
    pub(crate) fleet: Option<Membership>,
}

/// A replica's place in a fleet of processes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Membership {
    /// Whether it decides alone, because Redis is away.
    pub(crate) alone: bool,
    /// Replicas it knows to be alive.
    pub(crate) live: u32,
}

impl Report {
    /// What an event of the module is worth. Whether a change was made alone is for others to say.
    pub(crate) fn of(event: &Event<'_>) -> Option<Self> {
        Some(match event.kind {
            EventKind::Finished { outcome, kind, decision } => {
                Self::Finished(Call::of(outcome, kind.is_none(), decision))
            }
            EventKind::Retry { .. } => Self::Retried,
            EventKind::RetryBudgetExhausted => Self::Withheld,
            EventKind::Transition(change) => Self::Changed { change, alone: false },
            EventKind::StoreDegraded { reason } => Self::Degraded(reason.to_owned()),
            EventKind::StoreRecovered { outage, degraded_decisions } => {
                Self::Recovered { outage, decided: degraded_decisions }
            }
            EventKind::StateLost => Self::Lost,
            _ => return None,
        })
    }

    /// Reads a line that [`Timed`] wrote; none if it is no such line.
    pub(crate) fn read(line: &str) -> Option<(Duration, Self)> {
        let mut words = Words(line.split(' '));
        let at = words.time()?;
        let report = match words.word()? {
            "finished" => Self::Finished(Call {
                outcome: words.one_of(&OUTCOMES, outcome_name)?,
                reason: words.one_of(&RejectionCode::ALL, RejectionCode::name)?,
                admitted: words.flag()?,
                answered: words.flag()?,
                elapsed: words.time()?,
                alone: words.flag()?,
            }),
            "retried" => Self::Retried,
            "withheld" => Self::Withheld,
            "probed" => Self::Probed { from: words.time()?, to: words.time()?, alone: words.flag()? },
            "rejected" => Self::Rejected(words.time()?),
            "changed" => {
                let (from, to) = (words.one_of(&PHASES, Phase::name)??, words.one_of(&PHASES, Phase::name)??);
                let (epoch, break_for, alone) = (words.number()?, words.time()?, words.flag()?);
                let seen = Seen { calls: words.number()?, failures: words.number()?, slow: words.number()? };
                let break_for = (to == Phase::Open).then_some(break_for);
                Self::Changed { change: Transition { from, to, epoch, break_for, seen }, alone }
            }
            "stands" => Self::Stands(words.standing()?),
            "degraded" => Self::Degraded(words.word()?.to_owned()),
            "recovered" => Self::Recovered { outage: words.time()?, decided: words.number()? },
            "lost" => Self::Lost,
            "ended" => Self::Ended,
            _ => return None,
        };
        Some((at, report))
    }
}

impl Call {
    fn of(outcome: Option<Outcome>, answered: bool, decision: &Decision) -> Self {
        let admitted = decision.verdict == Verdict::Admitted;
        let (reason, elapsed, alone) = (decision.reason, decision.elapsed, decision.source == Source::Degraded);
        Self { outcome, reason, admitted, answered, elapsed, alone }
    }
}

const PHASES: [Phase; 3] = [Phase::Closed, Phase::HalfOpen, Phase::Open];
const OUTCOMES: [Outcome; 4] = [Outcome::Success, Outcome::Failure, Outcome::Neutral, Outcome::Cancelled];

const fn outcome_name(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Success => "success",
        Outcome::Failure => "failure",
        Outcome::Neutral => "neutral",
        Outcome::Cancelled => "cancelled",
    }
}

/// A report and when it was made: one line, times in microseconds, `-` for nothing.
pub(crate) struct Timed<'a>(pub(crate) Duration, pub(crate) &'a Report);

impl fmt::Display for Timed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.0.as_micros())?;
        match self.1 {
            Report::Finished(call) => {
                let (outcome, reason) =
                    (call.outcome.map_or("-", outcome_name), call.reason.map_or("-", RejectionCode::name));
                let (admitted, answered, alone) = (flag(call.admitted), flag(call.answered), flag(call.alone));
                let elapsed = call.elapsed.as_micros();
                write!(f, "finished {outcome} {reason} {admitted} {answered} {elapsed} {alone}")
            }
            Report::Retried => f.write_str("retried"),
            Report::Withheld => f.write_str("withheld"),
            Report::Probed { from, to, alone } => {
                write!(f, "probed {} {} {}", from.as_micros(), to.as_micros(), flag(*alone))
            }
            Report::Rejected(took) => write!(f, "rejected {}", took.as_micros()),
            Report::Changed { change, alone } => {
                let Transition { from, to, epoch, break_for, seen } = change;
                let (from, to, alone) = (from.name(), to.name(), flag(*alone));
                let pause = break_for.unwrap_or_default().as_micros();
                write!(f, "changed {from} {to} {epoch} {pause} {alone} {} {} {}", seen.calls, seen.failures, seen.slow)
            }
            Report::Stands(Standing { circuit, fleet }) => {
                let BreakerView { calls, failures, slow, probes, .. } = circuit;
                let left = circuit.break_left.unwrap_or_default().as_micros();
                write!(f, "stands {} {calls} {failures} {slow} {probes} {left}", circuit.phase.name())?;
                fleet.map_or(Ok(()), |fleet| write!(f, " {} {}", flag(fleet.alone), fleet.live))
            }
            Report::Degraded(reason) => write!(f, "degraded {reason}"),
            Report::Recovered { outage, decided } => write!(f, "recovered {} {decided}", outage.as_micros()),
            Report::Lost => f.write_str("lost"),
            Report::Ended => f.write_str("ended"),
        }
    }
}

const fn flag(set: bool) -> &'static str {
    if set { "yes" } else { "no" }
}

/// The words of a line, one after the other.
struct Words<'a>(std::str::Split<'a, char>);

impl<'a> Words<'a> {
    fn word(&mut self) -> Option<&'a str> {
        self.0.next()
    }

    fn number(&mut self) -> Option<u64> {
        self.word()?.parse().ok()
    }

    fn time(&mut self) -> Option<Duration> {
        self.number().map(Duration::from_micros)
    }

    fn flag(&mut self) -> Option<bool> {
        self.word().map(|word| word == "yes")
    }

    /// One of these by its name, or nothing; none if the line ends here.
    fn one_of<T: Copy>(&mut self, all: &[T], name: impl Fn(T) -> &'static str) -> Option<Option<T>> {
        let word = self.word()?;
        Some(all.iter().copied().find(|one| name(*one) == word))
    }

    fn standing(&mut self) -> Option<Standing> {
        let phase = self.one_of(&PHASES, Phase::name)??;
        let (calls, failures, slow) = (self.number()?, self.number()?, self.number()?);
        let (probes, left) = (self.number()? as u32, self.time()?);
        let break_left = (phase == Phase::Open).then_some(left);
        let circuit = BreakerView {
            phase,
            calls,
            failures,
            slow,
            probes,
            break_left,
            overridden: None,
            epoch: 0,
            streak: 0,
            ramping: false,
        };
        let fleet = self.flag().and_then(|alone| Some(Membership { alone, live: self.number()? as u32 }));
        Some(Standing { circuit, fleet })
    }
}
