//! The fleet of a run: replicas in simulated processes over one model of Redis, their load, and the faults.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use phalanx::{Clock, Error, Event, Kind, Policy, ResilienceModule};
use phalanx_core::breaker::Override;
use phalanx_core::budget::BudgetSpec;
use phalanx_core::clock::Time;
use phalanx_core::event::EventKind;
use phalanx_core::levers::LeverSpec;
use phalanx_core::rng::Rng;
use phalanx_core::task;
use phalanx_lifecycle::{DistributedLock, LockSpec};
use phalanx_store_redis::RedisConnection;
use tokio::time::{Instant, sleep, sleep_until};

use super::history::{Answer, EntryKind, Recorder};
use super::plan::{Fault, FaultKind, Load, Plan, Shape};
use super::plant::Plant;
use super::process::SimProcess;
use crate::redis_model::{Effects, RedisModel, SLOTS};

/// The ttl of the lock that the replicas compete for.
pub(crate) const LOCK_TTL: Duration = Duration::from_secs(2);

/// The fleet of a run.
pub(crate) struct Fleet {
    plan: Arc<Plan>,
    model: Arc<RedisModel>,
    recorder: Recorder,
    replicas: Vec<Replica>,
    dependencies: Arc<Vec<Dependency>>,
    plant: Option<Plant>,
    rng: Rng,
}

struct Replica {
    process: Arc<SimProcess>,
    module: ResilienceModule,
    link: usize,
    clock_offset: Arc<AtomicI64>,
    incarnation: u64,
}

