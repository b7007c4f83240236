//! Contenders take turns: a round gives every contender of every case one heat, in an order that turns with the round,
//! so that a machine that gets slower does so for all alike; the median over the rounds forgets the disturbed heats.

// The point of this program is to read real time; `phalanx_core::Clock` is what is being measured.
#![allow(clippy::disallowed_methods)]

use std::error::Error;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;

use super::callers::{self, Heat};
use super::figures::{Bar, Row};
use crate::contender::Caller;

/// How long calls count in one heat.
const SPAN: Duration = Duration::from_millis(200);

/// Fewer rounds than this and a median is a lottery, however little time was asked for.
const FEWEST_ROUNDS: usize = 3;

/// Calls of a heat that may come out otherwise than meant, as a share. They do not count, and the report tells of them:
/// a disturbed machine loses a few, a broken contender loses them all.
const ASTRAY: f64 = 0.5;

/// What a case compares.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Compared {
    /// Calls a second, ours by the peer's: above one, ours is faster.
    Throughput,
    /// The median latency, ours by the peer's: below one, ours is faster.
    Latency,
    /// Time per call, ours by the peer's, of calls that are made so many at a stretch: below one, ours is faster.
    Stretches(u32),
}

/// One comparison: the same work by us and by peers.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) compared: Compared,
    pub(crate) bar: Option<Bar>,
    pub(crate) ours: Contender,
    /// The bar is about the first; the others' names come after a dot.
    pub(crate) peers: Vec<Contender>,
}

type Drive = Box<dyn Fn(&Runtime) -> Heat>;

/// One implementation of a case.
pub(crate) struct Contender {
    name: &'static str,
    drive: Drive,
    heats: Vec<Heat>,
}

impl Contender {
    /// So many callers, each made from its number.
    pub(crate) fn new<C: Caller>(name: &'static str, callers: usize, caller: impl Fn(usize) -> C + 'static) -> Self {
        let drive = move |runtime: &Runtime| callers::heat(runtime, callers, SPAN, &caller);
        Self { name, drive: Box::new(drive), heats: Vec::new() }
    }

    fn run(&mut self, runtime: &Runtime) -> Result<(), String> {
        let heat = (self.drive)(runtime);
        if heat.calls == 0 || heat.astray as f64 > heat.calls as f64 * ASTRAY {
            return Err(format!(
                "{}: {} of {} calls came out otherwise than meant",
                self.name, heat.astray, heat.calls
            ));
        }
        self.heats.push(heat);
        Ok(())
    }

    fn median(&self, figure: impl Fn(&Heat) -> f64) -> f64 {
        let mut values: Vec<_> = self.heats.iter().map(figure).collect();
        values.sort_by(f64::total_cmp);
        callers::quantile_of(&values, 0.5)
    }

    fn astray(&self) -> u64 {
        self.heats.iter().map(|heat| heat.astray).sum()
    }
}

/// Measures all cases for about `budget` together.
pub(crate) fn run(runtime: &Runtime, mut cases: Vec<Case>, budget: Duration) -> Result<Vec<Row>, Box<dyn Error>> {
    let end = Instant::now() + budget;
    let mut round = 0;
    while round < FEWEST_ROUNDS || Instant::now() < end {
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
        for place in 0..count {
            // Turning alone would leave everyone behind the same neighbour; every other turn goes backwards.
            let place = if (round / count).is_multiple_of(2) { place } else { count - 1 - place };
            contenders[(round + place) % count].run(runtime)?;
        }
        Ok(())
    }

    fn rows(&self) -> Vec<Row> {
        let row = |(place, peer): (usize, &Contender)| {
            let is_named_by_the_bar = place == 0;
            let name = if is_named_by_the_bar { self.name.to_owned() } else { format!("{}.{}", self.name, peer.name) };
            self.row(name, peer).bar(self.bar.filter(|_| is_named_by_the_bar))
        };
        self.peers.iter().enumerate().map(row).collect()
    }

    fn row(&self, name: String, peer: &Contender) -> Row {
        let per_s = [&self.ours, peer].map(|contender| contender.median(|heat| heat.calls_per_s));
        let p50 = [&self.ours, peer].map(|contender| contender.median(|heat| heat.p50_us));
        let p99 = [&self.ours, peer].map(|contender| contender.median(|heat| heat.p99_us));
        let row = match self.compared {
            Compared::Stretches(calls) => {
                let [ours, theirs] = per_s.map(|per_s| 1e9 / (per_s * f64::from(calls)));
                let row = Row::ratio(name, peer.name, ours / theirs);
                return row.beside("ours_ns", ours).beside("peer_ns", theirs);
            }
            Compared::Throughput => Row::ratio(name, peer.name, per_s[0] / per_s[1]),
            Compared::Latency => Row::ratio(name, peer.name, p50[0] / p50[1]),
        };
        let row = row.beside("ours_per_s", per_s[0]).beside("peer_per_s", per_s[1]);
        let row = row.beside("p99_ratio", p99[0] / p99[1]).beside("ours_p50_us", p50[0]).beside("peer_p50_us", p50[1]);
        let row = row.beside("ours_p99_us", p99[0]).beside("peer_p99_us", p99[1]);
        row.beside("ours_astray", self.ours.astray() as f64).beside("peer_astray", peer.astray() as f64)
    }
}
