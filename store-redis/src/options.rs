//! How a fleet is told to share: names, budgets, and what to do alone.

use std::sync::Arc;
use std::time::Duration;

use phalanx_core::policy::validate::Mistake;

/// The options of a Redis store, with their defaults.
#[derive(Clone, Debug)]
pub struct RedisOptions {
    /// Put before every key, `<prefix>:ph1:…`: lower-case letters, digits, `-`. Default none: keys begin with `ph1:`.
    pub prefix: Option<String>,
    /// Which fleet of the same service this is (`prod`, `stage`): part of every key. Default `default`.
    pub environment: String,
    /// Hashed together with the names of policies and routes, for fleets whose routes strangers choose. Default none.
    pub key_secret: Option<Arc<[u8]>>,
    /// The longest a caller waits for Redis, queueing and dialling included: 1 ms to 500 ms. Default 20 ms.
    pub store_budget: Duration,
    /// How often outcomes that can wait are told, and state is asked for in case a push was lost. Default 250 ms.
    pub sync_interval: Duration,
    /// How much of a rate this replica takes while Redis is away. Default [`DegradedShare::Auto`].
    pub degraded_share: DegradedShare,
}

/// How much of the fleet's rate one replica takes while Redis is away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DegradedShare {
    /// The rate divided by the replicas last seen alive; all of it if none were ever seen.
    #[default]
    Auto,
    /// The rate divided by this many.
    Fixed(u32),
    /// All of it: for limits that protect this process rather than the dependency.
    Full,
}

impl Default for RedisOptions {
    fn default() -> Self {
        Self {
            prefix: None,
            environment: "default".to_owned(),
            key_secret: None,
            store_budget: Duration::from_millis(20),
            sync_interval: Duration::from_millis(250),
            degraded_share: DegradedShare::Auto,
        }
    }
}

impl RedisOptions {
    /// Everything that makes no sense, each with its path.
    pub fn mistakes(&self) -> Vec<Mistake> {
        let mut mistakes = Vec::new();
        let mut wrong = |path: &str, reason: &str| {
            mistakes.push(Mistake::new(format!("redis.{path}"), reason));
        };
        let plain = |name: &str| {
            let fits = (1..=32).contains(&name.len());
            fits && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        };
        const PLAIN: &str = "must be 1 to 32 lower-case letters, digits or '-': it becomes part of every key";
        if self.prefix.as_deref().is_some_and(|prefix| !plain(prefix)) {
            wrong("prefix", PLAIN);
        }
        if !plain(&self.environment) {
            wrong("environment", PLAIN);
        }
        if !(Duration::from_millis(1)..=Duration::from_millis(500)).contains(&self.store_budget) {
            wrong("store_budget", "must be between 1ms and 500ms");
        }
        if !(Duration::from_millis(10)..=Duration::from_secs(60)).contains(&self.sync_interval) {
            wrong("sync_interval", "must be between 10ms and 60s");
        }
        if self.degraded_share == DegradedShare::Fixed(0) {
            wrong("degraded_share", "must be at least 1 replica");
        }
        mistakes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_mistakes_come_together_and_the_defaults_make_none() {
        assert_eq!(RedisOptions::default().mistakes(), []);
        let wrong = RedisOptions {
            prefix: Some("{x}".to_owned()),
            environment: String::new(),
            key_secret: None,
            store_budget: Duration::ZERO,
            sync_interval: Duration::MAX,
            degraded_share: DegradedShare::Fixed(0),
        };
        let paths: Vec<_> = wrong.mistakes().into_iter().map(|mistake| mistake.path).collect();
        let expected = ["prefix", "environment", "store_budget", "sync_interval", "degraded_share"];
        assert_eq!(paths, expected.map(|path| format!("redis.{path}")));
    }
}
