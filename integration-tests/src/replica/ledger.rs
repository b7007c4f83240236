//! What became of a replica's calls, and how long they waited for the store.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use parking_lot::Mutex;
use phalanx::{RejectionCode, Source};
use serde::{Deserialize, Serialize};

use super::moment::Moment;
use super::starvation;

/// What became of calls.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Tally {
    /// Calls let through, by whose state that was decided on (`fleet`, `degraded`, …).
    pub admitted: BTreeMap<String, u64>,
    /// Calls rejected, by code and by whose state that was decided on.
    pub rejected: BTreeMap<String, BTreeMap<String, u64>>,
    /// When the first was let through, and the last.
    pub first_admitted: Option<Moment>,
    /// See above.
    pub last_admitted: Option<Moment>,
    /// When each route was last let through.
    pub last_admitted_on: BTreeMap<String, Moment>,
    /// When each route was first rejected.
    pub first_rejected: BTreeMap<String, Moment>,
    /// When the dependency first failed, on each route.
    pub first_failed: BTreeMap<String, Moment>,
    /// When probes were at the dependency.
    pub probes: Vec<Span>,
    /// Since when calls are there that have not come back.
    pub at_dependency: Vec<Moment>,
    /// Waits of calls that asked Redis.
    pub asking: Waits,
    /// Waits of calls that came while it was known to be away.
    pub alone: Waits,
    /// The same, counting only the time in which the caller's thread had a processor: what the store itself costs,
    /// whatever else the machine does.
    pub alone_on_processor: Waits,
    /// The same of loops that do nothing, as long and in the same places.
    pub control_on_processor: Waits,
    /// Calls alone that were not decided at once but had to wait for something.
    pub alone_and_parked: u64,
    /// The most that one caller has lost in one outage, over all its calls that Redis was asked about and did not answer.
    /// Without the time in which the machine had no processor for the replica, if a load was told to count that.
    pub most_lost: Duration,
    /// The most of that time, for one caller in one outage.
    pub most_starved: Duration,
    /// Calls that Redis was asked about and did not answer, although there was a processor for everybody: less than a
    /// quarter of the budget was lost by waiting for one.
    pub unanswered: usize,
}

impl Tally {
    /// All calls let through.
    pub fn admitted(&self) -> u64 {
        self.admitted.values().sum()
    }

    /// Calls let through on this word.
    pub fn admitted_by(&self, source: Source) -> u64 {
        self.admitted.get(source.name()).copied().unwrap_or(0)
    }

    /// Calls rejected for this reason, whoever said so.
    pub fn rejected(&self, code: RejectionCode) -> u64 {
        self.rejected.get(code.name()).map_or(0, |sources| sources.values().sum())
    }

    /// Calls decided on this word, either way.
    pub fn decided_by(&self, source: Source) -> u64 {
        let rejected = self.rejected.values().filter_map(|sources| sources.get(source.name()));
        self.admitted_by(source) + rejected.sum::<u64>()
    }

    /// All calls that are over.
    pub fn calls(&self) -> u64 {
        self.admitted() + self.rejected.values().flat_map(BTreeMap::values).sum::<u64>()
    }

    /// The reasons for which calls were rejected.
    pub fn reasons(&self) -> Vec<&str> {
        self.rejected.keys().map(String::as_str).collect()
    }
}

/// When something was under way.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Span {
    /// Its beginning.
    pub from: Moment,
    /// Its end.
    pub to: Moment,
}

impl Span {
    /// From its beginning to its end.
    pub fn length(&self) -> Duration {
        self.to.since(self.from)
    }

    /// The most that were under way at one time.
    pub fn most_at_a_time(spans: &[Self]) -> usize {
        let at = |moment: Moment| spans.iter().filter(|span| span.from <= moment && moment < span.to).count();
        spans.iter().map(|span| at(span.from)).max().unwrap_or(0)
    }
}

/// How long something took, over many times.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Waits {
    /// How many times.
    pub count: usize,
    /// Half of them took at most so long.
    pub p50: Duration,
    /// 99 of 100.
    pub p99: Duration,
    /// 999 of 1,000.
    pub p999: Duration,
    /// All of them.
    pub worst: Duration,
    /// How many took 50 µs or longer.
    pub from_50_us: usize,
}

impl Waits {
    /// Of these.
    pub fn of(mut waits: Vec<Duration>) -> Self {
        waits.sort_unstable();
        let at = |share: f64| {
            let rank = (waits.len() as f64 * share).ceil() as usize;
            waits.get(rank.saturating_sub(1)).copied().unwrap_or_default()
        };
        let from_50_us = waits.len() - waits.partition_point(|wait| *wait < Duration::from_micros(50));
        Self { count: waits.len(), p50: at(0.5), p99: at(0.99), p999: at(0.999), worst: at(1.0), from_50_us }
    }

    /// The share of those that took 50 µs or longer.
    pub fn share_from_50_us(&self) -> f64 {
        self.from_50_us as f64 / self.count.max(1) as f64
    }
}

/// One call that is over.
#[derive(Debug)]
pub(super) struct Entry<'a> {
    pub(super) route: &'a str,
    pub(super) rejected: Option<RejectionCode>,
    pub(super) source: Source,
    pub(super) probe: bool,
    pub(super) failed: bool,
    pub(super) began: Moment,
    /// When the operation was started, if it was.
    pub(super) departed: Option<Moment>,
    pub(super) ended: Moment,
    /// Whether the store was known to be away when it began, and still when it was decided.
    pub(super) alone: bool,
    pub(super) parked: bool,
    pub(super) on_processor: Duration,
}

