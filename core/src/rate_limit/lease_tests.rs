//! The guarantees of leased permits: of the bucket, of one replica, and of a fleet of them (docs/guarantees.md I-31).

#![allow(clippy::unwrap_used)] // a failed expectation panics, in helpers too

use super::holder::Demand;
use super::*;
use crate::rng::Rng;
use proptest::prelude::*;

const SECOND: u64 = 1_000_000;
const START: u64 = 10 * SECOND;

fn at(micros: u64) -> Time {
    Time::from_micros(micros)
}

/// A hundred a second, a hundred at once: a lease lasts an eighth of a second.
fn hundred() -> Rate {
    Rate::of(&RateLimitSpec::per_second(100))
}

fn empty(rate: Rate) -> Bucket {
    let mut bucket = Bucket::full(at(START), rate);
    bucket.take(at(START), rate, u32::try_from(rate.capacity / rate.price).unwrap(), Duration::ZERO);
    bucket
}

#[test]
fn a_lease_lasts_200_ms_or_an_eighth_of_the_time_of_the_burst() {
    let time = |spec: &RateLimitSpec| Rate::of(spec).lease_time().as_micros();
    assert_eq!(time(&RateLimitSpec::per_second(100)), 124_999, "seven slots of whole microseconds");
    assert_eq!(time(&RateLimitSpec::per_second(100).burst(10_000)), 199_997);
    assert_eq!(time(&RateLimitSpec::per_second(1_000).burst(20)), 2_499);
    assert_eq!(time(&RateLimitSpec::per_second(1_000_000_000).burst(1)), 7, "the least");
    assert_eq!(Rate::of(&RateLimitSpec::per_second(10_000)).max_block(), 624);
}

#[test]
fn permits_that_are_leased_are_not_refilled_before_the_lease_ends() {
    let rate = hundred();
    let mut bucket = Bucket::full(at(START), rate);
    let drawn = bucket.draw(at(START), rate, 1_000);
    assert_eq!((drawn.permits, drawn.lasts), (100, rate.lease_time()));
    let ends = drawn.ends.as_micros();
    assert!(ends > START + rate.lease_time().as_micros() as u64 && ends <= START + 8 * rate.lease_slot());
    for now in (START..ends).step_by(997).chain([ends - 1]) {
        assert_eq!(bucket.clone().available(at(now), rate), 0, "drawn, and perhaps not spent yet");
    }
    assert_eq!(bucket.available(at(ends + SECOND / 2), rate), 50, "refilled from the end on");
}

#[test]
fn a_draw_gets_what_is_there_and_a_debt_nothing() {
    let rate = hundred();
    let mut bucket = Bucket::full(at(START), rate);
    assert_eq!(bucket.draw(at(START), rate, 40).permits, 40);
    assert_eq!(bucket.draw(at(START), rate, 100).permits, 60);
    assert_eq!(bucket.draw(at(START), rate, 1).permits, 0);
    let mut bucket = empty(rate);
    assert_eq!(
        bucket.take(at(START), rate, 1, Duration::from_secs(1)),
        Take::Granted { wait: Duration::from_millis(10) }
    );
    assert_eq!(bucket.draw(at(START + 9_999), rate, 5).permits, 0, "a waiter is served first");
    assert_eq!(bucket.draw(at(START + 20_000), rate, 5).permits, 1);
}

#[test]
fn a_block_that_is_closed_gives_back_what_was_not_spent_once() {
    let rate = hundred();
    let mut bucket = Bucket::full(at(START), rate);
    let drawn = bucket.draw(at(START), rate, 80);
    bucket.close(at(START), rate, drawn.ends, 80, 50);
    assert_eq!(bucket.available(at(START), rate), 70);
    bucket.close(at(START), rate, drawn.ends, 80, 50);
    assert_eq!(bucket.available(at(START), rate), 70, "nothing is leased any more");
    let late = bucket.draw(at(START), rate, 70);
    assert_eq!(bucket.available(late.ends, rate), 14, "refilled into the room of the thirty that were spent");
    let before = bucket;
    bucket.close(late.ends, rate, late.ends, 70, 70);
    assert_eq!(bucket, before, "the lease has ended");
}

