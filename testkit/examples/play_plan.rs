//! Plays a fault plan against a policy file and prints the evidence.
//!
//! ```text
//! cargo run --example play_plan --features plans -- PLAN POLICIES… [--out FOLDER] [--seed N]
//! ```
//!
//! PLAN is a TOML file or the fault plan of the resiliency playbook in CSV; POLICIES are configuration files, or a dependency
//! budget in CSV. With `--out` the report, the JSON and the plots are written into the folder. The exit code is 1 if an
//! expectation is not met, and 2 if a file has mistakes. For example, from the root of the project:
//!
//! ```text
//! cargo run --example play_plan --features plans -- \
//!     testkit/plans/playbook.csv testkit/plans/budget.csv testkit/plans/policies.toml --out /tmp/playbook
//! ```

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use phalanx::config::Config;
use phalanx_testkit::plan::{Evidence, Plan, Player};

const USAGE: &str = "usage: play_plan PLAN POLICIES… [--out FOLDER] [--seed N]";

fn main() -> ExitCode {
    match run(std::env::args_os().skip(1)) {
        Ok(evidence) => {
            print!("{}", evidence.to_text());
            ExitCode::from(u8::from(!evidence.passed()))
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

pub(crate) fn run(mut arguments: impl Iterator<Item = OsString>) -> Result<Evidence, Box<dyn std::error::Error>> {
    let (mut files, mut folder, mut seed) = (Vec::<PathBuf>::new(), None, None);
    while let Some(argument) = arguments.next() {
        match argument.to_str() {
            Some("--out") => folder = Some(PathBuf::from(arguments.next().ok_or(USAGE)?)),
            Some("--seed") => seed = Some(arguments.next().and_then(|it| it.to_str()?.parse().ok()).ok_or(USAGE)?),
            Some(option) if option.starts_with("--") => return Err(USAGE.into()),
            _ => files.push(argument.into()),
        }
    }
    let [plan, policies @ ..] = files.as_slice() else { return Err(USAGE.into()) };
    if policies.is_empty() {
        return Err(USAGE.into());
    }
    let mut loader = Config::loader();
    for file in policies {
        let is_budget = file.extension().is_some_and(|extension| extension == "csv");
        loader = if is_budget { loader.budget(file) } else { loader.file(file) };
    }
    let policies = loader.load()?;
    let plan = Plan::load(plan, &policies)?;
    let mut player = Player::new(policies);
    if let Some(seed) = seed {
        player = player.seed(seed);
    }
    let evidence = player.play(&plan)?;
    if let Some(folder) = folder {
        evidence.write_to(&folder)?;
    }
    Ok(evidence)
}
