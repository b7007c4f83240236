//! A breaker with a corrupt key, and after the server has lost its key.

use std::time::Duration;

use phalanx_core::breaker::{Admission, Breaker, LastState, Override, Phase};
use phalanx_core::rejection::RejectionCode;
use phalanx_testkit::lua_server::{LuaServer, Stored};
use proptest::prelude::*;

use crate::breaker_client::*;
use crate::harness::*;

const CLOSED: i64 = 1;
const OPEN: i64 = 2;
const HALF_OPEN: i64 = 3;

/// Returns the lines of the stored text with this letter.
fn lines(server: &LuaServer, letter: &str) -> Vec<String> {
    let text = server.get(KEY).map(|text| String::from_utf8(text).unwrap()).unwrap_or_default();
    text.lines().filter(|line| line.split(' ').next() == Some(letter)).map(str::to_owned).collect()
}

/// Invariant I-8 of `docs/guarantees.md`: after the longest break or lease, and one second for a clock that stepped back, a
/// call is admitted.
fn not_wedged(server: &LuaServer, circuit: &Circuit) -> Result<(), TestCaseError> {
    // An override stays until it is released.
    if circuit.inspect(server).0.overridden != 0 {
        circuit.force(server, None);
    }
    let first = circuit.admit(server, 1).0;
    prop_assert!(first.left <= micros(circuit.longest() + SECOND) as i64);
    server.clock().advance(circuit.longest() + SECOND);
    let (state, answers) = circuit.admit(server, 1);
    prop_assert!(state.phase == CLOSED || answers[0].is_ok(), "{state:?} {answers:?}");
    prop_assert!(lines(server, "l").len() <= circuit.spec.half_open_max_calls as usize);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    #[test]
    fn no_bytes_under_the_key_block_a_breaker_forever(bytes in foreign(14), number in 0_usize..4, n in 1_u64..4) {
        let server = fresh_server();
        let circuit = Circuit::new(number);
        server.put(KEY, bytes);
        let looked = circuit.inspect(server).0;
        let (asked, _) = circuit.admit(server, n);
        prop_assert_eq!(looked.flags, asked.flags);
        if asked.flags == 1 {
            prop_assert_eq!((asked.phase, asked.epoch, asked.overridden), (CLOSED, 1, 0), "as new");
            prop_assert!(raw(server).1.is_some(), "repaired, with a TTL");
            prop_assert_eq!(circuit.admit(server, 1).0.flags, 0);
        }
        not_wedged(server, &circuit)?;
    }

    /// A valid text with one field replaced or the end cut off is the more likely corruption.
    #[test]
    fn no_damaged_text_blocks_a_breaker_forever(
        number in 0_usize..4, at in any::<prop::sample::Index>(), word in damage(), half_open in any::<bool>(),
        back in clock_step(),
    ) {
        let server = fresh_server();
        let circuit = Circuit::new(number);
        circuit.sync(server, &[(1, 2, 9, 0)]);
        if half_open {
            server.clock().advance(circuit.longest());
            circuit.admit(server, 2);
        }
        server.put(KEY, damaged(&server.get(KEY).unwrap(), at, &word));
        move_clock(server, back);
        circuit.sync(server, &[(1, 2, 9, 0), (2, 0, 1, 0)]);
        circuit.settle(server, &[(3, 1, 6), (3, 9, 2)]);
        not_wedged(server, &circuit)?;
    }

    /// Invariants I-4 and I-7 of `docs/guarantees.md`, for any clock: never more live leases than allowed, and outcomes of
    /// another epoch or of a lease that is not held change nothing.
    #[test]
    fn probes_never_exceed_their_limit_and_stale_outcomes_change_nothing(
        number in 0_usize..4, steps in prop::collection::vec((clock_step(), 1_u64..4), 1..40),
    ) {
        let server = fresh_server();
        let circuit = Circuit::new(number);
        let most = i64::from(circuit.spec.half_open_max_calls);
        circuit.sync(server, &[(1, 2, 9, 0)]);
        for (by, n) in steps {
            move_clock(server, by);
            let granted = circuit.admit(server, n).1;
            let (state, tail) = circuit.inspect(server);
            prop_assert!(tail[4] <= most);
            prop_assert!(state.phase != HALF_OPEN || granted.iter().filter(|a| a.is_ok()).count() as i64 <= most);
            let before = server.get(KEY);
            let epoch = state.epoch as u64;
            let stale = circuit.sync(server, &[(epoch - 1, 2, 9, 0), (epoch + 1, 0, 9, 0), (epoch - 1, 0, 1, 0)]);
            // In a closed circuit of the same epoch any end counts, as in the machine, so another epoch is used there.
            let unheld = if state.phase == CLOSED { epoch + 2 } else { epoch };
            let unheld = circuit.settle(server, &[(epoch - 1, 1, 0), (unheld, 1_000_000, 2), (epoch + 1, 1, 0)]);
            prop_assert!(stale.transitions.is_empty() && unheld.transitions.is_empty());
            prop_assert_eq!(server.get(KEY), before);
        }
    }
}

