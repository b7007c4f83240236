//! Log lines of calls and attempts. All of them are sampled.

use phalanx_core::chaos::InjectedFault;
use phalanx_core::decision::Decision;
use phalanx_core::event::EventKind;
use phalanx_core::key::StateKey;
use phalanx_core::kind::{Kind, Outcome};
use phalanx_core::rejection::RejectionCode;

use super::sample::Line;
use super::{Log, keyed, millis, on_process, sampled};

impl Log {
    /// Writes an event of an attempt, a hedge or a fallback.
    pub(super) fn on_attempt(&self, key: &StateKey, kind: &EventKind<'_>) {
        match *kind {
            EventKind::Retry { attempt, delay, kind } => {
                let (delay, kind) = (millis(delay), kind.name());
                sampled!(
                    self,
                    WARN,
                    Line::RetryAttempt,
                    key,
                    "an attempt failed and is retried",
                    attempt = attempt,
                    retry_delay_ms = delay,
                    kind = kind
                );
            }
            EventKind::AttemptTimeout { attempt, limit } => {
                let limit = millis(limit);
                sampled!(self, WARN, Line::Timeout, key, "an attempt timed out", attempt = attempt, timeout_ms = limit);
            }
            EventKind::RetryBudgetExhausted => {
                sampled!(self, WARN, Line::RetryBudget, key, "no retry: the retry budget is exhausted");
            }
            EventKind::RetryAbandoned { delay } => {
                let delay = millis(delay);
                sampled!(
                    self,
                    DEBUG,
                    Line::RetryAbandoned,
                    key,
                    "no retry: the wait would exceed the deadline",
                    retry_delay_ms = delay
                );
            }
            EventKind::Hedge { hedge, delay } => {
                let delay = millis(delay);
                sampled!(
                    self,
                    DEBUG,
                    Line::Hedge,
                    key,
                    "a hedge was sent for a slow attempt",
                    hedge = hedge,
                    hedge_delay_ms = delay
                );
            }
            EventKind::HedgeBudgetExhausted => {
                sampled!(self, DEBUG, Line::HedgeBudget, key, "no hedge: the hedge budget is exhausted");
            }
            EventKind::FaultInjected(fault) => {
                let delay = match fault {
                    InjectedFault::Latency(delay) => Some(millis(delay)),
                    InjectedFault::Error | InjectedFault::Rejection => None,
                };
                sampled!(
                    self,
                    WARN,
                    Line::FaultInjected,
                    key,
                    "the lever `chaos` injected a fault",
                    fault = fault.name(),
                    injected_delay_ms = delay
                );
            }
            EventKind::FallbackServed { kind } => {
                let kind = kind.name();
                sampled!(self, INFO, Line::FallbackUsed, key, "a fallback answered", kind = kind);
            }
            ref other => on_process(other),
        }
    }

    /// Writes a line for a rejected or failed call. Successful calls write none.
    #[inline]
    pub(super) fn on_finished(
        &self,
        key: &StateKey,
        outcome: Option<Outcome>,
        kind: Option<Kind>,
        decision: &Decision,
    ) {
        if decision.reason.is_some() || decision.attempts > 1 {
            self.on_rejected_or_failed(key, outcome, kind, decision);
        }
    }

    fn on_rejected_or_failed(&self, key: &StateKey, outcome: Option<Outcome>, kind: Option<Kind>, decision: &Decision) {
        let reason = decision.reason;
        let exhausted = decision.attempts > 1 && matches!(outcome, Some(Outcome::Failure | Outcome::Neutral));
        if let (Some(kind), true) = (kind, exhausted && reason != Some(RejectionCode::Draining)) {
            let (attempts, elapsed) = (decision.attempts, millis(decision.elapsed));
            let (kind, code) = (kind.name(), reason.map(RejectionCode::name));
            sampled!(
                self,
                ERROR,
                Line::RetryExhausted,
                key,
                "all attempts failed",
                attempts = attempts,
                kind = kind,
                code = code,
                elapsed_ms = elapsed
            );
            return;
        }
        let Some(reason) = reason else { return };
        let (code, source, after) = (reason.name(), decision.source.name(), decision.retry_after.map(millis));
        match reason {
            RejectionCode::CircuitOpen | RejectionCode::ProbeQuota | RejectionCode::ForcedOpen => {
                sampled!(
                    self,
                    WARN,
                    Line::CircuitRejected,
                    key,
                    "the circuit rejected a call",
                    code = code,
                    source = source,
                    retry_after_ms = after
                );
            }
            RejectionCode::BulkheadFull | RejectionCode::BulkheadQueueShed | RejectionCode::BulkheadQueueTimeout => {
                sampled!(self, WARN, Line::BulkheadRejected, key, "the bulkhead rejected a call", code = code);
            }
            RejectionCode::FleetBulkheadFull => {
                sampled!(
                    self,
                    WARN,
                    Line::FleetFull,
                    key,
                    "all slots of the fleet are taken",
                    code = code,
                    source = source
                );
            }
            RejectionCode::RateLimited => {
                sampled!(
                    self,
                    WARN,
                    Line::RateLimited,
                    key,
                    "the rate limit rejected a call",
                    code = code,
                    limit = decision.limit,
                    source = source,
                    retry_after_ms = after
                );
            }
            RejectionCode::AdaptiveThrottle => {
                sampled!(self, WARN, Line::Throttled, key, "the throttle shed a call", code = code);
            }
            RejectionCode::DeadlineExceeded => {
                let (attempts, elapsed) = (decision.attempts, millis(decision.elapsed));
                sampled!(
                    self,
                    WARN,
                    Line::DeadlineExceeded,
                    key,
                    "the deadline was exceeded",
                    code = code,
                    attempts = attempts,
                    elapsed_ms = elapsed
                );
            }
            RejectionCode::Draining => {
                sampled!(
                    self,
                    INFO,
                    Line::DrainRejected,
                    key,
                    "a call was rejected while draining",
                    code = code,
                    retry_after_ms = after
                );
            }
            RejectionCode::AttemptTimeout => {} // the attempt has its own line
            _ => {
                sampled!(
                    self,
                    WARN,
                    Line::Rejected,
                    key,
                    "a call was rejected",
                    code = code,
                    source = source,
                    retry_after_ms = after
                );
            }
        }
    }
}
