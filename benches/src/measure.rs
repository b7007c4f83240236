//! The stop watch: short batches, many rounds, medians.
//!
//! A round gives every contender of every case one batch of a few milliseconds. Contenders of one case run
//! one right after the other, in an order that turns with the round, so that a machine that gets slower or
//! busier does so for all of them alike; the median over the rounds forgets the batches that were disturbed.

// The point of this program is to read real time; `phalanx_core::Clock` is what is being measured.
#![allow(clippy::disallowed_methods)]

use std::time::{Duration, Instant};

use crate::cases::Case;
use crate::contender::Contender;

/// Long enough that starting it does not count, short enough that a disturbance spoils few of them.
const BATCH: Duration = Duration::from_millis(6);

/// Fewer rounds than this and a median is a lottery, however little time was asked for.
const FEWEST_ROUNDS: usize = 5;

/// A case with its medians, in nanoseconds a call.
pub(crate) struct Measured {
    pub(crate) case: &'static str,
    pub(crate) bar: Option<f64>,
    pub(crate) ours_ns: f64,
    /// In the order of the case: the first is the one that the bar is about.
    pub(crate) peers: Vec<(&'static str, f64)>,
}

/// Measures all cases for about `budget` together.
pub(crate) fn run(cases: Vec<Case>, budget: Duration) -> Result<Vec<Measured>, String> {
    let mut heats = cases.into_iter().map(Heat::prepare).collect::<Result<Vec<_>, _>>()?;
    let end = Instant::now() + budget;
    let mut round = 0;
    while round < FEWEST_ROUNDS || Instant::now() < end {
        for heat in &mut heats {
            heat.run(round)?;
        }
        round += 1;
    }
    Ok(heats.into_iter().map(Heat::finish).collect())
}

/// A case while it is measured.
struct Heat {
    case: &'static str,
    bar: Option<f64>,
    /// Ours first, then the peers.
    lanes: Vec<Lane>,
}

/// A contender, the size of its batch, and its times so far.
struct Lane {
    contender: Contender,
    calls: u64,
    ns_per_call: Vec<f64>,
}

impl Heat {
    fn prepare(case: Case) -> Result<Self, String> {
        let contenders = std::iter::once(case.ours).chain(case.peers);
        let lanes = contenders.map(Lane::prepare).collect::<Result<_, _>>();
        let lanes = lanes.map_err(|reason| format!("{}: {reason}", case.name))?;
        Ok(Self { case: case.name, bar: case.bar, lanes })
    }

    fn run(&mut self, round: usize) -> Result<(), String> {
        let lanes = self.lanes.len();
        for place in 0..lanes {
            // Turning alone would leave everyone behind the same neighbour; every other turn goes backwards.
            let place = if (round / lanes).is_multiple_of(2) { place } else { lanes - 1 - place };
            self.lanes[(round + place) % lanes].run().map_err(|reason| format!("{}: {reason}", self.case))?;
        }
        Ok(())
    }

    fn finish(self) -> Measured {
        let mut medians: Vec<_> =
            self.lanes.into_iter().map(|lane| (lane.contender.name, median(lane.ns_per_call))).collect();
        let (_, ours_ns) = medians.remove(0);
        Measured { case: self.case, bar: self.bar, ours_ns, peers: medians }
    }
}

impl Lane {
    /// Finds the number of calls that fills a batch, which also warms everything up.
    fn prepare(mut contender: Contender) -> Result<Self, String> {
        let mut calls = 64;
        loop {
            // The shorter of two, lest one that was disturbed end the search with far too small a batch.
            let took = time(&mut contender, calls)?.min(time(&mut contender, calls)?);
            if took >= BATCH / 2 {
                let calls = calls as f64 * BATCH.as_secs_f64() / took.as_secs_f64();
                return Ok(Self { contender, calls: calls.ceil() as u64, ns_per_call: Vec::new() });
            }
            calls *= 2;
        }
    }

    fn run(&mut self) -> Result<(), String> {
        let took = time(&mut self.contender, self.calls)?;
        self.ns_per_call.push(took.as_secs_f64() * 1e9 / self.calls as f64);
        Ok(())
    }
}

fn time(contender: &mut Contender, calls: u64) -> Result<Duration, String> {
    let start = Instant::now();
    contender.run(calls)?;
    Ok(start.elapsed())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len().is_multiple_of(2) { (values[middle - 1] + values[middle]) / 2.0 } else { values[middle] }
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn the_median_of_an_even_number_is_the_mean_of_the_middle_two() {
        assert_eq!(median(vec![9.0, 1.0, 3.0]), 3.0);
        assert_eq!(median(vec![9.0, 1.0, 3.0, 5.0]), 4.0);
    }
}