#[test]
fn rejections_write_nothing_and_do_not_extend_the_ttl() {
    let server = LuaServer::new();
    let circuit = Circuit::new(0);
    circuit.sync(&server, &[(1, 2, 9, 0)]);
    let (text, mut left) = raw(&server);
    for _ in 0..5 {
        server.clock().advance(Duration::from_millis(100));
        assert_eq!(circuit.admit(&server, 3).1, [Err(RejectionCode::CircuitOpen); 3]);
        let now = raw(&server);
        assert!(now.0 == text && now.1 < left);
        left = now.1;
    }
    assert!(left.unwrap() >= 2 * circuit.longest().as_millis() as u64);
}

#[test]
fn an_override_is_kept_for_a_month() {
    let server = LuaServer::new();
    let circuit = Circuit::new(0);
    assert_eq!(circuit.force(&server, Some(Override::Open)).overridden, 1);
    assert_eq!(raw(&server).1, Some(30 * 86_400_000));
    assert_eq!(circuit.admit(&server, 2).1, [Err(RejectionCode::ForcedOpen); 2]);
}

#[test]
fn a_replicas_claim_restores_state_that_the_server_lost() {
    let server = LuaServer::new();
    let mut circuit = Circuit::new(0);
    let left = 2 * SECOND;
    circuit.claim = Claim { epoch: 6, phase: Phase::Open, left, escalation: 2, ..NO_CLAIM };
    let state = circuit.sync(&server, &[]);
    assert_eq!((state.phase, state.epoch, state.left, state.escalation, state.flags), (OPEN, 6, 2_000_000, 2, 4));
    assert_eq!(server.take_published().len(), 1, "published to the others");
    let again = circuit.sync(&server, &[]);
    assert_eq!((again.epoch, again.flags), (6, 0), "once");
    assert_eq!(server.take_published().len(), 0);

    // A claim older than the stored state is ignored.
    server.clock().advance(2 * SECOND);
    circuit.admit(&server, 1);
    circuit.claim = Claim { epoch: 6, phase: Phase::Closed, left: SECOND, ..NO_CLAIM };
    let state = circuit.inspect(&server).0;
    assert_eq!((state.phase, state.epoch, state.overridden, state.flags), (HALF_OPEN, 7, 0, 0));

    // Corruption is repaired from a claim too; a half-open circuit is restored as open, and the next call is a probe.
    server.put(KEY, Stored::Text(b"1 2 3".to_vec()));
    circuit.claim = Claim { epoch: 7, phase: Phase::HalfOpen, escalation: 1, ..NO_CLAIM };
    let (state, answers) = circuit.admit(&server, 2);
    assert_eq!((state.phase, state.epoch, state.flags), (HALF_OPEN, 8, 5));
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 2);
}

