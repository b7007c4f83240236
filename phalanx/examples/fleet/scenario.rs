//! What happens when: four states of the upstream, scaled to the length of the run.

use std::time::Duration;

use tokio::time::Instant;

/// The state of the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UpstreamState {
    /// Quick answers.
    Healthy,
    /// Many slow answers, some that never come.
    Slow,
    /// Only errors.
    Failing,
    /// Quick answers again.
    Recovered,
}

impl UpstreamState {
    /// In the order in which they occur.
    pub(crate) const ALL: [Self; 4] = [Self::Healthy, Self::Slow, Self::Failing, Self::Recovered];

    /// The name in the table and on the timeline.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Slow => "slow",
            Self::Failing => "failing",
            Self::Recovered => "recovered",
        }
    }

    /// When it ends, in twentieths of the scenario. `Failing` is long enough for several probes, and `Recovered` for the last
    /// break and the ramp.
    const fn ends_at(self) -> u32 {
        match self {
            Self::Healthy => 5,
            Self::Slow => 9,
            Self::Failing => 14,
            Self::Recovered => 20,
        }
    }
}

/// The scenario and when it started. All replicas have the same one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scenario {
    started_at: Instant,
    length: Duration,
    /// Whether it starts again when it is over.
    repeating: bool,
}

impl Scenario {
    /// Starts now.
    pub(crate) fn start(length: Duration) -> Self {
        Self { started_at: Instant::now(), length, repeating: false }
    }

    /// Started this long ago, in another process.
    pub(crate) fn started_ago(ago: Duration, length: Duration) -> Self {
        let now = Instant::now();
        Self { started_at: now.checked_sub(ago).unwrap_or(now), length, repeating: false }
    }

    /// Starts now and again whenever it is over.
    pub(crate) fn repeating(length: Duration) -> Self {
        Self { repeating: true, ..Self::start(length) }
    }

    pub(crate) const fn length(&self) -> Duration {
        self.length
    }

    pub(crate) const fn started_at(&self) -> Instant {
        self.started_at
    }

    /// The time since the start.
    pub(crate) fn now(&self) -> Duration {
        self.started_at.elapsed()
    }

    pub(crate) fn is_over(&self) -> bool {
        !self.repeating && self.now() >= self.length
    }

    /// The state at this time; the last one has no end.
    pub(crate) fn state_at(&self, at: Duration) -> UpstreamState {
        let at =
            if self.repeating { Duration::from_secs_f64(at.as_secs_f64() % self.length.as_secs_f64()) } else { at };
        UpstreamState::ALL.into_iter().find(|state| at < self.end_of(*state)).unwrap_or(UpstreamState::Recovered)
    }

    pub(crate) fn state(&self) -> UpstreamState {
        self.state_at(self.now())
    }

    pub(crate) fn end_of(&self, state: UpstreamState) -> Duration {
        self.fraction(state.ends_at(), 20)
    }

    pub(crate) fn start_of(&self, state: UpstreamState) -> Duration {
        let before = UpstreamState::ALL.into_iter().rev().find(|other| other.ends_at() < state.ends_at());
        before.map_or(Duration::ZERO, |before| self.end_of(before))
    }

    /// A fraction of the length. The times of the policy are such fractions, so that they fit into every state.
    pub(crate) fn fraction(&self, role: u32, of: u32) -> Duration {
        self.length * role / of
    }
}
