//! The rate limit scripts reply like the state machine of core.

use std::time::Duration;

use phalanx_core::clock::Time;
use phalanx_core::rate_limit::{Bucket, MAX_BACKSTEP, Rate, RateLimitSpec, Take};
use phalanx_lua::{
    RATE_LIMIT_ACQUIRE, RATE_LIMIT_CHARGE, RATE_LIMIT_LEASE, RATE_LIMIT_PEEK, RATE_LIMIT_REFUND, RATE_LIMIT_RETUNE,
};
use phalanx_testkit::lua_server::LuaServer;
use proptest::prelude::*;

use crate::harness::*;

/// Rates from one a day to a billion a second, including some that do not divide a second.
pub(crate) fn rates() -> Vec<Rate> {
    let day = Duration::from_secs(86_400);
    let specs = [
        RateLimitSpec::per_second(10).burst(3),
        RateLimitSpec::per_second(100),
        RateLimitSpec::new(7, Duration::from_micros(3_000_017)).burst(5),
        RateLimitSpec::new(1, day),
        RateLimitSpec::new(3, 7 * day).burst(10_000),
        RateLimitSpec::per_second(1_000_000_000),
        RateLimitSpec::per_second(999_999_937).burst(3),
        RateLimitSpec::per_second(40).burst(20),
        RateLimitSpec::per_second(20).burst(20),
    ];
    specs.iter().map(Rate::of).collect()
}

pub(crate) fn rate_args(rate: Rate) -> Vec<Vec<u8>> {
    args![rate.gain, rate.price, rate.capacity]
}

#[derive(Clone, Debug)]
struct Group {
    count: u64,
    cost: u32,
    max_wait: u64,
}

#[derive(Clone, Debug)]
enum Step {
    Acquire(usize, Vec<Group>),
    Refund(usize, Vec<(u32, i64)>),
    /// Charges permits.
    Charge(usize, u64),
    /// Draws permits, and closes blocks: which of the drawn ones, their size, and what was not spent.
    Lease(usize, u64, Vec<(usize, u64, u64)>),
    Peek(usize),
    Retune(usize, usize),
    Clock(i64),
}

fn group() -> impl Strategy<Value = Group> {
    let cost = prop_oneof![8 => 0_u32..4, 1 => 0_u32..200, 1 => Just(u32::MAX)];
    let max_wait = prop_oneof![3 => Just(0), 3 => 0_u64..2_000_000, 1 => 0_u64..1 << 40, 1 => Just(u64::MAX)];
    (0_u64..5, cost, max_wait).prop_map(|(count, cost, max_wait)| Group { count, cost, max_wait })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let any_rate = 0..rates().len();
    // Mostly one rate, so that steps affect the same bucket.
    let rate = prop_oneof![6 => Just(0_usize), 3 => Just(2), 3 => Just(7), 1 => Just(8), 1 => any_rate];
    let close = (0_usize..6, 0_u64..20, 0_u64..20);
    let closed = prop_oneof![2 => Just(Vec::new()), 2 => prop::collection::vec(close, 1..3)];
    let refund = prop::collection::vec((0_u32..3, -1_000_000_i64..3_000_000), 1..3);
    let step = prop_oneof![
        6 => (rate.clone(), prop::collection::vec(group(), 1..4)).prop_map(|(rate, groups)| Step::Acquire(rate, groups)),
        2 => (rate.clone(), refund).prop_map(|(rate, refunds)| Step::Refund(rate, refunds)),
        2 => (rate.clone(), prop_oneof![9 => 0_u64..6, 1 => 0_u64..1 << 40]).prop_map(|(rate, permits)| Step::Charge(rate, permits)),
        5 => (rate.clone(), prop_oneof![9 => 0_u64..12, 1 => Just(1 << 40)], closed)
            .prop_map(|(rate, want, closed)| Step::Lease(rate, want, closed)),
        1 => rate.clone().prop_map(Step::Peek),
        1 => (rate.clone(), rate).prop_map(|(old, new)| Step::Retune(old, new)),
        6 => clock_step().prop_map(Step::Clock),
    ];
    prop::collection::vec(step, 1..60)
}

/// The state that a store keeps; none before the first write.
#[derive(Clone, Copy)]
struct StoredBucket {
    bucket: Bucket,
    rate: Rate,
    at: Time,
}

/// What is stored, the ends of the leases that were drawn, and whether the last step drew as much as it closed, or charged a
/// bucket that cannot owe more: then it has
/// written what was there.
struct Model(Option<StoredBucket>, Vec<Time>, bool);

