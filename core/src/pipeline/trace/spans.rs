//! The spans, where the feature `tracing` is on.

use std::time::Duration;

use tracing::field::Empty;
use tracing::instrument::{Instrument, Instrumented};
use tracing::{Span, debug_span, info_span, record_all, span};

use crate::breaker::Phase;
use crate::decision::{Decision, Verdict};
use crate::key::{StateKey, printable};
use crate::kind::{Kind, Outcome};
use crate::rejection::RejectionCode;

/// What is written on every span of a pipeline; nothing where calls are not traced.
pub(crate) struct Traced(Option<Box<Names>>);

struct Names {
    policy: Box<str>,
    route: Option<Box<str>>,
}

impl Traced {
    /// Names come from callers, so they are made harmless: once, not for every call.
    pub(crate) fn new(key: &StateKey, traced: bool) -> Self {
        let boxed = |name: &str| Box::from(&*printable(name));
        let route = if key.is_overflow() { Some("__other__") } else { key.route() };
        Self(traced.then(|| Box::new(Names { policy: boxed(key.policy()), route: route.map(boxed) })))
    }

    pub(crate) const fn any(&self) -> bool {
        self.0.is_some()
    }
}

/// The spans of one call under way; nothing where nobody wants to see them. Boxed, so that calls without spans do not
/// carry the room for them.
#[derive(Default)]
pub(crate) struct Trace(Option<Box<Live>>);

struct Live {
    call: Span,
    attempt: Attempt,
    /// The call failed and nobody has answered in its place so far.
    failed: bool,
}

/// The span of an attempt, while there is one. Dropped before its end, it was cancelled.
struct Attempt(Span);

/// Being inside a span, until it is dropped.
pub(crate) type Entered<'a> = Option<span::Entered<'a>>;

impl Trace {
    /// The span of a call that begins, inside the caller's.
    #[inline(always)]
    pub(crate) fn begin(traced: &Traced) -> Self {
        Self(traced.0.as_deref().and_then(Live::begin))
    }

    /// Whether there is a span to end.
    #[inline(always)]
    pub(crate) const fn is_live(&self) -> bool {
        self.0.is_some()
    }

    /// Goes inside the attempt's span; inside the call's, if there is none of the attempt.
    #[inline(always)]
    pub(crate) fn enter(&self) -> Entered<'_> {
        self.0.as_ref().map(|live| live.innermost().enter())
    }

    /// Goes inside the call's span.
    #[inline(always)]
    pub(crate) fn enter_call(&self) -> Entered<'_> {
        self.0.as_ref().map(|live| live.call.enter())
    }

    /// Another attempt begins, with so much time.
    #[inline(always)]
    pub(crate) fn begin_attempt(&mut self, number: u32, limit: Option<Duration>) {
        if let Some(live) = &mut self.0 {
            live.attempt = Attempt::begin(&live.call, number, limit, None);
        }
    }

    /// A copy of an attempt begins. What is returned is the copy's own.
    pub(crate) fn begin_copy(&self, number: u32, limit: Option<Duration>, copy: u32) -> Self {
        Self(self.0.as_ref().map(|live| {
            let attempt = Attempt::begin(&live.call, number, limit, Some(copy));
            Box::new(Live { call: live.call.clone(), attempt, failed: false })
        }))
    }

    /// The attempt under way, if any, is over.
    #[inline(always)]
    pub(crate) fn end_attempt(&mut self, outcome: Outcome, kind: Option<Kind>) {
        if let Some(live) = &mut self.0 {
            live.attempt.end(outcome, kind);
        }
    }

    /// A copy answers in the attempt's place: it is the copy whose end is still to come.
    pub(crate) fn adopt(&mut self, copy: &mut Self) {
        if let (Some(own), Some(copy)) = (&mut self.0, &mut copy.0) {
            std::mem::swap(&mut own.attempt, &mut copy.attempt);
        }
    }

    /// The call is over, but for a fallback's answer. `guarded` says whether a breaker watches it.
    pub(crate) fn end(&mut self, outcome: Option<Outcome>, kind: Option<Kind>, decision: &Decision, guarded: bool) {
        if let Some(live) = &mut self.0 {
            live.end(outcome, kind, decision, guarded);
        }
    }

    /// A fallback answered: the caller knows of no failure.
    pub(crate) fn degrade(&mut self) {
        if let Some(live) = &mut self.0 {
            live.failed = false;
            // Said aloud: an exporter may have taken a line at ERROR for the call's end.
            record_all!(live.call, degraded = true, otel.status_code = "OK");
        }
    }
}

