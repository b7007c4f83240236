//! What travels with a task: until when its caller waits, how much the caller would miss it, and whether it is part of a
//! call that was let in already.
//!
//! A [`Context`] is bound with [`scope`] and seen by every guarded call inside, however deep. Binding only ever
//! tightens: an inner scope can shorten the deadline and lower the criticality, never the reverse. It does not follow
//! a `tokio::spawn` by itself; `tokio::spawn(scope(Context::current(), work))` takes it along.

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;

tokio::task_local! {
    static CURRENT: Context;
}

/// How much a caller would miss the answer. Under pressure the lowest is shed first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Criticality {
    /// Nobody waits for it: prefetch, backfill.
    BestEffort,
    /// The caller has a good substitute.
    Degraded,
    /// An ordinary request.
    #[default]
    Normal,
    /// The product is down without it.
    Critical,
}

/// A task's deadline and criticality, and the call it is part of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Context {
    deadline: Option<Instant>,
    criticality: Option<Criticality>,
    /// The [`Gate`](crate::drain::Gate) that let in the call this is part of; 0 outside any.
    gate: u32,
}

impl Context {
    /// Neither deadline nor criticality, and no part of any call.
    pub const EMPTY: Self = Self { deadline: None, criticality: None, gate: 0 };

    /// The context of the running task; empty outside any [`scope`].
    pub fn current() -> Self {
        CURRENT.try_with(|context| *context).unwrap_or(Self::EMPTY)
    }

    /// This context, ending at `deadline` or earlier.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Instant) -> Self {
        self.deadline = Some(self.deadline.map_or(deadline, |own| own.min(deadline)));
        self
    }

    /// This context, ending `budget` from now or earlier.
    #[must_use]
    pub fn with_timeout(self, budget: Duration) -> Self {
        match Instant::now().checked_add(budget) {
            Some(deadline) => self.with_deadline(deadline),
            None => self, // further away than the clock can count is no deadline
        }
    }

    /// This context with this criticality, or the lower one if it has one already.
    #[must_use]
    pub fn with_criticality(mut self, criticality: Criticality) -> Self {
        self.criticality = Some(self.criticality.map_or(criticality, |own| own.min(criticality)));
        self
    }

    /// Both contexts' demands: the earlier deadline, the lower criticality.
    #[must_use]
    pub fn tightened_by(self, other: Self) -> Self {
        let mut both = self;
        if let Some(deadline) = other.deadline {
            both = both.with_deadline(deadline);
        }
        if let Some(criticality) = other.criticality {
            both = both.with_criticality(criticality);
        }
        if other.gate != 0 {
            both.gate = other.gate;
        }
        both
    }

    /// This context as part of a call that this gate let in.
    pub(crate) const fn inside(mut self, gate: u32) -> Self {
        self.gate = gate;
        self
    }

    /// Whether it is part of a call that this gate let in.
    #[inline]
    pub(crate) const fn is_inside(&self, gate: u32) -> bool {
        self.gate == gate
    }

    /// When the caller stops waiting.
    pub const fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// How long the caller still waits; zero once it is over.
    pub fn remaining(&self) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// How much the caller would miss it; `Normal` unless somebody said otherwise.
    pub fn criticality(&self) -> Criticality {
        self.criticality.unwrap_or_default()
    }
}

/// Runs `work` under `context`, tightened by whatever is bound already.
pub async fn scope<F: Future>(context: Context, work: F) -> F::Output {
    let both = Context::current().tightened_by(context);
    CURRENT.scope(both, work).await
}

/// Runs one poll under a context that is tightened already.
pub(crate) fn bind<T>(context: Context, poll: impl FnOnce() -> T) -> T {
    CURRENT.sync_scope(context, poll)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_inner_scope_shortens_the_deadline_and_never_lengthens_it() {
        let outer = Context::EMPTY.with_timeout(Duration::from_secs(2));
        scope(outer, async {
            let longer = Context::EMPTY.with_timeout(Duration::from_secs(9));
            let seen = scope(longer, async { Context::current().remaining() }).await;
            assert_eq!(seen, Some(Duration::from_secs(2)));
            let shorter = Context::EMPTY.with_timeout(Duration::from_secs(1));
            let seen = scope(shorter, async { Context::current().remaining() }).await;
            assert_eq!(seen, Some(Duration::from_secs(1)));
        })
        .await;
        assert_eq!(Context::current(), Context::EMPTY);
    }

    #[tokio::test]
    async fn criticality_can_be_set_once_and_then_only_lowered() {
        let critical = Context::EMPTY.with_criticality(Criticality::Critical);
        scope(critical, async {
            assert_eq!(Context::current().criticality(), Criticality::Critical);
            let low = Context::EMPTY.with_criticality(Criticality::BestEffort);
            scope(low, async {
                scope(critical, async {
                    assert_eq!(Context::current().criticality(), Criticality::BestEffort);
                })
                .await;
            })
            .await;
        })
        .await;
        assert_eq!(Context::current().criticality(), Criticality::Normal);
    }

    #[tokio::test]
    async fn a_spawned_task_has_the_context_only_if_it_is_taken_along() {
        let context = Context::EMPTY.with_criticality(Criticality::Degraded);
        scope(context, async {
            let bare = tokio::spawn(async { Context::current() }).await.unwrap();
            assert_eq!(bare, Context::EMPTY);
            let taken = tokio::spawn(scope(Context::current(), async { Context::current() }));
            assert_eq!(taken.await.unwrap(), context);
        })
        .await;
    }

    #[test]
    fn a_deadline_beyond_the_end_of_time_is_no_deadline() {
        assert_eq!(Context::EMPTY.with_timeout(Duration::MAX), Context::EMPTY);
    }
}
