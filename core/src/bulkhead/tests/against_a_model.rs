//! Any history of arrivals, departures, deserters and changes of the limit, against a list that is searched.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Copy, Debug)]
enum Deed {
    Arrive(usize),
    /// One of those under way leaves.
    Leave,
    /// The n-th of all who wait goes away.
    Desert(usize),
    /// The n-th of all who wait hears his timer.
    Ring(usize),
    Pass(u64),
    Limit(u32),
}

fn deed() -> impl Strategy<Value = Deed> {
    prop_oneof![
        4 => (0..TIERS).prop_map(Deed::Arrive),
        3 => Just(Deed::Leave),
        1 => any::<usize>().prop_map(Deed::Desert),
        1 => any::<usize>().prop_map(Deed::Ring),
        2 => (0_u64..60).prop_map(Deed::Pass),
        1 => (1_u32..5).prop_map(Deed::Limit),
    ]
}

const TIERS: usize = 4;
const ALL: [Criticality; TIERS] =
    [Criticality::BestEffort, Criticality::Degraded, Criticality::Normal, Criticality::Critical];

fn spec() -> impl Strategy<Value = BulkheadSpec> {
    (1_u32..4, 0_u32..6, any::<(bool, bool, bool, bool)>()).prop_map(
        |(limit, queue, (target, timeout, lifo, ranks))| {
            let mut spec = BulkheadSpec::fixed(limit).queue(queue);
            spec.queue_target = target.then_some(5 * MS);
            spec.queue_timeout = timeout.then_some(70 * MS);
            (spec.queue_adaptive_lifo, spec.prioritized) = (lifo, ranks);
            spec
        },
    )
}

/// Everybody who waits, in the order they came; whoever is next is searched for.
#[derive(Default)]
struct Model {
    limit: u32,
    in_use: u32,
    /// By tier.
    empty_at: [u64; TIERS],
    line: Vec<Man>,
}

#[derive(Clone, Copy)]
struct Man {
    place: WaiterId,
    tier: usize,
    due: Time,
}

impl Model {
    fn newest_first(&self, tier: usize, spec: &BulkheadSpec, now: u64) -> bool {
        spec.queue_adaptive_lifo && now >= self.empty_at[tier] + 100
    }

    fn pick(&self, tier: usize, newest: bool) -> usize {
        let mut of_tier = (0..self.line.len()).filter(|i| self.line[*i].tier == tier);
        if newest { of_tier.next_back() } else { of_tier.next() }.unwrap()
    }

    /// Serves while it can; everybody it takes out, and whether he was served.
    fn serve(&mut self, spec: &BulkheadSpec, now: u64) -> Vec<(WaiterId, bool)> {
        let mut out = Vec::new();
        while self.in_use < self.limit
            && let Some(tier) = self.line.iter().map(|man| man.tier).max()
        {
            let man = self.line.remove(self.pick(tier, self.newest_first(tier, spec, now)));
            let served = man.due > Time::from_micros(now * 1_000);
            self.in_use += u32::from(served);
            out.push((man.place, served));
        }
        out
    }
}

proptest! {
    /// Exactly one verdict each, in the right order, never above the limit, and all slots back in the end.
    #[test]
    fn everybody_is_served_or_rejected_once_and_nobody_is_lost(
        spec in spec(), deeds in proptest::collection::vec(deed(), 1..200),
    ) {
        let bench = Bench::new(spec);
        let mut model = Model { limit: spec.max_concurrency, ..Model::default() };
        let mut now = 0;
        let mut spec = spec;
        for deed in deeds {
            let mut expected = Vec::new();
            match deed {
                Deed::Arrive(tier) => {
                    let may_enter = model.in_use < model.limit && model.line.is_empty();
                    let rank = if spec.prioritized { tier } else { 2 };
                    let lowest = model.line.iter().map(|man| man.tier).min();
                    let is_full = model.line.len() >= spec.max_queue as usize;
                    let displaces = lowest.filter(|lowest| is_full && *lowest < rank);
                    let entry = if bench.bulkhead.try_enter() { Ok(Entry::Entered) } else { bench.arrive_as(ALL[tier]) };
                    match entry {
                        Ok(Entry::Entered) => {
                            prop_assert!(may_enter);
                            model.in_use += 1;
                        }
                        Ok(Entry::Waiting(place, due)) => {
                            prop_assert!(!may_enter && (!is_full || displaces.is_some()));
                            if let Some(lowest) = displaces {
                                let last = model.pick(lowest, !model.newest_first(lowest, &spec, now));
                                expected.push((model.line.remove(last).place, false));
                            }
                            if model.line.iter().all(|man| man.tier != rank) {
                                model.empty_at[rank] = now;
                            }
                            model.line.push(Man { place, tier: rank, due });
                        }
                        Err(code) => {
                            prop_assert_eq!(code, RejectionCode::BulkheadFull);
                            prop_assert!(!may_enter && is_full && displaces.is_none());
                        }
                    }
                }
                Deed::Leave if model.in_use > 0 => {
                    model.in_use -= 1;
                    bench.leave();
                    expected = model.serve(&spec, now);
                }
                Deed::Desert(n) if !model.line.is_empty() => {
                    let man = model.line.remove(n % model.line.len());
                    bench.bulkhead.abandon(man.place, &bench.clock);
                }
                Deed::Ring(n) if !model.line.is_empty() => {
                    let man = model.line.remove(n % model.line.len());
                    prop_assert!(bench.bulkhead.give_up(man.place).is_err());
                }
                Deed::Pass(millis) => {
                    now += millis;
                    bench.advance(Duration::from_millis(millis));
                }
                Deed::Limit(limit) => {
                    spec.max_concurrency = limit;
                    bench.bulkhead.retune(&spec, &bench.clock);
                    let grown = limit > model.limit;
                    model.limit = limit;
                    if grown {
                        expected = model.serve(&spec, now);
                    }
                }
                _ => {}
            }
            for (place, served) in expected {
                prop_assert_eq!(bench.poll(place).map(|verdict| verdict.is_ok()), Poll::Ready(served));
            }
            for man in &model.line {
                prop_assert_eq!(bench.poll(man.place), Poll::Pending);
            }
            prop_assert_eq!(bench.view(), (model.limit, model.in_use, model.line.len() as u32));
        }
        // Everybody goes home.
        for man in std::mem::take(&mut model.line) {
            bench.bulkhead.abandon(man.place, &bench.clock);
        }
        (0..model.in_use).for_each(|_| bench.leave());
        prop_assert_eq!(bench.view(), (model.limit, 0, 0));
        prop_assert!(bench.bulkhead.try_enter(), "and the fast way is open again");
    }
}
