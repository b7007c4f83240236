//! A client of the breaker scripts: encodes arguments and decodes replies.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use phalanx_core::breaker::{BreakerSpec, Override, Phase, Ticket, Transition};
use phalanx_core::rejection::RejectionCode;
use phalanx_lua::{BREAKER_ADMIT, BREAKER_FORCE, BREAKER_INSPECT, BREAKER_RESET, BREAKER_SETTLE, BREAKER_SYNC, Script};
use phalanx_testkit::lua_server::{LuaServer, Reply};

use crate::harness::*;

/// The slow-call threshold of all specs in these tests.
pub(crate) const SLOW: Duration = Duration::from_millis(100);

/// Specs with every trip condition, several recoveries, and windows of several lengths.
pub(crate) fn specs() -> Vec<BreakerSpec> {
    let ratio = BreakerSpec { slow_call_threshold: Some(SLOW), ..BreakerSpec::failure_ratio(0.5).min_throughput(4) };
    let jumpy = ratio.clone().break_for(3 * SECOND).escalate(1.7, 20 * SECOND).jitter(0.3);
    vec![
        jumpy.clone().probes(2, 2).probe_lease(2 * SECOND).ramp(5 * SECOND, 3),
        jumpy.clone().window(3 * SECOND).or_slow_call_ratio(0.6, SLOW).probes(3, 1),
        jumpy.or_consecutive_failures(2).or_latency(0.9, SLOW, 2 * SECOND).probe_lease(SECOND),
        ratio.break_for(SECOND).window(Duration::from_micros(7)).escalate(3.0, SECOND),
    ]
}

pub(crate) fn spec_text(spec: &BreakerSpec, fingerprint: usize) -> String {
    let ratio = |ratio: Option<f64>| ratio.unwrap_or(-1.0);
    let lasting = spec.latency_trip().map_or(-1, |trip| micros(trip.lasting) as i64);
    let ramp = spec.ramp.map_or((0, 1), |ramp| (micros(ramp.over), ramp.steps));
    let lease = spec.probe_lease.unwrap_or(spec.break_duration.max(30 * SECOND));
    format!(
        "{} {} {} {lasting} {} {} {} {} {} {} {} {} {} {} {} {fingerprint} {} {}",
        ratio(spec.failure_ratio),
        spec.consecutive_failures.unwrap_or(0),
        ratio(spec.slow_call_ratio),
        micros(spec.sampling_window),
        spec.min_throughput,
        micros(spec.break_duration),
        spec.break_multiplier,
        micros(spec.max_break_duration),
        spec.break_jitter,
        spec.half_open_max_calls,
        spec.success_threshold,
        micros(lease),
        ramp.0,
        ramp.1,
        ratio(spec.quorum_share),
        spec.quorum_replicas.unwrap_or(0),
    )
}

pub(crate) const fn phase_number(phase: Phase) -> i64 {
    match phase {
        Phase::Closed => 1,
        Phase::Open => 2,
        Phase::HalfOpen => 3,
    }
}

pub(crate) const fn override_number(overridden: Option<Override>) -> i64 {
    match overridden {
        None => 0,
        Some(Override::Open) => 1,
        Some(Override::Closed) => 2,
        Some(Override::Disabled) => 3,
        Some(Override::MetricsOnly) => 4,
    }
}

pub(crate) const OVERRIDES: [Option<Override>; 5] =
    [None, Some(Override::Open), Some(Override::Closed), Some(Override::Disabled), Some(Override::MetricsOnly)];

/// Higher than any lease: all leases of the owner were received.
pub(crate) const EVERY_LEASE: u64 = (1 << 53) - 1;

/// Returns the integers of a reply, before the entry of the override.
pub(crate) fn leading_ints(reply: &Reply) -> Vec<i64> {
    let Reply::Array(parts) = reply else { panic!("{reply:?}") };
    let int = |part: &Reply| if let Reply::Int(int) = part { Some(*int) } else { None };
    parts.iter().map_while(int).collect()
}