#[test]
fn a_close_never_gives_back_more_than_its_slot_still_holds() {
    let rate = hundred();
    let mut bucket = Bucket::full(at(START), rate);
    let drawn = bucket.draw(at(START), rate, 10);
    bucket.close(at(START), rate, drawn.ends, u64::MAX, u64::MAX);
    assert_eq!(bucket.available(at(START), rate), 100);
    let drawn = bucket.draw(at(START), rate, 10);
    for ends in [0, 1, drawn.ends.as_micros() - 1, drawn.ends.as_micros() + 8 * rate.lease_slot(), u64::MAX] {
        bucket.close(at(START), rate, at(ends), 10, 10);
        assert_eq!(bucket.available(at(START), rate), 90, "{ends}");
    }
}

/// The hole of a bucket that only subtracts at the draw: 56 at once out of a burst of ten.
#[test]
fn idle_draws_and_returns_leave_one_burst_for_all_replicas_together() {
    let rate = Rate::of(&RateLimitSpec::per_second(100).burst(10));
    let mut bucket = Bucket::full(at(START), rate);
    let (lease, mut now) = (rate.lease_time().as_micros() as u64, START);
    let mut blocks = [bucket.draw(at(now), rate, 2); 5];
    for round in 0..200 {
        now += lease * 85 / 100 / 5;
        let block = &mut blocks[round % 5];
        bucket.close(at(now), rate, block.ends, block.permits, block.permits);
        *block = bucket.draw(at(now), rate, 2);
    }
    let leased: u64 = blocks.iter().map(|block| block.permits).sum();
    assert!(leased + bucket.available(at(now), rate) <= 10, "{leased}");
}

#[test]
fn a_refund_leaves_room_for_leased_permits() {
    let rate = hundred();
    let mut bucket = Bucket::full(at(START), rate);
    bucket.take(at(START), rate, 30, Duration::ZERO);
    bucket.draw(at(START), rate, 70);
    bucket.refund(at(START), rate, 100, at(START));
    assert_eq!(bucket.available(at(START), rate), 30);
}

#[test]
fn a_smaller_capacity_makes_debts_of_leased_permits() {
    let (old, new) = (hundred(), Rate::of(&RateLimitSpec::per_second(100).burst(10)));
    let mut bucket = Bucket::full(at(START), old);
    bucket.draw(at(START), old, 60);
    bucket.retune(at(START), old, new);
    assert_eq!(bucket.level(new).units, -50 * new.price as i64);
}

#[test]
fn another_rate_keeps_the_ends_of_leases() {
    let (old, new) = (hundred(), Rate::of(&RateLimitSpec::per_second(50).burst(100)));
    let mut bucket = Bucket::full(at(START), old);
    let drawn = bucket.draw(at(START), old, 100);
    // Two replicas with two rates, one script each in turn.
    let mut now = START;
    for round in 0..40 {
        now += 3_000;
        let (from, to) = if round % 2 == 0 { (old, new) } else { (new, old) };
        bucket.retune(at(now), from, to);
    }
    assert_eq!(bucket.available(at(now), old), 0);
    let second = bucket.draw(at(now), old, 1);
    assert_eq!(second.lasts, old.lease_time(), "slots keep their length while permits are leased");
    assert!(bucket.available(drawn.ends.after(Duration::from_millis(100)), old) >= 9);
}

#[test]
fn a_clock_that_is_set_far_back_keeps_leases_for_a_whole_one() {
    let rate = hundred();
    let mut bucket = Bucket::full(at(START), rate);
    bucket.draw(at(START), rate, 100);
    let back = START - 5 * SECOND;
    assert_eq!(bucket.available(at(back), rate), 0);
    assert_eq!(bucket.available(at(back).after(rate.lease_time()), rate), 0);
    assert!(bucket.available(at(back).after(rate.lease_time() * 2), rate) > 0);
}

#[test]
fn a_cost_for_which_leases_leave_no_room_pauses_draws_until_it_is_served() {
    let rate = hundred();
    let mut bucket = Bucket::full(at(START), rate);
    let drawn = bucket.draw(at(START), rate, 20);
    assert!(matches!(bucket.take(at(START), rate, 80, Duration::ZERO), Take::Granted { .. }), "there is room for 80");
    let mut bucket = Bucket::full(at(START), rate);
    bucket.draw(at(START), rate, 20);
    assert!(matches!(bucket.take(at(START), rate, 90, Duration::ZERO), Take::Rejected { .. }));
    assert_eq!(bucket.draw(at(START), rate, 5).permits, 0);
    let full = drawn.ends.as_micros() + 3 * SECOND / 10;
    assert!(full - START > 2 * rate.lease_time().as_micros() as u64, "two leases are over, so that draws go on");
    assert_eq!(bucket.clone().draw(at(full), rate, 5).permits, 5);
    let soon = at(drawn.ends.as_micros() + 100_000);
    assert_eq!(bucket.clone().draw(soon, rate, 5).permits, 0);
    assert!(matches!(bucket.take(soon, rate, 90, Duration::ZERO), Take::Granted { .. }));
    assert_eq!(bucket.draw(soon, rate, 5).permits, 0, "empty, or nearly");
}

