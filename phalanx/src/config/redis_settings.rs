//! The table `[redis]` of a document: options of a module over Redis that depend on where the service is deployed. A
//! module in memory ignores it.

use phalanx_core::policy::validate::Mistake;

/// The most replicas that can be expected, and the longest name of a service, as in `RedisOptions`.
const MAX_EXPECTED_REPLICAS: u32 = 100_000;
const MAX_NAME: usize = 32;

/// Options of a module over Redis. Fixed when the module is built.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RedisSettings {
    /// The most replicas that the fleet can have, which is the autoscaler's maximum: 1 to 100,000. A rate is divided by at
    /// least this number while Redis is away. Default: none; `DeploymentProfile::Fleet` demands it.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = MAX_EXPECTED_REPLICAS)))]
    pub(crate) expected_replicas: Option<u32>,
    /// The service whose replicas share state, so that two services on one Redis never meet: 1 to 32 lower-case letters,
    /// digits or `-`. Default: the file name of the program.
    #[cfg_attr(feature = "schema", schemars(length(max = MAX_NAME), regex(pattern = "^[a-z0-9-]+$")))]
    pub(crate) service: Option<String>,
}

impl RedisSettings {
    /// Returns every mistake, with its path in the document.
    pub(crate) fn mistakes(&self) -> Vec<Mistake> {
        let mut mistakes = Vec::new();
        if self.expected_replicas.is_some_and(|replicas| !(1..=MAX_EXPECTED_REPLICAS).contains(&replicas)) {
            let reason = format!("must be between 1 and {MAX_EXPECTED_REPLICAS}");
            mistakes.push(Mistake::new("redis.expected_replicas", reason));
        }
        let plain = |name: &String| {
            let byte = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
            (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(byte)
        };
        if self.service.as_ref().is_some_and(|name| !plain(name)) {
            let reason = "must be 1 to 32 lower-case letters, digits or '-': it becomes part of every key";
            mistakes.push(Mistake::new("redis.service", reason));
        }
        mistakes
    }
}
