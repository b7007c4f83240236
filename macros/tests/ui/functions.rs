//! Functions that cannot be run under a policy.

#![allow(unused)]

use std::pin::Pin;

use phalanx::{Error, Kind, ResilienceModule, Resilient, resilient};

struct Adapter(ResilienceModule);

impl Resilient for Adapter {
    fn resilience(&self) -> &ResilienceModule {
        &self.0
    }
}

impl Adapter {
    #[resilient(policy = "p")]
    fn not_async(&self) -> Result<u32, Error<Kind>> {
        Ok(1)
    }

    #[resilient(policy = "p")]
    async fn exclusive(&mut self) -> Result<u32, Error<Kind>> {
        Ok(1)
    }

    #[resilient(policy = "p")]
    async fn exclusive_by_type(self: &mut Self) -> Result<u32, Error<Kind>> {
        Ok(1)
    }

    #[resilient(policy = "p")]
    async fn pinned(self: Pin<&mut Self>) -> Result<u32, Error<Kind>> {
        Ok(1)
    }

    #[resilient(policy = "p")]
    async fn consuming(mut self) -> Result<u32, Error<Kind>> {
        Ok(1)
    }

    #[resilient(policy = "p", clone(self))]
    async fn cloning_itself(&self) -> Result<u32, Error<Kind>> {
        Ok(1)
    }

    #[resilient(policy = "p")]
    async fn lent(&self, buffer: &mut Vec<u8>) -> Result<u32, Error<Kind>> {
        Ok(1)
    }

    #[resilient(policy = "p")]
    async fn lent_maybe(&self, buffer: Option<&mut Vec<u8>>) -> Result<u32, Error<Kind>> {
        Ok(1)
    }

    #[resilient(policy = "p")]
    async fn changed(&self, (mut count, name): (u32, &str)) -> Result<u32, Error<Kind>> {
        count += 1;
        Ok(count)
    }

    #[resilient(policy = "p")]
    async fn no_answer(&self) {}

    #[resilient(policy = "p")]
    async fn no_result(&self) -> (u32, u32) {
        (1, 1)
    }
}

fn main() {}
