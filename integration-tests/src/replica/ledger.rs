//! Results of a replica's calls, and how long they waited for the store.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use parking_lot::Mutex;
use phalanx::{RejectionCode, Source};
use serde::{Deserialize, Serialize};

use super::moment::Moment;
use super::starvation;

/// Counts and times of calls.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Tally {
    /// Admitted calls, by the source of the decision (`fleet`, `degraded`, …).
    pub admitted: BTreeMap<String, u64>,
    /// Rejected calls, by code and by the source of the decision.
    pub rejected: BTreeMap<String, BTreeMap<String, u64>>,
    /// When the first call was admitted.
    pub first_admitted: Option<Moment>,
    /// When the last call was admitted.
    pub last_admitted: Option<Moment>,
    /// When the last call of each route was admitted.
    pub last_admitted_on: BTreeMap<String, Moment>,
    /// When the first call of each route was rejected.
    pub first_rejected: BTreeMap<String, Moment>,
    /// When the dependency first failed on each route.
    pub first_failed: BTreeMap<String, Moment>,
    /// When probes were at the dependency.
    pub probes: Vec<Span>,
    /// Start times of calls that are at the dependency now.
    pub at_dependency: Vec<Moment>,
    /// Waits of calls that asked Redis.
    pub store_waits: WaitStats,
    /// Waits of calls made while the store was degraded.
    pub degraded_waits: WaitStats,
    /// CPU time of the deciding poll of those calls: the cost of the store itself, without other load of the machine.
    pub degraded_cpu_time: WaitStats,
    /// CPU time of control loops of the same length, run next to those calls.
    pub control_cpu_time: WaitStats,
    /// Calls made while the store was degraded that were not decided in their first poll.
    pub degraded_and_parked: u64,
    /// The most time one caller lost in one outage, over all its calls that Redis did not answer. With
    /// [`Load::excluding_starvation`](super::Load::excluding_starvation), without time spent waiting for a processor.
    pub max_lost: Duration,
    /// The most time one caller spent waiting for a processor in one outage.
    pub max_starved: Duration,
    /// Calls that Redis did not answer although processors were available: waiting for one took less than a quarter of
    /// the budget.
    pub unanswered: usize,
}

impl Tally {
    /// Returns the number of admitted calls.
    pub fn admitted(&self) -> u64 {
        self.admitted.values().sum()
    }

    /// Returns the number of calls admitted by this source.
    pub fn admitted_by(&self, source: Source) -> u64 {
        self.admitted.get(source.name()).copied().unwrap_or(0)
    }

    /// Returns the number of calls rejected with this code, by any source.
    pub fn rejected(&self, code: RejectionCode) -> u64 {
        self.rejected.get(code.name()).map_or(0, |sources| sources.values().sum())
    }

    /// Returns the number of calls admitted or rejected by this source.
    pub fn decided_by(&self, source: Source) -> u64 {
        let rejected = self.rejected.values().filter_map(|sources| sources.get(source.name()));
        self.admitted_by(source) + rejected.sum::<u64>()
    }

    /// Returns the number of finished calls.
    pub fn calls(&self) -> u64 {
        self.admitted() + self.rejected.values().flat_map(BTreeMap::values).sum::<u64>()
    }

    /// Returns the codes with which calls were rejected.
    pub fn reasons(&self) -> Vec<&str> {
        self.rejected.keys().map(String::as_str).collect()
    }
}

/// A time span.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Span {
    /// Its beginning.
    pub from: Moment,
    /// Its end.
    pub to: Moment,
}

impl Span {
    /// Returns the duration.
    pub fn length(&self) -> Duration {
        self.to.since(self.from)
    }

    /// Returns the largest number of spans that overlap at one time.
    pub fn max_concurrent(spans: &[Self]) -> usize {
        let at = |moment: Moment| spans.iter().filter(|span| span.from <= moment && moment < span.to).count();
        spans.iter().map(|span| at(span.from)).max().unwrap_or(0)
    }
}

