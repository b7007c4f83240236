//! Histories of whole calls as chance wills them, against a policy with everything that waits, races and repeats.
//!
//! Callers come at any time with any patience and any criticality, go away at any time, and find operations that take
//! any time and end in any way, while the policy is changed under them. Whatever happens,
//!
//! * every slot comes back, and never more run than there are slots (I-10);
//! * nobody waits in vain: who is served is in time, who is displaced gives way to somebody more critical, and the queue
//!   is never longer than it may be (I-11);
//! * every call has exactly one end, and the circuit counts each once (I-18);
//! * deadlines are kept within 5 ms, and nothing starts after them (I-22);
//! * attempts and copies are no more than the policy allows, all together and per call (I-23).

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

const QUANTUM: Duration = Duration::from_millis(5);

/// What is configured. Times are in milliseconds.
#[derive(Clone, Debug)]
struct Setup {
    slots: u32,
    queue: u32,
    queue_timeout: Option<u64>,
    /// CoDel's target; its interval is 40 ms.
    target: Option<u64>,
    lifo: bool,
    prioritized: bool,
    /// Its delay and how many may run at a time.
    hedge: (u64, u32),
    /// Copies per call, and always allowed a second.
    budget: (f64, u32),
    attempts: u32,
    timeout: Option<u64>,
    circuit: Circuit,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Circuit {
    CountsCalls,
    CountsAttempts,
    /// And is half-open soon after.
    Trips,
}

#[derive(Clone, Debug)]
struct Caller {
    comes: u64,
    criticality: Criticality,
    patience: Option<u64>,
    /// Goes away after so long.
    goes: Option<u64>,
    /// How long each run takes and how it ends; from the start again when there are more.
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
enum Change {
    Slots(u32),
    NoBulkhead,
    NoHedge,
}

impl Setup {
    fn policy(&self, change: Option<Change>) -> Policy {
        let slots = if let Some(Change::Slots(slots)) = change { slots } else { self.slots };
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
            Some(Change::NoBulkhead) => policy.bulkhead = None,
            Some(Change::NoHedge) => policy.hedge = None,
            Some(Change::Slots(_)) | None => {}
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
    let caller = caller.prop_map(|(comes, criticality, patience, goes, runs)| Caller {
        comes,
        criticality,
        patience,
        goes,
        runs,
    });
    vec(caller, 1..50)
}

fn changes() -> impl Strategy<Value = Vec<(u64, Change)>> {
    let change =
        prop_oneof![4 => (1..6_u32).prop_map(Change::Slots), 1 => Just(Change::NoBulkhead), 1 => Just(Change::NoHedge)];
    vec((0..500_u64, change), 0..6)
}

/// The operation's own account of all runs.
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

/// What a caller saw.
#[derive(Clone, Debug)]
struct Visit {
    caller: Caller,
    came: Instant,
    left: Instant,
    /// When each run of the operation began.
    runs: Vec<Instant>,
    /// None if he went away.
    rejection: Option<Option<RejectionCode>>,
}

impl Caller {
    async fn visit(self, pipeline: Pipeline, account: Arc<Account>) -> Visit {
        sleep(Duration::from_millis(self.comes)).await;
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
        if let Some(patience) = self.patience {
            call = call.within(Duration::from_millis(patience));
        }
        let stays = self.goes.map_or(HOUR, Duration::from_millis);
        let answer = timeout(stays, call.run(operation)).await;
        let rejection = answer.ok().map(|answer| answer.err().and_then(|error| error.rejection().map(Rejection::code)));
        let runs = runs.into_inner().unwrap();
        Visit { caller: self, came, left: Instant::now(), runs, rejection }
    }
}

/// What observers heard: the ends of calls, and how many copies were sent.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<(Vec<Ended>, u32)>>);

impl Observer for Heard {
    fn on_event(&self, event: &Event<'_>) {
        let mut heard = self.0.lock().unwrap();
        match event.kind {
            EventKind::Finished { outcome, decision, .. } => heard.0.push((outcome, *decision)),
            EventKind::Hedge { .. } => heard.1 += 1,
            _ => {}
        }
    }
}

/// Plays a history and checks it.
async fn play(setup: Setup, callers: Vec<Caller>, mut changes: Vec<(u64, Change)>) {
    let (start, heard, account) = (Instant::now(), Heard::default(), Arc::new(Account::default()));
    let module = ResilienceModule::in_memory().seed(7).observer(heard.clone()).policy(setup.policy(None));
    let module = module.build().unwrap();
    let pipeline = module.pipeline("p", ()).unwrap();

    let spawn = |caller: Caller| tokio::spawn(caller.visit(pipeline.clone(), account.clone()));
    let visits: Vec<_> = callers.into_iter().map(spawn).collect();
    changes.sort_by_key(|(at, _)| *at);
    let (unlimited, most) = changes.iter().fold((false, setup.slots), |(unlimited, most), (_, change)| match change {
        Change::Slots(slots) => (unlimited, most.max(*slots)),
        Change::NoBulkhead => (true, most),
        Change::NoHedge => (unlimited, most),
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
    for visit in visits {
        ended.push(timeout(60 * SECOND, visit).await.expect("waits for ever").unwrap());
    }
    changed.await.unwrap();
    assert!(!watch.is_finished(), "too many waited");
    watch.abort();

    module.retune(setup.policy(None)).unwrap();
    let view = pipeline.bulkhead().unwrap();
    assert_eq!((view.limit, view.in_use, view.waiting), (setup.slots, 0, 0));
    let load = |count: &AtomicU32| count.load(Ordering::Relaxed);
    assert_eq!((load(&account.begun), load(&account.inside)), (load(&account.over), 0), "runs are left");
    assert!(unlimited || load(&account.most_inside) <= most, "{} inside", load(&account.most_inside));
    for visit in &ended {
        visit.check(&setup, &ended);
    }
    let (ends, hedges) = heard.0.lock().unwrap().clone();
    check_ends(&setup, &ends, hedges, &ended);
    check_circuit(&setup, &pipeline, &ends).await;
}

impl Visit {
    fn check(&self, setup: &Setup, all: &[Self]) {
        let millis = Duration::from_millis;
        if let Some(patience) = self.caller.patience {
            assert!(self.left <= self.came + millis(patience) + QUANTUM, "late: {self:?}");
            assert!(self.runs.iter().all(|run| *run < self.came + millis(patience.max(1))), "began late: {self:?}");
        }
        let attempts = setup.attempts * setup.hedge.1;
        assert!(self.runs.len() <= attempts as usize, "{self:?}");
        if let (Some(timeout), Some(first), 1..) = (setup.queue_timeout, self.runs.first(), setup.queue) {
            assert!(*first <= self.came + millis(timeout) + MS, "served although its time was over: {self:?}");
        }
        // Without a target only the more critical push anybody out of the queue, and they do so when they come.
        if self.rejection == Some(Some(RejectionCode::BulkheadQueueShed)) && setup.target.is_none() {
            let pushes = |other: &Self| other.came == self.left && other.caller.criticality > self.caller.criticality;
            assert!(setup.prioritized && all.iter().any(pushes), "pushed out by nobody: {self:?}");
        }
    }
}

fn check_ends(setup: &Setup, ends: &[Ended], hedges: u32, visits: &[Visit]) {
    assert_eq!(ends.len(), visits.len(), "one end each");
    let runs: usize = visits.iter().map(|visit| visit.runs.len()).sum();
    let (mut attempts, mut copies, mut begun) = (0, 0, 0);
    for (_, record) in ends {
        assert!(record.attempts <= setup.attempts, "{record:?}");
        assert!(record.hedges <= record.attempts * (setup.hedge.1 - 1), "{record:?}");
        assert!(record.hedge_won <= (record.hedges > 0), "{record:?}");
        (attempts, copies, begun) =
            (attempts + record.attempts, copies + record.hedges, begun + u32::from(record.attempts > 0));
    }
    assert_eq!(((attempts + copies) as usize, copies), (runs, hedges), "every run is on record");
    // All of it lies within one window of the budget.
    let budget = setup.budget.0 * f64::from(begun) + 10.0 * f64::from(setup.budget.1);
    assert!(f64::from(copies) <= budget, "{copies} copies of {begun} calls");
}

async fn check_circuit(setup: &Setup, pipeline: &Pipeline, ends: &[Ended]) {
    let view = pipeline.circuit().await.unwrap();
    assert_eq!(view.probes, 0, "a probe still holds its place");
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
    fn nothing_is_lost_and_nothing_exceeds_its_bounds(setup in setups(), callers in callers(), changes in changes()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(play(setup, callers, changes));
    }
}
