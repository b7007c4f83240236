//! Valid signatures, which compile without warnings.

#![deny(warnings)]

use std::sync::Arc;

use phalanx::{Error, Kind, ResilienceModule, Resilient, resilient};

pub struct Adapter<T> {
    pub module: Arc<ResilienceModule>,
    pub inner: T,
}

impl<T> Resilient for Adapter<T> {
    fn resilience(&self) -> &ResilienceModule {
        &self.module
    }
}

const POLICY: &str = "p";

#[resilient(policy = POLICY)]
impl<T: Clone + Send + Sync> Adapter<T> {
    /// Generic over everything.
    pub async fn generic<'a, U, const N: usize>(&'a self, _all: &'a [U; N], _: u32) -> Result<&'a T, Error<Kind>>
    where
        U: Into<String>,
    {
        Ok(&self.inner)
    }

    #[resilient(clone(mine))]
    pub async fn consuming(&self, mine: T, (a, b): (u32, u32)) -> Result<(T, u32), Error<Kind>> {
        Ok((mine, a + b))
    }

    #[cfg(any())]
    pub async fn not_compiled(&self) -> Nonsense {}

    #[allow(unused_variables)]
    pub async fn unused(&self, what: u32) -> Result<(), Error<Kind>> {
        Ok(())
    }

    pub async fn diverging(&self) -> Result<u32, Error<Kind>> {
        std::future::pending().await
    }

    pub async fn returning(self: Arc<Self>, early: bool) -> Result<u32, Error<Kind>> {
        if early {
            return Err(Kind::Domain);
        }
        let _: u32 = Err::<u32, _>(Kind::Domain)?;
        Ok(1)
    }
}

mod elsewhere {
    pub use ::phalanx as renamed;
}

#[resilient(policy = "p", module = modules[0], crate = elsewhere::renamed)]
pub async fn function(modules: &[ResilienceModule]) -> Result<u32, Error<Kind>> {
    Ok(1)
}

fn main() {}
