//! Log lines: an observer that writes events through `tracing`, each at the level of its row in `docs/telemetry.md`.
//!
//! * Events of single calls and of breakers are sampled (`sample.rs`): one line in ten seconds, and the next line has the
//!   number of suppressed ones.
//! * Overrides, levers, and events of the store and the process are all written; they are rare.
//! * A level that no subscriber in the process enables costs one comparison, and is neither written nor counted.
//! * Names and reasons come from callers and servers, so control characters in them are escaped.
//!
//! Events of a call are emitted inside its span, so a line also has the fields of the span.

mod calls;
mod sample;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::time::Duration;

use phalanx_core::breaker::{Phase, Transition};
use phalanx_core::clock::Clock;
use phalanx_core::event::{Event, EventKind, Observer};
use phalanx_core::key::{StateKey, printable};

use self::sample::{Line, Samples};

/// Writes a sampled line. The level is checked first, so that disabled lines are not counted as suppressed. Only the global
/// maximum level is checked: asking a subscriber whether an event is enabled and then not emitting it can make a layer drop
/// the application's next event (tokio-rs/tracing#2519).
macro_rules! sampled {
    ($log:expr, $level:ident, $line:expr, $key:expr, $message:literal $(, $field:ident = $value:expr)* $(,)?) => {
        if tracing::level_filters::LevelFilter::current() >= tracing::Level::$level
            && let Some(suppressed) = $log.samples.admit($line, $key, $log.clock.now())
        {
            let suppressed = (suppressed > 0).then_some(suppressed);
            let event = $line.name();
            keyed!($level, event, $key, $message $(, $field = $value)*, suppressed = suppressed);
        }
    };
}

/// Writes a line about one policy and route.
macro_rules! keyed {
    ($level:ident, $event:expr, $key:expr, $message:literal $(, $field:ident = $value:expr)* $(,)?) => {
        tracing::event!(
            target: "phalanx",
            tracing::Level::$level,
            event = $event,
            policy = &*$crate::telemetry::log::policy($key),
            route = $crate::telemetry::log::route($key).as_deref(),
            $($field = $value,)*
            $message
        )
    };
}

/// Writes a line about the process or the store.
macro_rules! plain {
    ($level:ident, $event:literal, $message:literal $(, $field:ident = $value:expr)* $(,)?) => {
        tracing::event!(target: "phalanx", tracing::Level::$level, event = $event, $($field = $value,)* $message)
    };
}

use {keyed, sampled};

/// Writes events as log lines.
pub(crate) struct Log {
    clock: Clock,
    samples: Samples,
}

impl Log {
    /// The clock is used for sampling.
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, samples: Samples::default() }
    }

    /// Writes an event of one policy and route.
    fn on_key(&self, key: &StateKey, kind: &EventKind<'_>) {
        match *kind {
            EventKind::Finished { outcome, kind, decision } => self.on_finished(key, outcome, kind, decision),
            EventKind::Transition(ref change) => self.on_transition(key, change),
            EventKind::Override(Some(set)) => {
                keyed!(WARN, "override_set", key, "an operator overrode the breaker", state = set.name());
            }
            EventKind::Override(None) => {
                keyed!(INFO, "override_released", key, "an operator released the override of the breaker");
            }
            EventKind::NearLimit { remaining, burst } => {
                let line = Line::NearLimit;
                sampled!(
                    self,
                    INFO,
                    line,
                    key,
                    "the rate limit is nearly used up",
                    remaining = remaining,
                    burst = burst
                );
            }
            EventKind::LimitLowered(lowered) => {
                let (from, to) = (lowered.from, lowered.to);
                sampled!(self, INFO, Line::LimitLowered, key, "the limit was lowered", from = from, to = to);
            }
            EventKind::StateRepaired => {
                sampled!(self, WARN, Line::StateRepaired, key, "invalid shared state was replaced");
            }
            EventKind::ConfigMismatch => {
                let line = Line::ConfigMismatch;
                sampled!(self, WARN, line, key, "another replica uses different numbers for this policy");
            }
            EventKind::FleetShareLapsed { calls } => {
                let line = Line::FleetShareLapsed;
                sampled!(
                    self,
                    WARN,
                    line,
                    key,
                    "calls were in flight without a share of the fleet's slots",
                    calls = calls
                );
            }
            EventKind::OddReplica { break_for } => {
                let retry_after = millis(break_for);
                keyed!(
                    WARN,
                    "odd_replica",
                    key,
                    "the calls of this replica fail and those of the others do not: it rejects them on its own",
                    retry_after_ms = retry_after
                );
            }
            EventKind::Retuned { version } => {
                sampled!(self, DEBUG, Line::Retuned, key, "the policy was changed", version = version);
            }
            EventKind::RoutesExhausted => {
                // Every such event has another route, so they are sampled per policy.
                let policy = StateKey::new(key.policy(), ());
                sampled!(
                    self,
                    WARN,
                    Line::RoutesExhausted,
                    &policy,
                    "the route limit is reached: new routes share one state"
                );
            }
            EventKind::TagsExhausted => {
                let policy = StateKey::new(key.policy(), ());
                sampled!(
                    self,
                    WARN,
                    Line::TagsExhausted,
                    &policy,
                    "the limit of tag values is reached: new values share one bucket"
                );
            }
            ref other => self.on_attempt(key, other),
        }
    }

    /// Sampled too: a flapping breaker, or one on each of many routes, writes many lines.
    fn on_transition(&self, key: &StateKey, change: &Transition) {
        let (from, seen) = (change.from.name(), change.seen);
        match change.to {
            Phase::Open => {
                let (failures, calls) = (seen.failures, seen.calls);
                let (slow, break_ms) = (seen.slow, change.break_for.map(millis));
                sampled!(
                    self,
                    WARN,
                    Line::CircuitOpened,
                    key,
                    "the circuit opened",
                    from = from,
                    failures = failures,
                    slow = slow,
                    calls = calls,
                    break_ms = break_ms
                );
            }
            Phase::HalfOpen => {
                sampled!(
                    self,
                    INFO,
                    Line::CircuitHalfOpen,
                    key,
                    "the circuit is half-open: probes are sent",
                    from = from
                );
            }
            Phase::Closed => sampled!(self, INFO, Line::CircuitClosed, key, "the circuit closed", from = from),
        }
    }
}

