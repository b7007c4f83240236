//! The fleet of a run: replicas in simulated processes over one model of Redis, their load, and the faults.

use std::sync::Arc;
use std::time::Duration;

use phalanx_core::rng::Rng;
use phalanx_core::task;
use phalanx_store_redis::RedisConnection;
use tokio::time::{Instant, sleep, sleep_until};

use super::history::{EntryKind, Recorder};
use super::plan::{Fault, FaultKind, Plan};
use super::plant::Plant;
use super::replica::{self, Dependencies, Replica};
use crate::redis_model::{Effects, RedisModel, SLOTS};

/// The fleet of a run.
pub(crate) struct Fleet {
    plan: Arc<Plan>,
    model: Arc<RedisModel>,
    recorder: Recorder,
    replicas: Vec<Replica>,
    /// The link of each replica.
    links: Vec<usize>,
    dependencies: Dependencies,
    plant: Option<Plant>,
    rng: Rng,
}

impl Fleet {
    pub(crate) fn start(plan: &Plan, recorder: &Recorder, plant: Option<Plant>) -> Self {
        let rng = Rng::seeded(plan.seed);
        let model = RedisModel::new(plan.masters, rng.next());
        let observer = recorder.clone();
        model.observe(Arc::new(move |run| observer.add_script(run)));
        model.change(|state| {
            state.network.latency = Duration::from_millis(plan.latency_ms);
            state.network.jitter = Duration::from_millis(plan.jitter_ms);
        });
        let (replicas, links, dependencies) = (Vec::new(), Vec::new(), replica::dependencies(plan));
        let plan = Arc::new(plan.clone());
        let mut fleet = Self { plan, model, recorder: recorder.clone(), replicas, links, dependencies, plant, rng };
        for number in 0..fleet.plan.replicas {
            let (replica, link) = fleet.start_replica(number, 0, false);
            replica.start_load();
            fleet.replicas.push(replica);
            fleet.links.push(link);
        }
        fleet
    }

    /// Starts the process of a replica; returns it with its link.
    fn start_replica(&self, number: usize, incarnation: u64, next_release: bool) -> (Replica, usize) {
        self.recorder.add(EntryKind::ProcessStarted { replica: number });
        let mut link = self.model.add_link(Some(replica::seed_of(&self.plan, number, incarnation)));
        let link_number = link.number();
        self.recorder.add_link(link_number, number);
        if next_release {
            link = link.with_scripts(&super::next_release::SCRIPTS);
        }
        if let Some(scripts) = self.plant.and_then(Plant::scripts) {
            link = link.with_scripts(scripts);
        }
        let connection = RedisConnection::over_transport(Arc::new(link));
        let replica = Replica::start(replica::Start {
            plan: self.plan.clone(),
            number,
            incarnation,
            connection,
            recorder: self.recorder.clone(),
            dependencies: self.dependencies.clone(),
            plant: self.plant,
        });
        (replica, link_number)
    }

    /// Plays the faults, and returns when the run is over.
    pub(crate) async fn play(mut self) -> Effects {
        let start = Instant::now();
        let plan = self.plan.clone();
        for (at, index, begins) in plan.moments() {
            sleep_until(start + Duration::from_millis(at)).await;
            let fault = &plan.faults[index];
            if begins {
                self.recorder.add(EntryKind::FaultBegins { fault: index });
                self.begin(fault).await;
            } else {
                self.end(fault).await;
                self.recorder.add(EntryKind::FaultEnds { fault: index });
                if self.plant == Some(Plant::EverythingIsPolled) {
                    self.poll_everything();
                }
            }
        }
        sleep_until(start + Duration::from_secs(plan.seconds)).await;
        let effects = self.model.change(|state| state.effects);
        for replica in &self.replicas {
            replica.process.kill();
        }
        effects
    }

    /// Lets every replica poll everything, over and over.
    fn poll_everything(&self) {
        for replica in &self.replicas {
            let module = replica.module.clone();
            replica.process.run(async move {
                for _ in 0..500 {
                    if let Some(store) = module.redis_store() {
                        store.settle().await;
                    }
                }
            });
        }
    }

    fn nodes(&self) -> usize {
        self.plan.masters.max(1)
    }

