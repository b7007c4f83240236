//! An argument that the body consumes without `clone`.

#![allow(unused)]

use phalanx::{Error, Kind, ResilienceModule, resilient};

async fn send(_order: String) -> Result<u32, Kind> {
    Ok(1)
}

#[resilient(policy = "p", module = module)]
async fn charge(module: &ResilienceModule, order: String) -> Result<u32, Error<Kind>> {
    send(order).await
}

fn main() {}
