//! The series of one policy and route: observes the events of its pipeline.

use std::sync::{Arc, OnceLock};

use opentelemetry::{KeyValue, StringValue};
use phalanx_core::breaker::Phase;
use phalanx_core::decision::Decision;
use phalanx_core::event::{Event, EventKind, Observer};
use phalanx_core::kind::{Kind, Outcome};
use phalanx_core::policy::Stage;
use phalanx_core::rejection::{RejectionCode, Source};

use super::instruments::Instruments;
use super::names::{CODE, ERROR_TYPE, LIMIT, OUTCOME, POLICY, REASON, ROUTE, SOURCE, STATE};
use super::tally::Tally;
use super::timed::Timed;

const OUTCOMES: [&str; 5] = ["success", "failure", "neutral", "rejected", "cancelled"];
const SOURCES: [Source; 6] =
    [Source::Fleet, Source::Leased, Source::Local, Source::Degraded, Source::Forced, Source::Shadow];
const END_COUNT: usize = OUTCOMES.len() * SOURCES.len();
const PHASE_COUNT: usize = 3;

/// Attributes sorted by name, so that an SDK need not sort them.
type Attributes<const N: usize> = [KeyValue; N];

/// The series of one policy and route.
#[derive(Debug)]
pub(super) struct Series {
    pub(super) number: usize,
    instruments: Arc<Instruments>,
    pub(super) attributes: Attributes<2>,
    by_outcome: [Timed; OUTCOMES.len()],
    by_code: [OnceLock<Box<Attributes<3>>>; RejectionCode::ALL.len()],
    by_kind: [OnceLock<Box<Attributes<3>>>; Kind::ALL.len()],
    pub(super) by_phase: [Attributes<3>; PHASE_COUNT],
    ends: Tally<END_COUNT>,
}

impl Series {
    pub(super) fn new(number: usize, policy: &str, route: &str, instruments: Arc<Instruments>) -> Self {
        let name = |name: &str| StringValue::from(Arc::<str>::from(name));
        let attributes = [KeyValue::new(POLICY, name(policy)), KeyValue::new(ROUTE, name(route))];
        let [policy, route] = &attributes;
        let by_outcome =
            OUTCOMES.map(|outcome| Timed::new([KeyValue::new(OUTCOME, outcome), policy.clone(), route.clone()]));
        let phases = [Phase::Closed, Phase::Open, Phase::HalfOpen];
        let by_phase = phases.map(|phase| [policy.clone(), route.clone(), KeyValue::new(STATE, state(phase))]);
        Self {
            number,
            by_outcome,
            by_code: [const { OnceLock::new() }; RejectionCode::ALL.len()],
            by_kind: [const { OnceLock::new() }; Kind::ALL.len()],
            by_phase,
            ends: Tally::new(),
            attributes,
            instruments,
        }
    }

    /// Returns how many calls ended with each outcome and source, with the attributes of each.
    pub(super) fn ends(&self) -> impl Iterator<Item = (u64, Attributes<4>)> {
        let [policy, route] = &self.attributes;
        let counted = self.ends.sums().into_iter().enumerate().filter(|(_, count)| *count > 0);
        counted.map(move |(end, count)| {
            let (outcome, source) = (OUTCOMES[end / SOURCES.len()], SOURCES[end % SOURCES.len()]);
            let (outcome, source) = (KeyValue::new(OUTCOME, outcome), KeyValue::new(SOURCE, source.name()));
            (count, [outcome, policy.clone(), route.clone(), source])
        })
    }

    #[inline]
    fn finished(&self, outcome: Option<Outcome>, decision: &Decision) {
        let won = decision.hedge_won && outcome == Some(Outcome::Success);
        let (outcome, instruments) = (outcome_number(outcome), &*self.instruments);
        self.ends.add(outcome * SOURCES.len() + source_number(decision.source));
        self.by_outcome[outcome].record(&instruments.duration, decision.elapsed);
        if let Some(left) = decision.deadline_remaining {
            instruments.deadline_remaining.record(left.as_secs_f64(), &self.attributes);
        }
        if let Some(code) = decision.reason {
            self.rejected(code);
            if let Some(limit) = decision.limit.filter(|_| decision.stage == Some(Stage::RateLimit)) {
                self.rejected_by(limit);
            }
        }
        if won {
            instruments.hedges_won.add(1, &self.attributes);
        }
    }

