//! Mutation testing:
//!
//! * `mutants lua [--list] [--only <prefixes of ids, separated by commas>]`
//! * `mutants rust [--list] [--only <prefixes of names, separated by commas>] [--count 60] [--seed 1]`

use std::process::ExitCode;

use phalanx_integration_tests::mutants::{lua_run, rust_run};

const USAGE: &str = "mutants lua [--list] [--only <prefix,…>] | \
                     mutants rust [--list] [--only <prefix,…>] [--count <n>] [--seed <n>]";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| {
        let index = arguments.iter().position(|argument| argument == name)?;
        arguments.get(index + 1).map(String::as_str)
    };
    let number = |name: &str, default: u64| value(name).map_or(Some(default), |text| text.parse().ok());
    let list = arguments.iter().any(|argument| argument == "--list");
    let (Some(count), Some(seed)) = (number("--count", 60), number("--seed", 1)) else { return usage() };
    let only = value("--only").unwrap_or_default();
    let passed = match (arguments.first().map(String::as_str), list) {
        (Some("lua"), false) => lua_run::run(only, 2),
        (Some("rust"), false) => rust_run::run(only, count as usize, seed),
        (Some("lua"), true) => {
            lua_run::list(only);
            true
        }
        (Some("rust"), true) => {
            rust_run::list(only, count as usize, seed);
            true
        }
        _ => return usage(),
    };
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}
