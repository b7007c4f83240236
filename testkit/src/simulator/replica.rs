//! One replica of a fleet: its module, its calls, and what happens inside it. The same in a simulated and in a real process.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use phalanx::policy::{LimitSpec, Limits};
use phalanx::{Clock, Error, Event, Kind, Policy, ResilienceModule};
use phalanx_core::breaker::Override;
use phalanx_core::budget::BudgetSpec;
use phalanx_core::clock::Time;
use phalanx_core::event::EventKind;
use phalanx_core::levers::LeverSpec;
use phalanx_core::rng::Rng;
use phalanx_lifecycle::{DistributedLock, LockSpec};
use phalanx_store_redis::RedisConnection;
use tokio::time::{Instant, sleep};

use super::history::{Answer, EntryKind, Recorder};
use super::plan::{FaultKind, Load, Plan, Shape};
use super::plant::Plant;
use super::process::SimProcess;

/// The ttl of the lock that the replicas compete for.
pub(crate) const LOCK_TTL: Duration = Duration::from_secs(2);

/// The route that every policy is called on.
const ROUTE: &str = "r";

/// The operations behind the policies of a plan.
pub(crate) type Dependencies = Arc<Vec<Dependency>>;

/// The operation behind a policy.
#[derive(Default)]
pub(crate) struct Dependency {
    /// The share of calls that fail, in millionths.
    failing: AtomicU64,
    /// Milliseconds that a call takes longer.
    slow: AtomicU64,
}

/// Returns the operations behind the policies of a plan.
pub(crate) fn dependencies(plan: &Plan) -> Dependencies {
    Arc::new(plan.policies.iter().map(|_| Dependency::default()).collect())
}

/// What a replica is started with.
pub(crate) struct Start {
    pub(crate) plan: Arc<Plan>,
    pub(crate) number: usize,
    /// How often it was started before.
    pub(crate) incarnation: u64,
    pub(crate) connection: RedisConnection,
    pub(crate) recorder: Recorder,
    pub(crate) dependencies: Dependencies,
    pub(crate) plant: Option<Plant>,
}

/// A running replica.
pub(crate) struct Replica {
    pub(crate) process: Arc<SimProcess>,
    pub(crate) module: ResilienceModule,
    pub(crate) incarnation: u64,
    plan: Arc<Plan>,
    number: usize,
    clock_offset: Arc<AtomicI64>,
    recorder: Recorder,
    dependencies: Dependencies,
    plant: Option<Plant>,
}

/// The seed of what is random in a replica.
pub(crate) fn seed_of(plan: &Plan, number: usize, incarnation: u64) -> u64 {
    Rng::seeded(plan.seed ^ ((number as u64) << 32) ^ (incarnation << 56)).next()
}

impl Replica {
    /// Builds its module. Panics if a policy is not valid.
    pub(crate) fn start(start: Start) -> Self {
        let Start { plan, number, incarnation, connection, recorder, dependencies, plant } = start;
        let process = SimProcess::start();
        let seed = seed_of(&plan, number, incarnation);
        let clock_offset = Arc::new(AtomicI64::new((seed % 3_600_000_000) as i64));
        let (offset, origin) = (clock_offset.clone(), Instant::now());
        // Up to 200 millionths fast or slow, as quartz is.
        let drift = (seed >> 40) as f64 / (1_u64 << 24) as f64 * 400e-6 - 200e-6;
        let clock = Clock::custom(move || {
            let passed = origin.elapsed().as_micros() as f64 * (1.0 + drift);
            Time::from_micros((1_000_000_000 + passed as i64 + offset.load(Ordering::Relaxed)).max(0) as u64)
        });
        let names: Vec<String> = plan.policies.iter().map(|policy| policy.name.clone()).collect();
        let observer = recorder.clone();
        let module = ResilienceModule::with_redis(connection)
            .policies(plan.policies.iter().map(|policy| planted(policy, plant)))
            .sync_interval(Duration::from_millis(plan.sync_interval_ms))
            .clock(clock)
            .seed(seed)
            .on_event(move |event| record_event(&observer, number, &names, event))
            .build()
            .expect("the plan was validated");
        Self { process, module, incarnation, plan, number, clock_offset, recorder, dependencies, plant }
    }

    /// Starts its calls.
    pub(crate) fn start_load(&self) {
        let (plan, number) = (&self.plan, self.number);
        for (index, load) in plan.loads.iter().enumerate() {
            if load.replica.is_some_and(|only| only != number) {
                continue;
            }
            let seed = plan.seed.wrapping_mul(31) ^ ((index as u64) << 40) ^ ((number as u64) << 20) ^ self.incarnation;
            let caller = Arc::new(Caller {
                recorder: self.recorder.clone(),
                module: self.module.clone(),
                process: self.process.clone(),
                dependencies: self.dependencies.clone(),
                load: load.clone(),
                replica: number,
                policy: plan.policy(&load.policy),
                rng: Rng::seeded(seed),
                plant: self.plant,
            });
            match load.shape {
                Shape::Steady => self.process.run(caller.steady()),
                Shape::Bursts => self.process.run(caller.bursts()),
                Shape::Closed => {
                    for _ in 0..(load.per_second.round() as u64).max(1) {
                        self.process.run(caller.clone().closed());
                    }
                }
            }
        }
        if plan.lock {
            let rng = Rng::seeded(plan.seed ^ 0x10C4 ^ ((number as u64) << 16) ^ (self.incarnation << 48));
            let frozen = self.plant == Some(Plant::LockClockStandsStill);
            self.process.run(hold_lock(self.recorder.clone(), self.module.clone(), number, rng, frozen));
        }
    }