#[test]
fn the_stored_text_is_short_and_readable() {
    let server = LuaServer::new();
    let circuit = Circuit::new(0);
    circuit.sync(&server, &[(1, 2, 9, 0)]);
    server.clock().advance(circuit.longest());
    circuit.admit(&server, 2);
    let ends = now(&server).as_micros() + 2_000_000;
    assert_eq!(lines(&server, "l"), [format!("l 1 {ends} 42"), format!("l 2 {ends} 42")]);
    assert_eq!([lines(&server, "2").len(), lines(&server, "w").len(), lines(&server, "o").len()], [1, 1, 0]);
    assert!(server.get(KEY).unwrap().len() < 400);
}

/// A stored text of this phase, with this epoch and this next lease.
fn stored(phase: i64, epoch: u64, next_lease: u64) -> Stored {
    let (now, zeros) = (1_700_000_000_000_000_u64, " 0".repeat(30));
    let text = format!("2 {now} {phase} {epoch} {now} {now} 0 0 0 0 0 {next_lease} -1 0 0\nw 1000000 0{zeros}");
    Stored::Text(text.into_bytes())
}

#[test]
fn the_last_numbers_that_are_exact_do_not_block_a_breaker_or_a_script() {
    const LAST: u64 = (1 << 53) - 1;
    for (phase, epoch, next_lease) in [(OPEN, LAST, 1), (HALF_OPEN, LAST, 1), (HALF_OPEN, 4, LAST), (OPEN, 4, LAST - 1)]
    {
        let server = fresh_server();
        let circuit = Circuit::new(0);
        server.put(KEY, stored(phase, epoch, next_lease));
        // Leases are granted in a loop over their numbers.
        let (state, _) = circuit.admit(server, 3);
        assert_eq!((state.phase, state.epoch, state.flags), (CLOSED, 1, 1), "as new: {phase} {epoch} {next_lease}");
        assert_eq!(circuit.sync(server, &[(1, 2, 9, 0)]).phase, OPEN);
        server.clock().advance(circuit.longest());
        let (state, answers) = circuit.admit(server, 2);
        let leases: Vec<_> = answers.into_iter().map(|answer| answer.unwrap().lease.unwrap()).collect();
        assert_eq!((state.phase, &leases[..]), (HALF_OPEN, &[1, 2][..]));
        let epoch = state.epoch as u64;
        assert_eq!(circuit.settle(server, &[(epoch, 1, 0), (epoch, 2, 0)]).phase, CLOSED);
    }
}

#[test]
fn a_claim_of_an_epoch_that_is_not_exact_is_ignored() {
    let server = fresh_server();
    let mut circuit = Circuit::new(0);
    for epoch in [(1 << 52) + 1, (1 << 53) - 1, 1 << 53, u64::MAX] {
        circuit.claim.epoch = epoch;
        let state = circuit.sync(server, &[]);
        assert_eq!((state.epoch, state.flags), (1, 0), "{epoch}");
    }
    circuit.claim.epoch = 1 << 52;
    assert_eq!(circuit.sync(server, &[]).epoch, 1 << 52);
}

/// Every admission reads all leases, so their number is bounded whatever a spec says.
#[test]
fn no_more_than_a_hundred_probes_are_leased() {
    let server = fresh_server();
    let mut circuit = Circuit::new(0);
    circuit.spec.half_open_max_calls = 1_000_000;
    circuit.sync(server, &[(1, 2, 9, 0)]);
    server.clock().advance(circuit.longest());
    let last = LastState {
        epoch: 2,
        phase: Phase::Open,
        left: Duration::ZERO,
        age: Duration::ZERO,
        escalation: 0,
        overridden: None,
    };
    let mut machine = Breaker::restore(now(server), &circuit.spec, &last);
    let admitted = |answers: &[Admitted]| answers.iter().filter(|answer| answer.is_ok()).count();
    assert_eq!(admitted(&circuit.admit(server, 90).1), 90);
    assert_eq!(admitted(&circuit.admit(server, 90).1), 10);
    let (state, tail) = circuit.inspect(server);
    assert_eq!((state.phase, state.flags, tail[4]), (HALF_OPEN, 0, 100));
    let by_machine = (0..200).filter(|_| matches!(machine.admit(now(server), &circuit.spec).0, Admission::Admitted(_)));
    assert_eq!(by_machine.count(), 100);
}
