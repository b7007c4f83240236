//! Random workloads of whole calls, against a policy with a bulkhead queue, a breaker, retries and hedges.
//!
//! Callers arrive at random times with random deadlines and criticalities, may be dropped at any time, and run operations
//! of random durations and results, while the policy changes. The invariants of `docs/guarantees.md` must hold:
//!
//! * every slot is released, and concurrent runs never exceed the slots (I-10);
//! * queued calls are served within their queue timeout, a displaced call gives way to a more critical one, and the queue
//!   never exceeds its length (I-11);
//! * every call ends exactly once, and the breaker counts each once (I-18);
//! * deadlines are kept within 5 ms, and no run starts after its deadline (I-22);
//! * attempts and hedges stay within the limits of the policy, in total and per call (I-23).

#![allow(clippy::expect_used, clippy::unwrap_used)] // a failed expectation panics, in helpers too

mod support;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use phalanx::describe::Outcome;
use phalanx::policy::BudgetSpec;
use phalanx::*;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use support::bulkhead_and_hedge::Ended;
use support::*;
use tokio::time::{Instant, sleep, sleep_until, timeout};

const DEADLINE_TOLERANCE: Duration = Duration::from_millis(5);

/// The configuration of a policy. Times are in milliseconds.
#[derive(Clone, Debug)]
struct Setup {
    slots: u32,
    queue: u32,
    queue_timeout: Option<u64>,
    /// CoDel's target; its interval is 40 ms.
    target: Option<u64>,
    lifo: bool,
    prioritized: bool,
    /// Its delay, and the maximum number of concurrent attempts.
    hedge: (u64, u32),
    /// Hedges per call, and hedges always allowed per second.
    budget: (f64, u32),
    attempts: u32,
    timeout: Option<u64>,
    circuit: Circuit,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Circuit {
    CountsCalls,
    CountsAttempts,
    /// Trips easily and becomes half-open soon after.
    Trips,
}

#[derive(Clone, Debug)]
struct Caller {
    arrives_at: u64,
    criticality: Criticality,
    deadline: Option<u64>,
    /// Dropped after this time.
    drop_after: Option<u64>,
    /// Duration and result of each run; repeated if there are more runs.
    runs: Vec<(u64, End)>,
}

#[derive(Clone, Copy, Debug)]
enum End {
    Ok,
    Broken,
    Throttled,
    NotFound,
}

#[derive(Clone, Copy, Debug)]
enum PolicyChange {
    Slots(u32),
    NoBulkhead,
    NoHedge,
}

impl Setup {
    fn policy(&self, change: Option<PolicyChange>) -> Policy {
        let slots = if let Some(PolicyChange::Slots(slots)) = change { slots } else { self.slots };
        let mut bulkhead = BulkheadSpec::fixed(slots).queue(self.queue);
        if self.queue > 0 {
            bulkhead.queue_timeout = self.queue_timeout.map(Duration::from_millis);
            bulkhead.queue_target = self.target.map(Duration::from_millis);
            bulkhead.queue_interval = 40 * MS;
            (bulkhead.queue_adaptive_lifo, bulkhead.prioritized) = (self.lifo, self.prioritized);
        }
        let counting = BreakerSpec::failure_ratio(1.0).min_throughput(1_000_000).window(HOUR);
        let budget = BudgetSpec::ratio(self.budget.0).min_per_second(self.budget.1);
        let hedge = HedgeSpec::after(Duration::from_millis(self.hedge.0)).max_attempts(self.hedge.1).budget(budget);
        let mut policy = Policy::named("p")
            .bulkhead(bulkhead)
            .breaker(match self.circuit {
                Circuit::CountsCalls => counting,
                Circuit::CountsAttempts => counting.count_attempts(),
                Circuit::Trips => BreakerSpec::consecutive_failures(3).break_for(30 * MS).count_attempts(),
            })
            .retry(RetrySpec::attempts(self.attempts).backoff(Backoff::exponential(5 * MS)))
            .hedge(hedge)
            .idempotent();
        policy.timeout = self.timeout.map(Duration::from_millis);
        match change {
            Some(PolicyChange::NoBulkhead) => policy.bulkhead = None,
            Some(PolicyChange::NoHedge) => policy.hedge = None,
            Some(PolicyChange::Slots(_)) | None => {}
        }
        policy
    }
}

fn setups() -> impl Strategy<Value = Setup> {
    let queue = (0..6_u32, option::of(5..80_u64), option::of(2..30_u64), any::<bool>(), any::<bool>());
    let hedge = ((2..40_u64, 2..5_u32), (0.0..1.0, 0..4_u32));
    let circuit = prop_oneof![Just(Circuit::CountsCalls), Just(Circuit::CountsAttempts), Just(Circuit::Trips)];
    let rest = (1..4_u32, 1..4_u32, option::of(5..100_u64), circuit);
    (queue, hedge, rest).prop_map(|(queue, (hedge, budget), (slots, attempts, timeout, circuit))| {
        let (queue, queue_timeout, target, lifo, prioritized) = queue;
        Setup { slots, queue, queue_timeout, target, lifo, prioritized, hedge, budget, attempts, timeout, circuit }
    })
}

fn callers() -> impl Strategy<Value = Vec<Caller>> {
    use Criticality::{BestEffort, Critical, Degraded, Normal};
    let end =
        prop_oneof![4 => Just(End::Ok), 2 => Just(End::Broken), 1 => Just(End::Throttled), 1 => Just(End::NotFound)];
    let takes = prop_oneof![1 => Just(0), 3 => 1..10_u64, 3 => 10..120_u64];
    let criticality = prop_oneof![Just(BestEffort), Just(Degraded), Just(Normal), Just(Critical)];
    let caller = (0..500_u64, criticality, option::of(0..150_u64), option::of(0..100_u64), vec((takes, end), 1..5));
    let caller = caller.prop_map(|(arrives_at, criticality, deadline, drop_after, runs)| Caller {
        arrives_at,
        criticality,
        deadline,
        drop_after,
        runs,
    });
    vec(caller, 1..50)
}

fn changes() -> impl Strategy<Value = Vec<(u64, PolicyChange)>> {
    let change = prop_oneof![4 => (1..6_u32).prop_map(PolicyChange::Slots), 1 => Just(PolicyChange::NoBulkhead), 1 => Just(PolicyChange::NoHedge)];
    vec((0..500_u64, change), 0..6)
}

/// The operation's own count of all runs.
#[derive(Default)]
struct Account {
    begun: AtomicU32,
    over: AtomicU32,
    inside: AtomicU32,
    most_inside: AtomicU32,
}

struct Run<'a>(&'a Account);