/// The operation behind a policy.
#[derive(Default)]
struct Dependency {
    /// The share of calls that fail, in millionths.
    failing: AtomicU64,
    /// Milliseconds that a call takes longer.
    slow: AtomicU64,
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
        let dependencies = Arc::new(plan.policies.iter().map(|_| Dependency::default()).collect());
        let plan = Arc::new(plan.clone());
        let mut fleet =
            Self { plan, model, recorder: recorder.clone(), replicas: Vec::new(), dependencies, plant, rng };
        for number in 0..fleet.plan.replicas {
            let replica = fleet.start_replica(number, 0, false);
            fleet.replicas.push(replica);
            fleet.start_load(number);
        }
        fleet
    }

    /// Starts the process of a replica.
    fn start_replica(&self, number: usize, incarnation: u64, next_release: bool) -> Replica {
        self.recorder.add(EntryKind::ProcessStarted { replica: number });
        let process = SimProcess::start();
        let seed = Rng::seeded(self.plan.seed ^ ((number as u64) << 32) ^ (incarnation << 56)).next();
        let mut link = self.model.add_link(Some(seed));
        self.recorder.add_link(link.number(), number);
        if next_release {
            link = link.with_scripts(super::next_release::scripts());
        }
        if let Some(scripts) = self.plant.and_then(Plant::scripts) {
            link = link.with_scripts(scripts);
        }
        let clock_offset = Arc::new(AtomicI64::new((seed % 3_600_000_000) as i64));
        let (offset, origin) = (clock_offset.clone(), Instant::now());
        // Up to 200 millionths fast or slow, as quartz is.
        let drift = (seed >> 40) as f64 / (1_u64 << 24) as f64 * 400e-6 - 200e-6;
        let clock = Clock::custom(move || {
            let passed = origin.elapsed().as_micros() as f64 * (1.0 + drift);
            Time::from_micros((1_000_000_000 + passed as i64 + offset.load(Ordering::Relaxed)).max(0) as u64)
        });
        let (recorder, names) = (self.recorder.clone(), self.policy_names());
        let link_number = link.number();
        let module = ResilienceModule::with_redis(RedisConnection::over_transport(Arc::new(link)))
            .policies(self.plan.policies.iter().map(|policy| self.planted(policy)))
            .sync_interval(Duration::from_millis(self.plan.sync_interval_ms))
            .clock(clock)
            .seed(seed)
            .on_event(move |event| record_event(&recorder, number, &names, event))
            .build()
            .expect("the plan was validated");
        Replica { process, module, link: link_number, clock_offset, incarnation }
    }

    /// The policy, with the planted fault if that is one of policies.
    fn planted(&self, policy: &Policy) -> Policy {
        let mut policy = policy.clone();
        if self.plant == Some(Plant::RetriesWithoutBudget)
            && let Some(retry) = &mut policy.retry
        {
            retry.budget = Some(BudgetSpec::ratio(1.0).min_per_second(1_000));
        }
        policy
    }

    fn policy_names(&self) -> Arc<Vec<String>> {
        Arc::new(self.plan.policies.iter().map(|policy| policy.name.clone()).collect())
    }

    fn policy(&self, name: &str) -> usize {
        self.plan.policies.iter().position(|policy| policy.name == name).unwrap_or(0)
    }

    /// Starts the calls of a replica.
    fn start_load(&self, number: usize) {
        let replica = &self.replicas[number];
        for (index, load) in self.plan.loads.iter().enumerate() {
            if load.replica.is_some_and(|only| only != number) {
                continue;
            }
            let seed = self.plan.seed.wrapping_mul(31)
                ^ ((index as u64) << 40)
                ^ ((number as u64) << 20)
                ^ replica.incarnation;
            let caller = Caller {
                recorder: self.recorder.clone(),
                module: replica.module.clone(),
                process: replica.process.clone(),
                dependencies: self.dependencies.clone(),
                load: load.clone(),
                replica: number,
                policy: self.policy(&load.policy),
                rng: Rng::seeded(seed),
                plant: self.plant,
            };
            let caller = Arc::new(caller);
            match load.shape {
                Shape::Steady => replica.process.run(caller.steady()),
                Shape::Bursts => replica.process.run(caller.bursts()),
                Shape::Closed => {
                    for _ in 0..(load.per_second.round() as u64).max(1) {
                        replica.process.run(caller.clone().closed());
                    }
                }
            }
        }
        if self.plan.lock {
            let rng = Rng::seeded(self.plan.seed ^ 0x10C4 ^ ((number as u64) << 16) ^ (replica.incarnation << 48));
            let frozen = self.plant == Some(Plant::LockClockStandsStill);
            replica.process.run(hold_lock(self.recorder.clone(), replica.module.clone(), number, rng, frozen));
        }
    }

    /// Plays the faults, and returns when the run is over.
    pub(crate) async fn play(mut self) -> Effects {
        let start = Instant::now();
        let plan = self.plan.clone();
        let mut moments: Vec<(u64, usize, bool)> = Vec::new();
        for (index, fault) in plan.faults.iter().enumerate() {
            moments.push((fault.at_ms, index, true));
            moments.push((fault.at_ms + fault.for_ms, index, false));
        }
        moments.sort_unstable();
        for (at, index, begins) in moments {
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
            FaultKind::StepReplicaClock { replica, by_ms } => {
                self.replicas[*replica].clock_offset.fetch_add(by_ms * 1_000, Ordering::Relaxed);
            }
            FaultKind::Flush => every(&|state, node| state.flush(node)),
            FaultKind::FlushScripts => every(&|state, node| state.nodes[node].forget_scripts()),
            FaultKind::RedisError { error } => every(&|state, node| state.nodes[node].error = Some(error.clone())),
            FaultKind::MoveSlots { master } => {
                let first = (self.rng.next() % u64::from(SLOTS * 3 / 4)) as u16;
                model.change(|state| state.move_slots(first..first + SLOTS / 4, *master));
            }
            FaultKind::StopMaster { master } => model.change(|state| state.stop(*master)),
            FaultKind::DependencyFails { policy, share } => {
                self.dependencies[self.policy(policy)].failing.store((share * 1e6) as u64, Ordering::Relaxed);
            }
            FaultKind::DependencySlow { policy, by_ms } => {
                self.dependencies[self.policy(policy)].slow.store(*by_ms, Ordering::Relaxed);
            }
            FaultKind::Retune { policy } => self.retune_all(policy, true).await,
            FaultKind::MixedPolicies { replica } => self.mix(*replica, true),
            FaultKind::NextRelease { replica } => {
                self.kill(*replica);
                self.restart(*replica, true);
            }
            FaultKind::ForceOpen { policy, replica } => self.force(*replica, policy, Some(Override::Open)),
            FaultKind::Lever { policy, replica } => {
                let module = &self.replicas[*replica].module;
                drop(module.pull(policy, LeverSpec::force_open()));
            }
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
            FaultKind::DependencyFails { policy, .. } => {
                self.dependencies[self.policy(policy)].failing.store(0, Ordering::Relaxed)
            }
            FaultKind::DependencySlow { policy, .. } => {
                self.dependencies[self.policy(policy)].slow.store(0, Ordering::Relaxed)
            }
            FaultKind::Retune { policy } => self.retune_all(policy, false).await,
            FaultKind::MixedPolicies { replica } => self.mix(*replica, false),
            FaultKind::NextRelease { replica } => {
                self.kill(*replica);
                self.restart(*replica, false);
            }
            FaultKind::ForceOpen { policy, replica } => self.force(*replica, policy, None),
            FaultKind::Lever { policy, replica } => {
                self.replicas[*replica].module.release(policy);
            }
            FaultKind::FailOver { .. }
            | FaultKind::StepServerClock { .. }
            | FaultKind::StepReplicaClock { .. }
            | FaultKind::Flush
            | FaultKind::FlushScripts
            | FaultKind::MoveSlots { .. } => {}
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
        let replica = self.start_replica(number, incarnation, next_release);
        let former = std::mem::replace(&mut self.replicas[number], replica);
        {
            let _entered = task::enter(former.process.clone()); // what its destructors spawn belongs to the dead process
            drop(former.module);
        }
        self.start_load(number);
    }

    fn partition(&self, replicas: usize, cut: bool) {
        let links: Vec<usize> = self.replicas.iter().take(replicas).map(|replica| replica.link).collect();
        self.model.change(|state| links.iter().for_each(|link| state.partition(*link, cut)));
    }

    async fn retune_all(&self, name: &str, halved: bool) {
        let policy = self.changed(name, halved);
        for replica in &self.replicas {
            drop(replica.module.retune(policy.clone()));
            sleep(Duration::from_millis(20)).await;
        }
    }

    fn mix(&self, number: usize, halved: bool) {
        for policy in &self.plan.policies {
            drop(self.replicas[number].module.retune(self.changed(&policy.name, halved)));
        }
    }

    /// The policy as planned, or with half the rate and twice the window.
    fn changed(&self, name: &str, halved: bool) -> Policy {
        let mut policy = self.plan.policies[self.policy(name)].clone();
        if halved {
            if let Some(limit) = &mut policy.rate_limit {
                limit.permits = (limit.permits / 2).max(1);
            }
            if let Some(breaker) = &mut policy.breaker {
                breaker.sampling_window *= 2;
            }
        }
        policy
    }

    fn force(&self, number: usize, name: &str, to: Option<Override>) {
        let replica = &self.replicas[number];
        let Ok(pipeline) = replica.module.pipeline(name, ROUTE) else { return };
        let (recorder, policy) = (self.recorder.clone(), self.policy(name));
        replica.process.run(async move {
            if pipeline.force(to).await {
                recorder.add(EntryKind::Overridden { replica: number, policy, to: to.map(Override::name) });
            }
        });
    }
}

