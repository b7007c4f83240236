//! An observer that records events, with assertions on them and on decision records.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use phalanx::describe::{Outcome, Transition};
use phalanx::policy::LeverSpec;
use phalanx::store::StateKey;
use phalanx::{Decision, Event, EventKind, Kind, Observer, RejectionCode, Verdict};
use tokio::time::Instant;

/// Records the events of a module. Clones share the record.
///
/// Every assertion that fails prints the recorded events, one line each, with the time since the recorder was created.
///
/// # Examples
/// ```
/// use phalanx::{BreakerSpec, EventKind, Kind, Policy, RejectionCode, ResilienceModule};
/// use phalanx_testkit::{Recorder, Scripted};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), phalanx::ConfigError> {
/// let recorder = Recorder::new();
/// let vendor = Policy::named("vendor").breaker(BreakerSpec::consecutive_failures(2));
/// let module = ResilienceModule::in_memory().policy(vendor).observer(recorder.clone()).build()?;
///
/// let down = Scripted::<()>::new().then_fail();
/// for _ in 0..3 {
///     let _ = module.run("vendor", "eu", || down.call()).await;
/// }
/// recorder.assert_kinds(["Finished", "Transition", "Finished", "Finished"]);
/// recorder.assert_emitted(|event| matches!(event.kind, EventKind::Finished { kind: Some(Kind::Infrastructure), .. }));
/// recorder.assert_transitions(["closed -> open"]);
/// recorder.assert_rejected(RejectionCode::CircuitOpen); // the last call
/// assert_eq!(down.calls(), 2);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Recorder {
    created: Instant,
    events: Arc<Mutex<Vec<Recorded>>>,
}

/// One event with owned data.
#[derive(Clone)]
struct Recorded {
    at: Duration,
    key: Option<StateKey>,
    kind: OwnedKind,
}

/// An event kind without borrowed data: what borrows is kept beside it.
#[derive(Clone)]
enum OwnedKind {
    Plain(EventKind<'static>),
    Finished {
        outcome: Option<Outcome>,
        kind: Option<Kind>,
        decision: Decision,
    },
    Lever {
        policy: String,
        lever: Option<LeverSpec>,
    },
    ConfigRejected {
        reason: String,
    },
    StoreDegraded {
        reason: String,
    },
    StoreConnected {
        server: String,
        version: Option<String>,
    },
    StoreConnectFailed {
        reason: String,
    },
    PushLost {
        reason: String,
    },
    StoreRoundTrip {
        took: Duration,
        failed: Option<String>,
    },
    StepFailed {
        step: String,
        reason: String,
    },
    LockLost {
        lock: String,
        fence: u64,
    },
    /// A kind that is newer than this crate: it can be printed and counted.
    Newer(String),
}

impl Recorder {
    /// Creates a recorder without events. Register a clone of it: `.observer(recorder.clone())`.
    #[allow(clippy::new_without_default)] // it reads the clock
    pub fn new() -> Self {
        Self { created: Instant::now(), events: Arc::default() }
    }

    /// Forgets all events.
    pub fn clear(&self) {
        self.events.lock().clear();
    }

