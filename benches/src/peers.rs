//! The peers, one file each, configured for speed: no tracing or metrics features, no listeners, built once and reused,
//! with limits that are never reached.

pub(crate) mod backon;
pub(crate) mod failsafe;
pub(crate) mod governor;
pub(crate) mod no_library;
pub(crate) mod recloser;
pub(crate) mod service;
pub(crate) mod tokio;
pub(crate) mod tower;
pub(crate) mod tower_resilience;