impl Drop for Run<'_> {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, Ordering::Relaxed);
        self.0.over.fetch_add(1, Ordering::Relaxed);
    }
}

impl Account {
    fn begin(&self) -> Run<'_> {
        self.begun.fetch_add(1, Ordering::Relaxed);
        let inside = self.inside.fetch_add(1, Ordering::Relaxed) + 1;
        self.most_inside.fetch_max(inside, Ordering::Relaxed);
        Run(self)
    }
}

/// The results of one caller.
#[derive(Clone, Debug)]
struct CallerRun {
    caller: Caller,
    came: Instant,
    left: Instant,
    /// When each run of the operation began.
    runs: Vec<Instant>,
    /// None if the caller was dropped.
    rejection: Option<Option<RejectionCode>>,
}

impl Caller {
    async fn caller_run(self, pipeline: Pipeline, account: Arc<Account>) -> CallerRun {
        sleep(Duration::from_millis(self.arrives_at)).await;
        let (came, runs) = (Instant::now(), Mutex::new(Vec::new()));
        let operation = || {
            let mut runs = runs.lock().unwrap();
            let (takes, end) = self.runs[runs.len() % self.runs.len()];
            runs.push(Instant::now());
            let run = account.begin();
            async move {
                let _run = run;
                if takes > 0 {
                    sleep(Duration::from_millis(takes)).await;
                }
                match end {
                    End::Ok => Ok(1),
                    End::Broken => Err(BROKEN),
                    End::Throttled => Err(Failure(Kind::Throttled)),
                    End::NotFound => Err(Failure(Kind::NotFound)),
                }
            }
        };
        let mut call = pipeline.call().criticality(self.criticality);
        if let Some(deadline) = self.deadline {
            call = call.within(Duration::from_millis(deadline));
        }
        let stays = self.drop_after.map_or(HOUR, Duration::from_millis);
        let answer = timeout(stays, call.run(operation)).await;
        let rejection = answer.ok().map(|answer| answer.err().and_then(|error| error.rejection().map(Rejection::code)));
        let runs = runs.into_inner().unwrap();
        CallerRun { caller: self, came, left: Instant::now(), runs, rejection }
    }
}

/// Observed events: the ends of calls and the number of hedges.
#[derive(Clone, Default)]
struct EventCounts(Arc<Mutex<(Vec<Ended>, u32)>>);

impl Observer for EventCounts {
    fn on_event(&self, event: &Event<'_>) {
        let mut observed = self.0.lock().unwrap();
        match event.kind {
            EventKind::Finished { outcome, decision, .. } => observed.0.push((outcome, *decision)),
            EventKind::Hedge { .. } => observed.1 += 1,
            _ => {}
        }
    }
}

