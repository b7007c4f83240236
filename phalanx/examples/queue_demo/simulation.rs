//! The numbers: the load, the capacity of the dependency, and the queues to compare.

use std::ops::Range;
use std::time::Duration;

use phalanx::store::Rng;
use phalanx::{BulkheadSpec, Criticality};

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The dependency serves 10 calls at a time, each in about 100 ms: 100 calls a second.
pub(crate) const SLOTS: u32 = 10;
pub(crate) const SERVICE_TIME: Range<Duration> = ms(80)..ms(120);
pub(crate) const CAPACITY_PER_SECOND: f64 = 100.0;

/// Each user sends a call every five seconds if it is answered at once: 300 calls a second, three times the capacity.
pub(crate) const CALLS_PER_SECOND: u32 = 300;
pub(crate) const USERS: u32 = 1_500;
const THINK_TIME: Duration = ms(4_900);
/// How long a user waits for an answer.
pub(crate) const CLIENT_TIMEOUT: Duration = ms(1_000);
pub(crate) const DURATION: Duration = Duration::from_secs(30);

/// The tiers, and how many of ten users each has. Critical calls are a third of the capacity, critical and normal ones
/// nine tenths of it.
pub(crate) const TIERS: [(&str, Criticality, u32); 4] = [
    ("critical", Criticality::Critical, 1),
    ("normal", Criticality::Normal, 2),
    ("degraded", Criticality::Degraded, 2),
    ("best effort", Criticality::BestEffort, 5),
];

/// The criticality of the calls of this user.
pub(crate) fn criticality(user: u32) -> Criticality {
    let mut below = 0;
    let tier = TIERS.into_iter().find(|(_, _, users)| {
        below += users;
        user % 10 < below
    });
    tier.map_or(Criticality::Normal, |(_, criticality, _)| criticality)
}

/// The pause between two calls: exponential, so that users are not synchronized.
pub(crate) fn think_time(rng: &Rng) -> Duration {
    THINK_TIME.mul_f64(-(1.0 - rng.unit()).ln())
}

/// The queues: a long one as many services have, one with a hand-tuned length, and then one more rule in each row.
pub(crate) fn queues() -> [(&'static str, BulkheadSpec); 5] {
    let fifo = |length| BulkheadSpec::fixed(SLOTS).queue(length);
    let codel = fifo(150).queue_target(ms(100)).queue_interval(ms(200));
    [
        ("FIFO, queue of 150", fifo(150)),
        ("FIFO, queue of 75", fifo(75)),
        ("CoDel, queue of 150", codel),
        ("  and adaptive LIFO", codel.adaptive_lifo()),
        ("  and priorities", codel.adaptive_lifo().prioritized()),
    ]
}
