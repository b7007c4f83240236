//! The table `[redis]`: `service` and `expected_replicas` from code, a file or the environment; the number is demanded in a fleet,
//! and missed with one warning.

#![cfg(all(feature = "redis", feature = "toml", feature = "lifecycle"))]
#![allow(clippy::unwrap_used)] // tests may unwrap

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use phalanx::config::Config;
use phalanx::describe::Origin;
use phalanx::lifecycle::{DeploymentProfile, Runtime};
use phalanx::store::DegradedShare;
use phalanx::*;

fn over_redis() -> ModuleBuilder {
    ResilienceModule::with_redis(redis::Client::open("redis://127.0.0.1:1").unwrap()).environment("prod")
}

fn file(replicas: &str) -> Result<Config, ConfigError> {
    Config::from_toml(&format!("[redis]\nexpected_replicas = {replicas}"))
}

/// Returns the number that a module describes, with its origin.
fn described(module: &ResilienceModule) -> Option<(String, Origin)> {
    described_as(module, "expected_replicas")
}

fn described_as(module: &ResilienceModule, path: &str) -> Option<(String, Origin)> {
    let value = module.describe().redis.into_iter().find(|value| value.path == path)?;
    Some((value.value, value.from))
}

#[test]
fn it_comes_from_code_over_the_environment_over_a_file() {
    let line = |line| Origin::File { name: "toml".into(), line: Some(line) };
    let module = over_redis().config(file("20").unwrap()).build().unwrap();
    assert_eq!(described(&module), Some(("20".to_owned(), line(2))));
    let variable = "PHALANX__REDIS__EXPECTED_REPLICAS";
    let config = Config::loader().vars([(variable, "30")]).load().unwrap();
    assert_eq!(config.expected_replicas(), Some(30));
    let module = over_redis().config(config.clone()).build().unwrap();
    assert_eq!(described(&module), Some(("30".to_owned(), Origin::Variable(variable.into()))));
    let module = over_redis().expected_replicas(40).config(config).build().unwrap();
    assert_eq!(described(&module), Some(("40".to_owned(), Origin::Code)));
}

#[test]
fn the_service_comes_from_code_over_a_file_over_the_programs_name() {
    let config = || Config::from_toml("[redis]\nservice = \"shop\"").unwrap();
    let from_file = over_redis().config(config()).build().unwrap();
    let line = Origin::File { name: "toml".into(), line: Some(2) };
    assert_eq!(described_as(&from_file, "service"), Some(("\"shop\"".to_owned(), line)));
    let from_code = over_redis().service("billing").config(config()).build().unwrap();
    assert_eq!(described_as(&from_code, "service"), Some(("\"billing\"".to_owned(), Origin::Code)));
    let (name, from) = described_as(&over_redis().build().unwrap(), "service").unwrap();
    let program = std::env::current_exe().unwrap();
    let program = program.file_stem().unwrap().to_string_lossy().replace('_', "-");
    assert!(program.starts_with(name.trim_matches('"')) && from == Origin::BuiltIn, "{name} of {program}");
    let error = Config::from_toml("[redis]\nservice = \"The Shop\"").unwrap_err();
    assert!(error.to_string().contains("toml:2: redis.service: must be 1 to 32 lower-case letters"), "{error}");
}

#[test]
fn a_printed_description_has_it_and_can_be_parsed_again() {
    let module = over_redis().config(file("20").unwrap()).build().unwrap();
    let printed = module.describe().to_string();
    assert_eq!(Config::from_toml(&printed).unwrap().expected_replicas(), Some(20), "{printed}");
}

#[test]
fn an_impossible_number_is_a_mistake_with_its_line() {
    for number in ["0", "100001"] {
        let error = file(number).unwrap_err();
        assert_eq!(error.mistakes[0].to_string(), "toml:2: redis.expected_replicas: must be between 1 and 100000");
    }
    let error = over_redis().expected_replicas(0).build().unwrap_err();
    assert_eq!(error.mistakes[0].path, "redis.expected_replicas");
    let error = Config::from_toml("[redis]\nexpected_replica = 3").unwrap_err();
    assert!(error.to_string().contains("did you mean expected_replicas?"), "{error}");
}

#[test]
fn it_is_fixed_when_the_module_is_built_and_a_module_in_memory_ignores_it() {
    let module = over_redis().config(file("20").unwrap()).build().unwrap();
    module.apply_config(file("50").unwrap()).unwrap();
    assert_eq!(described(&module).unwrap().0, "20");
    let module = ResilienceModule::in_memory().config(file("20").unwrap()).build().unwrap();
    assert_eq!(described(&module), None);
}

#[test]
fn a_fleet_demands_it_and_the_error_names_it() {
    let runtime =
        |module: ResilienceModule| Runtime::builder().profile(DeploymentProfile::Fleet).module(module).build();
    let error = runtime(over_redis().build().unwrap()).unwrap_err();
    assert_eq!(error.mistakes[0].path, "modules[0].expected_replicas");
    assert!(runtime(over_redis().expected_replicas(3).build().unwrap()).is_ok());
    assert!(runtime(over_redis().config(file("3").unwrap()).build().unwrap()).is_ok());
    assert!(runtime(ResilienceModule::in_memory().build().unwrap()).is_ok(), "shares nothing");
}

/// How many events say that the number is missing.
fn warnings(builder: ModuleBuilder) -> u32 {
    let warned = Arc::new(AtomicU32::new(0));
    let counter = warned.clone();
    let count = move |event: &Event<'_>| {
        if matches!(event.kind, EventKind::ExpectedReplicasUnknown) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    };
    let module = builder.policy(Policy::named("p")).on_event(count).build().unwrap();
    module.retune(Policy::named("p").idempotent()).unwrap();
    warned.load(Ordering::Relaxed)
}

#[test]
fn without_it_there_is_one_warning_unless_the_share_does_not_depend_on_it() {
    assert_eq!(warnings(over_redis()), 1);
    assert_eq!(warnings(over_redis().expected_replicas(3)), 0);
    assert_eq!(warnings(over_redis().degraded_share(DegradedShare::Fixed(4))), 0);
    assert_eq!(warnings(ResilienceModule::in_memory()), 0);
}