/// Quantiles of durations.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct WaitStats {
    /// Number of durations.
    pub count: usize,
    /// The median.
    pub p50: Duration,
    /// The 99th percentile.
    pub p99: Duration,
    /// The 99.9th percentile.
    pub p999: Duration,
    /// The longest duration.
    pub worst: Duration,
    /// Number of durations of 50 µs or longer.
    pub from_50_us: usize,
}

impl WaitStats {
    /// Computes the quantiles.
    pub fn of(mut waits: Vec<Duration>) -> Self {
        waits.sort_unstable();
        let at = |share: f64| {
            let rank = (waits.len() as f64 * share).ceil() as usize;
            waits.get(rank.saturating_sub(1)).copied().unwrap_or_default()
        };
        let from_50_us = waits.len() - waits.partition_point(|wait| *wait < Duration::from_micros(50));
        Self { count: waits.len(), p50: at(0.5), p99: at(0.99), p999: at(0.999), worst: at(1.0), from_50_us }
    }

    /// Returns the share of durations of 50 µs or longer.
    pub fn share_from_50_us(&self) -> f64 {
        self.from_50_us as f64 / self.count.max(1) as f64
    }
}

/// One finished call.
#[derive(Debug)]
pub(super) struct Entry<'a> {
    pub(super) route: &'a str,
    pub(super) rejected: Option<RejectionCode>,
    pub(super) source: Source,
    pub(super) probe: bool,
    pub(super) failed: bool,
    pub(super) began: Moment,
    /// When the operation started; none if the call was rejected.
    pub(super) started: Option<Moment>,
    /// When the operation ended. The call ends later: another one may have been admitted meanwhile.
    pub(super) answered: Option<Moment>,
    pub(super) ended: Moment,
    /// Whether the store was degraded from the beginning of the call to the decision.
    pub(super) degraded: bool,
    pub(super) parked: bool,
    pub(super) cpu_time: Duration,
}

impl Entry<'_> {
    /// Returns when the operation started or the call was rejected.
    pub(super) fn decided(&self) -> Moment {
        self.started.unwrap_or(self.ended)
    }

    /// Returns the time from the call to the decision.
    pub(super) fn wait(&self) -> Duration {
        self.decided().since(self.began)
    }
}

#[derive(Debug, Default)]
pub(super) struct Ledger(Mutex<Records>);

/// The raw records. Every call writes here under the lock, so recording must be cheap.
#[derive(Debug, Default)]
struct Records {
    tally: Tally,
    admitted: HashMap<Source, u64>,
    rejected: HashMap<(RejectionCode, Source), u64>,
    store_waits: Vec<Duration>,
    degraded_waits: Vec<Duration>,
    degraded_cpu_time: Vec<Duration>,
    control_cpu_time: Vec<Duration>,
    /// For each caller and outage: the waits that Redis did not answer.
    losses: Vec<Vec<Span>>,
}

/// The unanswered waits of one caller in one outage.
#[derive(Debug)]
pub(super) struct Losses<'a> {
    ledger: &'a Ledger,
    spans: Vec<Span>,
    /// Whether the outage was detected; an unanswered wait after that belongs to the next outage.
    detected: bool,
}

impl<'a> Losses<'a> {
    pub(super) const fn new(ledger: &'a Ledger) -> Self {
        Self { ledger, spans: Vec::new(), detected: false }
    }

    pub(super) fn record(&mut self, entry: &Entry<'_>) {
        if self.detected && !entry.degraded {
            self.flush();
        }
        self.detected = entry.degraded;
        // Redis was asked and did not answer: the whole wait was lost.
        if !entry.degraded && entry.source == Source::Degraded {
            self.spans.push(Span { from: entry.began, to: entry.decided() });
        }
    }

    fn flush(&mut self) {
        if !self.spans.is_empty() {
            self.ledger.0.lock().losses.push(std::mem::take(&mut self.spans));
        }
    }
}

impl Drop for Losses<'_> {
    fn drop(&mut self) {
        self.flush();
    }
}

