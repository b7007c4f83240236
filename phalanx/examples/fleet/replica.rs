//! The traffic of one replica: customers who come when they come, each one call through its pipeline.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use phalanx::store::Rng;
use phalanx::{Pipeline, Source, Verdict};
use tokio::task::{JoinError, JoinSet};
use tokio::time::sleep_until;

use crate::policy::DEMAND;
use crate::report::Report;
use crate::story::Story;
use crate::upstream::BadGateway;

/// Where a replica tells what happened.
pub(crate) type Tell = Arc<dyn Fn(Report) + Send + Sync>;

/// Who serves customers, whether a task or a process.
pub(crate) struct Replica<U> {
    pub(crate) pipeline: Pipeline,
    pub(crate) upstream: Arc<U>,
    pub(crate) tell: Tell,
    pub(crate) rng: Rng,
}

/// What a replica calls.
pub(crate) trait Dependency: Send + Sync + 'static {
    /// One attempt; `first` of its call or not.
    fn answer(&self, first: bool) -> impl Future<Output = Result<(), BadGateway>> + Send;
}

impl<U: Dependency> Replica<U> {
    /// Calls the upstream until the story is over, then waits for the answers that are still due.
    pub(crate) async fn run(self, story: Story) -> Result<(), JoinError> {
        let mut due = story.began();
        let mut calls = JoinSet::new();
        loop {
            // Arrivals do not wait for answers: a slow upstream does not make customers stay at home.
            due += self.gap();
            sleep_until(due).await;
            if story.is_over() {
                break;
            }
            calls.spawn(call(self.pipeline.clone(), self.upstream.clone(), self.tell.clone(), story));
            while let Some(done) = calls.try_join_next() {
                done?;
            }
        }
        while let Some(done) = calls.join_next().await {
            done?;
        }
        Ok(())
    }

    /// The time to the next customer: exponential, as for any crowd whose members do not know each other.
    fn gap(&self) -> Duration {
        let luck = 1.0 - self.rng.unit();
        Duration::from_secs_f64(-luck.ln() / DEMAND)
    }
}

async fn call<U: Dependency>(pipeline: Pipeline, upstream: Arc<U>, tell: Tell, story: Story) {
    let (first, span) = (AtomicBool::new(true), Mutex::new(Span::default()));
    let attempt = || async {
        *locked(&span) = Span { from: story.now(), to: None };
        let answer = upstream.answer(first.swap(false, Ordering::Relaxed)).await;
        locked(&span).to = Some(story.now());
        answer
    };
    // What came of it is told by the observer, as it would be in production. How long a rejection took and when a probe
    // was at the upstream is more than an observer needs to know.
    let began = story.now();
    let (_, record) = pipeline.call().run_recorded(attempt).await;
    if record.verdict == Verdict::Rejected {
        tell(Report::Rejected(story.now().saturating_sub(began)));
    }
    if record.probe {
        let Span { from, to } = *locked(&span);
        let (to, alone) = (to.unwrap_or_else(|| story.now()), record.source == Source::Degraded);
        tell(Report::Probed { from, to, alone });
    }
}

/// When the last attempt was at the upstream; no end if it was cut off.
#[derive(Clone, Copy, Debug, Default)]
struct Span {
    from: Duration,
    to: Option<Duration>,
}

fn locked(span: &Mutex<Span>) -> MutexGuard<'_, Span> {
    span.lock().unwrap_or_else(PoisonError::into_inner)
}
