//! What happens when: four acts, stretched or squeezed to the length that was asked for.

use std::time::Duration;

use tokio::time::Instant;

/// One stretch of the upstream's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Quick answers.
    Healthy,
    /// Many answers take long, some never come.
    Slow,
    /// Nothing but errors.
    Failing,
    /// Quick answers again.
    Recovered,
}

impl Act {
    /// In the order of the story.
    pub(crate) const ALL: [Self; 4] = [Self::Healthy, Self::Slow, Self::Failing, Self::Recovered];

    /// The name in the table and under the bar.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Slow => "slow",
            Self::Failing => "failing",
            Self::Recovered => "recovered",
        }
    }

    /// When it ends, in twentieths of the story. Failing is long enough for several rounds of probes, and what
    /// follows is long enough to wait for the last break and for the ramp.
    const fn ends_at(self) -> u32 {
        match self {
            Self::Healthy => 5,
            Self::Slow => 9,
            Self::Failing => 14,
            Self::Recovered => 20,
        }
    }
}

/// The story and when it began. All replicas read the same one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Story {
    began: Instant,
    length: Duration,
    /// Told again and again.
    endless: bool,
}

impl Story {
    /// Begins now.
    pub(crate) fn begin(length: Duration) -> Self {
        Self { began: Instant::now(), length, endless: false }
    }

    /// Began so long ago, in another process.
    pub(crate) fn begun(ago: Duration, length: Duration) -> Self {
        let now = Instant::now();
        Self { began: now.checked_sub(ago).unwrap_or(now), length, endless: false }
    }

    /// Begins now and begins again whenever it is over.
    pub(crate) fn endless(length: Duration) -> Self {
        Self { endless: true, ..Self::begin(length) }
    }

    pub(crate) const fn length(&self) -> Duration {
        self.length
    }

    pub(crate) const fn began(&self) -> Instant {
        self.began
    }

    /// Time since the beginning.
    pub(crate) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    pub(crate) fn is_over(&self) -> bool {
        !self.endless && self.now() >= self.length
    }

    /// The act that is played at a moment; the last one goes on for ever.
    pub(crate) fn act_at(&self, at: Duration) -> Act {
        let at = if self.endless { Duration::from_secs_f64(at.as_secs_f64() % self.length.as_secs_f64()) } else { at };
        Act::ALL.into_iter().find(|act| at < self.end_of(*act)).unwrap_or(Act::Recovered)
    }

    pub(crate) fn act(&self) -> Act {
        self.act_at(self.now())
    }

    pub(crate) fn end_of(&self, act: Act) -> Duration {
        self.share(act.ends_at(), 20)
    }

    pub(crate) fn start_of(&self, act: Act) -> Duration {
        let before = Act::ALL.into_iter().rev().find(|other| other.ends_at() < act.ends_at());
        before.map_or(Duration::ZERO, |before| self.end_of(before))
    }

    /// A part of the whole length: what the policy's own times are made of, so that every act fits.
    pub(crate) fn share(&self, part: u32, of: u32) -> Duration {
        self.length * part / of
    }
}