    /// Begins or ends the part of a fault that happens inside this replica.
    pub(crate) fn apply(&self, kind: &FaultKind, begins: bool) {
        let dependency = |policy: &str| &self.dependencies[self.plan.policy(policy)];
        match kind {
            FaultKind::DependencyFails { policy, share } => {
                let share = if begins { (share * 1e6) as u64 } else { 0 };
                dependency(policy).failing.store(share, Ordering::Relaxed);
            }
            FaultKind::DependencySlow { policy, by_ms } => {
                dependency(policy).slow.store(if begins { *by_ms } else { 0 }, Ordering::Relaxed);
            }
            FaultKind::Retune { policy } => drop(self.module.retune(self.changed(policy, begins))),
            FaultKind::StepReplicaClock { replica, by_ms } if *replica == self.number && begins => {
                self.clock_offset.fetch_add(by_ms * 1_000, Ordering::Relaxed);
            }
            FaultKind::MixedPolicies { replica } if *replica == self.number => {
                for policy in &self.plan.policies {
                    drop(self.module.retune(self.changed(&policy.name, begins)));
                }
            }
            FaultKind::ForceOpen { policy, replica } if *replica == self.number => {
                self.force(policy, begins.then_some(Override::Open));
            }
            FaultKind::Lever { policy, replica } if *replica == self.number => {
                if begins {
                    drop(self.module.pull(policy, LeverSpec::force_open()));
                } else {
                    self.module.release(policy);
                }
            }
            _ => {}
        }
    }

    /// The policy as planned, or with half the rate and twice the window.
    fn changed(&self, name: &str, halved: bool) -> Policy {
        let mut policy = self.plan.policies[self.plan.policy(name)].clone();
        if halved {
            if let Some(limit) = &mut policy.rate_limit {
                limit.permits = (limit.permits / 2).max(1);
            }
            let mut limits = Limits::default();
            for (name, limit) in policy.limits.iter() {
                limits.add(name, LimitSpec { permits: (limit.permits / 2).max(1), ..limit.clone() });
            }
            policy.limits = limits;
            if let Some(breaker) = &mut policy.breaker {
                breaker.sampling_window *= 2;
            }
        }
        policy
    }

    fn force(&self, name: &str, to: Option<Override>) {
        let Ok(pipeline) = self.module.pipeline(name, ROUTE) else { return };
        let (recorder, replica, policy) = (self.recorder.clone(), self.number, self.plan.policy(name));
        self.process.run(async move {
            if pipeline.force(to).await {
                let to = to.map(|to| to.name().to_owned());
                recorder.add(EntryKind::Overridden { replica, policy, to });
            }
        });
    }
}

/// The policy, with the planted fault if that is one of policies.
fn planted(policy: &Policy, plant: Option<Plant>) -> Policy {
    let mut policy = policy.clone();
    if plant == Some(Plant::RetriesWithoutBudget)
        && let Some(retry) = &mut policy.retry
    {
        retry.budget = Some(BudgetSpec::ratio(1.0).min_per_second(1_000));
    }
    policy
}

/// Makes the calls of one load on one replica.
struct Caller {
    recorder: Recorder,
    module: ResilienceModule,
    process: Arc<SimProcess>,
    dependencies: Dependencies,
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
        let tenant = (self.load.tenants > 0).then(|| format!("tenant {}", call % self.load.tenants));
        let mut request = self.module.call(&self.load.policy, ROUTE).cost(self.load.cost);
        if let Some(tenant) = &tenant {
            request = request.tag("tenant", tenant);
        }
        if let Some(deadline) = self.load.deadline_ms {
            request = request.within(Duration::from_millis(deadline));
        }
        let admitted = AtomicU64::new(0);
        let true_cost = |_: &Result<(), Error<Kind>>| self.true_cost();
        let (result, decision) = request
            .settle_cost(true_cost)
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

    /// What a call that settles has cost; sometimes it charges permits by hand besides, or refunds some.
    fn true_cost(&self) -> Option<u32> {
        if !self.load.settled {
            return None;
        }
        let actual = match self.rng.next() % 20 {
            0 => 30,
            1 => return None,
            other => (other % 4) as u32,
        };
        self.note_charge(actual.saturating_sub(self.load.cost));
        if let (0, Ok(pipeline)) = (self.rng.next() % 10, self.module.pipeline(&self.load.policy, ROUTE)) {
            let permits = 1 + (self.rng.next() % 5) as u32;
            self.note_charge(permits);
            pipeline.charge(permits);
            let permits = pipeline.refund((self.rng.next() % 3) as u32);
            self.recorder.add(EntryKind::Discharged { replica: self.replica, permits });
        }
        Some(actual)
    }

    fn note_charge(&self, permits: u32) {
        if permits > 0 {
            self.recorder.add(EntryKind::Charged { replica: self.replica, permits });
        }
    }

    async fn operation(&self) -> Result<(), Kind> {
        let dependency = &self.dependencies[self.policy];
        let settles =
            if self.load.settled { self.rng.next() % (1 + self.load.operation_ms) } else { self.load.operation_ms };
        let took = settles + dependency.slow.load(Ordering::Relaxed);
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
        EventKind::Override(to) => EntryKind::Overridden { replica, policy, to: to.map(|to| to.name().to_owned()) },
        EventKind::StoreDegraded { reason } => EntryKind::Degraded { replica, reason: reason.to_owned() },
        EventKind::StoreRecovered { .. } => EntryKind::Recovered { replica },
        EventKind::StateLost => EntryKind::StateLost { replica },
        EventKind::Replicas { live } => EntryKind::Replicas { replica, live },
        EventKind::FleetShareLapsed { calls } => EntryKind::ShareLapsed { replica, policy, calls },
        EventKind::ConfigMismatch => EntryKind::ConfigMismatch { replica },
        _ => return,
    };
    recorder.add(kind);
}
