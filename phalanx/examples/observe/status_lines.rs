//! The output: one line a second with the golden signals, and one for each notice.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use phalanx::describe::Outcome;
use phalanx::store::StateKey;
use phalanx::{Event, EventKind, ResilienceModule};
use tokio::time::interval;

use crate::latencies::Latencies;
use crate::scenario::Scenario;

/// What happened since the last line.
#[derive(Debug, Default)]
struct Interval {
    calls: u64,
    failed: u64,
    fallbacks: u64,
    retries: u64,
    hedges: u64,
    latencies: Latencies,
    rejected: BTreeMap<&'static str, u64>,
    notices: Vec<String>,
}

/// Counts events and prints them.
#[derive(Debug)]
pub(crate) struct StatusLines {
    scenario: Scenario,
    current: Mutex<Interval>,
}

impl StatusLines {
    pub(crate) fn new(scenario: Scenario) -> Self {
        Self { scenario, current: Mutex::default() }
    }

    fn current(&self) -> MutexGuard<'_, Interval> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an event of the module.
    pub(crate) fn record(&self, event: &Event<'_>) {
        let mut current = self.current();
        match event.kind {
            EventKind::Finished { outcome, decision, .. } => {
                current.calls += 1;
                current.failed += u64::from(outcome == Some(Outcome::Failure));
                match (outcome, decision.reason) {
                    (None, Some(code)) => *current.rejected.entry(code.name()).or_default() += 1,
                    _ => current.latencies.add(decision.elapsed),
                }
            }
            EventKind::FallbackServed { .. } => current.fallbacks += 1,
            EventKind::Retry { .. } => current.retries += 1,
            EventKind::Hedge { .. } => current.hedges += 1,
            _ => current.notices.extend(notice(event).map(|notice| self.timestamped(&notice))),
        }
    }

    /// Adds a notice that is not an event.
    pub(crate) fn add_notice(&self, notice: &str) {
        self.current().notices.push(self.timestamped(notice));
    }

    fn timestamped(&self, notice: &str) -> String {
        format!("{:6.1}s  {notice}\n", self.scenario.now().as_secs_f64())
    }

    /// Prints for as long as it is polled.
    pub(crate) async fn print(&self, module: &ResilienceModule) -> std::io::Result<()> {
        let mut seconds = interval(Duration::from_secs(1));
        seconds.tick().await; // the first tick is immediate
        loop {
            seconds.tick().await;
            let current = std::mem::take(&mut *self.current());
            let text = self.line(current, module);
            let mut out = std::io::stdout().lock();
            out.write_all(text.as_bytes())?;
            out.flush()?;
        }
    }

    fn line(&self, mut current: Interval, module: &ResilienceModule) -> String {
        let at = self.scenario.now().as_secs_f64();
        let p99 = current.latencies.quantile(0.99).as_secs_f64() * 1_000.0;
        let mut text = current.notices.concat();
        text += &format!(
            "{at:6.1}s  {:10}  {:3} calls/s  p99 {p99:3.0} ms  {:3} failed  {:3} fallbacks  {:2} retries  {:2} hedges  {}",
            self.scenario.phase().name(),
            current.calls,
            current.failed,
            current.fallbacks,
            current.retries,
            current.hedges,
            store(module),
        );
        let rejected = current.rejected.iter().map(|(code, calls)| format!("  {code} {calls}"));
        text.extend(rejected);
        text.push('\n');
        text
    }
}

/// The notice of an event, if it has one.
fn notice(event: &Event<'_>) -> Option<String> {
    let name = event.key.map(StateKey::to_string).unwrap_or_default();
    match event.kind {
        EventKind::Transition(change) => {
            Some(format!("{name}: breaker {} -> {}", change.from.name(), change.to.name()))
        }
        EventKind::StoreDegraded { reason } => Some(format!("store: degraded ({reason})")),
        EventKind::StoreRecovered { outage, .. } => Some(format!("store: recovered after {outage:.1?}")),
        EventKind::ConfigApplied { changed } => Some(format!("config: applied, {changed} changed")),
        EventKind::ConfigRejected { reason } => Some(format!("config: rejected, {reason}")),
        _ => None,
    }
}

/// Where decisions are made.
#[cfg(feature = "redis")]
fn store(module: &ResilienceModule) -> &'static str {
    match module.store_mode() {
        None => "in memory",
        Some(phalanx::store::StoreMode::Degraded) => "degraded",
        Some(_) => "shared",
    }
}

#[cfg(not(feature = "redis"))]
fn store(_: &ResilienceModule) -> &'static str {
    "in memory"
}