#[test]
fn draws_are_not_paused_again_at_once() {
    let rate = hundred();
    let mut bucket = Bucket::full(at(START), rate);
    bucket.draw(at(START), rate, 20);
    bucket.take(at(START), rate, 100, Duration::ZERO);
    let mut now = START;
    let mut drawn = Vec::new();
    for _ in 0..200 {
        now += 10_000;
        if bucket.draw(at(now), rate, 4).permits > 0 {
            drawn.push(now - START);
        }
        bucket.take(at(now), rate, 100, Duration::ZERO);
    }
    let gaps = drawn.windows(2).filter(|pair| pair[1] - pair[0] > 50_000).count();
    assert!(drawn[0] >= 240_000 && (2..=4).contains(&gaps), "{drawn:?}");
}

// One replica.

/// A replica beside a bucket.
struct Replica {
    cell: BlockCell,
    holder: LeaseHolder,
    rng: Rng,
}

impl Replica {
    fn new() -> Self {
        Self::seeded(0)
    }

    fn seeded(seed: u64) -> Self {
        Self { cell: BlockCell::default(), holder: LeaseHolder::default(), rng: Rng::seeded(seed) }
    }

    /// Draws from the bucket, without a delay. Returns the permits, and the time until which to pause.
    fn draw(&mut self, bucket: &mut Bucket, now: Time, rate: Rate) -> Option<(u64, Option<Time>)> {
        let want = self.holder.draw(&self.cell, now, rate, Duration::ZERO)?;
        for block in self.holder.take_closed() {
            bucket.close(now, rate, block.ends, block.size, block.unspent);
        }
        let drawn = bucket.draw(now, rate, want);
        let level = bucket.level(rate).units;
        Some((
            drawn.permits,
            self.holder.drawn(&self.cell, now, rate, (now, want), (now, drawn), level, self.rng.unit()),
        ))
    }

    /// Asks for one permit as a store does: from the block, else from the bucket, with a draw.
    fn call(&mut self, bucket: &mut Bucket, now: Time, rate: Rate) -> bool {
        if let Some(spent) = self.cell.spend(now, 1) {
            if spent.is_low {
                self.draw(bucket, now, rate);
            }
            return true;
        }
        if self.holder.spend_next(&self.cell, now, 1).is_some() {
            return true;
        }
        let granted = matches!(bucket.take(now, rate, 1, Duration::ZERO), Take::Granted { .. });
        self.draw(bucket, now, rate);
        granted
    }

    /// Calls so many times, evenly spread. Returns how many were granted.
    fn calls(&mut self, bucket: &mut Bucket, from: u64, to: u64, calls: u64, rate: Rate) -> u64 {
        let mut time = (0..calls).map(|call| at(from + (to - from) * call / calls));
        time.by_ref().filter(|now| self.call(bucket, *now, rate)).count() as u64
    }
}

/// Ten thousand a second, and as many at once.
fn busy() -> Rate {
    Rate::of(&RateLimitSpec::per_second(10_000))
}

#[test]
fn a_replica_with_demand_leases_and_one_without_does_not() {
    let rate = busy();
    let mut bucket = Bucket::full(at(START), rate);
    let (mut calm, mut keen) = (Replica::new(), Replica::new());
    assert_eq!(calm.calls(&mut bucket, START, START + SECOND, 60, rate), 60);
    assert_eq!(calm.holder.tally().drawn, 0, "fewer than four in half a lease");
    assert_eq!(keen.calls(&mut bucket, START + SECOND, START + 2 * SECOND, 1_000, rate), 1_000);
    let drawn = keen.holder.tally().drawn;
    assert!(drawn > 850 && drawn < 1_200, "{drawn}");
}

