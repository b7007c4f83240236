//! The traffic of one replica: calls at random intervals, each through its pipeline.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use phalanx::store::Rng;
use phalanx::{Pipeline, Source, Verdict};
use tokio::task::{JoinError, JoinSet};
use tokio::time::sleep_until;

use crate::message::Message;
use crate::policy::DEMAND;
use crate::scenario::Scenario;
use crate::upstream::BadGateway;

/// Receives the messages of a replica.
pub(crate) type MessageSink = Arc<dyn Fn(Message) + Send + Sync>;

/// A replica, whether a task or a process.
pub(crate) struct Replica<U> {
    pub(crate) pipeline: Pipeline,
    pub(crate) upstream: Arc<U>,
    pub(crate) sink: MessageSink,
    pub(crate) rng: Rng,
}

/// What a replica calls.
pub(crate) trait Dependency: Send + Sync + 'static {
    /// Serves one attempt; `first` of its call or not.
    fn answer(&self, first: bool) -> impl Future<Output = Result<(), BadGateway>> + Send;
}

impl<U: Dependency> Replica<U> {
    /// Calls the upstream until the scenario is over, then waits for the calls in flight.
    pub(crate) async fn run(self, scenario: Scenario) -> Result<(), JoinError> {
        let mut due = scenario.started_at();
        let mut calls = JoinSet::new();
        loop {
            // Arrivals do not wait for answers: a slow upstream does not reduce the load.
            due += self.gap();
            sleep_until(due).await;
            if scenario.is_over() {
                break;
            }
            calls.spawn(call(self.pipeline.clone(), self.upstream.clone(), self.sink.clone(), scenario));
            while let Some(done) = calls.try_join_next() {
                done?;
            }
        }
        while let Some(done) = calls.join_next().await {
            done?;
        }
        Ok(())
    }

    /// The time to the next call: exponential, as for independent callers.
    fn gap(&self) -> Duration {
        let uniform = 1.0 - self.rng.unit();
        Duration::from_secs_f64(-uniform.ln() / DEMAND)
    }
}

async fn call<U: Dependency>(pipeline: Pipeline, upstream: Arc<U>, sink: MessageSink, scenario: Scenario) {
    let (first, span) = (AtomicBool::new(true), Mutex::new(Span::default()));
    let attempt = || async {
        *locked(&span) = Span { from: scenario.now(), to: None };
        let answer = upstream.answer(first.swap(false, Ordering::Relaxed)).await;
        locked(&span).to = Some(scenario.now());
        answer
    };
    // Results come through the observer, as in production. How long a rejection took and when a probe was at the upstream
    // is not part of any event.
    let started_at = scenario.now();
    let (_, record) = pipeline.call().run_recorded(attempt).await;
    if record.verdict == Verdict::Rejected {
        sink(Message::Rejected(scenario.now().saturating_sub(started_at)));
    }
    if record.probe {
        let Span { from, to } = *locked(&span);
        let (to, degraded) = (to.unwrap_or_else(|| scenario.now()), record.source == Source::Degraded);
        sink(Message::Probed { from, to, degraded });
    }
}

/// When the last attempt was at the upstream; without an end if it was cut off.
#[derive(Clone, Copy, Debug, Default)]
struct Span {
    from: Duration,
    to: Option<Duration>,
}

fn locked(span: &Mutex<Span>) -> MutexGuard<'_, Span> {
    span.lock().unwrap_or_else(PoisonError::into_inner)
}