impl Entry<'_> {
    /// When its operation was started, or it was rejected.
    pub(super) fn decided(&self) -> Moment {
        self.departed.unwrap_or(self.ended)
    }

    /// From the call to then.
    pub(super) fn wait(&self) -> Duration {
        self.decided().since(self.began)
    }
}

#[derive(Debug, Default)]
pub(super) struct Ledger(Mutex<Pages>);

/// Written by every call, so only what is quick is done here.
#[derive(Debug, Default)]
struct Pages {
    tally: Tally,
    admitted: HashMap<Source, u64>,
    rejected: HashMap<(RejectionCode, Source), u64>,
    asking: Vec<Duration>,
    alone: Vec<Duration>,
    alone_on_processor: Vec<Duration>,
    control_on_processor: Vec<Duration>,
    /// Of each caller in each outage, when it waited in vain.
    losses: Vec<Vec<Span>>,
}

/// What one caller loses in one outage.
#[derive(Debug)]
pub(super) struct Losses<'a> {
    ledger: &'a Ledger,
    spans: Vec<Span>,
    /// The outage is known: what is lost from the next question on is another one's.
    known: bool,
}

impl<'a> Losses<'a> {
    pub(super) const fn new(ledger: &'a Ledger) -> Self {
        Self { ledger, spans: Vec::new(), known: false }
    }

    pub(super) fn note(&mut self, entry: &Entry<'_>) {
        if self.known && !entry.alone {
            self.hand_over();
        }
        self.known = entry.alone;
        // Redis was asked and did not answer: all the waiting was for nothing.
        if !entry.alone && entry.source == Source::Degraded {
            self.spans.push(Span { from: entry.began, to: entry.decided() });
        }
    }

    fn hand_over(&mut self) {
        if !self.spans.is_empty() {
            self.ledger.0.lock().losses.push(std::mem::take(&mut self.spans));
        }
    }
}

impl Drop for Losses<'_> {
    fn drop(&mut self) {
        self.hand_over();
    }
}

impl Ledger {
    pub(super) fn departs(&self, at: Moment) {
        self.0.lock().tally.at_dependency.push(at);
    }

    /// Enters a call, and what its control took on the processor.
    pub(super) fn enter(&self, entry: &Entry<'_>, control: Option<Duration>) {
        let mut pages = self.0.lock();
        let pages = &mut *pages;
        pages.control_on_processor.extend(control);
        let tally = &mut pages.tally;
        if let Some(departed) = entry.departed {
            let place = tally.at_dependency.iter().position(|at| *at == departed);
            place.map(|place| tally.at_dependency.swap_remove(place));
            tally.first_admitted = Some(tally.first_admitted.map_or(departed, |first| first.min(departed)));
            tally.last_admitted = Some(tally.last_admitted.map_or(departed, |last| last.max(departed)));
            match tally.last_admitted_on.get_mut(entry.route) {
                Some(last) => *last = departed.max(*last),
                None => drop(tally.last_admitted_on.insert(entry.route.to_owned(), departed)),
            }
            *pages.admitted.entry(entry.source).or_default() += 1;
            if entry.probe {
                tally.probes.push(Span { from: departed, to: entry.ended });
            }
            if entry.failed {
                note_first(&mut tally.first_failed, entry);
            }
        } else if let Some(code) = entry.rejected {
            *pages.rejected.entry((code, entry.source)).or_default() += 1;
            note_first(&mut tally.first_rejected, entry);
        }
        if entry.alone {
            pages.alone.push(entry.wait());
            pages.alone_on_processor.push(entry.on_processor);
            tally.alone_and_parked += u64::from(entry.parked);
        } else {
            pages.asking.push(entry.wait());
        }
    }

    /// Everything but the waits: to sort them takes longer than callers should be kept.
    pub(super) fn look(&self) -> Tally {
        self.0.lock().tally()
    }

    /// Everything; all is forgotten but who is at the dependency still.
    pub(super) fn take(&self, store_budget: Duration) -> Tally {
        let pages = {
            let mut pages = self.0.lock();
            let mut fresh = Pages::default();
            fresh.tally.at_dependency.clone_from(&pages.tally.at_dependency);
            std::mem::replace(&mut *pages, fresh)
        };
        let tally = pages.tally();
        let starved = |spans: &Vec<Span>| spans.iter().map(|span| starvation::between(*span, store_budget)).sum();
        let starved: Vec<Duration> = pages.losses.iter().map(starved).collect();
        let lost = pages.losses.iter().map(|spans| spans.iter().map(Span::length).sum::<Duration>());
        let fed = |span: &&Span| starvation::without_processor(**span) < store_budget / 4;
        Tally {
            unanswered: pages.losses.iter().flatten().filter(fed).count(),
            most_lost: lost
                .zip(&starved)
                .map(|(lost, starved)| lost.saturating_sub(*starved))
                .max()
                .unwrap_or_default(),
            most_starved: starved.iter().copied().max().unwrap_or_default(),
            asking: Waits::of(pages.asking),
            alone: Waits::of(pages.alone),
            alone_on_processor: Waits::of(pages.alone_on_processor),
            control_on_processor: Waits::of(pages.control_on_processor),
            ..tally
        }
    }
}

impl Pages {
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

fn note_first(firsts: &mut BTreeMap<String, Moment>, entry: &Entry<'_>) {
    if !firsts.contains_key(entry.route) {
        firsts.insert(entry.route.to_owned(), entry.ended);
    }
}
