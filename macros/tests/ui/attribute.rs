//! Invalid options of the attribute.

#![allow(unused)]

use phalanx::{Error, Kind, ResilienceModule, resilient};

#[resilient]
async fn no_policy(module: &ResilienceModule) -> Result<u32, Error<Kind>> {
    Ok(1)
}

#[resilient(policy = "", module = module)]
async fn empty_policy(module: &ResilienceModule) -> Result<u32, Error<Kind>> {
    Ok(1)
}

#[resilient(policy = 7, module = module)]
async fn policy_is_no_name(module: &ResilienceModule) -> Result<u32, Error<Kind>> {
    Ok(1)
}

#[resilient(polcy = "p", module = module)]
async fn misspelt(module: &ResilienceModule) -> Result<u32, Error<Kind>> {
    Ok(1)
}

#[resilient(policy = "p", policy = "q", module = module)]
async fn twice(module: &ResilienceModule) -> Result<u32, Error<Kind>> {
    Ok(1)
}

#[resilient(policy = "p")]
async fn no_module() -> Result<u32, Error<Kind>> {
    Ok(1)
}

#[resilient(policy = "p", module = module, methods(a))]
async fn methods_of_a_function(module: &ResilienceModule) -> Result<u32, Error<Kind>> {
    Ok(1)
}

#[resilient(policy = "p", module = module, allow_blanket_retry)]
async fn blanket_over_a_function(module: &ResilienceModule) -> Result<u32, Error<Kind>> {
    Ok(1)
}

#[resilient(policy = "p", module = module, clone(ordr))]
async fn clone_of_nothing(module: &ResilienceModule, order: String) -> Result<u32, Error<Kind>> {
    Ok(1)
}

#[resilient(policy = "p", module = module, clone())]
async fn clone_nothing(module: &ResilienceModule, order: String) -> Result<u32, Error<Kind>> {
    Ok(1)
}

#[resilient(policy = "p", module = module, clone(order, order))]
async fn clone_twice(module: &ResilienceModule, order: String) -> Result<u32, Error<Kind>> {
    Ok(1)
}

#[resilient(policy = "p" module = module)]
async fn no_comma(module: &ResilienceModule) -> Result<u32, Error<Kind>> {
    Ok(1)
}

fn main() {}
