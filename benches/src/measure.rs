//! Time measurement: short batches, many rounds, medians.
//!
//! In each round every contender of every case runs one batch of a few milliseconds. Contenders of one case run directly
//! one after the other, in an order that rotates with the round, so that a machine that becomes slower affects all of them
//! equally; the median over the rounds ignores disturbed batches.

// This program measures real time; `phalanx_core::Clock` is part of what is measured.
#![allow(clippy::disallowed_methods)]

use std::time::{Duration, Instant};

use crate::cases::Case;
use crate::contender::Contender;

/// Long enough to hide the cost of starting a batch, short enough that a disturbance affects few batches.
const BATCH: Duration = Duration::from_millis(6);

/// The minimum number of rounds for a meaningful median, even if they exceed the requested time.
const MIN_ROUNDS: usize = 5;

/// A case with its medians, in nanoseconds per call.
pub(crate) struct Measured {
    pub(crate) case: &'static str,
    pub(crate) bar: Option<f64>,
    pub(crate) ours_ns: f64,
    /// In the order of the case; the bar applies to the first.
    pub(crate) peers: Vec<(&'static str, f64)>,
}

/// Measures all cases for about `budget` in total.
pub(crate) fn run(cases: Vec<Case>, budget: Duration) -> Result<Vec<Measured>, String> {
    let mut runs = cases.into_iter().map(CaseRun::prepare).collect::<Result<Vec<_>, _>>()?;
    let end = Instant::now() + budget;
    let mut round = 0;
    while round < MIN_ROUNDS || Instant::now() < end {
        for run in &mut runs {
            run.run(round)?;
        }
        round += 1;
    }
    Ok(runs.into_iter().map(CaseRun::finish).collect())
}

/// A case while it is measured.
struct CaseRun {
    case: &'static str,
    bar: Option<f64>,
    /// Ours first, then the peers.
    contenders: Vec<ContenderRun>,
}

/// A contender, the size of its batch, and its times so far.
struct ContenderRun {
    contender: Contender,
    calls: u64,
    ns_per_call: Vec<f64>,
}

impl CaseRun {
    fn prepare(case: Case) -> Result<Self, String> {
        let contenders = std::iter::once(case.ours).chain(case.peers);
        let contenders = contenders.map(ContenderRun::prepare).collect::<Result<_, _>>();
        let contenders = contenders.map_err(|reason| format!("{}: {reason}", case.name))?;
        Ok(Self { case: case.name, bar: case.bar, contenders })
    }

    fn run(&mut self, round: usize) -> Result<(), String> {
        let contenders = self.contenders.len();
        for index in 0..contenders {
            // Rotation alone would keep each contender behind the same one; so every other rotation is reversed.
            let index = if (round / contenders).is_multiple_of(2) { index } else { contenders - 1 - index };
            self.contenders[(round + index) % contenders].run().map_err(|reason| format!("{}: {reason}", self.case))?;
        }
        Ok(())
    }

    fn finish(self) -> Measured {
        let mut medians: Vec<_> = self
            .contenders
            .into_iter()
            .map(|contender_run| (contender_run.contender.name, median(contender_run.ns_per_call)))
            .collect();
        let (_, ours_ns) = medians.remove(0);
        Measured { case: self.case, bar: self.bar, ours_ns, peers: medians }
    }
}

impl ContenderRun {
    /// Finds the number of calls that fills a batch, which also serves as a warm-up.
    fn prepare(mut contender: Contender) -> Result<Self, String> {
        let mut calls = 64;
        loop {
            // The shorter of two, because one disturbed measurement would end the search with a batch that is too small.
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
