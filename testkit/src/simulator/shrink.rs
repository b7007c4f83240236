//! Shrinks a plan that breaks a promise to the shortest story that still breaks it.

use super::plan::Plan;
use super::run;

/// Runs that shrinking may take.
const MOST_RUNS: usize = 200;

/// Returns the smallest plan found that still breaks the oracle `id`.
pub fn shrink(plan: &Plan, id: &str) -> Plan {
    let mut best = plan.clone();
    let mut runs = 0;
    let mut breaks = |candidate: &Plan| {
        runs += 1;
        runs <= MOST_RUNS
            && candidate.mistakes().is_empty()
            && run(candidate).broken.iter().any(|(broken, _)| *broken == id)
    };
    loop {
        let before = best.clone();
        // Faults, from the last: what came later often does not matter.
        for index in (0..best.faults.len()).rev() {
            let mut candidate = best.clone();
            candidate.faults.remove(index);
            if breaks(&candidate) {
                best = candidate;
            }
        }
        for index in (0..best.loads.len()).rev() {
            let mut candidate = best.clone();
            candidate.loads.remove(index);
            if breaks(&candidate) {
                best = candidate;
            }
        }
        if best.lock {
            let candidate = Plan { lock: false, ..best.clone() };
            if breaks(&candidate) {
                best = candidate;
            }
        }
        while best.replicas > 1 {
            let mut candidate = Plan { replicas: best.replicas - 1, ..best.clone() };
            candidate.loads.retain(|load| load.replica.is_none_or(|replica| replica < candidate.replicas));
            if !breaks(&candidate) {
                break;
            }
            best = candidate;
        }
        for seconds in [5, 10, 20, 30, 40] {
            if seconds < best.seconds {
                let candidate = Plan { seconds, ..best.clone() };
                if breaks(&candidate) {
                    best = candidate;
                    break;
                }
            }
        }
        if best == before {
            return best;
        }
    }
}
