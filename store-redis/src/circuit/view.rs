//! What Redis says of a circuit, in replies and in pushed messages, read with care: a foreign number is no number.

use std::time::Duration;

use phalanx_core::breaker::{BreakerSpec, Override, Phase, Seen, Transition};

/// How a circuit stood at a moment of the server's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct View {
    /// The server's clock, in microseconds.
    pub(crate) at: u64,
    pub(crate) phase: Phase,
    pub(crate) epoch: u64,
    /// While open: the time until the break is over.
    pub(crate) left: Duration,
    pub(crate) overridden: Option<Override>,
    pub(crate) ramping: bool,
    pub(crate) escalation: u32,
}

/// The reply of every script that touches a circuit.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) view: View,
    pub(crate) repaired: bool,
    pub(crate) mixed: bool,
    pub(crate) transitions: Vec<Transition>,
    /// The operation's own answer.
    pub(crate) tail: Vec<i64>,
}

/// Numbers in one transition of a reply.
const TRANSITION: usize = 7;

impl Report {
    pub(crate) fn read(integers: &[i64]) -> Option<Self> {
        let [at, phase, epoch, left, overridden, ramping, escalation, flags, count, rest @ ..] = integers else {
            return None;
        };
        let view = view([*at, *phase, *epoch, *left, *overridden, *ramping, *escalation])?;
        let length = usize::try_from(*count).ok()?.checked_mul(TRANSITION)?;
        let (told, tail) = rest.split_at_checked(length)?;
        let transitions = told.chunks_exact(TRANSITION).map(transition).collect::<Option<_>>()?;
        Some(Self { view, repaired: flags & 1 != 0, mixed: flags & 2 != 0, transitions, tail: tail.to_vec() })
    }
}

/// A pushed message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Pushed<'a> {
    /// Whom it is about.
    pub(crate) id: &'a str,
    /// Whose doing it was.
    pub(crate) by: u64,
    pub(crate) view: View,
    /// The change of phase, if it was one.
    pub(crate) change: Option<Transition>,
}

/// Reads a pushed message.
pub(crate) fn pushed(message: &str) -> Option<Pushed<'_>> {
    let (signed, numbers) = message.split_once(' ')?;
    let (id, by) = signed.split_once('@')?;
    let by = by.parse().ok()?;
    let numbers: Vec<i64> = numbers.split(' ').map(str::parse).collect::<Result<_, _>>().ok()?;
    let [at, phase, epoch, left, overridden, ramping, escalation, from, break_for, calls, failures, slow] = numbers[..]
    else {
        return None;
    };
    let view = view([at, phase, epoch, left, overridden, ramping, escalation])?;
    let change = match from {
        0 => None,
        _ => Some(transition(&[from, phase, epoch, break_for, calls, failures, slow])?),
    };
    Some(Pushed { id, by, view, change })
}

fn view([at, phase, epoch, left, overridden, ramping, escalation]: [i64; 7]) -> Option<View> {
    Some(View {
        at: u64::try_from(at).ok()?,
        phase: phase_of(phase)?,
        epoch: u64::try_from(epoch).ok()?,
        left: Duration::from_micros(u64::try_from(left).ok()?),
        overridden: forced_of(overridden)?,
        ramping: ramping != 0,
        escalation: u32::try_from(escalation).ok()?,
    })
}

fn transition(numbers: &[i64]) -> Option<Transition> {
    let [from, to, epoch, break_for, calls, failures, slow] = numbers else { return None };
    let count = |n: &i64| u64::try_from(*n).ok();
    Some(Transition {
        from: phase_of(*from)?,
        to: phase_of(*to)?,
        epoch: count(epoch)?,
        break_for: count(break_for).map(Duration::from_micros), // −1 is none
        seen: Seen { calls: count(calls)?, failures: count(failures)?, slow: count(slow)? },
    })
}

const fn phase_of(number: i64) -> Option<Phase> {
    match number {
        1 => Some(Phase::Closed),
        2 => Some(Phase::Open),
        3 => Some(Phase::HalfOpen),
        _ => None,
    }
}

pub(crate) const fn phase_number(phase: Phase) -> u8 {
    match phase {
        Phase::Closed => 1,
        Phase::Open => 2,
        Phase::HalfOpen => 3,
    }
}

const fn forced_of(number: i64) -> Option<Option<Override>> {
    Some(match number {
        0 => None,
        1 => Some(Override::Open),
        2 => Some(Override::Closed),
        3 => Some(Override::Disabled),
        4 => Some(Override::MetricsOnly),
        _ => return None,
    })
}

pub(crate) const fn forced_number(overridden: Option<Override>) -> u8 {
    match overridden {
        None => 0,
        Some(Override::Open) => 1,
        Some(Override::Closed) => 2,
        Some(Override::Disabled) => 3,
        Some(Override::MetricsOnly) => 4,
    }
}

/// A spec as the scripts read it. The last number is its fingerprint, by which a mixed fleet is noticed.
pub(crate) fn spec_text(spec: &BreakerSpec) -> String {
    let micros = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX).min(1 << 52);
    let ratio = |ratio: Option<f64>| ratio.map_or("-1".to_owned(), |ratio| ratio.to_string());
    let lasting = spec.latency_trip().map_or("-1".to_owned(), |trip| micros(trip.lasting).to_string());
    let (ramp_over, ramp_steps) = spec.ramp.map_or((0, 0), |ramp| (micros(ramp.over), ramp.steps));
    let text = format!(
        "{} {} {} {} {} {} {} {} {} {} {} {} {} {} {}",
        ratio(spec.failure_ratio),
        spec.consecutive_failures.unwrap_or(0),
        ratio(spec.slow_call_ratio),
        lasting,
        micros(spec.sampling_window),
        spec.min_throughput,
        micros(spec.break_duration),
        spec.break_multiplier,
        micros(spec.max_break_duration),
        spec.break_jitter,
        spec.half_open_max_calls,
        spec.success_threshold,
        micros(spec.lease()),
        ramp_over,
        ramp_steps,
    );
    let fingerprint =
        text.bytes().fold(2_166_136_261_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(16_777_619));
    format!("{text} {fingerprint}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_reply_is_read_with_its_changes_and_its_tail() {
        let integers = [9, 2, 5, 700, 0, 0, 1, 3, 1, 1, 2, 5, 1_000, 10, 6, 0, 2, 0, 0];
        let report = Report::read(&integers).unwrap();
        assert_eq!((report.view.phase, report.view.epoch, report.view.at), (Phase::Open, 5, 9));
        assert_eq!(report.transitions[0].break_for, Some(Duration::from_millis(1)));
        assert_eq!((report.repaired, report.mixed, report.tail), (true, true, vec![2, 0, 0]));
    }

    #[test]
    fn a_pushed_message_is_read() {
        let message = pushed("ab@7 9 2 5 700 0 0 1 1 1000 10 6 0").unwrap();
        assert_eq!((message.id, message.by, message.view.left), ("ab", 7, Duration::from_micros(700)));
        assert_eq!(message.change.unwrap().seen.failures, 6);
        assert_eq!(pushed("ab@7 9 1 5 0 1 0 0 0 -1 0 0 0").unwrap().change, None);
    }

    proptest! {
        #[test]
        fn whatever_comes_is_read_without_harm(integers in prop::collection::vec(any::<i64>(), 0..40), text in ".{0,80}") {
            let _ = Report::read(&integers);
            let _ = pushed(&text);
            let words: Vec<_> = integers.iter().map(i64::to_string).collect();
            let _ = pushed(&format!("id@1 {}", words.join(" ")));
        }
    }
}
