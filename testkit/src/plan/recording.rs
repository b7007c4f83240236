//! What happened in a step: every call, every breaker transition, every retry.

use std::time::Duration;

use phalanx::{EventKind, RejectionCode};
use phalanx_core::breaker::Phase;

/// One call under one policy. Times are in microseconds of the step.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallRecord {
    pub(super) start: u64,
    pub(super) elapsed: u64,
    pub(super) attempts: u32,
    pub(super) hedges: u32,
    /// The HTTP status of the answer: 200, the rejection's, or 502 for an error of the dependency.
    pub(super) status: u16,
    /// The code of the rejection, if the policy rejected the call or cut off its last attempt.
    pub(super) code: Option<RejectionCode>,
    /// Whether the operation ran at all.
    pub(super) admitted: bool,
    /// The key of a write.
    pub(super) key: u64,
}

impl CallRecord {
    pub(super) const fn is_served(&self) -> bool {
        self.status == 200
    }
}

/// A request with a deadline, over one or more policies.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestRecord {
    /// The time left when it arrived, in microseconds.
    pub(super) budget: u64,
    pub(super) elapsed: u64,
    pub(super) status: u16,
    pub(super) code: Option<RejectionCode>,
}

/// What happened under one policy.
#[derive(Debug, Default)]
pub(super) struct PolicyRecord {
    pub(super) name: String,
    pub(super) calls: Vec<CallRecord>,
    pub(super) transitions: Vec<(u64, Phase)>,
    /// The epoch of the breaker since its last transition.
    pub(super) epoch: u64,
    pub(super) retries: Retries,
    /// Calls without an answer a minute after the last one began.
    pub(super) unanswered: u32,
    pub(super) peak_in_flight: u32,
    /// Calls per second that the dependency completes.
    pub(super) capacity: f64,
    pub(super) peak_queue: u32,
    pub(super) hop_attempts: u64,
    pub(super) hop_overrun: Duration,
    /// Writes by how often they took effect, of calls that began while the fault was injected.
    pub(super) writes: Option<WriteCounts>,
}

/// The waits before retries.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Retries {
    pub(super) count: u64,
    pub(super) shortest: Duration,
    pub(super) longest: Duration,
}

/// What became of the writes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WriteCounts {
    pub(super) total: u64,
    /// With more than one attempt.
    pub(super) repeated: u64,
    /// By how often they took effect.
    pub(super) never: u64,
    pub(super) once: u64,
    pub(super) more: u64,
    /// Answered with success without an effect, or with an error although they took effect.
    pub(super) misreported: u64,
}

/// What happened in a step.
#[derive(Debug, Default)]
pub(super) struct Recording {
    pub(super) policies: Vec<PolicyRecord>,
    pub(super) requests: Vec<RequestRecord>,
}

impl Recording {
    /// Records an event of one of the policies.
    pub(super) fn on_event(&mut self, now: u64, policy: usize, kind: EventKind<'_>) {
        let Some(policy) = self.policies.get_mut(policy) else { return };
        match kind {
            // Every replica tells of each transition of the fleet's breaker; the first one counts.
            EventKind::Transition(change) if change.epoch > policy.epoch => {
                policy.epoch = change.epoch;
                policy.transitions.push((now, change.to));
            }
            EventKind::Retry { delay, .. } => {
                let retries = &mut policy.retries;
                retries.shortest = if retries.count == 0 { delay } else { retries.shortest.min(delay) };
                retries.longest = retries.longest.max(delay);
                retries.count += 1;
            }
            _ => {}
        }
    }
}

/// Returns a quantile by nearest rank; the values are sorted.
pub(super) fn quantile(sorted: &[u64], quantile: f64) -> Option<u64> {
    let rank = (sorted.len() as f64 * quantile).ceil().max(1.0) as usize;
    sorted.get(rank - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_a_value_that_occurred() {
        let values: Vec<u64> = (1..=100).collect();
        assert_eq!([0.0, 0.5, 0.95, 0.99, 1.0].map(|it| quantile(&values, it)), [1, 50, 95, 99, 100].map(Some));
        assert_eq!(quantile(&[], 0.5), None);
    }
}
