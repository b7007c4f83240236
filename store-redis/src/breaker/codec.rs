//! The wire format of a breaker: reply decoding, pushed messages and the spec. Fields behind the known ones are of a later
//! release and ignored; input that does not fit the format is rejected as a whole.

use std::time::Duration;

use phalanx_core::breaker::{BreakerSpec, Override, Phase, Seen, Transition};
use redis::Value;

use super::overrides::NO_ENTRY;
use crate::invocation::integers;

/// The state of a breaker at one moment of the server's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// The server's clock, in microseconds.
    pub(crate) at: u64,
    pub(crate) phase: Phase,
    pub(crate) epoch: u64,
    /// The remaining break while open.
    pub(crate) left: Duration,
    pub(crate) overridden: Option<Override>,
    pub(crate) ramping: bool,
    pub(crate) escalation: u32,
}

/// The decoded reply of a breaker script.
#[derive(Debug)]
pub(crate) struct BreakerReply {
    pub(crate) snapshot: Snapshot,
    pub(crate) repaired: bool,
    pub(crate) mixed: bool,
    /// The state changed, and whether that was published; `None` if nothing had to be.
    pub(crate) published: Option<bool>,
    pub(crate) transitions: Vec<Transition>,
    /// What this script appends to the common part.
    pub(crate) tail: Vec<i64>,
    /// The entry of the override, as text.
    pub(crate) entry: String,
}

/// Integers in one transition of a reply.
const TRANSITION_FIELDS: usize = 7;

impl BreakerReply {
    pub(crate) fn of(value: &Value) -> Option<Self> {
        let mut reply = Self::decode(&integers(value))?;
        if let Value::Array(parts) = value
            && let Some(Value::BulkString(entry)) = parts.last()
        {
            reply.entry = String::from_utf8_lossy(entry).into_owned();
        }
        Some(reply)
    }

    fn decode(integers: &[i64]) -> Option<Self> {
        let [at, phase, epoch, left, overridden, ramping, escalation, flags, count, rest @ ..] = integers else {
            return None;
        };
        let snapshot = snapshot([*at, *phase, *epoch, *left, *overridden, *ramping, *escalation])?;
        let length = usize::try_from(*count).ok()?.checked_mul(TRANSITION_FIELDS)?;
        let (listed, tail) = rest.split_at_checked(length)?;
        let transitions: Vec<_> = listed.chunks_exact(TRANSITION_FIELDS).map(transition).collect::<Option<_>>()?;
        let denied = flags & 16 != 0;
        Some(Self {
            snapshot,
            repaired: flags & 1 != 0,
            mixed: flags & 2 != 0,
            published: (denied || !transitions.is_empty()).then_some(!denied),
            transitions,
            tail: tail.to_vec(),
            entry: NO_ENTRY.to_owned(),
        })
    }
}

/// A decoded push message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PushMessage<'a> {
    /// The id of the breaker.
    pub(crate) id: &'a str,
    /// The owner number of the replica that caused the change.
    pub(crate) sender: u64,
    /// The number of the change in the log of its partition, and that of the change before it.
    pub(crate) change_number: ChangeNumber,
    pub(crate) snapshot: Snapshot,
    /// The transition; `None` if only the override changed.
    pub(crate) change: Option<Transition>,
    /// The entry of the override, as text.
    pub(crate) entry: &'a str,
}

/// The number of a change in the log of its partition, and that of the change before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChangeNumber {
    pub(crate) before: u64,
    pub(crate) seq: u64,
}

/// A decoded call for evidence.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct AskMessage<'a> {
    /// The id of the breaker.
    pub(crate) id: &'a str,
    /// The owner number of the replica whose bad news led to it.
    pub(crate) sender: u64,
    pub(crate) change_number: ChangeNumber,
    /// The number of the call.
    pub(crate) call: u64,
    /// How many replicas are asked.
    pub(crate) asked: u32,
}

/// Decodes a call for evidence, without the word that it begins with.
pub(crate) fn decode_ask(message: &str) -> Option<AskMessage<'_>> {
    let (id, sender, rest) = signature(message)?;
    let mut words = rest.split(' ');
    let mut number = || words.next()?.parse::<i64>().ok().and_then(exact);
    let change_number = ChangeNumber { before: number()?, seq: number()? };
    Some(AskMessage { id, sender, change_number, call: number()?, asked: u32::try_from(number()?).ok()? })
}

/// Splits `id@owner rest`.
fn signature(message: &str) -> Option<(&str, u64, &str)> {
    let (signature, rest) = message.split_once(' ')?;
    let (id, sender) = signature.split_once('@')?;
    Some((id, sender.parse().ok()?, rest))
}

/// Numbers of a push message, before the entry of the override.
const MESSAGE_NUMBERS: usize = 14;

/// Decodes a push message.
pub(crate) fn decode_push(message: &str) -> Option<PushMessage<'_>> {
    let (id, sender, numbers) = signature(message)?;
    let mut words = numbers.splitn(MESSAGE_NUMBERS + 1, ' ');
    let mut numbers = [0; MESSAGE_NUMBERS];
    for number in &mut numbers {
        *number = words.next()?.parse().ok()?;
    }
    let entry = words.next()?;
    let [before, seq, at, phase, epoch, left, overridden, ramping, escalation, change @ ..] = numbers;
    let [from, break_for, calls, failures, slow] = change;
    let change_number = ChangeNumber { before: exact(before)?, seq: exact(seq)? };
    let snapshot = snapshot([at, phase, epoch, left, overridden, ramping, escalation])?;
    let change = match from {
        0 => None,
        _ => Some(transition(&[from, phase, epoch, break_for, calls, failures, slow])?),
    };
    Some(PushMessage { id, sender, change_number, snapshot, change, entry })
}

