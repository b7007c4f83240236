//! Records what the replicas report and what reaches the upstream, for the display and the summary.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use phalanx::describe::{Outcome, Phase, Transition};
use phalanx::{BreakerSpec, Policy, RejectionCode};

use crate::call_counts::CallCounts;
use crate::faults::Fault;
use crate::message::{CallResult, Message, ReplicaStatus};
use crate::milestone::{Milestone, MilestoneKind};
use crate::observations::Observations;
use crate::policy::DEMAND;
use crate::scenario::{Scenario, UpstreamState};
use crate::timeline::Timeline;

/// The recorder of the whole fleet, shared by its tasks.
pub(crate) struct Recorder {
    scenario: Scenario,
    policy: Policy,
    /// The part of the sampling window that the breaker always sees: its newest tenth is still being filled.
    window: Duration,
    recording: Mutex<Recording>,
}

/// What has been recorded.
pub(crate) struct Recording {
    pub(crate) replica_counts: Vec<CallCounts>,
    pub(crate) milestones: Vec<Milestone>,
    /// When the breaker entered which phase.
    pub(crate) phase_changes: Vec<(Duration, Phase)>,
    pub(crate) timeline: Timeline,
    pub(crate) observations: Observations,
    /// The last status of each replica.
    pub(crate) statuses: Vec<Option<ReplicaStatus>>,
    /// When the open breaker first rejected a call of each replica.
    pub(crate) first_rejected: Vec<Option<Duration>>,
    /// Calls rejected by the breaker while the upstream failed.
    pub(crate) rejected_while_failing: u64,
    /// Probes sent while the upstream failed.
    pub(crate) failed_probes: u64,
    /// Attempts that reached the upstream while it failed.
    pub(crate) attempts_while_failing: u64,
    /// Attempts inside the breaker's window: when each ended, and whether it failed.
    window: VecDeque<(Duration, bool)>,
    upstream_state: Option<UpstreamState>,
}

impl Recorder {
    pub(crate) fn new(scenario: Scenario, policy: Policy, replicas: usize) -> Self {
        let recording = Recording {
            replica_counts: vec![CallCounts::default(); replicas],
            milestones: Vec::new(),
            phase_changes: Vec::new(),
            timeline: Timeline::new(scenario, DEMAND * replicas as f64),
            observations: Observations::new(replicas),
            statuses: vec![None; replicas],
            first_rejected: vec![None; replicas],
            rejected_while_failing: 0,
            failed_probes: 0,
            attempts_while_failing: 0,
            window: VecDeque::new(),
            upstream_state: None,
        };
        let window = policy.breaker.as_ref().map_or(Duration::ZERO, |breaker| breaker.sampling_window * 9 / 10);
        Self { scenario, policy, window, recording: Mutex::new(recording) }
    }

    pub(crate) const fn scenario(&self) -> Scenario {
        self.scenario
    }

    pub(crate) const fn policy(&self) -> &Policy {
        &self.policy
    }

    pub(crate) fn breaker(&self) -> BreakerSpec {
        self.policy.breaker.clone().unwrap_or_default()
    }