/// The route that every policy is called on.
const ROUTE: &str = "r";

/// Makes the calls of one load on one replica.
struct Caller {
    recorder: Recorder,
    module: ResilienceModule,
    process: Arc<SimProcess>,
    dependencies: Arc<Vec<Dependency>>,
    load: Load,
    replica: usize,
    policy: usize,
    rng: Rng,
    plant: Option<Plant>,
}

impl Caller {
    async fn steady(self: Arc<Self>) {
        loop {
            let pause = -(1.0 - self.rng.unit()).ln() / self.load.per_second;
            sleep(Duration::from_secs_f64(pause.min(60.0))).await;
            self.process.run(self.clone().call());
        }
    }

    async fn bursts(self: Arc<Self>) {
        sleep(self.rng.between(Duration::ZERO, Duration::from_secs(2))).await;
        loop {
            for _ in 0..(2.0 * self.load.per_second).round() as u64 {
                self.process.run(self.clone().call());
            }
            sleep(Duration::from_secs(2)).await;
        }
    }

    async fn closed(self: Arc<Self>) {
        loop {
            self.clone().call().await;
            sleep(Duration::from_millis(40 + self.rng.next() % 80)).await;
        }
    }

    /// One call, dropped before its end in some cases.
    async fn call(self: Arc<Self>) {
        let (replica, policy, cost) = (self.replica, self.policy, self.load.cost);
        let call = self.recorder.next_call();
        self.recorder.add(EntryKind::Started { replica, policy, call, cost });
        let dropped = self.rng.unit() < self.load.cancelled;
        let patience = Duration::from_millis(self.rng.next() % (self.load.operation_ms + 5));
        if self.plant == Some(Plant::LosesCalls) && call % 500 == 499 {
            return;
        }
        let answer = self.clone().run(call);
        let answer = if dropped { tokio::time::timeout(patience, answer).await.ok() } else { Some(answer.await) };
        match answer {
            Some(answer) => self.recorder.add(EntryKind::Finished { replica, policy, call, answer }),
            None => self.recorder.add(EntryKind::Dropped { replica, policy, call }),
        }
    }

