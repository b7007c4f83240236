//! Random histories of arrivals, departures, cancellations and changes of the limit, compared with a simple model.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Copy, Debug)]
enum Step {
    Arrive(usize),
    /// A call in flight leaves.
    Leave,
    /// The n-th waiter is dropped.
    Abandon(usize),
    /// The timer of the n-th waiter fires.
    Expire(usize),
    Pass(u64),
    Limit(u32),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..TIERS).prop_map(Step::Arrive),
        3 => Just(Step::Leave),
        1 => any::<usize>().prop_map(Step::Abandon),
        1 => any::<usize>().prop_map(Step::Expire),
        2 => (0_u64..60).prop_map(Step::Pass),
        1 => (1_u32..5).prop_map(Step::Limit),
    ]
}

const TIERS: usize = 4;
const ALL: [Criticality; TIERS] =
    [Criticality::BestEffort, Criticality::Degraded, Criticality::Normal, Criticality::Critical];

fn spec() -> impl Strategy<Value = BulkheadSpec> {
    (1_u32..4, 0_u32..6, any::<(bool, bool, bool, bool)>()).prop_map(
        |(limit, queue, (target, timeout, lifo, prioritized))| {
            let mut spec = BulkheadSpec::fixed(limit).queue(queue);
            spec.queue_target = target.then_some(5 * MS);
            spec.queue_timeout = timeout.then_some(70 * MS);
            (spec.queue_adaptive_lifo, spec.prioritized) = (lifo, prioritized);
            spec
        },
    )
}

/// All waiters in the order of arrival; the next one is searched for.
#[derive(Default)]
struct Model {
    limit: u32,
    in_use: u32,
    /// By tier.
    empty_at: [u64; TIERS],
    line: Vec<Waiting>,
}

#[derive(Clone, Copy)]
struct Waiting {
    id: WaiterId,
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

    /// Serves waiters while there are slots. Returns those it removed, and whether they were served.
    fn serve(&mut self, spec: &BulkheadSpec, now: u64) -> Vec<(WaiterId, bool)> {
        let mut out = Vec::new();
        while self.in_use < self.limit
            && let Some(tier) = self.line.iter().map(|waiting| waiting.tier).max()
        {
            let waiting = self.line.remove(self.pick(tier, self.newest_first(tier, spec, now)));
            let served = waiting.due > Time::from_micros(now * 1_000);
            self.in_use += u32::from(served);
            out.push((waiting.id, served));
        }
        out
    }
}

proptest! {
    /// Each waiter gets one verdict, in order and never above the limit, and all slots are back in the end.
    #[test]
    fn every_waiter_is_served_or_rejected_exactly_once(
        spec in spec(), steps in proptest::collection::vec(step(), 1..200),
    ) {
        let bench = Bench::new(spec);
        let mut model = Model { limit: spec.max_concurrency, ..Model::default() };
        let mut now = 0;
        let mut spec = spec;
        for step in steps {
            let mut expected = Vec::new();
            match step {
                Step::Arrive(tier) => {
                    let may_enter = model.in_use < model.limit && model.line.is_empty();
                    let tier_used = if spec.prioritized { tier } else { 2 };
                    let lowest = model.line.iter().map(|waiting| waiting.tier).min();
                    let is_full = model.line.len() >= spec.max_queue as usize;
                    let displaces = lowest.filter(|lowest| is_full && *lowest < tier_used);
                    let entry = if bench.bulkhead.try_enter() { Ok(Entry::Entered) } else { bench.arrive_as(ALL[tier]) };
                    match entry {
                        Ok(Entry::Entered) => {
                            prop_assert!(may_enter);
                            model.in_use += 1;
                        }
                        Ok(Entry::Waiting(id, due)) => {
                            prop_assert!(!may_enter && (!is_full || displaces.is_some()));
                            if let Some(lowest) = displaces {
                                let last = model.pick(lowest, !model.newest_first(lowest, &spec, now));
                                expected.push((model.line.remove(last).id, false));
                            }
                            if model.line.iter().all(|waiting| waiting.tier != tier_used) {
                                model.empty_at[tier_used] = now;
                            }
                            model.line.push(Waiting { id, tier: tier_used, due });
                        }
                        Err(code) => {
                            prop_assert_eq!(code, RejectionCode::BulkheadFull);
                            prop_assert!(!may_enter && is_full && displaces.is_none());
                        }
                    }
                }
                Step::Leave if model.in_use > 0 => {
                    model.in_use -= 1;
                    bench.leave();
                    expected = model.serve(&spec, now);
                }
                Step::Abandon(n) if !model.line.is_empty() => {
                    let waiting = model.line.remove(n % model.line.len());
                    bench.bulkhead.abandon(waiting.id, &bench.clock);
                }
                Step::Expire(n) if !model.line.is_empty() => {
                    let waiting = model.line.remove(n % model.line.len());
                    prop_assert!(bench.bulkhead.give_up(waiting.id).is_err());
                }
                Step::Pass(millis) => {
                    now += millis;
                    bench.advance(Duration::from_millis(millis));
                }
                Step::Limit(limit) => {
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
            for (id, served) in expected {
                prop_assert_eq!(bench.poll(id).map(|verdict| verdict.is_ok()), Poll::Ready(served));
            }
            for waiting in &model.line {
                prop_assert_eq!(bench.poll(waiting.id), Poll::Pending);
            }
            prop_assert_eq!(bench.view(), (model.limit, model.in_use, model.line.len() as u32));
        }
        // All callers leave.
        for waiting in std::mem::take(&mut model.line) {
            bench.bulkhead.abandon(waiting.id, &bench.clock);
        }
        (0..model.in_use).for_each(|_| bench.leave());
        prop_assert_eq!(bench.view(), (model.limit, 0, 0));
        prop_assert!(bench.bulkhead.try_enter(), "the fast path is open again");
    }
}
