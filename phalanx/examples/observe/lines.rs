//! One line a second: the golden signals, as far as a line can hold them.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use phalanx::describe::Outcome;
use phalanx::store::StateKey;
use phalanx::{Event, EventKind, ResilienceModule};
use tokio::time::interval;

use crate::latencies::Latencies;
use crate::story::Story;

/// What happened since the last line.
#[derive(Debug, Default)]
struct Second {
    calls: u64,
    failed: u64,
    fallbacks: u64,
    retries: u64,
    hedges: u64,
    latencies: Latencies,
    rejected: BTreeMap<&'static str, u64>,
    turns: Vec<String>,
}

/// Counts events, and prints them.
#[derive(Debug)]
pub(crate) struct Lines {
    story: Story,
    second: Mutex<Second>,
}

impl Lines {
    pub(crate) fn new(story: Story) -> Self {
        Self { story, second: Mutex::default() }
    }

    fn second(&self) -> MutexGuard<'_, Second> {
        self.second.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What an observer hears.
    pub(crate) fn note(&self, event: &Event<'_>) {
        let mut second = self.second();
        match event.kind {
            EventKind::Finished { outcome, decision, .. } => {
                second.calls += 1;
                second.failed += u64::from(outcome == Some(Outcome::Failure));
                match (outcome, decision.reason) {
                    (None, Some(code)) => *second.rejected.entry(code.name()).or_default() += 1,
                    _ => second.latencies.add(decision.elapsed),
                }
            }
            EventKind::FallbackServed { .. } => second.fallbacks += 1,
            EventKind::Retry { .. } => second.retries += 1,
            EventKind::Hedge { .. } => second.hedges += 1,
            _ => second.turns.extend(turn(event).map(|turn| self.dated(&turn))),
        }
    }

    /// A turning point that no event tells of.
    pub(crate) fn say(&self, turn: &str) {
        self.second().turns.push(self.dated(turn));
    }

    fn dated(&self, turn: &str) -> String {
        format!("{:6.1}s  {turn}\n", self.story.now().as_secs_f64())
    }

    /// Prints for as long as it is polled.
    pub(crate) async fn print(&self, module: &ResilienceModule) -> std::io::Result<()> {
        let mut seconds = interval(Duration::from_secs(1));
        seconds.tick().await; // the first is at once, and there is nothing to tell
        loop {
            seconds.tick().await;
            let second = std::mem::take(&mut *self.second());
            let text = self.line(second, module);
            let mut out = std::io::stdout().lock();
            out.write_all(text.as_bytes())?;
            out.flush()?;
        }
    }

    fn line(&self, mut second: Second, module: &ResilienceModule) -> String {
        let at = self.story.now().as_secs_f64();
        let p99 = second.latencies.quantile(0.99).as_secs_f64() * 1_000.0;
        let mut text = second.turns.concat();
        text += &format!(
            "{at:6.1}s  {:10}  {:3} calls/s  p99 {p99:3.0} ms  {:3} failed  {:3} fallbacks  {:2} retries  {:2} copies  {}",
            self.story.phase().name(),
            second.calls,
            second.failed,
            second.fallbacks,
            second.retries,
            second.hedges,
            store(module),
        );
        let rejected = second.rejected.iter().map(|(code, calls)| format!("  {code} {calls}"));
        text.extend(rejected);
        text.push('\n');
        text
    }
}

/// A turning point, in words.
fn turn(event: &Event<'_>) -> Option<String> {
    let name = event.key.map(StateKey::to_string).unwrap_or_default();
    match event.kind {
        EventKind::Transition(change) => {
            Some(format!("{name}: circuit {} -> {}", change.from.name(), change.to.name()))
        }
        EventKind::StoreDegraded { reason } => Some(format!("store: away ({reason}), deciding alone")),
        EventKind::StoreRecovered { outage, .. } => Some(format!("store: back after {outage:.1?}")),
        EventKind::ConfigApplied { changed } => Some(format!("config: applied, {changed} changed")),
        EventKind::ConfigRejected { reason } => Some(format!("config: rejected, {reason}")),
        _ => None,
    }
}

/// Who decides.
#[cfg(feature = "redis")]
fn store(module: &ResilienceModule) -> &'static str {
    match module.store_mode() {
        None => "in memory",
        Some(phalanx::store::StoreMode::Degraded) => "alone",
        Some(_) => "in a fleet",
    }
}

#[cfg(not(feature = "redis"))]
fn store(_: &ResilienceModule) -> &'static str {
    "in memory"
}
