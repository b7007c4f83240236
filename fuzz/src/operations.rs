//! Operations on a bucket or a breaker: the memory store, and the Redis store over the shipped scripts in this process, must
//! reply like the state machines of core (`I-20` of `docs/guarantees.md`).

use std::time::Duration;

use phalanx_core::breaker::{BreakerSpec, Override, Sample};
use phalanx_core::kind::Outcome;
use phalanx_core::rate_limit::RateLimitSpec;
use phalanx_testkit::bed::{LuaBed, MemoryBed};
use phalanx_testkit::differential::{breaker, compare, rate_limit};

use crate::block_on;
use crate::input::{Input, random};

const REPLICAS: usize = 2;
/// Steps of one input: each is played on three machines, with a sync of all replicas after it.
const MAX_STEPS: usize = 64;
const SECOND: Duration = Duration::from_secs(1);

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let verdict = if input.flag() { block_on(breakers(&mut input)) } else { block_on(buckets(&mut input)) };
    assert_eq!(verdict, Ok(()));
}

async fn buckets(input: &mut Input<'_>) -> Result<(), String> {
    let spec = rate(input);
    let mut steps: Vec<_> = steps(input, bucket_step);
    steps.push(rate_limit::Step::Peek { by: 1 });
    let subjects: &mut [Box<dyn phalanx_testkit::differential::Subject<_, _>>] = &mut [
        Box::new(rate_limit::BedSubject::<MemoryBed>::new(&spec, REPLICAS).await),
        Box::new(rate_limit::BedSubject::<LuaBed>::new(&spec, REPLICAS).await),
    ];
    compare(&mut rate_limit::Machine::new(&spec), subjects, &steps).await
}

async fn breakers(input: &mut Input<'_>) -> Result<(), String> {
    let spec = trip(input);
    let mut steps: Vec<_> = steps(input, breaker_step);
    steps.push(breaker::Step::Inspect { by: 1 });
    let subjects: &mut [Box<dyn phalanx_testkit::differential::Subject<_, _>>] = &mut [
        Box::new(breaker::BedSubject::<MemoryBed>::new(&spec, REPLICAS).await),
        Box::new(breaker::BedSubject::<LuaBed>::new(&spec, REPLICAS).await),
    ];
    compare(&mut breaker::Machine::new(&spec), subjects, &steps).await
}

fn steps<S>(input: &mut Input<'_>, step: fn(&mut Input<'_>) -> S) -> Vec<S> {
    let mut steps = Vec::new();
    while !input.is_empty() && steps.len() < MAX_STEPS {
        steps.push(step(input));
    }
    steps
}

/// A number from 1 to `max`.
fn up_to(input: &mut Input<'_>, max: u64) -> u64 {
    1 + input.number().unsigned_abs() % max
}

fn wait(input: &mut Input<'_>) -> Duration {
    match input.below(4) {
        0 => Duration::from_micros(u64::from(input.byte()) % 10),
        1 => Duration::from_micros(up_to(input, 2_000_000)),
        2 => Duration::from_secs(u64::from(input.byte()) % 12),
        _ => Duration::from_micros(up_to(input, 100_000_000)),
    }
}

/// Any rate that validation accepts; most do not divide a second.
fn rate(input: &mut Input<'_>) -> RateLimitSpec {
    let pers = [1, 999_983, 1_000_000, 3_000_000, 60_000_000, 86_400_000_000];
    let (permits, per) = (up_to(input, 1_000_000), input.pick(&pers));
    let spec = RateLimitSpec::new(permits.min(1_000 * per), Duration::from_micros(per)); // at most 1e9 per second
    if input.flag() { spec.burst(up_to(input, 1_000_000)) } else { spec }
}

fn bucket_step(input: &mut Input<'_>) -> rate_limit::Step {
    use rate_limit::Step;
    let by = input.below(REPLICAS);
    match input.below(8) {
        0 => Step::Refund { by, cost: input.number() as u32 % 1_000_000 },
        1 => Step::Peek { by },
        2 => Step::Retune(rate(input)),
        3 | 4 => Step::Wait(wait(input)),
        _ => {
            let max_wait = if input.flag() { wait(input) } else { Duration::ZERO };
            Step::Acquire { by, cost: input.number() as u32 % 1_000_000, max_wait }
        }
    }
}

/// Breakers that trip often enough to reach every phase within a few steps.
fn trip(input: &mut Input<'_>) -> BreakerSpec {
    let ratio = |input: &mut Input<'_>| f64::from(1 + input.byte() % 100) / 100.0;
    let failure_ratio = input.flag().then(|| ratio(input));
    let consecutive_failures = input.flag().then(|| up_to(input, 6) as u32);
    let mut spec = BreakerSpec { failure_ratio, consecutive_failures, ..BreakerSpec::default() };
    if input.flag() {
        spec = spec.or_slow_call_ratio(ratio(input), SECOND);
    }
    if input.flag() {
        spec = spec.or_latency(0.95, SECOND, 2 * SECOND);
    }
    let window = input.pick(&[SECOND / 100, SECOND, 7 * SECOND, 10 * SECOND]);
    spec = spec.window(window).min_throughput(up_to(input, 12) as u32);
    spec = spec.break_for(Duration::from_micros(up_to(input, 15_000_000)));
    spec = spec.probes(up_to(input, 4) as u32, up_to(input, 4) as u32);
    spec = spec.escalate(1.0 + f64::from(input.byte()) / 100.0, 60 * SECOND);
    spec.probe_lease = input.flag().then(|| Duration::from_micros(up_to(input, 10_000_000)));
    if input.flag() {
        spec = spec.ramp(Duration::from_micros(up_to(input, 8_000_000)), up_to(input, 6) as u32);
    }
    spec
}

fn breaker_step(input: &mut Input<'_>) -> breaker::Step {
    use breaker::Step;
    let by = input.below(REPLICAS);
    match input.below(16) {
        0 => Step::Inspect { by },
        1 => Step::Reset { by },
        2 => Step::Retune(Box::new(trip(input))),
        3 => {
            let overrides = [Override::Open, Override::Closed, Override::Disabled, Override::MetricsOnly];
            Step::Force { by, overridden: input.flag().then(|| input.pick(&overrides)) }
        }
        4 => {
            let value = input.flag().then(|| input.pick(&[SECOND / 2, SECOND, 2 * SECOND]));
            Step::Quantile { by, value }
        }
        5 | 6 => Step::Wait(wait(input)),
        7..=11 => Step::Admit { by },
        _ => {
            let outcomes = [Outcome::Success, Outcome::Failure, Outcome::Failure, Outcome::Neutral, Outcome::Cancelled];
            let (outcome, latency) = (input.pick(&outcomes), input.pick(&[SECOND / 1_000, SECOND, 2 * SECOND]));
            Step::Record { by, which: input.below(256), sample: Sample { outcome, latency } }
        }
    }
}

/// Returns the inputs that the corpus starts with.
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    random(&[0], 12, 140).chain(random(&[1], 20, 200)).collect()
}