impl Ledger {
    pub(super) fn record_start(&self, at: Moment) {
        self.0.lock().tally.at_dependency.push(at);
    }

    /// Records a finished call and the CPU time of its control loop.
    pub(super) fn record_call(&self, entry: &Entry<'_>, control: Option<Duration>) {
        let mut records = self.0.lock();
        let records = &mut *records;
        records.control_cpu_time.extend(control);
        let tally = &mut records.tally;
        if let Some(started) = entry.started {
            let index = tally.at_dependency.iter().position(|at| *at == started);
            index.map(|index| tally.at_dependency.swap_remove(index));
            tally.first_admitted = Some(tally.first_admitted.map_or(started, |first| first.min(started)));
            tally.last_admitted = Some(tally.last_admitted.map_or(started, |last| last.max(started)));
            match tally.last_admitted_on.get_mut(entry.route) {
                Some(last) => *last = started.max(*last),
                None => drop(tally.last_admitted_on.insert(entry.route.to_owned(), started)),
            }
            *records.admitted.entry(entry.source).or_default() += 1;
            if entry.probe {
                tally.probes.push(Span { from: started, to: entry.answered.unwrap_or(entry.ended) });
            }
            if entry.failed {
                record_first(&mut tally.first_failed, entry);
            }
        } else if let Some(code) = entry.rejected {
            *records.rejected.entry((code, entry.source)).or_default() += 1;
            record_first(&mut tally.first_rejected, entry);
        }
        if entry.degraded {
            records.degraded_waits.push(entry.wait());
            records.degraded_cpu_time.push(entry.cpu_time);
            tally.degraded_and_parked += u64::from(entry.parked);
        } else {
            records.store_waits.push(entry.wait());
        }
    }

    /// Returns the tally without wait statistics, because sorting them under the lock would delay callers.
    pub(super) fn snapshot(&self) -> Tally {
        self.0.lock().tally()
    }

    /// Returns the complete tally and clears it, except for calls that are still at the dependency.
    pub(super) fn take(&self, store_budget: Duration) -> Tally {
        let records = {
            let mut records = self.0.lock();
            let mut fresh = Records::default();
            fresh.tally.at_dependency.clone_from(&records.tally.at_dependency);
            std::mem::replace(&mut *records, fresh)
        };
        let tally = records.tally();
        let starved = |spans: &Vec<Span>| spans.iter().map(|span| starvation::between(*span, store_budget)).sum();
        let starved: Vec<Duration> = records.losses.iter().map(starved).collect();
        let lost = records.losses.iter().map(|spans| spans.iter().map(Span::length).sum::<Duration>());
        let not_starved = |span: &&Span| starvation::without_processor(**span) < store_budget / 4;
        Tally {
            unanswered: records.losses.iter().flatten().filter(not_starved).count(),
            max_lost: lost.zip(&starved).map(|(lost, starved)| lost.saturating_sub(*starved)).max().unwrap_or_default(),
            max_starved: starved.iter().copied().max().unwrap_or_default(),
            store_waits: WaitStats::of(records.store_waits),
            degraded_waits: WaitStats::of(records.degraded_waits),
            degraded_cpu_time: WaitStats::of(records.degraded_cpu_time),
            control_cpu_time: WaitStats::of(records.control_cpu_time),
            ..tally
        }
    }
}

impl Records {
    fn tally(&self) -> Tally {
        let mut tally = self.tally.clone();
        for (source, count) in &self.admitted {
            tally.admitted.insert(source.name().to_owned(), *count);
        }
        for ((code, source), count) in &self.rejected {
            let sources = tally.rejected.entry(code.name().to_owned()).or_default();
            sources.insert(source.name().to_owned(), *count);
        }
        tally
    }
}

fn record_first(firsts: &mut BTreeMap<String, Moment>, entry: &Entry<'_>) {
    if !firsts.contains_key(entry.route) {
        firsts.insert(entry.route.to_owned(), entry.ended);
    }
}
