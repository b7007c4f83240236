//! What a profile makes of steps and modules, at assembly.

#![allow(clippy::unwrap_used)] // a panic is how a test says no, in its helpers too

mod support;

use std::io;
use std::time::Duration;

use phalanx_core::drain::Gate;
use phalanx_core::event::EventKind;
use phalanx_core::lock::{Acquired, LockStore, Unavailable, Watch};
use phalanx_lifecycle::{DeploymentProfile, Module, Runtime, RuntimeBuilder, SingletonSpec, Step, Ticker, singleton};
use phalanx_store_memory::MemoryLocks;
use support::SECOND;

/// Locks that a fleet of this name shares. Nothing is asked of them at assembly.
#[derive(Clone)]
struct Shared(&'static str);

impl LockStore for Shared {
    async fn acquire(&self, _: &str, _: &str, _: Duration) -> Result<Acquired, Unavailable> {
        Err(nobody())
    }

    async fn renew(&self, _: &str, _: &str, _: u64, _: Duration) -> Result<bool, Unavailable> {
        Err(nobody())
    }

    async fn release(&self, _: &str, _: &str, _: u64) -> Result<bool, Unavailable> {
        Err(nobody())
    }

    async fn complete(&self, _: &str, _: &str, _: u64, _: &str, _: Duration) -> Result<bool, Unavailable> {
        Err(nobody())
    }

    async fn completed(&self, _: &str, _: &str) -> Result<Option<u64>, Unavailable> {
        Err(nobody())
    }

    fn watch(&self, _: &str) -> Watch {
        Watch::silent()
    }

    fn environment(&self) -> Option<&str> {
        Some(self.0)
    }
}

fn nobody() -> Unavailable {
    Unavailable { reason: "nobody is asked".to_owned() }
}

/// A module of a fleet of this name.
struct OfFleet(&'static str);

impl Module for OfFleet {
    fn attach(&self, _: &Gate) -> bool {
        true
    }

    fn emit(&self, _: EventKind<'_>) {}

    fn environment(&self) -> Option<&str> {
        Some(self.0)
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
        .step(singleton(mutating("seed"), Shared("prod"), spec.clone()))
        .step(singleton(mutating("alone"), MemoryLocks::default(), spec.clone()))
        .step(singleton(mutating("nameless"), Shared("default"), spec))
}

#[test]
fn in_a_fleet_every_step_that_changes_shared_state_unguarded_is_named() {
    assert_eq!(paths(steps(DeploymentProfile::SingleProcess)), Vec::<String>::new());
    let expected = ["steps.indexes", "steps.queues", "steps.alone", "steps.nameless"];
    assert_eq!(paths(steps(DeploymentProfile::Fleet)), expected);
    let error = steps(DeploymentProfile::Fleet).build().unwrap_err();
    assert!(error.to_string().contains("steps.indexes: it changes what other replicas see: make it a singleton"));
}

/// FAULTS G9.
#[test]
fn in_a_fleet_whatever_is_shared_says_which_environment_it_belongs_to() {
    let module = |name| Runtime::builder().profile(DeploymentProfile::Fleet).module(OfFleet(name));
    assert_eq!(paths(module("prod").module(OfFleet("default"))), ["modules[1]"]);
    assert_eq!(paths(module("prod")), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_serverless_function_has_no_background_and_no_time_to_drain() {
    let idle = || std::future::ready(io::Result::Ok(()));
    let serverless = || Runtime::builder().profile(DeploymentProfile::Serverless);
    let wrong = serverless()
        .step(Step::background("server", move |_, _| idle()))
        .ticker(Ticker::every("relay", SECOND, idle))
        .step(Step::new("consumer").long_running())
        .step(mutating("indexes"))
        .drain_timeout(SECOND);
    assert_eq!(paths(wrong), ["steps.server", "steps.relay", "steps.consumer", "drain_timeout"]);

    let runtime = serverless().build().unwrap();
    runtime.start().await.unwrap();
    let gate = runtime.gate().clone();
    tokio::spawn(async move { gate.run(std::future::pending::<()>()).await });
    tokio::task::yield_now().await;
    let ended = runtime.shutdown().await;
    assert_eq!((ended.drained.leftovers, ended.elapsed), (1, Duration::ZERO));
}

#[test]
fn nonsense_is_found_with_its_path() {
    let wrong = Runtime::builder()
        .wave([Step::new("pool"), Step::new("pool")])
        .step_timeout(Duration::ZERO)
        .drain_timeout(Duration::MAX);
    assert_eq!(paths(wrong), ["steps.pool", "drain_timeout", "step_timeout"]);
}