#[test]
fn a_block_is_as_large_as_the_demand_of_half_a_lease_and_never_larger_than_the_rate_of_it() {
    let rate = busy();
    let mut bucket = Bucket::full(at(START), rate);
    let mut replica = Replica::new();
    replica.calls(&mut bucket, START, START + SECOND, 1_000, rate);
    let size = replica.holder.current.unwrap().size;
    assert!((60..=65).contains(&size), "{size} for 62.5");
    let mut keen = Replica::new();
    keen.calls(&mut bucket, START + SECOND, START + SECOND + SECOND / 10, 2_000, rate);
    assert_eq!(keen.holder.current.unwrap().size, rate.max_block());
}

#[test]
fn a_far_bucket_leases_nothing() {
    let rate = busy();
    let mut replica = Replica::new();
    let draw = |replica: &mut Replica, round_trip| {
        *replica = Replica::new();
        replica.holder.asked = 100;
        replica.holder.demand = Demand { since: at(START), asked: 0, per_window: 0 };
        replica.holder.draw(&replica.cell, at(START + 62_499), rate, round_trip)
    };
    assert_eq!(draw(&mut replica, Duration::from_micros(14_062)), Some(100));
    assert_eq!(draw(&mut replica, Duration::from_micros(14_063)), None, "eight of them are more than 0.9 leases");
}

/// A replica that has just drawn a block of this size.
fn with_block(bucket: &mut Bucket, now: Time, rate: Rate, size: u64) -> Replica {
    let mut replica = Replica::new();
    let drawn = bucket.draw(now, rate, size);
    replica.holder.drawn(&replica.cell, now, rate, (now, size), (now, drawn), 0, 0.0);
    replica
}

#[test]
fn a_block_is_valid_for_nine_tenths_of_the_lease_since_its_request_was_sent() {
    let rate = busy();
    let mut bucket = Bucket::full(at(START), rate);
    let replica = with_block(&mut bucket, at(START), rate, 100);
    let last = START + rate.lease_time().as_micros() as u64 * 9 / 10;
    assert!(replica.cell.spend(at(last - 1), 1).is_some());
    assert_eq!(replica.cell.spend(at(last), 1), None);
    assert_eq!(replica.cell.spend(at(START - 1), 1), None, "a clock that went back");
    let mut late = Replica::new();
    let drawn = bucket.draw(at(START), rate, 100);
    late.holder.drawn(&late.cell, at(last), rate, (at(START), 100), (at(START), drawn), 0, 0.0);
    assert_eq!(late.cell.spend(at(last), 1), None, "the reply was too late");
    assert_eq!(late.holder.take_closed(), [ClosedBlock { ends: drawn.ends, size: 100, unspent: 100 }]);
}

#[test]
fn a_block_is_frozen_before_it_is_reported_and_reported_once() {
    let rate = busy();
    let mut bucket = Bucket::full(at(START), rate);
    let mut replica = with_block(&mut bucket, at(START), rate, 100);
    assert_eq!(replica.cell.spend(at(START), 30).map(|spent| (spent.left, spent.is_low)), Some((70, false)));
    assert_eq!(replica.cell.spend(at(START), 20).map(|spent| (spent.left, spent.is_low)), Some((50, true)));
    assert_eq!(replica.holder.held(&replica.cell), 50);
    replica.holder.freeze(&replica.cell);
    assert_eq!(replica.cell.spend(at(START), 1), None);
    let closed = replica.holder.take_closed();
    assert_eq!(closed.iter().map(|block| (block.size, block.unspent)).collect::<Vec<_>>(), [(100, 50)]);
    assert!(replica.holder.take_closed().is_empty());
    replica.holder.reported(&closed, true);
    assert_eq!(replica.holder.tally(), LeaseTally { drawn: 100, returned: 50, expired: 0 });
    replica.holder.reported(&closed, false);
    assert_eq!(replica.holder.tally(), LeaseTally { drawn: 100, returned: 50, expired: 50 });
}

#[test]
fn blocks_are_closed_when_demand_falls() {
    let rate = busy();
    let mut bucket = Bucket::full(at(START), rate);
    let mut replica = Replica::new();
    replica.calls(&mut bucket, START, START + SECOND, 1_000, rate);
    assert!(replica.holder.holds());
    let mut now = at(START + SECOND);
    for _ in 0..4 {
        now = replica.holder.tick(&replica.cell, now, rate).unwrap_or(now);
    }
    assert!(!replica.holder.holds() && replica.holder.has_closed(), "within two halves of a lease");
    assert!(now < at(START + SECOND).after(rate.lease_time() * 2));
}

