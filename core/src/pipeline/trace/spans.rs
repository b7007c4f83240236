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

/// The names on every span of a pipeline; none where calls are not traced.
pub(crate) struct SpanNames(Option<Box<Names>>);

struct Names {
    policy: Box<str>,
    route: Option<Box<str>>,
}

impl SpanNames {
    /// Names come from callers, so control characters are escaped: once, not for every call.
    pub(crate) fn new(key: &StateKey, traced: bool) -> Self {
        let boxed = |name: &str| Box::from(&*printable(name));
        let route = if key.is_overflow() { Some("__other__") } else { key.route() };
        Self(traced.then(|| Box::new(Names { policy: boxed(key.policy()), route: route.map(boxed) })))
    }

    pub(crate) const fn any(&self) -> bool {
        self.0.is_some()
    }
}

/// The spans of one call; none if it is not traced. Boxed, so that calls without spans do not carry the memory for them.
#[derive(Default)]
pub(crate) struct Trace(Option<Box<Live>>);

struct Live {
    call: Span,
    attempt: Attempt,
    /// The call failed, and no fallback has answered.
    failed: bool,
}

/// The span of an attempt; [`Span::none`] between attempts. Dropped before its end, it ends as cancelled.
struct Attempt(Span);

/// Leaves the span when dropped.
pub(crate) type Entered<'a> = Option<span::Entered<'a>>;

impl Trace {
    /// Begins the span of a call, as a child of the current one.
    #[inline(always)]
    pub(crate) fn begin(names: &SpanNames) -> Self {
        Self(names.0.as_deref().and_then(Live::begin))
    }

    /// Whether the call has a span.
    #[inline(always)]
    pub(crate) const fn is_live(&self) -> bool {
        self.0.is_some()
    }

    /// Enters the span of the attempt, or that of the call between attempts.
    #[inline(always)]
    pub(crate) fn enter(&self) -> Entered<'_> {
        self.0.as_ref().map(|live| live.innermost().enter())
    }

    /// Enters the span of the call.
    #[inline(always)]
    pub(crate) fn enter_call(&self) -> Entered<'_> {
        self.0.as_ref().map(|live| live.call.enter())
    }

    /// Begins the span of an attempt with this time limit.
    #[inline(always)]
    pub(crate) fn begin_attempt(&mut self, number: u32, limit: Option<Duration>) {
        if let Some(live) = &mut self.0 {
            live.attempt = Attempt::begin(&live.call, number, limit, None);
        }
    }

    /// Begins the span of a hedge and returns it.
    pub(crate) fn begin_hedge(&self, number: u32, limit: Option<Duration>, hedge: u32) -> Self {
        Self(self.0.as_ref().map(|live| {
            let attempt = Attempt::begin(&live.call, number, limit, Some(hedge));
            Box::new(Live { call: live.call.clone(), attempt, failed: false })
        }))
    }

    /// Ends the span of the attempt, if one is under way.
    #[inline(always)]
    pub(crate) fn end_attempt(&mut self, outcome: Outcome, kind: Option<Kind>) {
        if let Some(live) = &mut self.0 {
            live.attempt.end(outcome, kind);
        }
    }

    /// Swaps the span of the attempt with that of the hedge that answered, which is then the one to end.
    pub(crate) fn adopt(&mut self, hedge: &mut Self) {
        if let (Some(own), Some(hedge)) = (&mut self.0, &mut hedge.0) {
            std::mem::swap(&mut own.attempt, &mut hedge.attempt);
        }
    }

    /// Records the end of the call, before a fallback answers.
    pub(crate) fn end(&mut self, outcome: Option<Outcome>, kind: Option<Kind>, decision: &Decision, has_breaker: bool) {
        if let Some(live) = &mut self.0 {
            live.end(outcome, kind, decision, has_breaker);
        }
    }

    /// Records that a fallback answered: the caller sees no failure.
    pub(crate) fn mark_degraded(&mut self) {
        if let Some(live) = &mut self.0 {
            live.failed = false;
            // Set explicitly: an exporter may have taken a log line at ERROR for the status of the call.
            record_all!(live.call, degraded = true, otel.status_code = "OK");
        }
    }
}

impl Live {
    /// Returns none if the subscriber does not enable the span.
    #[inline(never)] // inlined, it would enlarge the walk of calls that are not traced
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
    fn end(&mut self, outcome: Option<Outcome>, kind: Option<Kind>, decision: &Decision, has_breaker: bool) {
        self.failed = is_failure(outcome);
        record_all!(
            self.call,
            attempts = decision.attempts,
            outcome = outcome.map_or("rejected", Outcome::name),
            code = decision.reason.map(RejectionCode::name),
            error.type = kind.map(Kind::name),
            breaker_state = phase_seen(decision).filter(|_| has_breaker).map(Phase::name),
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
    fn begin(call: &Span, number: u32, limit: Option<Duration>, hedge: Option<u32>) -> Self {
        Self(debug_span!(
            target: "phalanx",
            parent: call,
            "phalanx.attempt",
            attempt = number,
            timeout_ms = limit.map(millis),
            hedge,
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

/// Whether the span's status is ERROR: neither for a success nor for a caller that dropped the future. A rejection by the
/// domain counts as a success of the dependency.
const fn is_failure(outcome: Option<Outcome>) -> bool {
    !matches!(outcome, Some(Outcome::Success | Outcome::Cancelled))
}

/// Returns the phase in which the breaker was when it was asked about this call; none if it was not asked.
const fn phase_seen(decision: &Decision) -> Option<Phase> {
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

/// Wraps work that is spawned on another task, so that it runs inside the current span.
pub(crate) fn in_current_span<F>(work: F) -> Instrumented<F> {
    work.in_current_span()
}
