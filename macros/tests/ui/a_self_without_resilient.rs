//! A `self` that does not implement `Resilient`.

#![allow(unused)]

use phalanx::{Error, Kind, resilient};

struct Adapter;

impl Adapter {
    #[resilient(policy = "p")]
    async fn read(&self) -> Result<u32, Error<Kind>> {
        Ok(1)
    }
}

fn main() {}