#[test]
fn after_a_draw_that_got_less_the_next_one_waits_and_the_bucket_keeps_the_rest() {
    let rate = busy();
    let mut bucket = empty(rate);
    let mut replica = Replica::new();
    replica.calls(&mut bucket, START, START + SECOND / 10, 1_500, rate);
    let paused = replica.holder.paused_until;
    assert!(paused > at(START + SECOND / 10 - 25_000), "{paused:?}");
    let before = replica.holder.tally().drawn;
    let mut now = START + SECOND / 10;
    while at(now) < paused {
        assert_eq!(replica.draw(&mut bucket, at(now), rate), None);
        now += 100;
    }
    assert_eq!(replica.holder.tally().drawn, before);
    let drawn = |chance| {
        let mut replica = Replica::new();
        let none = Drawn { permits: 0, ends: at(START), lasts: rate.lease_time() };
        replica.holder.drawn(&replica.cell, at(START), rate, (at(START), 10), (at(START), none), 0, chance)
    };
    assert_eq!(drawn(0.0), Some(at(START + 12_500)), "half of 25 ms");
    assert_eq!(drawn(0.5), Some(at(START + 18_750)));
}

#[test]
fn a_refund_goes_back_into_its_block_and_into_no_other() {
    let rate = busy();
    let mut bucket = Bucket::full(at(START), rate);
    let mut replica = with_block(&mut bucket, at(START), rate, 100);
    let spent = replica.cell.spend(at(START), 40).unwrap();
    assert!(replica.holder.put_back(&replica.cell, at(START), 10, spent.drawn_at));
    assert_eq!(replica.holder.held(&replica.cell), 70);
    assert!(replica.holder.put_back(&replica.cell, at(START), 1_000, spent.drawn_at));
    assert_eq!(replica.holder.held(&replica.cell), 100, "never more than was drawn");
    assert!(!replica.holder.put_back(&replica.cell, at(START), 1, at(START - 1)));
    replica.holder.freeze(&replica.cell);
    assert!(!replica.holder.put_back(&replica.cell, at(START), 1, spent.drawn_at));
}

#[test]
fn a_replica_draws_before_its_block_is_used_up() {
    let rate = busy();
    let mut bucket = Bucket::full(at(START), rate);
    let mut replica = Replica::new();
    replica.calls(&mut bucket, START, START + SECOND, 5_000, rate);
    let exact = replica.holder.asked;
    replica.calls(&mut bucket, START + SECOND, START + 3 * SECOND, 10_000, rate);
    assert!(
        replica.holder.asked - exact < 40,
        "{} of 10,000 did not find a permit in the cell",
        replica.holder.asked - exact
    );
}

/// The bars of small limits: a limit whose rate is below four permits in half a lease leases nothing, so that it makes exactly
/// the requests of an exact one.
#[test]
fn small_limits_lease_nothing_whatever_the_demand() {
    for spec in [RateLimitSpec::per_second(10), RateLimitSpec::per_second(1_000).burst(20)] {
        let rate = Rate::of(&spec);
        assert!(rate.max_block() < MIN_BLOCK);
        let mut bucket = Bucket::full(at(START), rate);
        let mut replica = Replica::new();
        replica.calls(&mut bucket, START, START + SECOND, 10_000, rate);
        assert_eq!(replica.holder.tally(), LeaseTally::default());
    }
}

// A fleet.

/// What was admitted when.
#[derive(Default)]
struct Admitted(Vec<(u64, u64)>);

impl Admitted {
    /// The most permits beyond rate × time that any window holds.
    fn most(&self, rate: Rate) -> f64 {
        let (mut level, mut most, mut last) = (0.0_f64, 0.0_f64, 0);
        for (at, permits) in &self.0 {
            level = (level - (at - last) as f64 * rate.gain as f64 / rate.price as f64).max(0.0) + *permits as f64;
            (most, last) = (most.max(level), *at);
        }
        most
    }

    fn total(&self) -> u64 {
        self.0.iter().map(|(_, permits)| permits).sum()
    }
}

/// Replicas with random numbers of their own.
fn replicas(count: u64) -> Vec<Replica> {
    (1..=count).map(Replica::seeded).collect()
}