    /// Locks the recording. Must not be held across an await.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Recording> {
        let mut recording = self.recording.lock().unwrap_or_else(PoisonError::into_inner);
        recording.add_upstream_milestone(&self.scenario);
        recording
    }

    /// Records an attempt that reached the upstream; `first` of its call or not.
    pub(crate) fn record_attempt(&self, first: bool) {
        let (now, mut recording) = (self.scenario.now(), self.lock());
        recording.attempts_while_failing += u64::from(self.scenario.state_at(now) == UpstreamState::Failing);
        recording.timeline.record_attempt(now);
        if first {
            recording.observations.admitted.push(now);
        }
    }

    /// Records an injected fault.
    pub(crate) fn record_fault(&self, fault: Fault) {
        let (at, mut recording) = (self.scenario.now(), self.lock());
        recording.observations.faults.push((at, fault));
        recording.milestones.push(Milestone { at, kind: MilestoneKind::Fault(fault) });
    }

    /// Records that the process of a replica was killed.
    pub(crate) fn record_killed(&self, replica: usize) {
        let (at, mut recording) = (self.scenario.now(), self.lock());
        recording.observations.killed_at[replica] = Some(at);
        recording.statuses[replica] = None;
    }

    /// Records a message of a replica, made at this time of the scenario.
    pub(crate) fn record(&self, replica: usize, at: Duration, message: Message) {
        let mut recording = self.lock();
        let kind = match message {
            Message::Finished(call) => return self.record_call(&mut recording, replica, at, call),
            Message::Retried => {
                recording.replica_counts[replica].retries += 1;
                return recording.record_outcome(at, true);
            }
            Message::RetryDenied => {
                recording.replica_counts[replica].retries_denied += 1;
                return;
            }
            Message::Probed { from, to, degraded } => {
                return self.record_probe(&mut recording, replica, (from, to), degraded);
            }
            Message::Rejected(took) => return recording.observations.record_rejection(took),
            Message::BreakerChanged { change, degraded } => {
                return self.record_change(&mut recording, replica, at, change, degraded);
            }
            Message::Status(status) => {
                recording.statuses[replica] = Some(status);
                return recording.adopt_agreed_phase(at);
            }
            Message::Degraded(reason) => {
                recording.observations.record_degraded(replica, at);
                MilestoneKind::Degraded { replica, reason }
            }
            Message::Recovered { outage, degraded_decisions } => {
                recording.observations.record_recovered(replica, at, degraded_decisions);
                MilestoneKind::Recovered { replica, outage, degraded_decisions }
            }
            Message::StateLost => {
                recording.observations.state_losses[replica] += 1;
                MilestoneKind::StateLost { replica }
            }
            Message::Ended => return,
        };
        recording.milestones.push(Milestone { at, kind });
    }

    /// Records a call that ended.
    fn record_call(&self, recording: &mut Recording, replica: usize, at: Duration, call: CallResult) {
        recording.replica_counts[replica].add(at, &call);
        if call.degraded {
            recording.observations.record_degraded_call(replica, at);
        }
        match (call.reason, call.outcome) {
            (Some(RejectionCode::CircuitOpen | RejectionCode::ProbeQuota), _) => {
                recording.rejected_while_failing += u64::from(self.scenario.state_at(at) == UpstreamState::Failing);
                recording.first_rejected[replica].get_or_insert(at);
                if call.reason == Some(RejectionCode::CircuitOpen) && !call.degraded {
                    recording.observations.record_known_open(replica, at);
                }
                recording.timeline.rejected(at);
            }
            (_, None) => recording.timeline.rejected(at),
            (_, Some(outcome)) => recording.record_outcome(at, outcome == Outcome::Failure),
        }
        recording.forget_before(at.saturating_sub(self.window));
    }

    /// Records a probe.
    fn record_probe(&self, recording: &mut Recording, replica: usize, span: (Duration, Duration), degraded: bool) {
        recording.replica_counts[replica].probes += 1;
        recording.failed_probes += u64::from(self.scenario.state_at(span.0) == UpstreamState::Failing);
        if !degraded {
            recording.observations.probes.push(span);
        }
    }

    /// Records a change of the breaker's phase. Every replica reports it; the first to report it made it.
    fn record_change(
        &self,
        recording: &mut Recording,
        replica: usize,
        at: Duration,
        change: Transition,
        degraded: bool,
    ) {
        let first = degraded || recording.observations.record_change(replica, at, &change);
        if !first {
            return;
        }
        recording.forget_before(at.saturating_sub(self.window));
        let failed = recording.window.iter().filter(|(_, failed)| *failed).count();
        // The attempt that tripped the breaker is reported after the change it caused.
        let failed = (failed + 1) as f64 / (recording.window.len() + 1) as f64;
        if !degraded {
            recording.window.clear();
        }
        recording.phase_changes.push((at, change.to));
        recording.milestones.push(Milestone { at, kind: MilestoneKind::Breaker { replica, change, failed, degraded } });
    }
}

impl Recording {
    /// Adds a milestone if the upstream has entered another state.
    fn add_upstream_milestone(&mut self, scenario: &Scenario) {
        let state = scenario.state();
        if self.upstream_state != Some(state) {
            self.upstream_state = Some(state);
            self.milestones.push(Milestone { at: scenario.start_of(state), kind: MilestoneKind::Upstream(state) });
        }
    }

    /// Adopts the phase that all replicas see: the end of a phase that one replica decided while degraded may be reported by
    /// no event.
    fn adopt_agreed_phase(&mut self, at: Duration) {
        let mut phases = self.statuses.iter().flatten().filter(|one| one.fleet.is_some()).map(|one| one.circuit.phase);
        let Some(agreed) = phases.next().filter(|first| phases.all(|phase| phase == *first)) else { return };
        if self.phase() != agreed {
            self.phase_changes.push((at, agreed));
        }
    }

    /// The current phase of the breaker.
    pub(crate) fn phase(&self) -> Phase {
        self.phase_changes.last().map_or(Phase::Closed, |(_, phase)| *phase)
    }

    /// Drops attempts that have left the breaker's window.
    fn forget_before(&mut self, then: Duration) {
        while self.window.front().is_some_and(|(at, _)| *at < then) {
            self.window.pop_front();
        }
    }

    fn record_outcome(&mut self, now: Duration, failed: bool) {
        self.window.push_back((now, failed));
        if failed {
            self.timeline.failed(now);
        }
    }
}
