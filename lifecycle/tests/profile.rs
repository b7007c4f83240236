//! Which steps and modules each deployment profile rejects when the runtime is built.

#![allow(clippy::unwrap_used)] // a failed test panics, also in helpers

mod support;

use std::io;
use std::time::Duration;

use phalanx_core::drain::Gate;
use phalanx_core::event::EventKind;
use phalanx_core::lock::{Acquired, LockStore, Unavailable, Watch};
use phalanx_lifecycle::{DeploymentProfile, Module, Runtime, RuntimeBuilder, SingletonSpec, Step, Ticker, singleton};
use phalanx_store_memory::MemoryLocks;
use support::SECOND;

/// Locks shared by the replicas of this environment. Building a runtime sends them no request.
#[derive(Clone)]
struct SharedLocks(&'static str);

impl LockStore for SharedLocks {
    async fn acquire(&self, _: &str, _: &str, _: Duration) -> Result<Acquired, Unavailable> {
        Err(unreachable())
    }

    async fn renew(&self, _: &str, _: &str, _: u64, _: Duration) -> Result<bool, Unavailable> {
        Err(unreachable())
    }

    async fn release(&self, _: &str, _: &str, _: u64) -> Result<bool, Unavailable> {
        Err(unreachable())
    }

    async fn withdraw(&self, _: &str, _: &str) -> Result<bool, Unavailable> {
        Err(unreachable())
    }

    async fn complete(&self, _: &str, _: &str, _: u64, _: &str, _: Duration) -> Result<bool, Unavailable> {
        Err(unreachable())
    }

    async fn completed(&self, _: &str, _: &str) -> Result<Option<u64>, Unavailable> {
        Err(unreachable())
    }

    fn watch(&self, _: &str) -> Watch {
        Watch::silent()
    }

    fn environment(&self) -> Option<&str> {
        Some(self.0)
    }
}

fn unreachable() -> Unavailable {
    Unavailable { reason: "not requested by these tests".to_owned() }
}

/// A module that shares its state with this environment, in a fleet of at most so many replicas.
struct SharedModule(&'static str, Option<u32>);

impl Module for SharedModule {
    fn attach(&self, _: &Gate) -> bool {
        true
    }

    fn emit(&self, _: EventKind<'_>) {}

    fn environment(&self) -> Option<&str> {
        Some(self.0)
    }

    fn expected_replicas(&self) -> Option<u32> {
        self.1
    }
}

fn paths(builder: RuntimeBuilder) -> Vec<String> {
    match builder.build() {
        Ok(_) => Vec::new(),
        Err(error) => error.mistakes.into_iter().map(|mistake| mistake.path).collect(),
    }
}

fn mutating(name: &str) -> Step {
    Step::new(name).mutates_shared_state()
}

fn steps(profile: DeploymentProfile) -> RuntimeBuilder {
    let spec = SingletonSpec::default();
    Runtime::builder()
        .profile(profile)
        .wave([mutating("indexes"), Step::new("pool"), mutating("queues")])
        .step(singleton(mutating("seed"), SharedLocks("prod"), spec.clone()))
        .step(singleton(mutating("local"), MemoryLocks::default(), spec.clone()))
        .step(singleton(mutating("unnamed"), SharedLocks("default"), spec))
}

#[test]
fn in_a_fleet_every_unguarded_step_that_changes_shared_state_is_rejected() {
    assert_eq!(paths(steps(DeploymentProfile::SingleProcess)), Vec::<String>::new());
    let expected = ["steps.indexes", "steps.queues", "steps.local", "steps.unnamed"];
    assert_eq!(paths(steps(DeploymentProfile::Fleet)), expected);
    let error = steps(DeploymentProfile::Fleet).build().unwrap_err();
    assert!(error.to_string().contains("steps.indexes: it changes state that other replicas use: make it a singleton"));
}

/// Two fleets that share one Redis by accident would share limits and breakers.
#[test]
fn in_a_fleet_every_shared_store_must_name_its_environment() {
    let module = |name| Runtime::builder().profile(DeploymentProfile::Fleet).module(SharedModule(name, Some(20)));
    assert_eq!(paths(module("prod").module(SharedModule("default", Some(20)))), ["modules[1]"]);
    assert_eq!(paths(module("prod")), Vec::<String>::new());
}

/// A replica that starts while the shared store is away would take the limits of the whole fleet.
#[test]
fn in_a_fleet_every_shared_store_must_know_the_most_replicas() {
    let module = || SharedModule("prod", None);
    let built = Runtime::builder().profile(DeploymentProfile::Fleet).module(module()).build().unwrap_err();
    let expected = "modules[0].expected_replicas: set the most replicas that the fleet can have";
    assert!(built.mistakes[0].to_string().starts_with(expected), "{built}");
    assert_eq!(paths(Runtime::builder().module(module())), Vec::<String>::new(), "one process needs no number");
}

#[tokio::test(start_paused = true)]
async fn a_serverless_function_has_no_background_steps_and_no_drain_timeout() {
    let idle = || std::future::ready(io::Result::Ok(()));
    let serverless = || Runtime::builder().profile(DeploymentProfile::Serverless);
    let invalid = serverless()
        .step(Step::background("server", move |_, _| idle()))
        .ticker(Ticker::every("relay", SECOND, idle))
        .step(Step::new("consumer").long_running())
        .step(mutating("indexes"))
        .drain_timeout(SECOND);
    assert_eq!(paths(invalid), ["steps.server", "steps.relay", "steps.consumer", "drain_timeout"]);

    let runtime = serverless().build().unwrap();
    runtime.start().await.unwrap();
    let gate = runtime.gate().clone();
    tokio::spawn(async move { gate.run(std::future::pending::<()>()).await });
    tokio::task::yield_now().await;
    let ended = runtime.shutdown().await;
    assert_eq!((ended.drained.leftovers, ended.elapsed), (1, Duration::ZERO));
}

#[test]
fn invalid_settings_are_reported_with_their_paths() {
    let invalid = Runtime::builder()
        .wave([Step::new("pool"), Step::new("pool")])
        .step_timeout(Duration::ZERO)
        .drain_timeout(Duration::MAX);
    assert_eq!(paths(invalid), ["steps.pool", "drain_timeout", "step_timeout"]);
}