/// The last state received by a replica.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    pub(crate) epoch: u64,
    pub(crate) phase: Phase,
    pub(crate) left: Duration,
    pub(crate) age: Duration,
    pub(crate) escalation: u32,
    /// The entry of the override, as text.
    pub(crate) entry: &'static str,
}

pub(crate) const NO_ENTRY: &str = "0 0 0 -1 - -";

pub(crate) const NO_CLAIM: Claim =
    Claim { epoch: 0, phase: Phase::Closed, left: Duration::ZERO, age: Duration::ZERO, escalation: 0, entry: NO_ENTRY };

/// The part of the reply common to all breaker scripts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) now: i64,
    pub(crate) phase: i64,
    pub(crate) epoch: i64,
    pub(crate) left: i64,
    pub(crate) overridden: i64,
    pub(crate) ramping: i64,
    pub(crate) escalation: i64,
    pub(crate) flags: i64,
    pub(crate) transitions: Vec<Vec<i64>>,
}

pub(crate) fn transition_numbers(transition: &Transition) -> Vec<i64> {
    let seen = transition.seen;
    let break_for = transition.break_for.map_or(-1, |break_for| micros(break_for) as i64);
    let (from, to) = (phase_number(transition.from), phase_number(transition.to));
    vec![from, to, transition.epoch as i64, break_for, seen.calls as i64, seen.failures as i64, seen.slow as i64]
}

/// The result of one call of an admit.
pub(crate) type Admitted = Result<Ticket, RejectionCode>;

/// A message without the number of its change and that of the change before, which only grow.
pub(crate) fn without_change_number(message: &str) -> String {
    let words: Vec<&str> = message.splitn(4, ' ').collect();
    let [signature, before, seq, rest] = words[..] else { panic!("{message}") };
    assert!(before.parse::<u64>().unwrap() < seq.parse().unwrap(), "{message}");
    format!("{signature} {rest}")
}

/// A number above all before.
pub(crate) fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A breaker as used by one replica.
#[derive(Clone, Debug)]
pub(crate) struct Circuit {
    pub(crate) spec: BreakerSpec,
    pub(crate) fingerprint: usize,
    pub(crate) claim: Claim,
    pub(crate) jitter: f64,
}

/// A breaker whose breaks have no jitter, so that they end at round times.
pub(crate) fn steady(number: usize) -> Circuit {
    Circuit { jitter: 0.0, ..Circuit::new(number) }
}

impl Circuit {
    pub(crate) fn new(number: usize) -> Self {
        Self { spec: specs()[number].clone(), fingerprint: number, claim: NO_CLAIM, jitter: 0.5 }
    }

    /// Runs a script. Returns the part of the reply that all scripts share, and the rest.
    pub(crate) fn ask(&self, server: &LuaServer, script: &Script, more: &[Vec<u8>]) -> (State, Vec<i64>) {
        self.ask_signed(server, "id7", script, more)
    }

    /// Runs a script as this replica.
    pub(crate) fn ask_as(
        &self,
        server: &LuaServer,
        replica: u64,
        script: &Script,
        more: &[Vec<u8>],
    ) -> (State, Vec<i64>) {
        self.ask_signed(server, &format!("id7@{replica}"), script, more)
    }

    fn ask_signed(&self, server: &LuaServer, signature: &str, script: &Script, more: &[Vec<u8>]) -> (State, Vec<i64>) {
        let claim = self.claim;
        let (left, age) = (micros(claim.left), micros(claim.age));
        let numbers = args![claim.epoch, phase_number(claim.phase), left, claim.escalation, age, claim.entry];
        let claim = numbers.join(&b' ');
        let mut args = args![spec_text(&self.spec, self.fingerprint)];
        args.push(claim);
        args.extend(args!["ph2:news", signature, self.jitter]);
        args.extend_from_slice(more);
        let reply = leading_ints(&run(server, script, &args));
        let (head, rest) = reply.split_at(9);
        let (transitions, tail) = rest.split_at(7 * head[8] as usize);
        let state = State {
            now: head[0],
            phase: head[1],
            epoch: head[2],
            left: head[3],
            overridden: head[4],
            ramping: head[5],
            escalation: head[6],
            flags: head[7],
            transitions: transitions.chunks(7).map(<[i64]>::to_vec).collect(),
        };
        (state, tail.to_vec())
    }