/// Lets each replica call so often a second, for a time. Returns what was admitted, and how much of it by each.
fn fleet(
    rate: Rate,
    bucket: &mut Bucket,
    replicas: &mut [Replica],
    demand: &[u64],
    (from, micros): (u64, u64),
) -> (Admitted, Vec<u64>) {
    let mut calls: Vec<(u64, usize)> = Vec::new();
    for (index, per_second) in demand.iter().enumerate() {
        let count = per_second * micros / SECOND;
        // Not all at the same microsecond.
        calls.extend((0..count).map(|call| (from + micros * call / count.max(1) + 17 * index as u64, index)));
    }
    calls.sort_unstable();
    let (mut admitted, mut each) = (Admitted::default(), vec![0; demand.len()]);
    for (now, index) in calls {
        let replica = &mut replicas[index];
        // A store rejects without asking until the pause is over.
        let paused = at(now) < replica.holder.paused_until;
        let granted = match replica.cell.spend(at(now), 1) {
            Some(spent) => {
                if spent.is_low {
                    replica.draw(bucket, at(now), rate);
                }
                true
            }
            None if paused => replica.holder.spend_next(&replica.cell, at(now), 1).is_some(),
            None => replica.call(bucket, at(now), rate),
        };
        if granted {
            admitted.0.push((now, 1));
            each[index] += 1;
        }
    }
    (admitted, each)
}

#[test]
fn an_overloaded_fleet_uses_the_whole_rate_and_not_more() {
    let rate = busy();
    for (demand, least) in [([3_000; 5], 0.97), ([12_000, 1_200, 900, 600, 300], 0.90)] {
        let mut bucket = empty(rate);
        let (admitted, _) = fleet(rate, &mut bucket, &mut replicas(5), &demand, (START, 3 * SECOND));
        let utilisation = admitted.total() as f64 / 30_000.0;
        assert!(utilisation >= least && utilisation <= 1.0, "{utilisation} of {demand:?}");
        assert!(admitted.most(rate) <= 10_000.0);
    }
}

#[test]
fn a_newcomer_has_its_share_within_two_leases() {
    let rate = busy();
    let mut bucket = empty(rate);
    let lease = rate.lease_time().as_micros() as u64;
    let mut replicas = replicas(5);
    fleet(rate, &mut bucket, &mut replicas, &[4_000, 4_000, 4_000, 4_000, 0], (START, SECOND));
    fleet(rate, &mut bucket, &mut replicas, &[3_000; 5], (START + SECOND, 2 * lease));
    let (_, each) = fleet(rate, &mut bucket, &mut replicas, &[3_000; 5], (START + SECOND + 2 * lease, 4 * lease));
    let (newcomer, all): (u64, u64) = (each[4], each.iter().sum());
    assert!(newcomer * 5 * 10 >= all * 8, "{newcomer} of {all}: {each:?}");
}