    /// Returns the number of events for which `matches` is true.
    pub fn count(&self, matches: impl Fn(&Event<'_>) -> bool) -> usize {
        let events = self.events.lock();
        events.iter().filter(|recorded| recorded.event().is_some_and(|event| matches(&event))).count()
    }

    /// Returns the kinds of the events in order, by the names of the variants of [`EventKind`].
    pub fn kinds(&self) -> Vec<String> {
        self.events.lock().iter().map(Recorded::name).collect()
    }

    /// Returns the number of events of each kind, by the names of the variants of [`EventKind`].
    pub fn counts_by_kind(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for kind in self.kinds() {
            *counts.entry(kind).or_default() += 1;
        }
        counts
    }

    /// Returns the decision records of the finished calls, in order.
    pub fn decisions(&self) -> Vec<Decision> {
        let finished = |recorded: &Recorded| match recorded.kind {
            OwnedKind::Finished { decision, .. } => Some(decision),
            _ => None,
        };
        self.events.lock().iter().filter_map(finished).collect()
    }

    /// Returns the phases of breakers that changed: `closed -> open`, in order.
    pub fn transitions(&self) -> Vec<String> {
        let changed = |recorded: &Recorded| match recorded.kind {
            OwnedKind::Plain(EventKind::Transition(change)) => Some(transition(&change)),
            _ => None,
        };
        self.events.lock().iter().filter_map(changed).collect()
    }

    /// Asserts that at least one event matches.
    #[track_caller]
    pub fn assert_emitted(&self, matches: impl Fn(&Event<'_>) -> bool) {
        assert!(self.count(matches) > 0, "no event matches. {self}");
    }

    /// Asserts that no event matches.
    #[track_caller]
    pub fn assert_not_emitted(&self, matches: impl Fn(&Event<'_>) -> bool) {
        let count = self.count(matches);
        assert!(count == 0, "{count} events match, expected none. {self}");
    }

    /// Asserts how many events match.
    #[track_caller]
    pub fn assert_count(&self, expected: usize, matches: impl Fn(&Event<'_>) -> bool) {
        let count = self.count(matches);
        assert!(count == expected, "{count} events match, expected {expected}. {self}");
    }

    /// Asserts the kinds of all events in order, by the names of the variants of [`EventKind`].
    #[track_caller]
    pub fn assert_kinds<'a>(&self, expected: impl IntoIterator<Item = &'a str>) {
        let (kinds, expected) = (self.kinds(), expected.into_iter().collect::<Vec<_>>());
        assert!(kinds == expected, "the kinds are {kinds:?}, expected {expected:?}. {self}");
    }

    /// Asserts all changes of breakers in order, each as `closed -> open`.
    #[track_caller]
    pub fn assert_transitions<'a>(&self, expected: impl IntoIterator<Item = &'a str>) {
        let (changes, expected) = (self.transitions(), expected.into_iter().collect::<Vec<_>>());
        assert!(changes == expected, "the transitions are {changes:?}, expected {expected:?}. {self}");
    }

    /// Asserts that the last finished call ended in a rejection with this code.
    #[track_caller]
    pub fn assert_rejected(&self, code: RejectionCode) {
        require(rejected(&self.last(), code), self);
    }

    /// Asserts that the operation of the last finished call ran, and that no stage cut off its last attempt.
    #[track_caller]
    pub fn assert_admitted(&self) {
        require(admitted(&self.last()), self);
    }

    /// Asserts how many attempts the last finished call made.
    #[track_caller]
    pub fn assert_attempts(&self, attempts: u32) {
        require(attempted(&self.last(), attempts), self);
    }

    #[track_caller]
    fn last(&self) -> Decision {
        self.decisions().pop().unwrap_or_else(|| panic!("no call has finished. {self}"))
    }
}

impl Observer for Recorder {
    fn on_event(&self, event: &Event<'_>) {
        let at = self.created.elapsed();
        let recorded = Recorded { at, key: event.key.cloned(), kind: OwnedKind::of(&event.kind) };
        self.events.lock().push(recorded);
    }
}

impl fmt::Display for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let events = self.events.lock();
        if events.is_empty() {
            return f.write_str("No event was recorded.");
        }
        write!(f, "The recorded events:")?;
        events.iter().try_for_each(|recorded| write!(f, "\n  {recorded}"))
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Recorded {
    /// Returns the event as it was emitted; none if its kind is newer than this crate.
    fn event(&self) -> Option<Event<'_>> {
        let kind = match &self.kind {
            OwnedKind::Plain(kind) => *kind,
            OwnedKind::Finished { outcome, kind, decision } => {
                EventKind::Finished { outcome: *outcome, kind: *kind, decision }
            }
            OwnedKind::Lever { policy, lever } => EventKind::Lever { policy, lever: lever.as_ref() },
            OwnedKind::ConfigRejected { reason } => EventKind::ConfigRejected { reason },
            OwnedKind::StoreDegraded { reason } => EventKind::StoreDegraded { reason },
            OwnedKind::StoreConnected { server, version } => {
                EventKind::StoreConnected { server, version: version.as_deref() }
            }
            OwnedKind::StoreConnectFailed { reason } => EventKind::StoreConnectFailed { reason },
            OwnedKind::PushLost { reason } => EventKind::PushLost { reason },
            OwnedKind::StoreRoundTrip { took, failed } => {
                EventKind::StoreRoundTrip { took: *took, failed: failed.as_deref() }
            }
            OwnedKind::StepFailed { step, reason } => EventKind::StepFailed { step, reason },
            OwnedKind::LockLost { lock, fence } => EventKind::LockLost { lock, fence: *fence },
            OwnedKind::Newer(_) => return None,
        };
        Some(Event { key: self.key.as_ref(), kind })
    }

    fn name(&self) -> String {
        let text = match &self.kind {
            OwnedKind::Newer(text) => text.clone(),
            _ => self.event().map(|event| format!("{:?}", event.kind)).unwrap_or_default(),
        };
        text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned()
    }
}

impl fmt::Display for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>9.3}s  ", self.at.as_secs_f64())?;
        if let Some(key) = &self.key {
            write!(f, "{key}  ")?;
        }
        match &self.kind {
            OwnedKind::Newer(text) => f.write_str(text),
            OwnedKind::Plain(EventKind::Transition(change)) => write!(f, "Transition {}", transition(change)),
            OwnedKind::Plain(kind) => write!(f, "{kind:?}"),
            OwnedKind::Finished { outcome, kind, decision } => finished(f, *outcome, *kind, decision),
            _ => self.event().map_or(Ok(()), |event| write!(f, "{:?}", event.kind)),
        }
    }
}