impl Live {
    /// None if the subscriber does not want it, which the macro knows without asking again.
    #[inline(never)] // or calls that are not traced pay for the room it takes
    fn begin(names: &Names) -> Option<Box<Self>> {
        let call = info_span!(
            target: "phalanx",
            "phalanx.call",
            policy = &*names.policy,
            route = names.route.as_deref(),
            attempts = Empty,
            outcome = Empty,
            code = Empty,
            error.type = Empty,
            breaker_state = Empty,
            deadline_remaining_ms = Empty,
            source = Empty,
            hedge_won = Empty,
            degraded = Empty,
            otel.status_code = Empty,
        );
        if call.is_disabled() {
            return None;
        }
        Some(Box::new(Self { call, attempt: Attempt(Span::none()), failed: false }))
    }

    fn innermost(&self) -> &Span {
        if self.attempt.0.is_disabled() { &self.call } else { &self.attempt.0 }
    }

    #[cold]
    fn end(&mut self, outcome: Option<Outcome>, kind: Option<Kind>, decision: &Decision, guarded: bool) {
        self.failed = is_failure(outcome);
        record_all!(
            self.call,
            attempts = decision.attempts,
            outcome = outcome.map_or("rejected", Outcome::name),
            code = decision.reason.map(RejectionCode::name),
            error.type = kind.map(Kind::name),
            breaker_state = circuit_met(decision).filter(|_| guarded).map(Phase::name),
            deadline_remaining_ms = decision.deadline_remaining.map(millis),
            source = decision.source.name(),
            hedge_won = (decision.hedges > 0).then_some(decision.hedge_won),
        );
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        if self.failed {
            self.call.record("otel.status_code", "ERROR");
        }
    }
}

impl Attempt {
    fn begin(call: &Span, number: u32, limit: Option<Duration>, copy: Option<u32>) -> Self {
        Self(debug_span!(
            target: "phalanx",
            parent: call,
            "phalanx.attempt",
            attempt = number,
            timeout_ms = limit.map(millis),
            hedge = copy,
            outcome = Empty,
            error.type = Empty,
            otel.status_code = Empty,
        ))
    }

    fn end(&mut self, outcome: Outcome, kind: Option<Kind>) {
        let span = std::mem::replace(&mut self.0, Span::none());
        record_all!(
            span,
            outcome = outcome.name(),
            error.type = kind.map(Kind::name),
            otel.status_code = is_failure(Some(outcome)).then_some("ERROR"),
        );
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if !self.0.is_disabled() {
            self.0.record("outcome", Outcome::Cancelled.name());
        }
    }
}

/// Whether it ended without doing what it was for. That the caller went away is no failure, and neither is a "no" of the
/// domain.
const fn is_failure(outcome: Option<Outcome>) -> bool {
    !matches!(outcome, Some(Outcome::Success | Outcome::Cancelled))
}

/// The phase that the circuit showed to this call; none if it was not asked.
const fn circuit_met(decision: &Decision) -> Option<Phase> {
    match (decision.reason, decision.verdict) {
        (Some(RejectionCode::CircuitOpen | RejectionCode::ForcedOpen), Verdict::Rejected) => Some(Phase::Open),
        (Some(RejectionCode::ProbeQuota), Verdict::Rejected) => Some(Phase::HalfOpen),
        (_, Verdict::Rejected) => None,
        (_, Verdict::Admitted) if decision.probe => Some(Phase::HalfOpen),
        (_, Verdict::Admitted) => Some(Phase::Closed),
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Work that another task does: it stays inside the span that is current now.
pub(crate) fn carried<F>(work: F) -> Instrumented<F> {
    work.in_current_span()
}
