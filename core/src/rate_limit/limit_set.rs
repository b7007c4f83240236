//! The limits that decide about a call together: what a store is asked, and what it replies.

use std::sync::Arc;
use std::time::Duration;

use super::limits::LimitCost;
use super::{Bucket, Level, Rate, Take};
use crate::clock::Time;
use crate::rejection::Source;

/// One limit of a set.
#[derive(Debug)]
pub struct SetLimit<B> {
    /// The bucket. The buckets of a set are different ones, of one policy.
    pub bucket: Arc<B>,
    /// How many permits a call takes.
    pub cost: LimitCost,
    /// The longest that a call may wait for them.
    pub max_wait: Duration,
}

impl<B> Clone for SetLimit<B> {
    fn clone(&self) -> Self {
        Self { bucket: self.bucket.clone(), ..*self }
    }
}

/// The reply to a request for permits of a set: of all its limits, or of none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetGrant {
    /// Granted after the longest of the waits, or rejected until the latest of the limits has the permits.
    pub take: Take,
    /// The index of the limit that rejected the call; of a grant, the one that has the fewest permits left.
    pub limit: usize,
    /// The level of that limit afterwards.
    pub left: Level,
    /// The state that decided.
    pub source: Source,
    /// The times the permits are for. Of a rejection: without meaning.
    pub dues: Dues,
}

/// For which time the permits of each limit of a set are, on the clock of the state that granted them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dues {
    /// All for the same time: no limit made the call wait.
    Same(Time),
    /// One for each limit.
    Each(Box<[Time]>),
}

impl Dues {
    /// Returns the times of these waits from `at` on.
    pub fn after(at: Time, waits: impl ExactSizeIterator<Item = Duration> + Clone) -> Self {
        match waits.clone().all(|wait| wait.is_zero()) {
            true => Self::Same(at),
            false => Self::Each(waits.map(|wait| at.after(wait)).collect()),
        }
    }

    /// Returns the time of a limit, by its index.
    pub fn of(&self, limit: usize) -> Time {
        match self {
            Self::Same(at) => *at,
            Self::Each(dues) => dues.get(limit).copied().unwrap_or(Time::ZERO),
        }
    }
}

/// Gathers what each limit of a set has to say into the reply.
#[derive(Debug, Default)]
pub struct SetVerdict {
    rejected: Option<(usize, Time, Level)>,
    least: Option<(usize, Level)>,
    wait: Duration,
}

impl SetVerdict {
    /// Notes what a limit would do, by its index. Of several that reject, the one that does so for longest is named.
    pub fn note(&mut self, limit: usize, take: Take, left: Level) {
        match take {
            Take::Granted { wait } => {
                self.wait = self.wait.max(wait);
                if self.least.is_none_or(|(_, least)| left.permits() < least.permits()) {
                    self.least = Some((limit, left));
                }
            }
            Take::Rejected { until } => {
                if self.rejected.is_none_or(|(_, latest, _)| until > latest) {
                    self.rejected = Some((limit, until, left));
                }
            }
        }
    }

    /// Returns whether a limit rejects.
    pub const fn is_rejected(&self) -> bool {
        self.rejected.is_some()
    }

    /// Returns the reply.
    pub fn grant(self, source: Source, dues: Dues) -> SetGrant {
        match self.rejected {
            Some((limit, until, left)) => SetGrant { take: Take::Rejected { until }, limit, left, source, dues },
            None => {
                let (limit, left) = self.least.unwrap_or_default();
                SetGrant { take: Take::Granted { wait: self.wait }, limit, left, source, dues }
            }
        }
    }
}

/// What is asked of one bucket of several.
#[derive(Debug)]
pub struct BucketPart<'a> {
    /// The bucket; each once.
    pub bucket: &'a mut Bucket,
    /// Its rate.
    pub rate: Rate,
    /// The number of permits.
    pub cost: u32,
    /// The longest acceptable wait.
    pub max_wait: Duration,
}

impl Bucket {
    /// Takes the permits of several buckets, or of none.
    pub fn take_all(now: Time, parts: &mut [BucketPart<'_>]) -> SetVerdict {
        let mut verdict = SetVerdict::default();
        let take = |(index, part): (usize, &BucketPart<'_>)| {
            let mut bucket = *part.bucket;
            let take = bucket.take(now, part.rate, part.cost, part.max_wait);
            verdict.note(index, take, bucket.level(part.rate));
            (bucket, matches!(take, Take::Rejected { .. }))
        };
        let taken: Vec<_> = parts.iter().enumerate().map(take).collect();
        for (part, (bucket, rejects)) in parts.iter_mut().zip(taken) {
            // One that rejects keeps what it learned of a large cost.
            if rejects || !verdict.is_rejected() {
                *part.bucket = bucket;
            } else {
                part.bucket.available(now, part.rate);
            }
        }
        verdict
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn left(units: i64) -> Level {
        Level { units, price: 1 }
    }

    #[test]
    fn the_limit_that_rejects_for_longest_is_named() {
        let mut verdict = SetVerdict::default();
        verdict.note(0, Take::Granted { wait: Duration::from_secs(3) }, left(0));
        verdict.note(1, Take::Rejected { until: Time::from_micros(5) }, left(1));
        verdict.note(2, Take::Rejected { until: Time::from_micros(9) }, left(2));
        verdict.note(3, Take::Rejected { until: Time::from_micros(9) }, left(3));
        let grant = verdict.grant(Source::Local, Dues::Same(Time::ZERO));
        assert_eq!((grant.take, grant.limit), (Take::Rejected { until: Time::from_micros(9) }, 2));
        assert_eq!(grant.left, left(2));
    }

    #[test]
    fn a_grant_waits_for_the_slowest_and_names_the_limit_with_the_fewest_permits() {
        let waits = [Duration::ZERO, Duration::from_micros(7)];
        let mut verdict = SetVerdict::default();
        verdict.note(0, Take::Granted { wait: waits[0] }, left(4));
        verdict.note(1, Take::Granted { wait: waits[1] }, left(-2));
        let dues = Dues::after(Time::from_micros(10), waits.into_iter());
        let grant = verdict.grant(Source::Local, dues.clone());
        assert_eq!((grant.take, grant.limit), (Take::Granted { wait: waits[1] }, 1));
        assert_eq!([dues.of(0), dues.of(1), dues.of(2)], [10, 17, 0].map(Time::from_micros));
        assert_eq!(Dues::after(Time::ZERO, [Duration::ZERO; 2].into_iter()), Dues::Same(Time::ZERO));
    }
}