fn transition(change: &Transition) -> String {
    format!("{} -> {}", change.from.name(), change.to.name())
}

fn finished(
    f: &mut fmt::Formatter<'_>,
    outcome: Option<Outcome>,
    kind: Option<Kind>,
    decision: &Decision,
) -> fmt::Result {
    match (decision.reason, kind, outcome) {
        (Some(code), ..) => write!(f, "Finished: {code}")?,
        (None, Some(kind), _) => write!(f, "Finished: failed ({kind})")?,
        (None, None, Some(Outcome::Cancelled)) => f.write_str("Finished: cancelled")?,
        (None, None, _) => f.write_str("Finished: ok")?,
    }
    write!(f, ", {} attempts, {:?}, decided by {}", decision.attempts, decision.elapsed, decision.source)
}

impl OwnedKind {
    fn of(kind: &EventKind<'_>) -> Self {
        use EventKind::*;
        Self::Plain(match *kind {
            Finished { outcome, kind, decision } => return Self::Finished { outcome, kind, decision: *decision },
            Lever { policy, lever } => return Self::Lever { policy: policy.to_owned(), lever: lever.cloned() },
            ConfigRejected { reason } => return Self::ConfigRejected { reason: reason.to_owned() },
            StoreDegraded { reason } => return Self::StoreDegraded { reason: reason.to_owned() },
            StoreConnected { server, version } => {
                return Self::StoreConnected { server: server.to_owned(), version: version.map(ToOwned::to_owned) };
            }
            StoreConnectFailed { reason } => return Self::StoreConnectFailed { reason: reason.to_owned() },
            PushLost { reason } => return Self::PushLost { reason: reason.to_owned() },
            StoreRoundTrip { took, failed } => {
                return Self::StoreRoundTrip { took, failed: failed.map(ToOwned::to_owned) };
            }
            StepFailed { step, reason } => {
                return Self::StepFailed { step: step.to_owned(), reason: reason.to_owned() };
            }
            LockLost { lock, fence } => return Self::LockLost { lock: lock.to_owned(), fence },
            Retry { attempt, delay, kind } => Retry { attempt, delay, kind },
            AttemptTimeout { attempt, limit } => AttemptTimeout { attempt, limit },
            RetryBudgetExhausted => RetryBudgetExhausted,
            RetryAbandoned { delay } => RetryAbandoned { delay },
            Hedge { hedge, delay } => Hedge { hedge, delay },
            HedgeBudgetExhausted => HedgeBudgetExhausted,
            NearLimit { remaining, burst } => NearLimit { remaining, burst },
            LimitLowered(change) => LimitLowered(change),
            Transition(change) => Transition(change),
            FallbackServed { kind } => FallbackServed { kind },
            FaultInjected(fault) => FaultInjected(fault),
            Override(set) => Override(set),
            Retuned { version } => Retuned { version },
            ConfigApplied { changed } => ConfigApplied { changed },
            RoutesExhausted => RoutesExhausted,
            TagsExhausted => TagsExhausted,
            StoreRecovered { outage, degraded_decisions } => StoreRecovered { outage, degraded_decisions },
            PushRestored => PushRestored,
            StoreSlow { share } => StoreSlow { share },
            ExpectedReplicasUnknown => ExpectedReplicasUnknown,
            StateLost => StateLost,
            StateRepaired => StateRepaired,
            ConfigMismatch => ConfigMismatch,
            OddReplica { break_for } => OddReplica { break_for },
            FleetShareLapsed { calls } => FleetShareLapsed { calls },
            Replicas { live } => Replicas { live },
            Draining { in_flight } => Draining { in_flight },
            Drained(drained) => Drained(drained),
            newer => return Self::Newer(format!("{newer:?}")),
        })
    }
}

