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
}

/// The share of the fleet's rate that one replica grants while Redis is unreachable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DegradedShare {
    /// The rate divided by the last known number of live replicas; the whole rate if that was never known.
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
        let Self { prefix, service, environment, key_secret, store_budget, sync_interval, degraded_share } = self;
        f.debug_struct("RedisOptions")
            .field("prefix", prefix)
            .field("service", service)
            .field("environment", environment)
            .field("key_secret", &key_secret.as_ref().map(|_| HIDDEN))
            .field("store_budget", store_budget)
            .field("sync_interval", sync_interval)
            .field("degraded_share", degraded_share)
            .finish()
    }
}

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
const MAX_NAME: usize = 32;

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
        };
        let paths: Vec<_> = wrong.mistakes().into_iter().map(|mistake| mistake.path).collect();
        let expected = ["prefix", "service", "environment", "store_budget", "sync_interval", "degraded_share"];
        assert_eq!(paths, expected.map(|path| format!("redis.{path}")));
    }
}