    async fn run(self: Arc<Self>, call: u64) -> Answer {
        let mut request = self.module.call(&self.load.policy, ROUTE).cost(self.load.cost);
        if let Some(deadline) = self.load.deadline_ms {
            request = request.within(Duration::from_millis(deadline));
        }
        let admitted = AtomicU64::new(0);
        let (result, decision) = request
            .run_recorded(|| {
                if admitted.fetch_add(1, Ordering::Relaxed) == 0 {
                    let (replica, policy, cost) = (self.replica, self.policy, self.load.cost);
                    self.recorder.add(EntryKind::Admitted { replica, policy, call, cost });
                }
                self.operation()
            })
            .await;
        Answer {
            ok: result.is_ok(),
            rejected: match result {
                Err(Error::Rejected(rejection)) => Some(rejection.code()),
                _ => None,
            },
            source: decision.source,
            attempts: decision.attempts,
            hedges: decision.hedges,
            probe: decision.probe,
        }
    }

    async fn operation(&self) -> Result<(), Kind> {
        let dependency = &self.dependencies[self.policy];
        let took = self.load.operation_ms + dependency.slow.load(Ordering::Relaxed);
        sleep(Duration::from_millis(took)).await;
        let fails = self.rng.next() % 1_000_000 < dependency.failing.load(Ordering::Relaxed);
        if fails { Err(Kind::Infrastructure) } else { Ok(()) }
    }
}

/// Competes for the lock, and writes under it while it is valid.
async fn hold_lock(recorder: Recorder, module: ResilienceModule, replica: usize, rng: Rng, frozen: bool) {
    let spec = LockSpec::named("writer").ttl(LOCK_TTL).poll(Duration::from_millis(500));
    let lock = DistributedLock::new(module.locks(), spec).rng(rng.fork());
    let lock = if frozen { lock.clock(Clock::manual()) } else { lock };
    loop {
        let Ok(held) = lock.acquire(Duration::from_secs(5)).await else {
            sleep(Duration::from_millis(100 + rng.next() % 400)).await;
            continue;
        };
        let fence = held.fence();
        recorder.add(EntryKind::LockAcquired { replica, fence });
        let until = Instant::now() + Duration::from_millis(500 + rng.next() % 3_000);
        let lost = loop {
            sleep(Duration::from_millis(50 + rng.next() % 100)).await;
            // The write happens at the moment of the check, as a fenced write does.
            match held.check() {
                Ok(fence) => recorder.add(EntryKind::LockWrite { replica, fence }),
                Err(_) => break true,
            }
            if Instant::now() >= until {
                break false;
            }
        };
        if lost {
            recorder.add(EntryKind::LockLost { replica, fence });
            drop(held);
        } else {
            recorder.add(EntryKind::LockReleased { replica, fence });
            drop(held.release().await);
        }
        sleep(Duration::from_millis(rng.next() % 1_000)).await;
    }
}

/// Adds the events that oracles use.
fn record_event(recorder: &Recorder, replica: usize, names: &[String], event: &Event<'_>) {
    let policy = event.key.and_then(|key| names.iter().position(|name| name == key.policy())).unwrap_or(0);
    let kind = match event.kind {
        EventKind::Transition(transition) => EntryKind::Transition {
            replica,
            policy,
            from: transition.from,
            to: transition.to,
            epoch: transition.epoch,
            break_micros: transition.break_for.map_or(0, |length| length.as_micros() as u64),
        },
        EventKind::Override(to) => EntryKind::Overridden { replica, policy, to: to.map(Override::name) },
        EventKind::StoreDegraded { reason } => EntryKind::Degraded { replica, reason: reason.to_owned() },
        EventKind::StoreRecovered { .. } => EntryKind::Recovered { replica },
        EventKind::StateLost => EntryKind::StateLost { replica },
        EventKind::Replicas { live } => EntryKind::Replicas { replica, live },
        EventKind::ConfigMismatch => EntryKind::ConfigMismatch { replica },
        _ => return,
    };
    recorder.add(kind);
}
