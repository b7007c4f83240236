//! An error type without `From<Rejection>`.

#![allow(unused)]

use phalanx::{ResilienceModule, resilient};

#[resilient(policy = "p", module = module)]
async fn read(module: &ResilienceModule) -> std::io::Result<u32> {
    Ok(1)
}

fn main() {}
