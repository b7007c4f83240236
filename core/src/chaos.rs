//! Chaos: faults that a policy injects into its own calls while an operator's lever is pulled.
//!
//! A [`ChaosSpec`] in a policy does nothing by itself. While the lever `chaos` of the policy is pulled
//! ([`LeverSpec::with_chaos`](crate::levers::LeverSpec::with_chaos)), the compiled stages draw from the seeded generator of
//! the route for every call, attempt and hedge, and emit an event for every fault they inject. Without the lever the
//! stages do not contain it. Running it needs the cargo feature `chaos`; a lever that pulls it in a build without the
//! feature is a validation error.

use std::time::Duration;

/// Configures the faults that are injected while the lever `chaos` is pulled.
///
/// Latency and errors are injected inside the attempt, where a slow or failing dependency would cause them: timeouts,
/// hedges, retries and the breaker react to them. A rejection happens before all stages. Injected errors and rejections
/// have the code `injected_fault`.
///
/// # Examples
/// ```
/// use phalanx::policy::{ChaosSpec, LeverSpec};
/// use phalanx::{Kind, Policy, RejectionCode, ResilienceModule};
/// # use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), phalanx::ConfigError> {
/// let chaos = ChaosSpec::default().latency(0.5, Duration::from_millis(200)).errors(1.0);
/// let module = ResilienceModule::in_memory().policy(Policy::named("vendor").chaos(chaos)).seed(7).build()?;
/// let call = async || module.run("vendor", (), || async { Ok::<_, Kind>("answer") }).await;
/// assert_eq!(call().await, Ok("answer"), "nothing happens until the lever is pulled");
/// # if cfg!(feature = "chaos") {
///
/// module.pull("vendor", LeverSpec::default().with_chaos().reason("game day"))?;
/// let error = call().await.unwrap_err();
/// assert_eq!(error.rejection().map(|rejection| rejection.code()), Some(RejectionCode::InjectedFault));
///
/// module.release("vendor");
/// assert_eq!(call().await, Ok("answer"));
/// # }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(transform = crate::schema::without_examples))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields, default))]
pub struct ChaosSpec {
    /// The share of attempts and hedges that start late, from 0 to 1. Default 0.
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::ShareOrZero"))]
    pub latency_ratio: f64,
    /// How late they start. Default zero.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::DurationText"))]
    pub latency: Duration,
    /// If set, they start between `latency` and this late, evenly distributed. Default none: always `latency`.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde", skip_serializing_if = "Option::is_none"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::DurationText"))]
    pub latency_max: Option<Duration>,
    /// The share of attempts that fail as `infrastructure` without running the operation, from 0 to 1. Default 0.
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::ShareOrZero"))]
    pub error_ratio: f64,
    /// The share of calls that are rejected before all stages, from 0 to 1. Default 0.
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::ShareOrZero"))]
    pub rejection_ratio: f64,
}

impl ChaosSpec {
    /// Starts this share of the attempts late, by a fixed delay.
    #[must_use]
    pub const fn latency(mut self, ratio: f64, delay: Duration) -> Self {
        (self.latency_ratio, self.latency, self.latency_max) = (ratio, delay, None);
        self
    }

    /// Starts this share of the attempts late, by a random delay.
    #[must_use]
    pub const fn latency_between(mut self, ratio: f64, least: Duration, most: Duration) -> Self {
        (self.latency_ratio, self.latency, self.latency_max) = (ratio, least, Some(most));
        self
    }

    /// Fails this share of the attempts.
    #[must_use]
    pub const fn errors(mut self, ratio: f64) -> Self {
        self.error_ratio = ratio;
        self
    }

    /// Rejects this share of the calls.
    #[must_use]
    pub const fn rejections(mut self, ratio: f64) -> Self {
        self.rejection_ratio = ratio;
        self
    }
}

/// A fault that chaos injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InjectedFault {
    /// An attempt or a hedge starts this late.
    Latency(Duration),
    /// An attempt fails.
    Error,
    /// A call is rejected.
    Rejection,
}

impl InjectedFault {
    /// Returns the name used in logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Latency(_) => "latency",
            Self::Error => "error",
            Self::Rejection => "rejection",
        }
    }
}
