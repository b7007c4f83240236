//! What a replica reports to the demo, as a value and as a line of text between processes.

use std::fmt;
use std::time::Duration;

use phalanx::describe::Seen;
use phalanx::describe::{BreakerView, Outcome, Phase, Transition};
use phalanx::{Decision, Event, EventKind, RejectionCode, Source, Verdict};

/// A message from a replica.
#[derive(Clone, Debug)]
pub(crate) enum Message {
    /// A call ended.
    Finished(CallResult),
    /// An attempt failed and is retried.
    Retried,
    /// An attempt failed and the retry budget denied a retry.
    RetryDenied,
    /// A probe reached the upstream; `degraded` if the replica decided it without Redis.
    Probed { from: Duration, to: Duration, degraded: bool },
    /// A call was rejected after this long.
    Rejected(Duration),
    /// The breaker changed its phase; `degraded` if the replica decided it without Redis.
    BreakerChanged { change: Transition, degraded: bool },
    /// The status of the replica, at every status interval.
    Status(ReplicaStatus),
    /// Redis is unavailable, for this reason.
    Degraded(String),
    /// Redis is available again.
    Recovered { outage: Duration, degraded_decisions: u64 },
    /// Redis came back empty.
    StateLost,
    /// The last message.
    Ended,
}

/// How a call ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallResult {
    pub(crate) outcome: Option<Outcome>,
    pub(crate) reason: Option<RejectionCode>,
    pub(crate) admitted: bool,
    pub(crate) answered: bool,
    pub(crate) elapsed: Duration,
    /// Whether it was decided without Redis.
    pub(crate) degraded: bool,
}

/// The breaker and the fleet as a replica sees them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplicaStatus {
    pub(crate) circuit: BreakerView,
    pub(crate) fleet: Option<Membership>,
}

/// The membership of a replica in a fleet of processes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Membership {
    /// Whether the replica decides without Redis.
    pub(crate) degraded: bool,
    /// The number of live replicas it sees.
    pub(crate) live: u32,
}

impl Message {
    /// Converts an event of the module; `None` if the demo does not use it. Whether a change was degraded is filled in by
    /// the worker.
    pub(crate) fn of(event: &Event<'_>) -> Option<Self> {
        Some(match event.kind {
            EventKind::Finished { outcome, kind, decision } => {
                Self::Finished(CallResult::of(outcome, kind.is_none(), decision))
            }
            EventKind::Retry { .. } => Self::Retried,
            EventKind::RetryBudgetExhausted => Self::RetryDenied,
            EventKind::Transition(change) => Self::BreakerChanged { change, degraded: false },
            EventKind::StoreDegraded { reason } => Self::Degraded(reason.to_owned()),
            EventKind::StoreRecovered { outage, degraded_decisions } => Self::Recovered { outage, degraded_decisions },
            EventKind::StateLost => Self::StateLost,
            _ => return None,
        })
    }

    /// Parses a line that [`TimedMessage`] wrote; `None` if it is no such line.
    pub(crate) fn parse(line: &str) -> Option<(Duration, Self)> {
        let mut fields = Fields(line.split(' '));
        let at = fields.time()?;
        let message = match fields.next()? {
            "finished" => Self::Finished(CallResult {
                outcome: fields.one_of(&OUTCOMES, outcome_name)?,
                reason: fields.one_of(&RejectionCode::ALL, RejectionCode::name)?,
                admitted: fields.flag()?,
                answered: fields.flag()?,
                elapsed: fields.time()?,
                degraded: fields.flag()?,
            }),
            "retried" => Self::Retried,
            "retry_denied" => Self::RetryDenied,
            "probed" => Self::Probed { from: fields.time()?, to: fields.time()?, degraded: fields.flag()? },
            "rejected" => Self::Rejected(fields.time()?),
            "breaker" => {
                let (from, to) = (fields.one_of(&PHASES, Phase::name)??, fields.one_of(&PHASES, Phase::name)??);
                let (epoch, break_for, degraded) = (fields.number()?, fields.time()?, fields.flag()?);
                let seen = Seen { calls: fields.number()?, failures: fields.number()?, slow: fields.number()? };
                let break_for = (to == Phase::Open).then_some(break_for);
                Self::BreakerChanged { change: Transition { from, to, epoch, break_for, seen }, degraded }
            }
            "status" => Self::Status(fields.status()?),
            "degraded" => Self::Degraded(fields.next()?.to_owned()),
            "recovered" => Self::Recovered { outage: fields.time()?, degraded_decisions: fields.number()? },
            "state_lost" => Self::StateLost,
            "ended" => Self::Ended,
            _ => return None,
        };
        Some((at, message))
    }
}

