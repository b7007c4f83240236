//! Options of the Redis store: key names, budgets, and the degraded share.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use phalanx_core::policy::validate::Mistake;

/// The options of a Redis store, with their defaults.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use phalanx_store_redis::RedisOptions;
///
/// let mut options = RedisOptions { environment: "stage".to_owned(), ..RedisOptions::default() };
/// assert!(options.mistakes().is_empty());
///
/// options.sync_interval = Duration::from_millis(1);
/// assert_eq!(options.mistakes()[0].path, "redis.sync_interval");
/// ```
#[derive(Clone)]
pub struct RedisOptions {
    /// Prefix of every key, `<prefix>:ph2:…`: lower-case letters, digits, `-`. Default: none, keys begin with `ph2:`.
    pub prefix: Option<String>,
    /// The service whose replicas share state: part of every key, so that two services on one Redis never meet. Default:
    /// the file name of the program. Set it if replicas of one service run programs of different names.
    pub service: String,
    /// Separates fleets of a service on the same Redis (`prod`, `stage`): part of every key. Default: `default`.
    pub environment: String,
    /// Hashed together with the names of policies and routes, for fleets whose routes are chosen by clients. Default:
    /// none.
    pub key_secret: Option<Arc<[u8]>>,
    /// The longest a caller waits for Redis, queueing and connecting included: 1 ms to 500 ms. Default: 20 ms.
    pub store_budget: Duration,
    /// How often successes are sent, and state is polled in case a push was lost: 10 ms to 60 s. Default: 250 ms.
    pub sync_interval: Duration,
    /// The share of a rate that this replica grants while degraded. Default: [`DegradedShare::Auto`].
    pub degraded_share: DegradedShare,
    /// The most replicas that the fleet can have, which is the autoscaler's maximum: 1 to 100,000. A rate is divided by at
    /// least this number while degraded, by the highest that any live replica has configured. Default: none, so that a
    /// replica that has never reached Redis grants the whole rate, from an empty bucket on.
    pub expected_replicas: Option<u32>,
}

/// The share of the fleet's rate that one replica grants while Redis is unreachable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DegradedShare {
    /// The rate divided by the number of live replicas, by the highest that was known in the last minutes with Redis, and
    /// at least by [`RedisOptions::expected_replicas`]; the whole rate if neither is known.
    #[default]
    Auto,
    /// The rate divided by this number.
    Fixed(u32),
    /// The whole rate: for limits that protect this process rather than the dependency.
    Full,
}

/// Does not print the secret.
impl fmt::Debug for RedisOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            prefix,
            service,
            environment,
            key_secret,
            store_budget,
            sync_interval,
            degraded_share,
            expected_replicas,
        } = self;
        f.debug_struct("RedisOptions")
            .field("prefix", prefix)
            .field("service", service)
            .field("environment", environment)
            .field("key_secret", &key_secret.as_ref().map(|_| HIDDEN))
            .field("store_budget", store_budget)
            .field("sync_interval", sync_interval)
            .field("degraded_share", degraded_share)
            .field("expected_replicas", expected_replicas)
            .finish()
    }
}

/// The most replicas that can be expected.
pub(crate) const MAX_EXPECTED: u32 = 100_000;

/// Printed instead of a secret.
pub(crate) const HIDDEN: &str = "…";

impl Default for RedisOptions {
    fn default() -> Self {
        Self {
            prefix: None,
            service: program_name(),
            environment: "default".to_owned(),
            key_secret: None,
            store_budget: Duration::from_millis(20),
            sync_interval: Duration::from_millis(250),
            degraded_share: DegradedShare::Auto,
            expected_replicas: None,
        }
    }
}

/// The file name of this program as a valid service name; `service` if it has none.
fn program_name() -> String {
    let program = std::env::current_exe().ok();
    let stem = program.as_deref().and_then(|path| path.file_stem()).map(|stem| stem.to_string_lossy().to_lowercase());
    let plain = |c: char| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' };
    let name: String = stem.unwrap_or_default().chars().take(MAX_NAME).map(plain).collect();
    if name.is_empty() { "service".to_owned() } else { name }
}

/// The longest prefix, service or environment.
pub(crate) const MAX_NAME: usize = 32;

impl RedisOptions {
    /// Returns every invalid option, each with its path.
    pub fn mistakes(&self) -> Vec<Mistake> {
        let mut mistakes = Vec::new();
        let mut wrong = |path: &str, reason: &str| {
            mistakes.push(Mistake::new(format!("redis.{path}"), reason));
        };
        let plain = |name: &str| {
            let fits = (1..=MAX_NAME).contains(&name.len());
            fits && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        };
        const PLAIN: &str = "must be 1 to 32 lower-case letters, digits or '-': it becomes part of every key";
        if self.prefix.as_deref().is_some_and(|prefix| !plain(prefix)) {
            wrong("prefix", PLAIN);
        }
        if !plain(&self.service) {
            wrong("service", PLAIN);
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
        if self.expected_replicas.is_some_and(|replicas| !(1..=MAX_EXPECTED).contains(&replicas)) {
            wrong("expected_replicas", "must be between 1 and 100000");
        }
        mistakes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_mistakes_are_reported_together_and_the_defaults_have_none() {
        assert_eq!(RedisOptions::default().mistakes(), []);
        let wrong = RedisOptions {
            prefix: Some("{x}".to_owned()),
            service: "My Shop".to_owned(),
            environment: String::new(),
            key_secret: None,
            store_budget: Duration::ZERO,
            sync_interval: Duration::MAX,
            degraded_share: DegradedShare::Fixed(0),
            expected_replicas: Some(0),
        };
        let paths: Vec<_> = wrong.mistakes().into_iter().map(|mistake| mistake.path).collect();
        let expected = [
            "prefix",
            "service",
            "environment",
            "store_budget",
            "sync_interval",
            "degraded_share",
            "expected_replicas",
        ];
        assert_eq!(paths, expected.map(|path| format!("redis.{path}")));
    }
}
