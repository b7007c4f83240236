//! The breaker scripts reply like the state machine of core.

use std::time::Duration;

use phalanx_core::breaker::{Admission, Breaker, BreakerSpec, LastState, Override, Phase, Sample, Ticket, Transition};
use phalanx_core::clock::Time;
use phalanx_core::estimate::ring::slice_micros;
use phalanx_core::kind::Outcome;
use phalanx_core::rate_limit::MAX_BACKSTEP;
use phalanx_testkit::lua_server::LuaServer;
use proptest::prelude::*;

use crate::breaker_client::*;
use crate::harness::*;

#[derive(Clone, Debug)]
enum Step {
    Admit(u64),
    /// For each run: epochs ago, kind, count, age.
    Sync(Vec<(u64, u8, u64, u64)>),
    /// For each end: which of the open tickets, kind.
    Settle(Vec<(prop::sample::Index, u8)>),
    Force(Option<Override>),
    Reset,
    Retune(usize),
    /// Epochs ahead, phase, time left, age, escalation.
    Claim(u64, usize, u64, u64, u32),
    Jitter(f64),
    Clock(i64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let overridden = prop::sample::select(OVERRIDES.to_vec());
    let age = prop_oneof![2 => Just(0_u64), 2 => 0_u64..4_000_000, 1 => 0_u64..20_000_000];
    let successes = (Just(0_u8), 0_u64..4, age);
    // Failures one at a time; the next test covers runs of failures.
    let others = (1_u8..6, Just(1_u64), Just(0_u64));
    let epochs_ago = prop_oneof![9 => Just(0_u64), 1 => 1_u64..4];
    let run = (epochs_ago, prop_oneof![1 => successes, 3 => others]);
    let run = run.prop_map(|(ago, (kind, count, age))| (ago, kind, count, age));
    let end = (any::<prop::sample::Index>(), prop::sample::select(vec![0_u8, 0, 0, 1, 2, 3, 6]));
    let step = prop_oneof![
        8 => (1_u64..5).prop_map(Step::Admit),
        6 => prop::collection::vec(run, 0..5).prop_map(Step::Sync),
        5 => prop::collection::vec(end, 1..4).prop_map(Step::Settle),
        1 => prop_oneof![Just(None), overridden].prop_map(Step::Force),
        1 => Just(Step::Reset),
        1 => (0..specs().len()).prop_map(Step::Retune),
        1 => (0_u64..3, 0_usize..3, 0_u64..40_000_000, 0_u64..20_000_000, 0_u32..2_000)
            .prop_map(|(ahead, phase, left, age, escalation)| Step::Claim(ahead, phase, left, age, escalation)),
        1 => prop::sample::select(vec![0.0, 0.123_456_789, 0.999_999]).prop_map(Step::Jitter),
        10 => clock_step().prop_map(Step::Clock),
    ];
    prop::collection::vec(step, 1..80)
}

/// The machine as a store keeps it: none before the first write.
struct Model {
    kept: Option<Breaker>,
    tickets: Vec<Ticket>,
}

impl Model {
    /// Returns the machine that replies, and the flags.
    fn load(&self, now: Time, circuit: &Circuit) -> (Breaker, i64) {
        let Claim { epoch, phase, left, age, escalation, .. } = circuit.claim;
        match &self.kept {
            Some(kept) if kept.epoch() >= epoch => (kept.clone(), 0),
            None if epoch == 0 => (Breaker::new(now, &circuit.spec), 0),
            _ => {
                // The override has an order of its own.
                let overridden = self.kept.as_ref().and_then(Breaker::overridden);
                let last = LastState { epoch, phase, left, age, escalation, overridden };
                (Breaker::restore(now, &circuit.spec, &last), 4)
            }
        }
    }
}

fn sample(kind: u8) -> Sample {
    let outcome = match kind {
        0 | 1 => Outcome::Success,
        2 | 3 => Outcome::Failure,
        _ => Outcome::Neutral,
    };
    Sample { outcome, latency: if kind % 2 == 1 { SLOW } else { Duration::ZERO } }
}

/// The time by which the machine counts: it stands still while the clock is a little behind.
fn present(breaker: &Breaker, now: Time) -> u64 {
    let back = breaker.at().since(now);
    if back > MAX_BACKSTEP { now.as_micros() } else { now.max(breaker.at()).as_micros() }
}

fn apply_run(breaker: &mut Breaker, now: Time, circuit: &Circuit, run: (u64, u8, u64, u64)) -> Option<Transition> {
    let (spec, (epoch, kind, count, age)) = (&circuit.spec, run);
    match kind {
        0 => {
            let slice = present(breaker, now).saturating_sub(age) / slice_micros(spec.sampling_window);
            breaker.record_successes(now, spec, epoch, slice, count);
            None
        }
        1..4 => breaker.record(now, spec, Ticket { epoch, lease: None }, sample(kind), circuit.jitter),
        4 => breaker.observe_quantile(now, spec, Some(SLOW), circuit.jitter),
        _ => breaker.observe_quantile(now, spec, Some(2 * SLOW), circuit.jitter),
    }
}

/// Re-anchors the machine to a clock that stepped back. Every script does so, even without outcomes.
fn anchor(breaker: &mut Breaker, now: Time, spec: &BreakerSpec) {
    let nothing = Ticket { epoch: 0, lease: None };
    assert_eq!(breaker.record(now, spec, nothing, sample(6), 0.0), None);
}

/// Returns the state of a machine in the format of the scripts.
fn state(breaker: &Breaker, now: Time, flags: i64, transitions: &[Transition]) -> State {
    let view = breaker.clone().inspect(now);
    State {
        now: now.as_micros() as i64,
        phase: phase_number(view.phase),
        epoch: view.epoch as i64,
        left: micros(view.break_left.unwrap_or_default()) as i64,
        overridden: override_number(view.overridden),
        ramping: i64::from(view.ramping),
        escalation: i64::from(breaker.escalation()),
        flags,
        transitions: transitions.iter().map(transition_numbers).collect(),
    }
}

fn admitted(admission: Admission) -> Admitted {
    match admission {
        Admission::Admitted(ticket) => Ok(ticket),
        Admission::Rejected { code, .. } => Err(code),
    }
}

/// Applies a step to the scripts and to the model, and compares them.
fn apply_step(server: &LuaServer, model: &mut Model, circuit: &mut Circuit, step: &Step) -> Result<(), TestCaseError> {
    let now = now(server);
    let (mut breaker, flags) = model.load(now, circuit);
    let loaded = format!("{breaker:?}");
    let before = (breaker.phase(), breaker.epoch(), breaker.overridden());
    if matches!(step, Step::Sync(_) | Step::Settle(_) | Step::Force(_)) {
        anchor(&mut breaker, now, &circuit.spec);
    }
    let raw_before = raw(server);
    let mut transitions = Vec::new();
    let mut keep = flags > 0;
    let reported = match step {
        Step::Admit(n) => {
            let mut expected = Vec::new();
            for _ in 0..*n {
                let (admission, transition) = breaker.admit(now, &circuit.spec);
                expected.push(admitted(admission));
                transitions.extend(transition);
            }
            let (reported, mut answers) = circuit.admit(server, *n);
            if breaker.overridden() == Some(Override::MetricsOnly) {
                // The client turns rejections into admissions, with a ticket without a lease.
                for (answer, expected) in answers.iter_mut().zip(&expected) {
                    *answer = answer.or(*expected);
                }
            }
            prop_assert_eq!(&answers, &expected);
            model.tickets.extend(answers.into_iter().flatten());
            reported
        }
        Step::Sync(runs) => {
            let epoch = breaker.epoch();
            let absolute = |run: &(u64, u8, u64, u64)| (epoch.saturating_sub(run.0), run.1, run.2, run.3);
            let mut runs: Vec<_> = runs.iter().map(absolute).collect();
            // Of successes only the slice is known; a replica sends its end, or the present.
            for run in runs.iter_mut().filter(|run| run.1 == 0) {
                let (present, length) = (present(&breaker, now), slice_micros(circuit.spec.sampling_window));
                let end_of_slice = (present.saturating_sub(run.3) / length + 1) * length - 1;
                run.3 = present.saturating_sub(end_of_slice);
            }
            transitions.extend(runs.iter().filter_map(|run| apply_run(&mut breaker, now, circuit, *run)));
            circuit.sync(server, &runs)
        }
        Step::Settle(ends) => {
            let mut all = Vec::new();
            for (index, kind) in ends {
                let leased: Vec<_> = model.tickets.iter().filter(|ticket| ticket.lease.is_some()).copied().collect();
                let made_up = Ticket { epoch: breaker.epoch(), lease: Some(77) };
                let ticket = if leased.is_empty() { made_up } else { leased[index.index(leased.len())] };
                all.push((ticket.epoch, ticket.lease.unwrap(), *kind));
                transitions.extend(breaker.record(now, &circuit.spec, ticket, sample(*kind), circuit.jitter));
            }
            circuit.settle(server, &all)
        }
        Step::Force(overridden) => {
            breaker.force(*overridden);
            keep = true;
            circuit.force(server, *overridden)
        }
        Step::Reset => {
            transitions.extend(breaker.reset(now, &circuit.spec));
            circuit.reset(server)
        }
        Step::Retune(number) => return retune(server, model, circuit, *number),
        Step::Claim(ahead, phase, left, age, escalation) => {
            let phase = [Phase::Closed, Phase::Open, Phase::HalfOpen][*phase];
            let [left, age] = [left, age].map(|micros| Duration::from_micros(*micros));
            let epoch = breaker.epoch() + ahead;
            circuit.claim = Claim { epoch, phase, left, age, escalation: *escalation, entry: NO_ENTRY };
            return Ok(());
        }
        Step::Jitter(jitter) => {
            circuit.jitter = *jitter;
            return Ok(());
        }
        Step::Clock(by) => {
            move_clock(server, *by);
            return Ok(());
        }
    };
    prop_assert_eq!(&reported, &state(&breaker, now, flags, &transitions));
    keep |= format!("{breaker:?}") != loaded;
    if keep {
        prop_assert!(raw(server).1.is_some(), "stored, with a TTL");
        let news = flags == 4 || before != (breaker.phase(), breaker.epoch(), breaker.overridden());
        let message = published(&reported, transitions.last());
        // The entry of the override is behind the numbers; a release that releases nothing is an entry too.
        let mut sent = server.take_published();
        for (_, text) in &mut sent {
            *text = without_change_number(&String::from_utf8_lossy(text)).into_bytes();
            let words: Vec<_> = text.split(|byte| *byte == b' ').take(13).collect();
            *text = words.join(&b' ');
        }
        let news = news || matches!(step, Step::Force(_));
        prop_assert_eq!(sent, Vec::from_iter(news.then_some((b"ph2:news".to_vec(), message))));
        model.kept = Some(breaker);
    } else {
        // A sync that changes nothing (successes too old to count, a quantile that rose and fell) may still write; other
        // steps must not.
        let written = raw(server) != raw_before;
        prop_assert!(!written || matches!(step, Step::Sync(_)), "an unchanged state is not written");
        if written {
            model.kept = Some(breaker);
        }
        prop_assert!(server.take_published().is_empty());
    }
    check_inspect(server, model, circuit, now)
}

fn published(reported: &State, last: Option<&Transition>) -> Vec<u8> {
    let State { now, phase, epoch, left, overridden, ramping, escalation, .. } = reported;
    let last = last.map_or(vec![0, 0, 0, -1, 0, 0, 0], transition_numbers);
    let [from, _, _, break_for, calls, failures, slow] = last[..] else { unreachable!() };
    let text = format!(
        "id7 {now} {phase} {epoch} {left} {overridden} {ramping} {escalation} {from} {break_for} {calls} {failures} {slow}"
    );
    text.into_bytes()
}

/// Changes the spec like a client does: by a sync without outcomes.
fn retune(server: &LuaServer, model: &mut Model, circuit: &mut Circuit, number: usize) -> Result<(), TestCaseError> {
    let now = now(server);
    let old = circuit.fingerprint;
    circuit.claim = NO_CLAIM;
    circuit.spec = specs()[number].clone();
    circuit.fingerprint = number;
    let reported = circuit.sync(server, &[]);
    if let Some(kept) = &mut model.kept {
        kept.retune(&circuit.spec);
        anchor(kept, now, &circuit.spec);
        prop_assert_eq!(reported, state(kept, now, if old == number { 0 } else { 2 }, &[]));
    }
    Ok(())
}

/// Checks that `inspect` returns the machine's view and writes nothing.
fn check_inspect(server: &LuaServer, model: &Model, circuit: &Circuit, now: Time) -> Result<(), TestCaseError> {
    let before = raw(server);
    let (reported, tail) = circuit.inspect(server);
    let (breaker, flags) = model.load(now, circuit);
    prop_assert_eq!(reported, state(&breaker, now, flags, &[]));
    let view = breaker.inspect(now);
    let [calls, failures, slow] = [view.calls, view.failures, view.slow].map(|count| count as i64);
    prop_assert_eq!(tail, vec![calls, failures, slow, i64::from(view.streak), i64::from(view.probes)]);
    prop_assert!(view.probes <= specs().iter().map(|spec| spec.half_open_max_calls).max().unwrap());
    prop_assert_eq!(raw(server), before);
    prop_assert!(server.take_published().is_empty());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    #[test]
    fn a_breaker_in_lua_replies_like_the_machine_for_any_clock(number in 0_usize..4, steps in steps()) {
        let server = fresh_server();
        let mut circuit = Circuit::new(number);
        let mut model = Model { kept: None, tickets: Vec::new() };
        for step in &steps {
            // A key without writes expires; replicas restore it by their claims.
            if server.get(KEY).is_none() {
                model.kept = None;
            }
            apply_step(server, &mut model, &mut circuit, step)?;
        }
    }

    /// Within a run of failures the ratios only grow, so checking at its end trips like checking each call.
    #[test]
    fn a_run_of_failures_trips_like_its_single_calls(
        number in 0_usize..4, runs in prop::collection::vec((0_u8..4, 1_u64..6), 1..6),
    ) {
        let (as_runs, one_by_one) = (LuaServer::new(), LuaServer::new());
        let circuit = Circuit::new(number);
        for (kind, count) in runs {
            // Slow successes lower the failure ratio, so only single ones are comparable.
            let count = if kind == 1 { 1 } else { count };
            let reported = circuit.sync(&as_runs, &[(1, kind, count, 0)]);
            let each = (0..count).map(|_| circuit.sync(&one_by_one, &[(1, kind, 1, 0)])).last().unwrap();
            prop_assert_eq!((reported.phase, reported.epoch, reported.left), (each.phase, each.epoch, each.left));
        }
    }
}

/// Failures that are sent late count in their own slice or, if that has left the window, only for the streak.
#[test]
fn late_failures_count_in_their_slice_and_always_for_the_streak() {
    let server = LuaServer::new();
    let mut circuit = Circuit::new(0);
    circuit.spec = BreakerSpec { min_throughput: 1_000, ..circuit.spec };
    let window = micros(circuit.spec.sampling_window);
    circuit.sync(&server, &[(1, 2, 3, window / 2), (1, 3, 2, 2 * window), (1, 2, 1, 0)]);
    assert_eq!(circuit.inspect(&server).1, [4, 4, 0, 6, 0]);
    server.clock().advance(circuit.spec.sampling_window.mul_f64(0.6));
    assert_eq!(circuit.inspect(&server).1, [1, 1, 0, 6, 0]);
}