impl CallResult {
    fn of(outcome: Option<Outcome>, answered: bool, decision: &Decision) -> Self {
        let admitted = decision.verdict == Verdict::Admitted;
        let (reason, elapsed, degraded) = (decision.reason, decision.elapsed, decision.source == Source::Degraded);
        Self { outcome, reason, admitted, answered, elapsed, degraded }
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

/// A message and the time it was made, as one line: times in microseconds, `-` for none.
pub(crate) struct TimedMessage<'a>(pub(crate) Duration, pub(crate) &'a Message);

impl fmt::Display for TimedMessage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.0.as_micros())?;
        match self.1 {
            Message::Finished(call) => {
                let (outcome, reason) =
                    (call.outcome.map_or("-", outcome_name), call.reason.map_or("-", RejectionCode::name));
                let (admitted, answered, degraded) = (flag(call.admitted), flag(call.answered), flag(call.degraded));
                let elapsed = call.elapsed.as_micros();
                write!(f, "finished {outcome} {reason} {admitted} {answered} {elapsed} {degraded}")
            }
            Message::Retried => f.write_str("retried"),
            Message::RetryDenied => f.write_str("retry_denied"),
            Message::Probed { from, to, degraded } => {
                write!(f, "probed {} {} {}", from.as_micros(), to.as_micros(), flag(*degraded))
            }
            Message::Rejected(took) => write!(f, "rejected {}", took.as_micros()),
            Message::BreakerChanged { change, degraded } => {
                let Transition { from, to, epoch, break_for, seen } = change;
                let (from, to, degraded) = (from.name(), to.name(), flag(*degraded));
                let pause = break_for.unwrap_or_default().as_micros();
                write!(
                    f,
                    "breaker {from} {to} {epoch} {pause} {degraded} {} {} {}",
                    seen.calls, seen.failures, seen.slow
                )
            }
            Message::Status(ReplicaStatus { circuit, fleet }) => {
                let BreakerView { calls, failures, slow, probes, .. } = circuit;
                let left = circuit.break_left.unwrap_or_default().as_micros();
                write!(f, "status {} {calls} {failures} {slow} {probes} {left}", circuit.phase.name())?;
                fleet.map_or(Ok(()), |fleet| write!(f, " {} {}", flag(fleet.degraded), fleet.live))
            }
            Message::Degraded(reason) => write!(f, "degraded {reason}"),
            Message::Recovered { outage, degraded_decisions } => {
                write!(f, "recovered {} {degraded_decisions}", outage.as_micros())
            }
            Message::StateLost => f.write_str("state_lost"),
            Message::Ended => f.write_str("ended"),
        }
    }
}

const fn flag(set: bool) -> &'static str {
    if set { "yes" } else { "no" }
}

/// The fields of a line, one after the other.
struct Fields<'a>(std::str::Split<'a, char>);

impl<'a> Fields<'a> {
    fn next(&mut self) -> Option<&'a str> {
        self.0.next()
    }

    fn number(&mut self) -> Option<u64> {
        self.next()?.parse().ok()
    }

    fn time(&mut self) -> Option<Duration> {
        self.number().map(Duration::from_micros)
    }

    fn flag(&mut self) -> Option<bool> {
        self.next().map(|field| field == "yes")
    }

    /// The value whose name is the next field, `Some(None)` if there is none; `None` at the end of the line.
    fn one_of<T: Copy>(&mut self, all: &[T], name: impl Fn(T) -> &'static str) -> Option<Option<T>> {
        let field = self.next()?;
        Some(all.iter().copied().find(|one| name(*one) == field))
    }

    fn status(&mut self) -> Option<ReplicaStatus> {
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
        let fleet = self.flag().and_then(|degraded| Some(Membership { degraded, live: self.number()? as u32 }));
        Some(ReplicaStatus { circuit, fleet })
    }
}
