//! The callers of a step: an open loop of requests from every replica, on a runtime of its own with paused time.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use parking_lot::Mutex;
use phalanx::config::Config;
use phalanx::policy::Mistake;
use phalanx::store::Rng;
use phalanx::{Clock, Context, Decision, Error, EventKind, Kind, Pipeline, ResilienceModule, Verdict, scope};
use phalanx_store_redis::RedisConnection;
use tokio::time::{Instant, sleep, sleep_until};

use super::dependency::{CallTag, Dependency, Gauge, SimulatedWrites, Writes};
use super::fault::Fault;
use super::recording::{CallRecord, PolicyRecord, Recording, RequestRecord, WriteCounts};
use super::{Step, Target};
use crate::redis_model::RedisModel;

/// How long calls may still run after the last one began.
const DRAIN: Duration = Duration::from_secs(60);

/// Makes the service behind the policies of a step with writes.
pub(super) type WritesFactory = Arc<dyn Fn() -> Arc<dyn Writes> + Send + Sync>;

/// One step, ready to be played.
pub(super) struct StepPlayer<'a> {
    pub(super) step: &'a Step,
    pub(super) replicas: u32,
    pub(super) seed: u64,
    pub(super) config: &'a Config,
    pub(super) writes: Option<WritesFactory>,
}

/// A policy that is called, and the dependency behind it.
struct Called {
    policy: usize,
    /// One for each replica.
    pipelines: Vec<Pipeline>,
    dependency: Dependency,
    in_flight: Gauge,
}

/// What the callers of a step share.
struct Callers {
    step: Step,
    clock: Clock,
    targets: Vec<Called>,
    modules: Vec<ResilienceModule>,
    recording: Arc<Mutex<Recording>>,
    requests: Gauge,
    next_key: AtomicU64,
}