#[derive(Clone, Debug)]
enum Step {
    Wait(u64),
    /// A replica draws; the reply comes, or is lost.
    Draw(usize, u64, bool),
    /// A replica spends.
    Spend(usize, u32),
    /// A replica closes its blocks, and the bucket gets the report so much later, or never.
    Close(usize, Option<u64>),
    /// A call asks the bucket.
    Exact(u32),
    /// A replica takes back what it spent last, and so does the bucket.
    Refund(usize),
    RefundExact(u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let replica = 0..3_usize;
    let step = prop_oneof![
        5 => (0_u64..60_000).prop_map(Step::Wait),
        1 => (0_u64..2_000_000).prop_map(Step::Wait),
        4 => (replica.clone(), 0_u64..120, prop::bool::weighted(0.9)).prop_map(|(by, want, reply)| Step::Draw(by, want, reply)),
        6 => (replica.clone(), 1_u32..40).prop_map(|(by, cost)| Step::Spend(by, cost)),
        2 => (replica.clone(), prop::option::weighted(0.8, 0_u64..150_000)).prop_map(|(by, late)| Step::Close(by, late)),
        2 => (1_u32..100).prop_map(Step::Exact),
        1 => replica.prop_map(Step::Refund),
        1 => (1_u32..100).prop_map(Step::RefundExact),
    ];
    prop::collection::vec(step, 1..150)
}

/// Plays steps on three replicas beside one bucket.
fn play(rate: Rate, steps: &[Step]) -> Admitted {
    let mut bucket = Bucket::full(at(START), rate);
    let mut replicas: [Replica; 3] = std::array::from_fn(|_| Replica::new());
    let mut last: [Option<(u64, u32, Time)>; 3] = [None; 3];
    let mut reports: Vec<(u64, ClosedBlock)> = Vec::new();
    let (mut now, mut admitted) = (START, Admitted::default());
    for step in steps {
        match *step {
            Step::Wait(by) => now += by,
            Step::Draw(by, want, reply) => {
                let drawn = bucket.draw(at(now), rate, want);
                if reply {
                    let Replica { cell, holder, .. } = &mut replicas[by];
                    holder.drawn(cell, at(now), rate, (at(now), want), (at(now), drawn), 0, 0.0);
                }
            }
            Step::Spend(by, cost) => {
                let Replica { cell, holder, .. } = &mut replicas[by];
                let spent = cell.spend(at(now), cost).or_else(|| holder.spend_next(cell, at(now), cost));
                if let Some(spent) = spent {
                    admitted.0.push((now, u64::from(cost)));
                    last[by] = Some((now, cost, spent.drawn_at));
                }
            }
            Step::Close(by, late) => {
                let Replica { cell, holder, .. } = &mut replicas[by];
                holder.freeze(cell);
                let closed = holder.take_closed();
                reports.extend(late.into_iter().flat_map(|late| closed.iter().map(move |block| (now + late, *block))));
            }
            Step::Exact(cost) => {
                if matches!(bucket.take(at(now), rate, cost, Duration::ZERO), Take::Granted { .. }) {
                    admitted.0.push((now, u64::from(cost)));
                }
            }
            Step::Refund(by) => {
                if let Some((when, cost, drawn_at)) = last[by].take() {
                    let entry = admitted.0.iter().position(|entry| *entry == (when, u64::from(cost)));
                    admitted.0.remove(entry.unwrap());
                    let Replica { cell, holder, .. } = &mut replicas[by];
                    if !holder.put_back(cell, at(now), cost, drawn_at) {
                        bucket.refund(at(now), rate, cost, drawn_at);
                    }
                }
            }
            Step::RefundExact(cost) => {
                let spent = admitted.0.iter().rposition(|(_, permits)| *permits == u64::from(cost));
                if let Some(entry) =
                    spent.filter(|entry| last.iter().flatten().all(|last| last.0 != admitted.0[*entry].0))
                {
                    let (when, _) = admitted.0.remove(entry);
                    bucket.refund(at(now), rate, cost, at(when));
                }
            }
        }
        reports.retain(|(due, block)| {
            let arrived = *due <= now;
            if arrived {
                bucket.close(at(now), rate, block.ends, block.size, block.unspent);
            }
            !arrived
        });
    }
    admitted
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    /// Guarantee I-31 (docs/guarantees.md), over random walks.
    #[test]
    fn leased_and_exact_permits_together_never_exceed_the_burst_and_the_rate(
        permits in 50_u64..2_000, burst in 1_u64..400, steps in steps(),
    ) {
        let rate = Rate::of(&RateLimitSpec::per_second(permits).burst(burst));
        let most = play(rate, &steps).most(rate);
        prop_assert!(most <= burst as f64 + 1e-6, "{most} of {burst}");
    }

    /// The directed walk: replicas without calls draw and give back for a while, then all of them call at once.
    #[test]
    fn after_idle_draws_and_returns_all_replicas_together_get_one_burst(
        permits in 50_u64..2_000, burst in 8_u64..400, rounds in 1_usize..60,
        wants in prop::collection::vec(1_u64..100, 3), pauses in prop::collection::vec(1_u64..200, 3),
    ) {
        let rate = Rate::of(&RateLimitSpec::per_second(permits).burst(burst));
        let lease = rate.lease_time().as_micros() as u64;
        let mut steps = Vec::new();
        for round in 0..rounds {
            let by = round % 3;
            steps.extend([Step::Close(by, Some(0)), Step::Draw(by, wants[by], true), Step::Wait(lease * pauses[by] / 300)]);
        }
        for _ in 0..3 {
            steps.extend((0..3).flat_map(|by| vec![Step::Spend(by, 1); 500]));
            steps.extend(vec![Step::Exact(1); 500]);
        }
        let most = play(rate, &steps).most(rate);
        prop_assert!(most <= burst as f64 + 1e-6, "{most} of {burst}");
    }
}