impl Model {
    /// Returns the bucket now at this rate, the flags, and whether it was re-anchored and must be stored.
    fn load(&self, now: Time, rate: Rate) -> (StoredBucket, i64, bool) {
        let Some(mut stored) = self.0 else {
            return (StoredBucket { bucket: Bucket::full(now, rate), rate, at: now }, 0, false);
        };
        let reanchored = stored.at.since(now) > MAX_BACKSTEP;
        if now >= stored.at || reanchored {
            stored.at = now;
        }
        let other = stored.rate != rate;
        if other {
            stored.bucket.retune(now, stored.rate, rate);
        } else {
            stored.bucket.available(now, rate);
        }
        stored.rate = rate;
        (stored, if other { 2 } else { 0 }, reanchored)
    }

    fn acquire(&mut self, now: Time, rate: Rate, groups: &[Group]) -> Vec<i64> {
        let (mut stored, flags, reanchored) = self.load(now, rate);
        let (before, bucket) = (stored.bucket.level(rate).units, stored.bucket);
        let mut reply = vec![now.as_micros() as i64, before, flags];
        for group in groups {
            let max_wait = Duration::from_micros(group.max_wait);
            let takes = (0..group.count).map(|_| stored.bucket.take(now, rate, group.cost, max_wait));
            let granted: Vec<_> = takes.map(|take| matches!(take, Take::Granted { .. })).collect();
            assert!(granted.is_sorted_by(|a, b| a >= b), "the first calls of a group are granted");
            reply.push(granted.iter().filter(|granted| **granted).count() as i64);
        }
        if reanchored || stored.bucket != bucket {
            self.0 = Some(stored);
        }
        reply
    }

    fn lease(&mut self, now: Time, rate: Rate, want: u64, closed: &[(Time, u64, u64)]) -> Vec<i64> {
        let (mut stored, flags, reanchored) = self.load(now, rate);
        let before = stored.bucket;
        for (ends, size, unspent) in closed {
            stored.bucket.close(now, rate, *ends, *size, *unspent);
        }
        let closes = stored.bucket != before;
        let drawn = stored.bucket.draw(now, rate, want);
        self.1.push(drawn.ends);
        self.2 = stored.bucket == before && (closes || drawn.permits > 0);
        if reanchored || closes || drawn.permits > 0 {
            self.0 = Some(stored);
        }
        let level = stored.bucket.level(rate).units;
        let [permits, ends, lasts] = [drawn.permits, drawn.ends.as_micros(), micros(drawn.lasts)].map(|n| n as i64);
        vec![now.as_micros() as i64, level, flags, permits, ends, lasts]
    }

    fn refund(&mut self, now: Time, rate: Rate, refunds: &[(u32, i64)]) -> Vec<i64> {
        let (mut stored, flags, reanchored) = self.load(now, rate);
        let before = stored.bucket;
        for (cost, due_in) in refunds {
            let due = Time::from_micros(now.as_micros().saturating_add_signed(*due_in));
            stored.bucket.refund(now, rate, *cost, due);
        }
        if reanchored || stored.bucket != before {
            self.0 = Some(stored);
        }
        vec![now.as_micros() as i64, stored.bucket.level(rate).units, flags]
    }

    fn charge(&mut self, now: Time, rate: Rate, permits: u64) -> Vec<i64> {
        let (mut stored, flags, reanchored) = self.load(now, rate);
        if permits > 0 {
            let before = stored.bucket;
            stored.bucket.charge(now, rate, permits);
            self.2 = stored.bucket == before; // the debt is as high as can be counted
        }
        if reanchored || permits > 0 {
            self.0 = Some(stored);
        }
        vec![now.as_micros() as i64, stored.bucket.level(rate).units, flags]
    }

    fn retune(&mut self, now: Time, old: Rate, new: Rate) -> Vec<i64> {
        let Some(StoredBucket { rate: stored_rate, .. }) = self.0 else {
            let mut bucket = Bucket::full(now, old);
            bucket.retune(now, old, new);
            let level = bucket.level(new).units;
            if level < new.capacity as i64 {
                self.0 = Some(StoredBucket { bucket, rate: new, at: now });
            }
            return vec![now.as_micros() as i64, level, 0];
        };
        let (stored, flags, reanchored) = self.load(now, new);
        if reanchored || stored_rate != new {
            self.0 = Some(stored);
        }
        let flags = if stored_rate == old { 0 } else { flags };
        vec![now.as_micros() as i64, stored.bucket.level(new).units, flags]
    }
}