/// Runs a workload and checks it.
async fn run_workload(setup: Setup, callers: Vec<Caller>, mut changes: Vec<(u64, PolicyChange)>) {
    let (start, observed, account) = (Instant::now(), EventCounts::default(), Arc::new(Account::default()));
    let module = ResilienceModule::in_memory().seed(7).observer(observed.clone()).policy(setup.policy(None));
    let module = module.build().unwrap();
    let pipeline = module.pipeline("p", ()).unwrap();

    let spawn = |caller: Caller| tokio::spawn(caller.caller_run(pipeline.clone(), account.clone()));
    let caller_runs: Vec<_> = callers.into_iter().map(spawn).collect();
    changes.sort_by_key(|(at, _)| *at);
    let (unlimited, most) = changes.iter().fold((false, setup.slots), |(unlimited, most), (_, change)| match change {
        PolicyChange::Slots(slots) => (unlimited, most.max(*slots)),
        PolicyChange::NoBulkhead => (true, most),
        PolicyChange::NoHedge => (unlimited, most),
    });
    let (changing, policies) = (module.clone(), setup.clone());
    let changed = tokio::spawn(async move {
        for (at, change) in changes {
            sleep_until(start + Duration::from_millis(at)).await;
            changing.retune(policies.policy(Some(change))).unwrap();
        }
    });
    let (watched, queue) = (pipeline.clone(), setup.queue);
    let watch = tokio::spawn(async move {
        loop {
            if let Some(view) = watched.bulkhead() {
                assert!(view.waiting <= queue && (unlimited || view.in_use <= most), "{view:?}");
            }
            sleep(MS).await;
        }
    });
    let mut ended = Vec::new();
    for caller_run in caller_runs {
        ended.push(timeout(60 * SECOND, caller_run).await.expect("the caller ends").unwrap());
    }
    changed.await.unwrap();
    assert!(!watch.is_finished(), "the queue or the slots were exceeded");
    watch.abort();

    module.retune(setup.policy(None)).unwrap();
    let view = pipeline.bulkhead().unwrap();
    assert_eq!((view.limit, view.in_use, view.waiting), (setup.slots, 0, 0));
    let load = |count: &AtomicU32| count.load(Ordering::Relaxed);
    assert_eq!((load(&account.begun), load(&account.inside)), (load(&account.over), 0), "all runs have ended");
    assert!(unlimited || load(&account.most_inside) <= most, "{} inside", load(&account.most_inside));
    for caller_run in &ended {
        caller_run.check(&setup, &ended);
    }
    let (ends, hedges) = observed.0.lock().unwrap().clone();
    check_ends(&setup, &ends, hedges, &ended);
    check_circuit(&setup, &pipeline, &ends).await;
}

impl CallerRun {
    fn check(&self, setup: &Setup, all: &[Self]) {
        let millis = Duration::from_millis;
        if let Some(deadline) = self.caller.deadline {
            assert!(self.left <= self.came + millis(deadline) + DEADLINE_TOLERANCE, "late: {self:?}");
            assert!(self.runs.iter().all(|run| *run < self.came + millis(deadline.max(1))), "began late: {self:?}");
        }
        let attempts = setup.attempts * setup.hedge.1;
        assert!(self.runs.len() <= attempts as usize, "{self:?}");
        if let (Some(timeout), Some(first), 1..) = (setup.queue_timeout, self.runs.first(), setup.queue) {
            assert!(*first <= self.came + millis(timeout) + MS, "served after its queue timeout: {self:?}");
        }
        // Without a target only a more critical call displaces a queued one, and it does so when it arrives.
        if self.rejection == Some(Some(RejectionCode::BulkheadQueueShed)) && setup.target.is_none() {
            let pushes = |other: &Self| other.came == self.left && other.caller.criticality > self.caller.criticality;
            assert!(setup.prioritized && all.iter().any(pushes), "displaced without a more critical call: {self:?}");
        }
    }
}

fn check_ends(setup: &Setup, ends: &[Ended], hedges: u32, caller_runs: &[CallerRun]) {
    assert_eq!(ends.len(), caller_runs.len(), "one end each");
    let runs: usize = caller_runs.iter().map(|caller_run| caller_run.runs.len()).sum();
    let (mut attempts, mut recorded, mut begun) = (0, 0, 0);
    for (_, record) in ends {
        assert!(record.attempts <= setup.attempts, "{record:?}");
        assert!(record.hedges <= record.attempts * (setup.hedge.1 - 1), "{record:?}");
        assert!(record.hedge_won <= (record.hedges > 0), "{record:?}");
        (attempts, recorded, begun) =
            (attempts + record.attempts, recorded + record.hedges, begun + u32::from(record.attempts > 0));
    }
    assert_eq!(((attempts + recorded) as usize, recorded), (runs, hedges), "every run is recorded");
    // The whole workload lies within one window of the budget.
    let budget = setup.budget.0 * f64::from(begun) + 10.0 * f64::from(setup.budget.1);
    assert!(f64::from(recorded) <= budget, "{recorded} hedges of {begun} calls");
}

async fn check_circuit(setup: &Setup, pipeline: &Pipeline, ends: &[Ended]) {
    let view = pipeline.circuit().await.unwrap();
    assert_eq!(view.probes, 0, "a probe still holds its slot");
    if setup.circuit == Circuit::CountsCalls {
        let count = |outcome| ends.iter().filter(|(end, _)| *end == Some(outcome)).count() as u64;
        let (good, bad) = (count(Outcome::Success), count(Outcome::Failure));
        assert_eq!((view.calls - view.failures, view.failures), (good, bad));
    }
    if let Some(left) = view.break_left {
        sleep(left + MS).await;
    }
    assert_eq!(pipeline.run(ok).await, Ok(1), "the next call");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_slot_is_leaked_and_no_limit_is_exceeded(setup in setups(), callers in callers(), changes in changes()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(run_workload(setup, callers, changes));
    }
}