impl Observer for Log {
    fn on_event(&self, event: &Event<'_>) {
        match event.key {
            Some(key) => self.on_key(key, &event.kind),
            None => on_process(&event.kind),
        }
    }
}

/// Writes an event of the process or the store.
fn on_process(kind: &EventKind<'_>) {
    match *kind {
        EventKind::StoreSlow { share } => {
            plain!(WARN, "store_slow", "the shared store replies too late for many decisions", share = share);
        }
        EventKind::ExpectedReplicasUnknown => plain!(
            WARN,
            "expected_replicas_unknown",
            "expected_replicas is not set: a replica that never reached the shared store decides as if it were alone"
        ),
        EventKind::StoreDegraded { reason } => {
            let reason = printable(reason);
            plain!(
                WARN,
                "store_degraded",
                "the shared store does not answer: decisions are degraded",
                reason = &*reason
            );
        }
        EventKind::StoreRecovered { outage, degraded_decisions } => {
            let outage = millis(outage);
            plain!(
                INFO,
                "store_recovered",
                "the shared store answers again",
                outage_ms = outage,
                degraded_decisions = degraded_decisions
            );
        }
        EventKind::StoreConnected { server, version } => {
            let (server, version) = (printable(server), version.map(printable));
            let version = version.as_deref();
            plain!(INFO, "store_connected", "connected to the shared store", server = &*server, version = version);
        }
        EventKind::StoreConnectFailed { reason } => {
            let reason = printable(reason);
            plain!(WARN, "store_connect_failed", "connecting to the shared store fails", reason = &*reason);
        }
        EventKind::PushLost { reason } => {
            let reason = printable(reason);
            plain!(WARN, "push_lost", "pushes are lost: changes by other replicas are seen late", reason = &*reason);
        }
        EventKind::PushRestored => plain!(INFO, "push_restored", "pushes arrive again"),
        EventKind::Lever { policy, lever: Some(lever) } => {
            let (policy, pulled) = (printable(policy), lever.pulled().collect::<Vec<_>>().join(", "));
            let reason = lever.reason.as_deref().map(printable);
            let reason = reason.as_deref();
            plain!(WARN, "lever_pulled", "a lever is pulled", policy = &*policy, lever = &*pulled, reason = reason);
        }
        EventKind::Lever { policy, lever: None } => {
            let policy = printable(policy);
            plain!(INFO, "lever_released", "a lever was released", policy = &*policy);
        }
        EventKind::ConfigApplied { changed } => {
            plain!(INFO, "config_applied", "a new configuration was applied", changed = changed);
        }
        EventKind::ConfigRejected { reason } => {
            let reason = printable(reason);
            plain!(
                WARN,
                "config_rejected",
                "a new configuration was rejected: the old one stays in force",
                reason = &*reason
            );
        }
        EventKind::StateLost => plain!(WARN, "state_lost", "the shared store lost its state"),
        EventKind::Replicas { live } => plain!(DEBUG, "replicas", "the number of live replicas changed", live = live),
        EventKind::Draining { in_flight } => {
            plain!(INFO, "draining", "draining: new calls are rejected", in_flight = in_flight);
        }
        EventKind::Drained(drained) => {
            let (leftovers, stuck, elapsed) = (drained.leftovers, drained.stuck, millis(drained.elapsed));
            plain!(
                INFO,
                "drained",
                "the drain has ended",
                in_flight = drained.in_flight,
                leftovers = leftovers,
                stuck = stuck,
                elapsed_ms = elapsed
            );
        }
        EventKind::StepFailed { step, reason } => {
            let (step, reason) = (printable(step), printable(reason));
            plain!(ERROR, "step_failed", "a lifecycle step failed", step = &*step, reason = &*reason);
        }
        EventKind::LockLost { lock, fence } => {
            let lock = printable(lock);
            plain!(ERROR, "lock_lost", "a lock was lost while it was held", lock = &*lock, fence = fence);
        }
        // `EventKind` is non-exhaustive.
        _ => {}
    }
}

/// The policy's name, escaped.
fn policy(key: &StateKey) -> Cow<'_, str> {
    printable(key.policy())
}

/// The route's name, escaped; `None` for calls without a route.
fn route(key: &StateKey) -> Option<Cow<'_, str>> {
    if key.is_overflow() { Some(Cow::Borrowed("__other__")) } else { key.route().map(printable) }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