/// Assertions on a decision record, as `run_recorded` returns it.
///
/// # Examples
/// ```
/// use phalanx::{Policy, RateLimitSpec, RejectionCode, ResilienceModule};
/// use phalanx_testkit::{AssertDecision, Scripted};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), phalanx::ConfigError> {
/// let mail = Policy::named("mail").rate_limit(RateLimitSpec::per_minute(1));
/// let module = ResilienceModule::in_memory().policy(mail).build()?;
/// let send = Scripted::new().then_ok(());
/// let (_, first) = module.call("mail", "acme").run_recorded(|| send.call()).await;
/// first.assert_admitted().assert_attempts(1);
/// let (_, second) = module.call("mail", "acme").run_recorded(|| send.call()).await;
/// second.assert_rejected(RejectionCode::RateLimited).assert_attempts(0);
/// # Ok(())
/// # }
/// ```
pub trait AssertDecision {
    /// Asserts that the call ended in a rejection with this code: before its first attempt, or because its last one was
    /// cut off.
    fn assert_rejected(&self, code: RejectionCode) -> &Self;

    /// Asserts that the operation ran, and that no stage cut off its last attempt.
    fn assert_admitted(&self) -> &Self;

    /// Asserts how many attempts were made.
    fn assert_attempts(&self, attempts: u32) -> &Self;
}

impl AssertDecision for Decision {
    #[track_caller]
    fn assert_rejected(&self, code: RejectionCode) -> &Self {
        require(rejected(self, code), &format_args!("{self:#?}"));
        self
    }

    #[track_caller]
    fn assert_admitted(&self) -> &Self {
        require(admitted(self), &format_args!("{self:#?}"));
        self
    }

    #[track_caller]
    fn assert_attempts(&self, attempts: u32) -> &Self {
        require(attempted(self, attempts), &format_args!("{self:#?}"));
        self
    }
}

/// Panics with the difference and its context, if there is a difference.
#[track_caller]
fn require(checked: Result<(), String>, context: &dyn fmt::Display) {
    if let Err(difference) = checked {
        panic!("{difference}. {context}");
    }
}

fn rejected(decision: &Decision, code: RejectionCode) -> Result<(), String> {
    match decision.reason {
        Some(reason) if reason == code => Ok(()),
        Some(reason) => Err(format!("expected the rejection {code}, not {reason}")),
        None => Err(format!("expected the rejection {code}, but no stage rejected the call")),
    }
}

fn admitted(decision: &Decision) -> Result<(), String> {
    match (decision.verdict, decision.reason) {
        (Verdict::Admitted, None) => Ok(()),
        (Verdict::Admitted, Some(code)) => Err(format!("expected an answer, but the last attempt ended in {code}")),
        (Verdict::Rejected, Some(code)) => Err(format!("expected an admitted call, but it was rejected with {code}")),
        (Verdict::Rejected, None) => Err("expected an admitted call, but the operation never ran".to_owned()),
    }
}

