//! The shared breaker compared with the plain one, and under concurrent threads.

use super::*;
use phalanx_core::breaker::Admission;
use phalanx_core::kind::Outcome;
use phalanx_core::rng::Rng;
use proptest::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering};

const SECOND: Duration = Duration::from_secs(1);

fn spec() -> BreakerSpec {
    BreakerSpec::failure_ratio(0.5)
        .or_consecutive_failures(7)
        .or_slow_call_ratio(0.6, SECOND)
        .window(10 * SECOND)
        .min_throughput(8)
        .break_for(5 * SECOND)
        .escalate(2.0, 20 * SECOND)
        .probes(2, 2)
        .ramp(4 * SECOND, 3)
}

fn admit(cell: &BreakerCell, now: Time) -> (AdmitReply, Option<Transition>) {
    cell.admit_now(now).map_or_else(|| cell.admit(now), |reply| (reply, None))
}

#[derive(Clone, Debug)]
enum Step {
    Admit,
    End { which: prop::sample::Index, outcome: u8, slow: bool },
    Wait(u64),
    Force(Option<Override>),
    Reset,
    Retune(bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let end = (any::<prop::sample::Index>(), 0_u8..6, prop::bool::weighted(0.2));
    let overridden = prop_oneof![
        3 => Just(None),
        1 => Just(Some(Override::Open)),
        1 => Just(Some(Override::Closed)),
        1 => Just(Some(Override::Disabled)),
        1 => Just(Some(Override::MetricsOnly)),
    ];
    let step = prop_oneof![
        40 => Just(Step::Admit),
        40 => end.prop_map(|(which, outcome, slow)| Step::End { which, outcome, slow }),
        10 => (0_u64..3_000_000).prop_map(Step::Wait),
        1 => overridden.prop_map(Step::Force),
        1 => Just(Step::Reset),
        1 => any::<bool>().prop_map(Step::Retune),
    ];
    prop::collection::vec(step, 1..300)
}

proptest! {
    #[test]
    fn for_one_thread_it_decides_exactly_as_the_plain_breaker(steps in steps()) {
        let clock = Clock::manual();
        clock.advance(1_000 * SECOND);
        let mut spec = spec();
        let cell = BreakerCell::new(clock.clone(), &spec, Rng::seeded(1));
        let mut bare = Breaker::new(clock.now(), &spec);
        let mut tickets: Vec<Ticket> = Vec::new();
        for step in steps {
            let now = clock.now();
            match step {
                Step::Admit => {
                    let (reply, transition) = admit(&cell, now);
                    let (admission, expected) = bare.admit(now, &spec);
                    prop_assert_eq!((reply.admission, transition), (admission, expected));
                    if let Admission::Admitted(ticket) = admission {
                        tickets.push(ticket);
                    }
                }
                Step::End { which, outcome, slow } if !tickets.is_empty() => {
                    let ticket = tickets.swap_remove(which.index(tickets.len()));
                    let outcome = match outcome {
                        0..=2 => Outcome::Success,
                        3 => Outcome::Failure,
                        4 => Outcome::Neutral,
                        _ => Outcome::Cancelled,
                    };
                    let sample = Sample { outcome, latency: SECOND * u32::from(slow) };
                    let transition = cell.record(now, ticket, sample);
                    prop_assert_eq!(transition, bare.record(now, &spec, ticket, sample, 0.0));
                }
                Step::End { .. } => {}
                Step::Wait(micros) => clock.advance(Duration::from_micros(micros)),
                Step::Force(overridden) => {
                    cell.force(overridden);
                    bare.force(overridden);
                }
                Step::Reset => prop_assert_eq!(cell.reset(now), bare.reset(now, &spec)),
                Step::Retune(wide) => {
                    let window = SECOND * if wide { 20 } else { 10 };
                    let new = spec.clone().window(window);
                    cell.retune(&new);
                    bare.retune(&new);
                    spec = new;
                }
            }
            if matches!(step, Step::Admit | Step::Reset) {
                prop_assert_eq!(cell.inspect(now), bare.inspect(now));
            }
        }
        prop_assert_eq!(cell.inspect(clock.now()), bare.inspect(clock.now()));
    }
}

#[test]
fn threads_lose_no_success_and_no_failure() {
    let clock = Clock::manual();
    let spec = BreakerSpec::failure_ratio(1.0).min_throughput(u32::MAX).window(100 * SECOND);
    let cell = BreakerCell::new(clock.clone(), &spec, Rng::seeded(1));
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                for i in 0..20_000_u64 {
                    let now = Time::from_micros(i * 1_000);
                    let Admission::Admitted(ticket) = admit(&cell, now).0.admission else { panic!("closed") };
                    let failed = i % 10 == 0;
                    let outcome = if failed { Outcome::Failure } else { Outcome::Success };
                    let latency = Duration::ZERO;
                    cell.record(now, ticket, Sample { outcome, latency });
                }
            });
        }
    });
    let view = cell.inspect(Time::from_micros(20_000_000));
    assert_eq!((view.calls, view.failures), (80_000, 8_000));
}

