//! The levers in the runbook work as documented.

#![cfg(all(feature = "chaos", feature = "toml"))] // one of the levers is chaos
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests may panic

use phalanx::config::Config;
use phalanx::policy::LeverSpec;
use phalanx::{Policy, ResilienceModule};

/// Every block of this language in the runbook.
fn blocks(language: &str) -> Vec<&'static str> {
    let text = include_str!("../../docs/runbook.md");
    let begin = format!("```{language}\n");
    text.split(begin.as_str()).skip(1).filter_map(|rest| rest.split("\n```").next()).collect()
}

fn levers_of(file: &str) -> LeverSpec {
    let config = Config::from_toml(file).unwrap_or_else(|error| panic!("{error}\n{file}"));
    let module = ResilienceModule::in_memory().policy(Policy::named("payments")).config(config).build().unwrap();
    module.levers().remove("payments").unwrap()
}

#[test]
fn the_runbooks_file_pulls_the_levers_it_names() {
    let files = blocks("toml");
    assert_eq!(files.len(), 1);
    let expected = LeverSpec::default().without_retries().max_concurrency(8).reason("INC-231: stripe recovering");
    assert_eq!(levers_of(files[0]), expected);
}

#[test]
fn every_lever_of_the_runbooks_table_is_one_in_a_file_too() {
    let rows = include_str!("../../docs/runbook.md")
        .lines()
        .filter(|line| line.contains("LeverSpec::") || line.contains("| `."));
    let levers = rows.filter_map(|row| row.split('|').nth(2)).map(|cell| cell.trim().trim_matches('`'));
    let pulled: Vec<_> = levers
        .flat_map(|line| levers_of(&format!("[levers.payments]\n{line}\n")).pulled().collect::<Vec<_>>())
        .collect();
    assert_eq!(pulled, ["force_open", "force_closed", "hedging_off", "retries_off", "max_concurrency", "chaos"]);
}