fn attempted(decision: &Decision, attempts: u32) -> Result<(), String> {
    let made = decision.attempts;
    if made == attempts { Ok(()) } else { Err(format!("expected {attempts} attempts, not {made}")) }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use phalanx::{Backoff, Policy, ResilienceModule, RetrySpec};

    use super::*;
    use crate::Scripted;

    /// The message of a failed assertion.
    fn message(assertion: impl FnOnce()) -> String {
        let panicked = catch_unwind(AssertUnwindSafe(assertion)).unwrap_err();
        panicked.downcast_ref::<String>().unwrap().clone()
    }

    /// A recorder of one call that failed twice and then succeeded.
    async fn recorded() -> Recorder {
        let recorder = Recorder::new();
        let backoff = Backoff::constant(Duration::from_millis(100)).jitter(phalanx::policy::Jitter::None);
        let policy = Policy::named("prices").retry(RetrySpec::attempts(3).backoff(backoff));
        let module = ResilienceModule::in_memory().policy(policy).observer(recorder.clone()).build().unwrap();
        let shop = Scripted::new().fail(2).then_ok(42);
        assert_eq!(module.run("prices", "shoes", || shop.call()).await, Ok(42));
        recorder
    }

    #[tokio::test(start_paused = true)]
    async fn assertions_that_hold_pass() {
        let recorder = recorded().await;
        recorder.assert_kinds(["Retry", "Retry", "Finished"]);
        recorder.assert_count(2, |event| matches!(event.kind, EventKind::Retry { .. }));
        recorder.assert_emitted(|event| matches!(event.kind, EventKind::Retry { attempt: 2, .. }));
        recorder.assert_not_emitted(|event| matches!(event.kind, EventKind::RetryBudgetExhausted));
        recorder.assert_transitions([]);
        recorder.assert_admitted();
        recorder.assert_attempts(3);
        let counts: Vec<_> = recorder.counts_by_kind().into_iter().collect();
        assert_eq!(counts, [("Finished".to_owned(), 1), ("Retry".to_owned(), 2)]);
        recorder.clear();
        assert_eq!(recorder.to_string(), "No event was recorded.");
    }

    #[tokio::test(start_paused = true)]
    async fn an_assertion_that_fails_prints_the_events() {
        let recorder = recorded().await;
        let printed = message(|| recorder.assert_rejected(RejectionCode::CircuitOpen));
        let expected = "expected the rejection circuit_open, but no stage rejected the call. The recorded events:
      0.000s  prices/shoes  Retry { attempt: 1, delay: 100ms, kind: Infrastructure }
      0.100s  prices/shoes  Retry { attempt: 2, delay: 100ms, kind: Infrastructure }
      0.200s  prices/shoes  Finished: ok, 3 attempts, 200ms, decided by local";
        assert_eq!(printed, expected);
    }

    #[tokio::test(start_paused = true)]
    async fn every_assertion_fails_where_it_should() {
        let recorder = recorded().await;
        let retry = |event: &Event<'_>| matches!(event.kind, EventKind::Retry { .. });
        let failures = [
            (
                message(|| recorder.assert_emitted(|event| matches!(event.kind, EventKind::StateLost))),
                "no event matches",
            ),
            (message(|| recorder.assert_not_emitted(retry)), "2 events match, expected none"),
            (message(|| recorder.assert_count(3, retry)), "2 events match, expected 3"),
            (message(|| recorder.assert_kinds(["Finished"])), "expected [\"Finished\"]"),
            (message(|| recorder.assert_transitions(["closed -> open"])), "the transitions are []"),
            (message(|| recorder.assert_attempts(1)), "expected 1 attempts, not 3"),
            (message(|| Recorder::new().assert_admitted()), "no call has finished. No event was recorded."),
        ];
        for (printed, expected) in failures {
            assert!(printed.contains(expected), "{printed}");
        }
        let cut_off = Decision { reason: Some(RejectionCode::AttemptTimeout), attempts: 1, ..Decision::default() };
        let turned_away = Decision { verdict: Verdict::Rejected, ..cut_off };
        let printed = [
            message(|| {
                cut_off.assert_admitted();
            }),
            message(|| {
                turned_away.assert_admitted();
            }),
            message(|| {
                cut_off.assert_rejected(RejectionCode::RateLimited);
            }),
        ];
        assert!(printed[0].contains("the last attempt ended in attempt_timeout"), "{}", printed[0]);
        assert!(printed[1].contains("rejected with attempt_timeout"), "{}", printed[1]);
        assert!(printed[2].contains("rate_limited, not attempt_timeout"), "{}", printed[2]);
    }

    /// `EventKind` is non-exhaustive, so the compiler does not find a missing kind.
    #[test]
    fn every_event_kind_of_core_can_be_matched() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../core/src/event.rs");
        let source = std::fs::read_to_string(path).unwrap();
        let body = source.split_once("pub enum EventKind<'a> {").unwrap().1.split_once("\n}\n").unwrap().0;
        let variants = body
            .lines()
            .filter_map(|line| line.strip_prefix("    "))
            .filter(|line| line.starts_with(char::is_uppercase));
        let names = variants.map(|line| line.split(|c: char| !c.is_alphanumeric()).next().unwrap());
        let known = include_str!("recorder.rs").split_once("fn of(kind: &EventKind").unwrap().1;
        let known = known.split_once("newer =>").unwrap().0;
        let mut found = 0;
        for name in names {
            assert!(known.contains(&format!("\n            {name}")), "OwnedKind::of does not know {name}");
            found += 1;
        }
        assert!(found >= 28, "{found}");
    }
}