#[test]
fn a_thousand_calls_at_the_end_of_the_break_get_exactly_one_probe() {
    let clock = Clock::manual();
    let spec = BreakerSpec::consecutive_failures(1).break_for(SECOND);
    for _ in 0..50 {
        let cell = BreakerCell::new(clock.clone(), &spec, Rng::seeded(1));
        let Admission::Admitted(ticket) = admit(&cell, clock.now()).0.admission else { panic!("closed") };
        let failure = Sample { outcome: Outcome::Failure, latency: Duration::ZERO };
        cell.record(clock.now(), ticket, failure);
        let edge = clock.now().after(SECOND);
        let admitted = AtomicU64::new(0);
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| {
                    for _ in 0..250 {
                        if matches!(admit(&cell, edge).0.admission, Admission::Admitted(_)) {
                            admitted.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        assert_eq!(admitted.into_inner(), 1);
    }
}

#[test]
fn a_window_that_is_changed_under_load_still_slides() {
    let clock = Clock::manual();
    clock.advance(3_600 * SECOND);
    let spec = |seconds| BreakerSpec::failure_ratio(0.5).window(seconds * SECOND);
    for _ in 0..300 {
        let cell = BreakerCell::new(clock.clone(), &spec(1), Rng::seeded(1));
        let now = clock.now();
        std::thread::scope(|threads| {
            for _ in 0..2 {
                threads.spawn(|| {
                    for _ in 0..200 {
                        let Admission::Admitted(ticket) = admit(&cell, now).0.admission else { panic!("closed") };
                        cell.record(now, ticket, Sample { outcome: Outcome::Success, latency: Duration::ZERO });
                    }
                });
            }
            threads.spawn(|| cell.retune(&spec(60)));
        });
        assert!(cell.inspect(now).calls <= 400);
        assert_eq!(cell.inspect(now.after(61 * SECOND)).calls, 0, "what was counted has left the window");
        let later = now.after(62 * SECOND);
        let Admission::Admitted(ticket) = admit(&cell, later).0.admission else { panic!("closed") };
        cell.record(later, ticket, Sample { outcome: Outcome::Success, latency: Duration::ZERO });
        assert_eq!(cell.inspect(later).calls, 1, "and new calls are counted");
    }
}

#[test]
fn a_breaker_is_pinned_while_it_rejects_has_a_probe_or_is_overridden() {
    let clock = Clock::manual();
    clock.advance(100 * SECOND);
    let spec = spec().probe_lease(SECOND);
    let cell = BreakerCell::new(clock.clone(), &spec, Rng::seeded(1));
    assert_eq!(cell.retention(), Retention::Disposable, "as new");
    let failure = Sample { outcome: Outcome::Failure, latency: Duration::ZERO };
    let ticket = |reply: AdmitReply| match reply.admission {
        Admission::Admitted(ticket) => ticket,
        rejected => panic!("{rejected:?}"),
    };
    let first = ticket(admit(&cell, clock.now()).0);
    assert_eq!(cell.retention(), Retention::Disposable);
    cell.record(clock.now(), first, failure);
    assert_eq!(cell.retention(), Retention::Relearnable, "a count is lost with it");
    for _ in 0..6 {
        cell.record(clock.now(), first, failure);
    }
    assert_eq!(cell.retention(), Retention::Pinned, "open");
    clock.advance(5 * SECOND - Duration::from_micros(1));
    assert_eq!(cell.retention(), Retention::Pinned, "open until its break ends");
    clock.advance(Duration::from_micros(1));
    assert_eq!(cell.retention(), Retention::Relearnable, "its break is over");
    admit(&cell, clock.now());
    assert_eq!(cell.retention(), Retention::Pinned, "a probe is in flight");
    clock.advance(SECOND);
    assert_eq!(cell.retention(), Retention::Relearnable, "its lease has expired");
    cell.force(Some(Override::Closed));
    assert_eq!(cell.retention(), Retention::Pinned, "overridden");
    cell.force(None);
    assert_eq!(cell.retention(), Retention::Relearnable);
}
