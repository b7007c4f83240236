//! The numbers: what is asked for, what can be answered, and the queues that stand between.

use std::ops::Range;
use std::time::Duration;

use phalanx::store::Rng;
use phalanx::{BulkheadSpec, Criticality};

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The dependency answers so many at a time, each in about 100 ms: 100 calls a second, and not one more.
pub(crate) const SLOTS: u32 = 10;
pub(crate) const SERVICE: Range<Duration> = ms(80)..ms(120);
pub(crate) const CAPACITY: f64 = 100.0;

/// Each user asks every five seconds if he is answered at once: 300 calls a second, three times the capacity.
pub(crate) const ASKED: u32 = 300;
pub(crate) const USERS: u32 = 1_500;
const THINK: Duration = ms(4_900);
/// After this long he has closed the page.
pub(crate) const PATIENCE: Duration = ms(1_000);
pub(crate) const LENGTH: Duration = Duration::from_secs(30);

/// Who asks, and how many of ten users. The critical ones alone are a third of the capacity, with the normal ones nine
/// tenths of it.
pub(crate) const TIERS: [(&str, Criticality, u32); 4] = [
    ("critical", Criticality::Critical, 1),
    ("normal", Criticality::Normal, 2),
    ("degraded", Criticality::Degraded, 2),
    ("best effort", Criticality::BestEffort, 5),
];

/// How much this user would miss the answer.
pub(crate) fn criticality(user: u32) -> Criticality {
    let mut below = 0;
    let tier = TIERS.into_iter().find(|(_, _, users)| {
        below += users;
        user % 10 < below
    });
    tier.map_or(Criticality::Normal, |(_, criticality, _)| criticality)
}

/// A pause between two calls: exponential, so that users do not march in step.
pub(crate) fn think(chance: &Rng) -> Duration {
    THINK.mul_f64(-(1.0 - chance.unit()).ln())
}

/// The queues: what many a service has, the same with its places counted by hand, and then one rule more in each row.
pub(crate) fn queues() -> [(&'static str, BulkheadSpec); 5] {
    let fifo = |places| BulkheadSpec::fixed(SLOTS).queue(places);
    let codel = fifo(150).queue_target(ms(100)).queue_interval(ms(200));
    [
        ("FIFO, 150 places", fifo(150)),
        ("FIFO, 75 places", fifo(75)),
        ("150 places, CoDel", codel),
        ("  and adaptive LIFO", codel.adaptive_lifo()),
        ("  and priorities", codel.adaptive_lifo().prioritized()),
    ]
}
