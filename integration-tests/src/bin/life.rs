//! A process with a life of its own, for tests of the lifecycle: its only argument is its role as JSON.

#![allow(clippy::expect_used)] // a panic is how it says no

use phalanx_integration_tests::life::{Role, end_with_input, live};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::runtime::Builder;

fn main() {
    let role = std::env::args().nth(1).expect("a role");
    let role: Role = serde_json::from_str(&role).expect("a role as JSON");
    // A thousand connections are more than most shells allow.
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    end_with_input();
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(live(role));
}
