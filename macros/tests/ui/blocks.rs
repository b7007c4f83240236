//! Invalid impl blocks and other items.

#![allow(unused)]

use phalanx::{Error, Kind, ResilienceModule, Resilient, resilient};

struct Adapter(ResilienceModule);

impl Resilient for Adapter {
    fn resilience(&self) -> &ResilienceModule {
        &self.0
    }
}

#[resilient(policy = "p", methods(a, zz))]
impl Adapter {
    async fn a(&self) -> Result<u32, Error<Kind>> {
        Ok(1)
    }
}

#[resilient(policy = "p", except(zz))]
impl Adapter {
    async fn b(&self) -> Result<u32, Error<Kind>> {
        Ok(1)
    }
}

#[resilient(policy = "p", methods(c), except(c))]
impl Adapter {
    async fn c(&self) -> Result<u32, Error<Kind>> {
        Ok(1)
    }
}

#[resilient(policy = "p", methods(d), allow_blanket_retry)]
impl Adapter {
    async fn d(&self) -> Result<u32, Error<Kind>> {
        Ok(1)
    }
}

#[resilient(policy = "p", clone(order))]
impl Adapter {
    async fn e(&self, order: String) -> Result<u32, Error<Kind>> {
        Ok(1)
    }
}

#[resilient(policy = "p", methods(f))]
impl Adapter {
    fn f(&self) -> Result<u32, Error<Kind>> {
        Ok(1)
    }
}

#[resilient(policy = "p", methods(g))]
impl Adapter {
    async fn g(&self) -> impl Stream {}
}

#[resilient(policy = "p")]
impl Adapter {
    async fn h(&self) {}

    async fn i(&mut self) -> Result<u32, Error<Kind>> {
        Ok(1)
    }
}

#[resilient(policy = "p")]
impl Adapter {
    fn j(&self) -> Result<u32, Error<Kind>> {
        Ok(1)
    }
}

#[resilient(policy = "p")]
impl Adapter {
    #[resilient(policy = "q")]
    #[resilient(policy = "r")]
    async fn k(&self) -> Result<u32, Error<Kind>> {
        Ok(1)
    }

    #[resilient(policy = "q", except(l))]
    async fn l(&self) -> Result<u32, Error<Kind>> {
        Ok(1)
    }
}

#[resilient(route = "eu")]
impl Adapter {
    async fn m(&self) -> Result<u32, Error<Kind>> {
        Ok(1)
    }
}

#[resilient(policy = "p")]
trait Port {
    #[resilient(policy = "p")]
    async fn read(&self) -> Result<u32, Error<Kind>>;
}

trait Stream {}
impl Stream for () {}

#[resilient(policy = "p")]
struct Nothing;

fn main() {}