    async fn begin(&mut self, fault: &Fault) {
        let nodes = self.nodes();
        let model = self.model.clone();
        let every = |change: &dyn Fn(&mut crate::redis_model::State, usize)| {
            model.change(|state| (0..nodes).for_each(|node| change(state, node)))
        };
        match &fault.kind {
            FaultKind::KillReplica { replica } => self.kill(*replica),
            FaultKind::PauseReplica { replica } => self.replicas[*replica].process.suspend(),
            FaultKind::Partition { replicas } => self.partition(*replicas, true),
            FaultKind::StopRedis | FaultKind::RestartEmpty | FaultKind::RestartOld { .. } => {
                every(&|state, node| state.stop(node))
            }
            FaultKind::HangRedis => every(&|state, node| state.hang(node)),
            FaultKind::SlowRedis { by_ms } => {
                every(&|state, node| state.nodes[node].delay = Duration::from_millis(*by_ms))
            }
            FaultKind::LateReplies { every, by_ms } => {
                model.change(|state| state.network.late_replies = Some((*every, Duration::from_millis(*by_ms))))
            }
            FaultKind::LoseReplies { every } => model.change(|state| state.network.lost_replies = Some(*every)),
            FaultKind::ExecuteLater { every, by_ms } => {
                model.change(|state| state.network.late_requests = Some((*every, Duration::from_millis(*by_ms))))
            }
            FaultKind::LosePushes => model.change(|state| state.network.lose_pushes = true),
            FaultKind::DelayPushes { by_ms } => {
                model.change(|state| state.network.push_delay = Duration::from_millis(*by_ms))
            }
            FaultKind::DoublePushes => model.change(|state| state.network.double_pushes = true),
            FaultKind::FailOver { lost_ms, skew_ms } => {
                every(&|state, node| state.fail_over(node, Duration::from_millis(*lost_ms), skew_ms * 1_000))
            }
            FaultKind::StepServerClock { by_ms } => every(&|state, node| state.nodes[node].step_clock(by_ms * 1_000)),
            FaultKind::Flush => every(&|state, node| state.flush(node)),
            FaultKind::FlushScripts => every(&|state, node| state.nodes[node].forget_scripts()),
            FaultKind::RedisError { error } => every(&|state, node| state.nodes[node].error = Some(error.clone())),
            FaultKind::MoveSlots { master } => {
                let first = (self.rng.next() % u64::from(SLOTS * 3 / 4)) as u16;
                model.change(|state| state.move_slots(first..first + SLOTS / 4, *master));
            }
            FaultKind::StopMaster { master } => model.change(|state| state.stop(*master)),
            FaultKind::NextRelease { replica } => {
                self.kill(*replica);
                self.restart(*replica, true);
            }
            inside => self.apply(inside, true).await,
        }
    }

    async fn end(&mut self, fault: &Fault) {
        let nodes = self.nodes();
        let model = self.model.clone();
        let every = |change: &dyn Fn(&mut crate::redis_model::State, usize)| {
            model.change(|state| (0..nodes).for_each(|node| change(state, node)))
        };
        match &fault.kind {
            FaultKind::KillReplica { replica } => self.restart(*replica, false),
            FaultKind::PauseReplica { replica } => self.replicas[*replica].process.resume(),
            FaultKind::Partition { .. } if self.plant == Some(Plant::PartitionsStay) => {}
            FaultKind::Partition { replicas } => self.partition(*replicas, false),
            FaultKind::StopRedis => every(&|state, node| state.start(node)),
            FaultKind::RestartEmpty => every(&|state, node| {
                state.nodes[node].lose_data();
                state.start(node);
            }),
            FaultKind::RestartOld { age_ms } => {
                every(&|state, node| state.fail_over(node, Duration::from_millis(*age_ms), 0))
            }
            FaultKind::HangRedis => every(&|state, node| state.resume(node)),
            FaultKind::SlowRedis { .. } => every(&|state, node| state.nodes[node].delay = Duration::ZERO),
            FaultKind::LateReplies { .. } => model.change(|state| state.network.late_replies = None),
            FaultKind::LoseReplies { .. } => model.change(|state| state.network.lost_replies = None),
            FaultKind::ExecuteLater { .. } => model.change(|state| state.network.late_requests = None),
            FaultKind::LosePushes => model.change(|state| state.network.lose_pushes = false),
            FaultKind::DelayPushes { .. } => model.change(|state| state.network.push_delay = Duration::ZERO),
            FaultKind::DoublePushes => model.change(|state| state.network.double_pushes = false),
            FaultKind::RedisError { .. } => every(&|state, node| state.nodes[node].error = None),
            FaultKind::StopMaster { master } => model.change(|state| state.start(*master)),
            FaultKind::NextRelease { replica } => {
                self.kill(*replica);
                self.restart(*replica, false);
            }
            FaultKind::FailOver { .. }
            | FaultKind::StepServerClock { .. }
            | FaultKind::Flush
            | FaultKind::FlushScripts
            | FaultKind::MoveSlots { .. } => {}
            inside => self.apply(inside, false).await,
        }
    }

    /// Begins or ends a fault inside the replicas: in one after the other, as a rollout does.
    async fn apply(&self, kind: &FaultKind, begins: bool) {
        for replica in &self.replicas {
            replica.apply(kind, begins);
            if matches!(kind, FaultKind::Retune { .. }) {
                sleep(Duration::from_millis(20)).await;
            }
        }
    }

    fn kill(&mut self, number: usize) {
        self.replicas[number].process.kill();
        self.recorder.add(EntryKind::ProcessEnded { replica: number });
    }

    fn restart(&mut self, number: usize, next_release: bool) {
        if self.replicas[number].process.is_running() {
            self.kill(number); // it was restarted for another fault meanwhile
        }
        let incarnation = self.replicas[number].incarnation + 1;
        let (replica, link) = self.start_replica(number, incarnation, next_release);
        replica.start_load();
        self.links[number] = link;
        let former = std::mem::replace(&mut self.replicas[number], replica);
        let _entered = task::enter(former.process.clone()); // what its destructors spawn belongs to the dead process
        drop(former.module);
    }

    fn partition(&self, replicas: usize, cut: bool) {
        self.model.change(|state| self.links.iter().take(replicas).for_each(|link| state.partition(*link, cut)));
    }
}
