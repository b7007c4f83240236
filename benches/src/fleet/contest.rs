//! Runs contenders alternately: in each round every contender of every case has one load run, in an order that rotates with
//! the round, so that a machine that becomes slower affects all of them equally; the median over the rounds ignores
//! disturbed runs.

// This program measures real time; `phalanx_core::Clock` is part of what is measured.
#![allow(clippy::disallowed_methods)]

use std::error::Error;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;

use super::callers::{self, LoadRun};
use crate::contender::Caller;
use crate::figures::{Bar, Row};

/// The counted span of one load run.
const SPAN: Duration = Duration::from_millis(200);

/// The minimum number of rounds for a meaningful median, even if they exceed the requested time.
const MIN_ROUNDS: usize = 3;

/// The largest acceptable share of unexpected results in a load run. They are not counted in rates and are reported: a
/// disturbed machine causes a few, a broken contender only these.
const MAX_UNEXPECTED_SHARE: f64 = 0.5;

/// What a case compares.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Compared {
    /// Calls per second, ours divided by the peer's: above one, Phalanx is faster.
    Throughput,
    /// Median latency, ours divided by the peer's: below one, Phalanx is faster.
    Latency,
    /// Time per call, ours divided by the peer's, for batches of this many calls: below one, Phalanx is faster.
    Batches(u32),
}

/// One comparison: the same work by Phalanx and by peers.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) compared: Compared,
    pub(crate) bar: Option<Bar>,
    pub(crate) ours: Contender,
    /// The bar applies to the first; rows of the others have their name after a dot.
    pub(crate) peers: Vec<Contender>,
}

type Drive = Box<dyn Fn(&Runtime) -> LoadRun>;

/// One implementation of a case.
pub(crate) struct Contender {
    name: &'static str,
    drive: Drive,
    runs: Vec<LoadRun>,
}

impl Contender {
    /// A contender with this number of callers, each built from its number.
    pub(crate) fn new<C: Caller>(name: &'static str, callers: usize, caller: impl Fn(usize) -> C + 'static) -> Self {
        let drive = move |runtime: &Runtime| callers::run_load(runtime, callers, SPAN, &caller);
        Self { name, drive: Box::new(drive), runs: Vec::new() }
    }

    fn run(&mut self, runtime: &Runtime) -> Result<(), String> {
        let run = (self.drive)(runtime);
        if run.calls == 0 || run.unexpected as f64 > run.calls as f64 * MAX_UNEXPECTED_SHARE {
            return Err(format!("{}: {} of {} calls had an unexpected result", self.name, run.unexpected, run.calls));
        }
        self.runs.push(run);
        Ok(())
    }

    fn median(&self, figure: impl Fn(&LoadRun) -> f64) -> f64 {
        let mut values: Vec<_> = self.runs.iter().map(figure).collect();
        values.sort_by(f64::total_cmp);
        callers::quantile_of(&values, 0.5)
    }

    fn unexpected(&self) -> u64 {
        self.runs.iter().map(|run| run.unexpected).sum()
    }
}

/// Measures all cases for about `budget` in total.
pub(crate) fn run(runtime: &Runtime, mut cases: Vec<Case>, budget: Duration) -> Result<Vec<Row>, Box<dyn Error>> {
    let end = Instant::now() + budget;
    let mut round = 0;
    while round < MIN_ROUNDS || Instant::now() < end {
        for case in &mut cases {
            case.run(runtime, round).map_err(|reason| format!("{}: {reason}", case.name))?;
        }
        round += 1;
    }
    Ok(cases.iter().flat_map(Case::rows).collect())
}

impl Case {
    fn run(&mut self, runtime: &Runtime, round: usize) -> Result<(), String> {
        let mut contenders: Vec<_> = std::iter::once(&mut self.ours).chain(&mut self.peers).collect();
        let count = contenders.len();
        for index in 0..count {
            // Rotation alone would keep each contender behind the same one; so every other rotation is reversed.
            let index = if (round / count).is_multiple_of(2) { index } else { count - 1 - index };
            contenders[(round + index) % count].run(runtime)?;
        }
        Ok(())
    }

    fn rows(&self) -> Vec<Row> {
        let row = |(index, peer): (usize, &Contender)| {
            let is_named_by_the_bar = index == 0;
            let name = if is_named_by_the_bar { self.name.to_owned() } else { format!("{}.{}", self.name, peer.name) };
            self.row(name, peer).bar(self.bar.filter(|_| is_named_by_the_bar))
        };
        self.peers.iter().enumerate().map(row).collect()
    }

    fn row(&self, name: String, peer: &Contender) -> Row {
        let per_s = [&self.ours, peer].map(|contender| contender.median(|run| run.calls_per_s));
        let p50 = [&self.ours, peer].map(|contender| contender.median(|run| run.p50_us));
        let p99 = [&self.ours, peer].map(|contender| contender.median(|run| run.p99_us));
        let row = match self.compared {
            Compared::Batches(calls) => {
                let [ours, theirs] = per_s.map(|per_s| 1e9 / (per_s * f64::from(calls)));
                let row = Row::ratio(name, peer.name, ours / theirs);
                return row.with("ours_ns", ours).with("peer_ns", theirs);
            }
            Compared::Throughput => Row::ratio(name, peer.name, per_s[0] / per_s[1]),
            Compared::Latency => Row::ratio(name, peer.name, p50[0] / p50[1]),
        };
        let row = row.with("ours_per_s", per_s[0]).with("peer_per_s", per_s[1]);
        let row = row.with("p99_ratio", p99[0] / p99[1]).with("ours_p50_us", p50[0]).with("peer_p50_us", p50[1]);
        let row = row.with("ours_p99_us", p99[0]).with("peer_p99_us", p99[1]);
        row.with("ours_unexpected", self.ours.unexpected() as f64).with("peer_unexpected", peer.unexpected() as f64)
    }
}