    /// Asks to admit `n` calls and returns the result of each, as a client computes it.
    pub(crate) fn admit(&self, server: &LuaServer, n: u64) -> (State, Vec<Admitted>) {
        let (state, tail) = self.ask(server, &BREAKER_ADMIT, &args![n, 42, EVERY_LEASE, 0, 0]);
        let (a, b) = (tail[1] as u64, tail[2] as u64);
        let ticket = |lease| Ticket { epoch: state.epoch as u64, lease };
        let steps = self.spec.ramp.map_or(0, |ramp| u64::from(ramp.steps));
        let passed = |asked: u64| asked * (a + 1) / (steps + 1);
        let answers = (0..n).map(|i| match tail[0] {
            0 => Ok(ticket(None)),
            1 => {
                Err([RejectionCode::CircuitOpen, RejectionCode::ProbeQuota, RejectionCode::ForcedOpen][a as usize - 1])
            }
            2 if i < b => Ok(ticket(Some(a + i))),
            3 if passed(b + i + 1) > passed(b + i) => Ok(ticket(None)),
            _ => Err(RejectionCode::ProbeQuota),
        });
        let answers = answers.collect();
        (state, answers)
    }

    /// Asks to admit `n` calls and returns mode, a and b of the reply.
    pub(crate) fn admit_reply(&self, server: &LuaServer, n: u64) -> [i64; 3] {
        let tail = self.ask(server, &BREAKER_ADMIT, &args![n, 42, EVERY_LEASE, 0, 0]).1;
        tail[..3].try_into().unwrap()
    }

    /// Sends runs of (epoch, kind, count, age), for a replica that is alone.
    pub(crate) fn sync(&self, server: &LuaServer, runs: &[(u64, u8, u64, u64)]) -> State {
        let mut args = args![1, 50_000, 0, "0 0 0 0", runs.len()];
        let number = next_number();
        args.extend(runs.iter().flat_map(|(epoch, kind, count, age)| args![number, epoch, kind, count, age, 0]));
        self.ask(server, &BREAKER_SYNC, &args).0
    }

    /// Sends ends of (epoch, lease, kind).
    pub(crate) fn settle(&self, server: &LuaServer, ends: &[(u64, u64, u8)]) -> State {
        let mut args = args![ends.len()];
        args.extend(ends.iter().flat_map(|(epoch, lease, kind)| args![epoch, lease, kind]));
        self.ask(server, &BREAKER_SETTLE, &args).0
    }

    pub(crate) fn force(&self, server: &LuaServer, overridden: Option<Override>) -> State {
        self.force_entry(server, &format!("0 {} 42 -1 - -", override_number(overridden)), true)
    }

    /// Sends an entry: a new one, or one that is put back.
    pub(crate) fn force_entry(&self, server: &LuaServer, entry: &str, is_new: bool) -> State {
        self.ask(server, &BREAKER_FORCE, &args![entry, u8::from(is_new)]).0
    }

    pub(crate) fn reset(&self, server: &LuaServer) -> State {
        self.ask(server, &BREAKER_RESET, &[]).0
    }

    /// Returns the state, and calls, failures, slow calls, consecutive failures and probes.
    pub(crate) fn inspect(&self, server: &LuaServer) -> (State, Vec<i64>) {
        self.ask(server, &BREAKER_INSPECT, &[])
    }

    /// Returns the longest time this spec rejects calls: a break or a lease.
    pub(crate) fn longest(&self) -> Duration {
        let longest = self.spec.max_break_duration.max(self.spec.break_duration);
        longest.mul_f64(1.0 + self.spec.break_jitter).max(self.spec.lease())
    }
}