    #[cold]
    fn rejected(&self, code: RejectionCode) {
        if let Some(attributes) = self.by_code.get(code as usize) {
            let [policy, route] = &self.attributes;
            let make = || Box::new([KeyValue::new(CODE, code.name()), policy.clone(), route.clone()]);
            self.instruments.rejections.add(1, &**attributes.get_or_init(make));
        }
    }

    #[cold]
    fn rejected_by(&self, limit: &'static str) {
        let [policy, route] = self.attributes.clone();
        self.instruments.limit_rejections.add(1, &[KeyValue::new(LIMIT, limit), policy, route]);
    }

    #[cold]
    fn count(&self, kind: &EventKind<'_>) {
        let (to, attributes) = (&*self.instruments, &self.attributes);
        let [policy, route] = attributes;
        match kind {
            EventKind::Retry { kind, .. } => {
                if let Some(attributes) = self.by_kind.get(*kind as usize) {
                    let make = || Box::new([KeyValue::new(ERROR_TYPE, kind.name()), policy.clone(), route.clone()]);
                    to.retries.add(1, &**attributes.get_or_init(make));
                }
            }
            EventKind::RetryBudgetExhausted => self.retry_denied("budget"),
            EventKind::RetryAbandoned { .. } => self.retry_denied("deadline"),
            EventKind::AttemptTimeout { .. } => to.timeouts.add(1, attributes),
            EventKind::Hedge { .. } => to.hedges.add(1, attributes),
            EventKind::HedgeBudgetExhausted => to.hedges_denied.add(1, attributes),
            EventKind::FallbackServed { .. } => to.fallbacks.add(1, attributes),
            EventKind::FleetShareLapsed { calls } => to.fleet_lapsed.add(u64::from(*calls), &[]),
            EventKind::Transition(change) => to.transitions.add(1, &self.by_phase[phase_number(change.to)]),
            _ => {}
        }
    }

    fn retry_denied(&self, reason: &'static str) {
        let [policy, route] = self.attributes.clone();
        self.instruments.retries_denied.add(1, &[policy, KeyValue::new(REASON, reason), route]);
    }
}

impl Observer for Series {
    #[inline]
    fn on_event(&self, event: &Event<'_>) {
        match &event.kind {
            EventKind::Finished { outcome, decision, .. } => self.finished(*outcome, decision),
            kind => self.count(kind),
        }
    }
}

const fn outcome_number(outcome: Option<Outcome>) -> usize {
    match outcome {
        Some(Outcome::Success) => 0,
        Some(Outcome::Failure) => 1,
        Some(Outcome::Neutral) => 2,
        None => 3,
        Some(Outcome::Cancelled) => 4,
    }
}

const fn source_number(source: Source) -> usize {
    match source {
        Source::Fleet => 0,
        Source::Leased => 1,
        Source::Local => 2,
        Source::Degraded => 3,
        Source::Forced => 4,
        Source::Shadow => 5,
    }
}

pub(super) const fn phase_number(phase: Phase) -> usize {
    match phase {
        Phase::Closed => 0,
        Phase::Open => 1,
        Phase::HalfOpen => 2,
    }
}

const fn state(phase: Phase) -> &'static str {
    match phase {
        Phase::Closed => "closed",
        Phase::Open => "open",
        Phase::HalfOpen => "half_open",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_match_names() {
        assert!(SOURCES.iter().enumerate().all(|(number, source)| source_number(*source) == number));
        assert!(RejectionCode::ALL.iter().enumerate().all(|(number, code)| *code as usize == number));
        assert!(Kind::ALL.iter().enumerate().all(|(number, kind)| *kind as usize == number));
        assert_eq!(OUTCOMES[outcome_number(None)], "rejected");
        assert_eq!(OUTCOMES[outcome_number(Some(Outcome::Cancelled))], "cancelled");
    }
}
