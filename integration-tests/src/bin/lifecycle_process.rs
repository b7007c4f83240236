//! The child process of the lifecycle tests. Its only argument is its role as JSON.

#![allow(clippy::expect_used)] // test code: a failed expectation panics

use phalanx_integration_tests::lifecycle_process::{Role, exit_with_input, run};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::runtime::Builder;

fn main() {
    let role = std::env::args().nth(1).expect("a role as the first argument");
    let role: Role = serde_json::from_str(&role).expect("a role as JSON");
    // A test opens a thousand connections, more than the default limit of most shells.
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    exit_with_input();
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(run(role));
}
