//! Random histories of calls: what must hold after every step, and at the end.

use super::*;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Admit,
    End(prop::sample::Index, u8),
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => Just(Step::Admit),
        3 => (any::<prop::sample::Index>(), 0_u8..4).prop_map(|(i, o)| Step::End(i, o)),
        1 => (0_u64..20_000_000).prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 1..400)
}

proptest! {
    /// Guarantees I-4, I-7 and I-8 (docs/guarantees.md): never more probes than allowed, epochs only grow, and however a
    /// history ends, a call is admitted after the break and the lease.
    #[test]
    fn no_history_blocks_a_breaker_or_admits_too_many_probes(steps in steps(), probes in 1_u32..4) {
        let spec = ratio().probes(probes, 2).probe_lease(5 * SECOND).escalate(1.5, 60 * SECOND);
        let mut rig = Rig::new(spec);
        let mut out: Vec<Ticket> = Vec::new();
        let mut epoch = rig.breaker.epoch();
        for step in steps {
            match step {
                Step::Admit => out.extend(rig.admit()),
                Step::Wait(micros) => rig.wait(Duration::from_micros(micros)),
                Step::End(index, outcome) if !out.is_empty() => {
                    let ticket = out.swap_remove(index.index(out.len()));
                    let outcomes = [Outcome::Success, Outcome::Failure, Outcome::Neutral, Outcome::Cancelled];
                    rig.end(ticket, outcomes[usize::from(outcome)]);
                }
                Step::End(..) => {}
            }
            let view = rig.breaker.inspect(rig.now);
            prop_assert!(view.probes <= probes);
            prop_assert!(view.epoch >= epoch);
            epoch = view.epoch;
        }
        rig.wait(60 * SECOND + 5 * SECOND);
        prop_assert!(rig.admit().is_ok());
    }
}
