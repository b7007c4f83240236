//! Commands to a replica and its reports: plain data, one line of JSON each between processes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use phalanx::store::RedisConnection;
use phalanx::{ModuleBuilder, Policy, ResilienceModule};
use serde::{Deserialize, Serialize};

use super::dependency::DependencyBehavior;
use super::event_log::{LoggedEvent, LoggedKind};
use super::ledger::Tally;
use super::moment::Moment;

/// The configuration of a replica.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Setup {
    /// The URL of Redis.
    pub url: String,
    /// The URL for subscriptions, if different.
    pub push_url: Option<String>,
    /// The fleet it belongs to.
    pub environment: String,
    /// The longest a caller waits for Redis.
    pub store_budget: Duration,
    /// The interval of the periodic sync.
    pub sync_interval: Duration,
    /// Its policies.
    pub policies: Vec<Policy>,
}

impl Setup {
    /// Returns the default options and a new environment. Replicas with clones of one setup form a fleet.
    pub fn new(url: impl Into<String>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let environment = format!("f{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        Self {
            url: url.into(),
            push_url: None,
            environment,
            store_budget: Duration::from_millis(20),
            sync_interval: Duration::from_millis(250),
            policies: Vec::new(),
        }
    }

    /// Adds a policy.
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policies.push(policy);
        self
    }

    /// Sets the store budget.
    #[must_use]
    pub fn store_budget(mut self, budget: Duration) -> Self {
        self.store_budget = budget;
        self
    }

    /// Sets a budget that a busy machine does not exceed, for tests that are not about the budget.
    #[must_use]
    pub fn generous_budget(self) -> Self {
        self.store_budget(Duration::from_millis(500))
    }

    /// Sets the interval of the periodic sync.
    #[must_use]
    pub fn sync_interval(mut self, interval: Duration) -> Self {
        self.sync_interval = interval;
        self
    }

    /// Sets the URL for subscriptions.
    #[must_use]
    pub fn with_push_url(mut self, url: impl Into<String>) -> Self {
        self.push_url = Some(url.into());
        self
    }

    /// Sets the URL of Redis.
    #[must_use]
    pub fn with_url(mut self, url: impl Into<String>) -> Self {
        self.url = url.into();
        self
    }

    /// Returns a builder of the module.
    pub fn module(&self) -> ModuleBuilder {
        let client = |url: &str| redis::Client::open(url).expect("a valid Redis URL");
        let mut source = RedisConnection::from(client(&self.url));
        if let Some(url) = &self.push_url {
            source = source.with_push(client(url));
        }
        ResilienceModule::with_redis(source)
            .service("test")
            .environment(&self.environment)
            .store_budget(self.store_budget)
            .sync_interval(self.sync_interval)
            .policies(self.policies.iter().cloned())
    }
}

/// A command to a replica. Every command is answered by a [`Report`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Command {
    /// Reports without wait statistics.
    Report,
    /// Sets the behaviour of the dependency.
    SetDependency(DependencyBehavior),
    /// Starts a load, which continues after the report.
    Start(Load),
    /// Waits for all callers to end, reports, and clears the tally.
    Finish,
    /// Ends all callers now, reports, and clears the tally.
    Stop,
    /// Clears the tally and the event log.
    Clear,
    /// Leaves the fleet.
    LeaveFleet,
}

/// A load: a number of callers. Each calls, waits for the result, pauses, and calls again.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Load {
    policy: String,
    /// Caller n calls route n modulo the number of routes.
    routes: Vec<String>,
    pub(super) callers: usize,
    pub(super) pause: Duration,
    /// How long the load lasts.
    pub(super) lasting: Duration,
    /// Maximum number of calls of each caller.
    pub(super) calls: u64,
    pub(super) until_rejected: bool,
    /// Whether all callers start at the same time, instead of spread over one pause.
    pub(super) at_once: bool,
    /// Calls that each caller makes without a pause while the store is degraded.
    pub(super) calls_in_a_row: u64,
    /// Other processes whose starvation is measured together with the replica's own.
    pub(super) starving: Option<Vec<u32>>,
}

impl Load {
    /// One caller that makes one call on one route.
    pub fn once(policy: &str, route: &str) -> Self {
        Self {
            policy: policy.to_owned(),
            routes: vec![route.to_owned()],
            callers: 1,
            pause: Duration::ZERO,
            lasting: Duration::from_secs(60),
            calls: 1,
            until_rejected: false,
            at_once: false,
            calls_in_a_row: 1,
            starving: None,
        }
    }

    /// One caller that calls for this long.
    pub fn lasting(policy: &str, route: &str, lasting: Duration) -> Self {
        Self { lasting, calls: u64::MAX, ..Self::once(policy, route) }
    }

    /// Sets the number of callers.
    #[must_use]
    pub fn callers(mut self, callers: usize) -> Self {
        self.callers = callers;
        self
    }

    /// Sets the routes.
    #[must_use]
    pub fn routes(mut self, routes: impl IntoIterator<Item = String>) -> Self {
        self.routes = routes.into_iter().collect();
        self
    }

    /// Sets the pause between two calls of a caller.
    #[must_use]
    pub fn pause(mut self, pause: Duration) -> Self {
        self.pause = pause;
        self
    }

    /// Ends each caller at its first rejection.
    #[must_use]
    pub fn until_rejected(mut self) -> Self {
        self.until_rejected = true;
        self
    }

    /// Starts all callers at the same time, instead of spread over one pause.
    #[must_use]
    pub fn at_once(mut self) -> Self {
        self.at_once = true;
        self
    }

    /// Sets the number of calls a caller makes without a pause while the store is degraded.
    #[must_use]
    pub fn calls_in_a_row(mut self, calls: u64) -> Self {
        self.calls_in_a_row = calls;
        self
    }

    /// Excludes from the time lost by callers the time in which the replica, or one of these processes, waited for a
    /// processor.
    #[must_use]
    pub fn excluding_starvation(mut self, processes: &[u32]) -> Self {
        self.starving = Some(processes.to_vec());
        self
    }

    pub(super) fn policy(&self) -> &str {
        &self.policy
    }

    pub(super) fn route_of(&self, caller: usize) -> &str {
        self.routes.get(caller % self.routes.len().max(1)).map_or("", String::as_str)
    }
}

/// Gauges of one pipeline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gauges {
    /// The bulkhead's limit.
    pub limit: Option<u32>,
    /// The hedge's delay.
    pub hedge_delay: Option<Duration>,
}

/// The report of a replica.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// When it was made.
    pub at: Moment,
    /// Whether the store is degraded.
    pub degraded: bool,
    /// Number of live replicas, if known.
    pub replicas: Option<u32>,
    /// Gauges of its bulkheads and hedges, by route.
    pub gauges: BTreeMap<String, Gauges>,
    /// Its calls since the tally was last cleared.
    pub tally: Tally,
    /// Events emitted since the log was last cleared.
    pub events: Vec<LoggedEvent>,
}

impl Report {
    /// Returns the times of all events of a kind.
    pub fn moments(&self, wanted: impl Fn(&LoggedKind) -> bool) -> Vec<Moment> {
        self.events.iter().filter(|event| wanted(&event.kind)).map(|event| event.at).collect()
    }

    /// Returns the reasons of all outages, in order.
    pub fn outages(&self) -> Vec<&str> {
        self.events.iter().filter_map(|event| event.kind.reason()).collect()
    }

    /// Returns the number of recoveries.
    pub fn recoveries(&self) -> usize {
        self.moments(|kind| matches!(kind, LoggedKind::Recovered { .. })).len()
    }
}