/// Converts a number that a script counts: not negative, and exact in the doubles of Lua. Greater ones would overflow sums.
pub(crate) fn exact(number: i64) -> Option<u64> {
    u64::try_from(number).ok().filter(|number| *number <= 1 << 53)
}

fn snapshot([at, phase, epoch, left, overridden, ramping, escalation]: [i64; 7]) -> Option<Snapshot> {
    Some(Snapshot {
        at: exact(at)?,
        phase: phase_of(phase)?,
        epoch: exact(epoch)?,
        left: Duration::from_micros(exact(left)?),
        overridden: override_of(overridden)?,
        ramping: ramping != 0,
        escalation: u32::try_from(escalation).ok()?,
    })
}

fn transition(numbers: &[i64]) -> Option<Transition> {
    let [from, to, epoch, break_for, calls, failures, slow] = numbers else { return None };
    let count = |n: &i64| exact(*n);
    Some(Transition {
        from: phase_of(*from)?,
        to: phase_of(*to)?,
        epoch: count(epoch)?,
        break_for: count(break_for).map(Duration::from_micros), // -1 stands for `None`
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

pub(crate) const fn override_of(number: i64) -> Option<Option<Override>> {
    Some(match number {
        0 => None,
        1 => Some(Override::Open),
        2 => Some(Override::Closed),
        3 => Some(Override::Disabled),
        4 => Some(Override::MetricsOnly),
        _ => return None,
    })
}

pub(crate) const fn override_number(overridden: Option<Override>) -> u8 {
    match overridden {
        None => 0,
        Some(Override::Open) => 1,
        Some(Override::Closed) => 2,
        Some(Override::Disabled) => 3,
        Some(Override::MetricsOnly) => 4,
    }
}

/// Encodes a spec for the scripts. The last number is a fingerprint, by which replicas with different specs are
/// noticed.
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
    let quorum_share = ratio(spec.quorum_share);
    format!("{text} {fingerprint} {quorum_share} {}", spec.quorum_replicas.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_reply_is_decoded_with_its_transitions_and_its_tail() {
        let integers = [9, 2, 5, 700, 0, 0, 1, 3, 1, 1, 2, 5, 1_000, 10, 6, 0, 2, 0, 0];
        let reply = BreakerReply::decode(&integers).unwrap();
        assert_eq!((reply.snapshot.phase, reply.snapshot.epoch, reply.snapshot.at), (Phase::Open, 5, 9));
        assert_eq!(reply.transitions[0].break_for, Some(Duration::from_millis(1)));
        assert_eq!((reply.repaired, reply.mixed, reply.tail), (true, true, vec![2, 0, 0]));
        assert_eq!(reply.published, Some(true));
    }

    #[test]
    fn a_reply_says_whether_a_change_was_published() {
        let published = |flags| BreakerReply::decode(&[9, 2, 5, 700, 0, 0, 1, flags, 0]).unwrap().published;
        assert_eq!([published(0), published(16), published(31)], [None, Some(false), Some(false)]);
    }

    #[test]
    fn a_push_message_is_decoded() {
        let message = decode_push("ab@7 3 4 9 2 5 700 0 0 1 1 1000 10 6 0 8 1 7 -1 ops - of a later release").unwrap();
        assert_eq!((message.id, message.sender, message.snapshot.left), ("ab", 7, Duration::from_micros(700)));
        assert_eq!(message.change_number, ChangeNumber { before: 3, seq: 4 });
        assert_eq!(message.change.unwrap().seen.failures, 6);
        assert_eq!(message.entry, "8 1 7 -1 ops - of a later release");
        assert_eq!(decode_push("ab@7 3 4 9 1 5 0 1 0 0 0 -1 0 0 0 0 0 0 -1 - -").unwrap().change, None);
        assert_eq!(decode_push("ab@7 3 4 9 1 5 0 1 0 0 0 -1 0 0"), None);
    }

    #[test]
    fn a_call_for_evidence_is_decoded() {
        let ask = decode_ask("ab@7 3 4 12 5 of a later release").unwrap();
        let change_number = ChangeNumber { before: 3, seq: 4 };
        assert_eq!(ask, AskMessage { id: "ab", sender: 7, change_number, call: 12, asked: 5 });
        assert_eq!(["ab@7 3 4 12", "ab@7 3 4 12 -1", "ab 3 4 12 5"].map(decode_ask), [None, None, None]);
    }

    proptest! {
        #[test]
        fn arbitrary_input_is_decoded_without_panic(integers in prop::collection::vec(any::<i64>(), 0..40), text in ".{0,80}") {
            let _ = BreakerReply::decode(&integers);
            let _ = decode_push(&text);
            let numbers: Vec<_> = integers.iter().map(i64::to_string).collect();
            let _ = decode_push(&format!("id@1 {}", numbers.join(" ")));
            let _ = decode_ask(&format!("id@1 {}", numbers.join(" ")));
            let _ = decode_ask(&text);
            let _ = crate::breaker::overrides::OverrideEntry::decode(&numbers.join(" "), phalanx_core::clock::Time::ZERO);
            let _ = crate::breaker::overrides::OverrideEntry::decode(&text, phalanx_core::clock::Time::ZERO);
        }
    }
}