impl StepPlayer<'_> {
    /// Returns the policies that the step is about, each with its route.
    fn targets(&self) -> Vec<(&str, Option<&str>)> {
        match &self.step.target {
            Target::All => self.config.policies().iter().map(|policy| (policy.name.as_str(), None)).collect(),
            Target::Policy { policy, route } => vec![(policy.as_str(), route.as_deref())],
        }
    }

    /// Plays the step in virtual time.
    pub(super) fn play(&self) -> Result<Recording, Vec<Mistake>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let runtime =
            runtime.map_err(|error| vec![Mistake::new("", format!("no runtime could be started: {error}"))])?;
        runtime.block_on(async {
            let callers = Arc::new(self.callers()?);
            let rng = Rng::seeded(self.seed ^ 0xCA11_E125);
            let mut tasks = Vec::new();
            // Requests with a deadline call every policy one after the other; otherwise each policy has callers of its own.
            let chained = matches!(self.step.fault, Fault::Deadline { .. });
            let all: Vec<usize> = (0..callers.targets.len()).collect();
            let chains: Vec<Vec<usize>> =
                if chained { vec![all] } else { all.into_iter().map(|it| vec![it]).collect() };
            for chain in chains {
                for replica in 0..self.replicas as usize {
                    tasks.push(tokio::spawn(callers.clone().call_repeatedly(chain.clone(), replica, rng.fork())));
                }
            }
            for task in tasks {
                task.await.expect("a caller does not panic");
            }
            let last = Instant::now();
            while callers.requests.now() > 0 && last.elapsed() < DRAIN {
                sleep(Duration::from_millis(100)).await;
            }
            Ok(callers.finish())
        })
    }

    fn callers(&self) -> Result<Callers, Vec<Mistake>> {
        let clock = Clock::tokio();
        let rng = Rng::seeded(self.seed);
        let redis = RedisModel::new(1, rng.next());
        let record =
            |(name, _): &(&str, Option<&str>)| PolicyRecord { name: (*name).to_owned(), ..PolicyRecord::default() };
        let policies = self.targets().iter().map(record).collect();
        let recording = Arc::new(Mutex::new(Recording { policies, requests: Vec::new() }));
        let index = self.targets().into_iter().enumerate().map(|(index, (name, _))| (name.to_owned(), index));
        let index: Arc<HashMap<String, usize>> = Arc::new(index.collect());
        let mut modules = Vec::new();
        for _ in 0..self.replicas {
            let (observed, now, index) = (recording.clone(), clock.clone(), index.clone());
            let link = redis.add_link(Some(rng.next()));
            let module = ResilienceModule::with_redis(RedisConnection::over_transport(Arc::new(link)))
                .config(self.config.clone())
                .clock(clock.clone())
                .seed(rng.next())
                .on_event(move |event| {
                    // Most events are the end of a call, which is recorded where it is made.
                    if matches!(event.kind, EventKind::Transition(_) | EventKind::Retry { .. })
                        && let Some(policy) = event.key.and_then(|key| index.get(key.policy()))
                    {
                        observed.lock().on_event(now.now().as_micros(), *policy, event.kind);
                    }
                })
                .build()
                .map_err(|error| error.mistakes)?;
            modules.push(module);
        }
        let mut targets = Vec::new();
        for (policy, (name, route)) in self.targets().into_iter().enumerate() {
            let pipelines = modules.iter().map(|module| module.pipeline(name, route));
            let pipelines = pipelines.collect::<Result<_, _>>();
            let wrong = |rejection: phalanx::Rejection| vec![Mistake::new("steps.target", rejection.to_string())];
            let dependency = self.dependency(&clock, rng.fork());
            targets.push(Called {
                policy,
                pipelines: pipelines.map_err(wrong)?,
                dependency,
                in_flight: Gauge::default(),
            });
        }
        let (requests, next_key) = (Gauge::default(), AtomicU64::new(0));
        Ok(Callers { step: self.step.clone(), clock, targets, modules, recording, requests, next_key })
    }

    fn dependency(&self, clock: &Clock, rng: Rng) -> Dependency {
        let step = self.step;
        let writes = matches!(step.fault, Fault::LostAnswer { .. }).then(|| match &self.writes {
            Some(factory) => factory(),
            None => Arc::new(SimulatedWrites::new(step.workload.idempotency_keys)) as Arc<dyn Writes>,
        });
        Dependency::new(clock.clone(), rng, &step.workload, self.replicas, step.fault, window(step), writes)
    }
}

/// Returns when the fault is injected, in microseconds of the step.
pub(super) fn window(step: &Step) -> std::ops::Range<u64> {
    let micros = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    let begin = micros(step.workload.warmup);
    begin..begin.saturating_add(micros(step.duration))
}

impl Callers {
    fn now(&self) -> u64 {
        self.clock.now().as_micros()
    }

    /// Starts requests at random until the step is over. Does not wait for their answers.
    async fn call_repeatedly(self: Arc<Self>, chain: Vec<usize>, replica: usize, rng: Rng) {
        let (start, end) = (Instant::now(), self.step.total());
        let fault = self.step.workload.warmup..self.step.workload.warmup + self.step.duration;
        let chain: Arc<[usize]> = chain.into();
        let mut at = Duration::ZERO;
        loop {
            let factor = match self.step.fault {
                Fault::Overload { factor } if fault.contains(&at) => factor,
                _ => 1.0,
            };
            // The gaps of a Poisson process.
            at += Duration::from_secs_f64(-(1.0 - rng.unit()).ln() / (self.step.workload.rate * factor));
            if at >= end {
                return;
            }
            sleep_until(start + at).await;
            tokio::spawn(self.clone().request(chain.clone(), replica, rng.unit()));
        }
    }

