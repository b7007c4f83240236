//! What a replica is told, and what it tells: plain data, one line of JSON each between processes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use phalanx::store::RedisConnection;
use phalanx::{ModuleBuilder, Policy, ResilienceModule};
use serde::{Deserialize, Serialize};

use super::dependency::Behaviour;
use super::ear::{Heard, Told};
use super::ledger::Tally;
use super::moment::Moment;

/// What a replica is made of.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Setup {
    /// Where Redis is.
    pub url: String,
    /// Where it subscribes, if not there.
    pub push_url: Option<String>,
    /// Which fleet it belongs to.
    pub environment: String,
    /// The longest a caller waits for Redis.
    pub store_budget: Duration,
    /// How often outcomes that can wait are told.
    pub sync_interval: Duration,
    /// Its policies.
    pub policies: Vec<Policy>,
}

impl Setup {
    /// A replica of a fleet that nobody else belongs to, until the setup is used again; options as they are by default.
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

    /// One policy more.
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policies.push(policy);
        self
    }

    /// The longest a caller waits for Redis.
    #[must_use]
    pub fn store_budget(mut self, budget: Duration) -> Self {
        self.store_budget = budget;
        self
    }

    /// A budget that no busy machine uses up: for tests whose subject is not the budget.
    #[must_use]
    pub fn patient(self) -> Self {
        self.store_budget(Duration::from_millis(500))
    }

    /// How often outcomes that can wait are told.
    #[must_use]
    pub fn sync_interval(mut self, interval: Duration) -> Self {
        self.sync_interval = interval;
        self
    }

    /// Where it subscribes.
    #[must_use]
    pub fn push_by(mut self, url: impl Into<String>) -> Self {
        self.push_url = Some(url.into());
        self
    }

    /// The same replica with another way to Redis.
    #[must_use]
    pub fn over(mut self, url: impl Into<String>) -> Self {
        self.url = url.into();
        self
    }

    /// The module, being put together.
    pub fn module(&self) -> ModuleBuilder {
        let client = |url: &str| redis::Client::open(url).expect("a URL of Redis");
        let mut source = RedisConnection::from(client(&self.url));
        if let Some(url) = &self.push_url {
            source = source.with_push(client(url));
        }
        ResilienceModule::with_redis(source)
            .environment(&self.environment)
            .store_budget(self.store_budget)
            .sync_interval(self.sync_interval)
            .policies(self.policies.iter().cloned())
    }
}

/// What a replica is to do. Every order is answered by a [`Report`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Order {
    /// To tell what it has seen, except for how long calls waited.
    Look,
    /// To let the dependency behave like this from now on.
    Behave(Behaviour),
    /// To let callers come; they go on behind the answer.
    Start(Load),
    /// To wait for all callers to end, tell, and forget what became of their calls.
    Finish,
    /// The same, and the callers end now.
    Enough,
    /// To forget everything it has seen.
    Forget,
    /// To leave the fleet in good order.
    Leave,
}

/// Callers. Each calls, waits for the answer, pauses, and calls again.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Load {
    policy: String,
    /// Caller n calls the n-th of them, and begins again where there are more callers than routes.
    routes: Vec<String>,
    pub(super) callers: usize,
    pub(super) pause: Duration,
    /// How long they go on.
    pub(super) lasting: Duration,
    /// How many calls each makes at most.
    pub(super) calls: u64,
    pub(super) until_rejected: bool,
    /// Whether all come in the same moment, and not spread over their pause.
    pub(super) at_once: bool,
    /// Calls that each makes in a row, without a pause, while Redis is not asked.
    pub(super) in_a_row: u64,
    /// Whose starvation is counted, beside the replica's own.
    pub(super) starving: Option<Vec<u32>>,
}

impl Load {
    /// One caller who makes one call on one route.
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
            in_a_row: 1,
            starving: None,
        }
    }

    /// Callers who go on for so long.
    pub fn lasting(policy: &str, route: &str, lasting: Duration) -> Self {
        Self { lasting, calls: u64::MAX, ..Self::once(policy, route) }
    }

    /// So many callers.
    #[must_use]
    pub fn callers(mut self, callers: usize) -> Self {
        self.callers = callers;
        self
    }

    /// Several routes.
    #[must_use]
    pub fn routes(mut self, routes: impl IntoIterator<Item = String>) -> Self {
        self.routes = routes.into_iter().collect();
        self
    }

    /// How long each pauses between two calls.
    #[must_use]
    pub fn pause(mut self, pause: Duration) -> Self {
        self.pause = pause;
        self
    }

    /// Each ends with the first rejection.
    #[must_use]
    pub fn until_rejected(mut self) -> Self {
        self.until_rejected = true;
        self
    }

    /// All come in the same moment, and not spread over their pause.
    #[must_use]
    pub fn at_once(mut self) -> Self {
        self.at_once = true;
        self
    }

    /// So many calls in a row, without a pause, while Redis is not asked.
    #[must_use]
    pub fn in_a_row(mut self, calls: u64) -> Self {
        self.in_a_row = calls;
        self
    }

    /// What callers lose is counted without the time in which the machine had no processor for the replica, or for a
    /// process of these.
    #[must_use]
    pub fn counting_starvation(mut self, processes: &[u32]) -> Self {
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

/// What can be read off one of its pipelines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gauges {
    /// The bulkhead's limit.
    pub limit: Option<u32>,
    /// The hedge's delay.
    pub hedge_delay: Option<Duration>,
}

/// What a replica has seen.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// When it was told.
    pub at: Moment,
    /// Whether it decides alone.
    pub alone: bool,
    /// Replicas alive, as far as it knows.
    pub replicas: Option<u32>,
    /// What its bulkheads and hedges show, by route.
    pub gauges: BTreeMap<String, Gauges>,
    /// What became of its calls since they were last forgotten.
    pub tally: Tally,
    /// What its observers were told, since that was last forgotten.
    pub told: Vec<Told>,
}

impl Report {
    /// When observers were told something, each time.
    pub fn moments(&self, wanted: impl Fn(&Heard) -> bool) -> Vec<Moment> {
        self.told.iter().filter(|told| wanted(&told.kind)).map(|told| told.at).collect()
    }

    /// The reasons of all outages that were told, in order.
    pub fn outages(&self) -> Vec<&str> {
        self.told.iter().filter_map(|told| told.kind.reason()).collect()
    }

    /// How many outages were told to be over.
    pub fn recoveries(&self) -> usize {
        self.moments(|what| matches!(what, Heard::Recovered { .. })).len()
    }
}