fn apply_step(server: &LuaServer, model: &mut Model, step: &Step) -> Result<(), TestCaseError> {
    let rates = rates();
    let now = now(server);
    let (reply, expected) = match step {
        Step::Clock(by) => {
            move_clock(server, *by);
            return Ok(());
        }
        Step::Acquire(rate, groups) => {
            let mut args = rate_args(rates[*rate]);
            args.extend(args![0, groups.len()]);
            args.extend(groups.iter().flat_map(|group| args![group.count, group.cost, group.max_wait]));
            (run(server, &RATE_LIMIT_ACQUIRE, &args), model.acquire(now, rates[*rate], groups))
        }
        Step::Refund(rate, refunds) => {
            let mut args = rate_args(rates[*rate]);
            args.extend(args![refunds.len()]);
            let due = |due_in: &i64| now.as_micros().saturating_add_signed(*due_in);
            args.extend(refunds.iter().flat_map(|(cost, due_in)| args![cost, due(due_in)]));
            (run(server, &RATE_LIMIT_REFUND, &args), model.refund(now, rates[*rate], refunds))
        }
        Step::Charge(rate, permits) => {
            // Each time as a replica of its own.
            server.remove(LOG);
            let args = [rate_args(rates[*rate]), args![0, permits]].concat();
            (run(server, &RATE_LIMIT_CHARGE, &args), model.charge(now, rates[*rate], *permits))
        }
        Step::Lease(rate, want, closed) => {
            let last = |back: usize| model.1.iter().rev().nth(back).copied().unwrap_or(Time::ZERO);
            let closed: Vec<_> = closed.iter().map(|(back, size, unspent)| (last(*back), *size, *unspent)).collect();
            let mut args = rate_args(rates[*rate]);
            args.extend(args![want, closed.len()]);
            args.extend(closed.iter().flat_map(|(ends, size, unspent)| args![ends.as_micros(), size, unspent]));
            (run(server, &RATE_LIMIT_LEASE, &args), model.lease(now, rates[*rate], *want, &closed))
        }
        Step::Peek(rate) => {
            let (stored, flags, _) = model.load(now, rates[*rate]);
            let level = stored.bucket.level(rates[*rate]).units;
            let reply = run(server, &RATE_LIMIT_PEEK, &rate_args(rates[*rate]));
            (reply, vec![now.as_micros() as i64, level, flags])
        }
        Step::Retune(old, new) => {
            let args = [rate_args(rates[*old]), rate_args(rates[*new])].concat();
            (run(server, &RATE_LIMIT_RETUNE, &args), model.retune(now, rates[*old], rates[*new]))
        }
    };
    prop_assert_eq!(reply.ints(), expected);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_bucket_in_lua_replies_like_the_machine_for_any_clock(steps in steps()) {
        let server = fresh_server();
        let mut model = Model(None, Vec::new(), false);
        for step in &steps {
            // A key expires only when its bucket is full, and a missing key is a full bucket.
            if let (Some(stored), None) = (&mut model.0, server.get(KEY)) {
                prop_assert!(stored.bucket.is_full(now(server), stored.rate));
                model.0 = None;
            }
            let (before, stored) = (raw(server), model.0.map(|stored| (stored.bucket, stored.rate)));
            model.2 = false;
            apply_step(server, &mut model, step)?;
            if matches!(step, Step::Clock(_)) || model.2 {
                continue;
            }
            match model.0 {
                Some(new) if stored != Some((new.bucket, new.rate)) => {
                    let missing = new.rate.capacity as i64 - new.bucket.level(new.rate).units;
                    let to_full = missing as u64 / new.rate.gain + micros(new.at.since(now(server)));
                    prop_assert!(raw(server).1.unwrap() * 1_000 >= 2 * to_full);
                }
                _ => prop_assert_eq!(raw(server), before, "an unchanged state is not written"),
            }
        }
    }

    /// Invariants I-1 and I-2 of `docs/guarantees.md`: no clock admits more than burst + rate × the time it moved forward.
    #[test]
    fn no_clock_mints_a_permit(
        permits in 1_u64..2_000, per in 1_u64..5_000_000, burst in 1_u64..500,
        steps in prop::collection::vec((clock_step(), 1_u64..4, 1_u64..4), 1..60),
    ) {
        let server = fresh_server();
        let rate = Rate::of(&RateLimitSpec::new(permits, Duration::from_micros(per)).burst(burst));
        let (mut forward, mut admitted) = (0_u128, 0_u128);
        for (by, count, cost) in steps {
            move_clock(server, by);
            forward += by.max(0) as u128;
            let args = [rate_args(rate), args![0, 1, count, cost, 0]].concat();
            let granted = run(server, &RATE_LIMIT_ACQUIRE, &args).ints()[3] as u64;
            admitted += u128::from(granted * cost);
            prop_assert!(admitted * u128::from(per) <= u128::from(burst * per) + u128::from(permits) * forward);
        }
        // I-3: an unused bucket becomes full.
        server.clock().advance(Duration::from_micros(2 * rate.capacity / rate.gain) + 2 * SECOND);
        let level = run(server, &RATE_LIMIT_PEEK, &rate_args(rate)).ints()[1];
        prop_assert_eq!(level, rate.capacity as i64);
    }
}