    /// Makes one request. `spent` is the share of its deadline that upstream has spent.
    async fn request(self: Arc<Self>, chain: Arc<[usize]>, replica: usize, spent: f64) {
        let _counted = self.requests.enter();
        let start = self.now();
        let budget = match self.step.fault {
            // At least a millisecond, in whole ones: timers are no finer.
            Fault::Deadline { total } if window(&self.step).contains(&start) => {
                Some(Duration::from_millis((total.as_millis() as f64 * (1.0 - spent)).ceil().max(1.0) as u64))
            }
            _ => None,
        };
        let context = match budget {
            Some(budget) if self.step.workload.propagate_deadline => Context::EMPTY.with_timeout(budget),
            _ => Context::EMPTY,
        };
        let budget = budget.map(|budget| budget.as_micros() as u64);
        let deadline = budget.map(|budget| start + budget);
        let (status, code) = scope(context, async {
            let mut answer = (200, None);
            for called in chain.iter().filter_map(|target| self.targets.get(*target)) {
                answer = self.call(called, replica, deadline).await;
                if answer.0 != 200 {
                    break;
                }
            }
            answer
        })
        .await;
        if let Some(budget) = budget {
            let elapsed = self.now() - start;
            self.recording.lock().requests.push(RequestRecord { budget, elapsed, status, code });
        }
    }

    /// Makes one call under a policy. Returns the status of its answer.
    async fn call(
        &self,
        called: &Called,
        replica: usize,
        deadline: Option<u64>,
    ) -> (u16, Option<phalanx::RejectionCode>) {
        let start = self.now();
        let tag = CallTag { key: self.next_key.fetch_add(1, Ordering::Relaxed), deadline, ..CallTag::default() };
        let (call, dependency) = (&tag, &called.dependency);
        let pipeline = &called.pipelines[replica];
        let mut running = pin!(pipeline.call().run_recorded(|| dependency.attempt(call)));
        // A call that is rejected at once was never in flight.
        let first = poll_fn(|cx| Poll::Ready(running.as_mut().poll(cx))).await;
        let (result, decision): (Result<(), Error<Kind>>, Decision) = match first {
            Poll::Ready(answered) => answered,
            Poll::Pending => {
                let _counted = called.in_flight.enter();
                running.await
            }
        };
        let (status, code) = match &result {
            Ok(()) => (200, None),
            Err(Error::Rejected(rejection)) => (self.modules[replica].status(rejection), Some(rejection.code())),
            Err(_) => (502, None),
        };
        let record = CallRecord {
            start,
            elapsed: self.now() - start,
            attempts: decision.attempts,
            hedges: decision.hedges,
            status,
            code,
            admitted: decision.verdict == Verdict::Admitted,
            key: tag.key,
        };
        self.recording.lock().policies[called.policy].calls.push(record);
        (status, code)
    }

    /// Takes the recording, with what the dependencies have counted.
    fn finish(&self) -> Recording {
        let mut recording = std::mem::take(&mut *self.recording.lock());
        let window = window(&self.step);
        for called in &self.targets {
            let policy = &mut recording.policies[called.policy];
            let dependency = &called.dependency;
            policy.unanswered = called.in_flight.now();
            policy.peak_in_flight = called.in_flight.peak();
            policy.capacity = dependency.capacity();
            policy.peak_queue = dependency.queue.peak();
            policy.hop_attempts = dependency.hops.attempts();
            policy.hop_overrun = dependency.hops.overrun();
            policy.writes = dependency.writes.as_deref().map(|writes| {
                let mut counts = WriteCounts::default();
                for call in policy.calls.iter().filter(|call| window.contains(&call.start)) {
                    counts.total += 1;
                    counts.repeated += u64::from(call.attempts > 1 || call.hedges > 0);
                    let effects = writes.effects(call.key);
                    counts.misreported += u64::from(call.is_served() != (effects > 0));
                    match effects {
                        0 => counts.never += 1,
                        1 => counts.once += 1,
                        _ => counts.more += 1,
                    }
                }
                counts
            });
        }
        recording
    }
}
