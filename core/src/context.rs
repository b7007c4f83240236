//! The context of a task: its deadline, its criticality, and the drain gate it is inside of.
//!
//! A [`Context`] is bound with [`scope`] and applies to every guarded call inside, however deep. Binding only tightens: an
//! inner scope can shorten the deadline and lower the criticality, never the reverse. `tokio::spawn` does not inherit it;
//! `tokio::spawn(scope(Context::current(), work))` does.

mod tags;

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;

pub(crate) use self::tags::CallTags;
pub use self::tags::{MAX_CALL_TAGS, Tags};

tokio::task_local! {
    static CURRENT: Context;
}

/// How important the answer is to the caller. Under pressure the lowest is shed first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Criticality {
    /// No user waits for it: prefetch, backfill.
    BestEffort,
    /// The caller has a good substitute.
    Degraded,
    /// An ordinary request.
    #[default]
    Normal,
    /// The product is down without it.
    Critical,
}

/// The deadline and criticality of a task, and the gate it is inside of.
///
/// # Examples
/// ```
/// use std::time::Duration;
///
/// use phalanx_core::context::{Context, Criticality};
///
/// let context = Context::EMPTY.with_timeout(Duration::from_secs(2)).with_criticality(Criticality::Degraded);
/// assert!(context.remaining().unwrap() <= Duration::from_secs(2));
///
/// // Further demands only tighten it.
/// let tightened = context.with_timeout(Duration::from_secs(9)).with_criticality(Criticality::Critical);
/// assert_eq!(tightened, context);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Context {
    deadline: Option<Instant>,
    criticality: Option<Criticality>,
    /// The id of the [`Gate`](crate::drain::Gate) that admitted the call this is nested in; 0 outside any.
    gate: u32,
}

impl Context {
    /// No deadline, no criticality, outside any gate.
    pub const EMPTY: Self = Self { deadline: None, criticality: None, gate: 0 };

    /// Returns the context of the running task; empty outside any [`scope`].
    pub fn current() -> Self {
        CURRENT.try_with(|context| *context).unwrap_or(Self::EMPTY)
    }

    /// Sets the deadline, unless an earlier one is set already.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Instant) -> Self {
        self.deadline = Some(self.deadline.map_or(deadline, |own| own.min(deadline)));
        self
    }

    /// Sets a deadline `budget` from now, unless an earlier one is set already.
    #[must_use]
    pub fn with_timeout(self, budget: Duration) -> Self {
        match Instant::now().checked_add(budget) {
            Some(deadline) => self.with_deadline(deadline),
            None => self, // beyond the range of the clock
        }
    }

    /// Sets the criticality, unless a lower one is set already.
    #[must_use]
    pub fn with_criticality(mut self, criticality: Criticality) -> Self {
        self.criticality = Some(self.criticality.map_or(criticality, |own| own.min(criticality)));
        self
    }

    /// Combines two contexts: the earlier deadline, the lower criticality.
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

    /// Returns this context as nested in a call that this gate admitted.
    pub(crate) const fn inside(mut self, gate: u32) -> Self {
        self.gate = gate;
        self
    }

    /// Whether it is nested in a call that this gate admitted.
    #[inline]
    pub(crate) const fn is_inside(&self, gate: u32) -> bool {
        self.gate == gate
    }

    /// Returns the deadline.
    pub const fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Returns the time left until the deadline; zero once it has passed.
    pub fn remaining(&self) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// Returns the criticality. Default `Normal`.
    pub fn criticality(&self) -> Criticality {
        self.criticality.unwrap_or_default()
    }
}

/// Runs `work` under `context`, tightened by the context that is bound already.
///
/// # Examples
/// ```
/// use std::time::Duration;
///
/// use phalanx_core::context::{Context, scope};
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let context = Context::EMPTY.with_timeout(Duration::from_secs(2));
/// scope(context, async {
///     // Every guarded call in here has at most two seconds.
///     assert_eq!(Context::current(), context);
/// })
/// .await;
/// assert_eq!(Context::current(), Context::EMPTY);
/// # });
/// ```
pub async fn scope<F: Future>(context: Context, work: F) -> F::Output {
    let both = Context::current().tightened_by(context);
    CURRENT.scope(both, work).await
}

/// Runs one poll under `context`, in place of the one that is bound.
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
    async fn a_spawned_task_has_the_context_only_if_it_is_scoped() {
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
    fn a_deadline_beyond_the_range_of_the_clock_is_no_deadline() {
        assert_eq!(Context::EMPTY.with_timeout(Duration::MAX), Context::EMPTY);
    }
}
