//! The same five stages by policy name: through `#[resilient]` and hand-written.

use std::error::Error;

use phalanx::{BulkheadSpec, ResilienceModule, Resilient, resilient};

use super::{breaker_spec, policy, rate_limit_spec, retry_spec};
use crate::contender::Caller;
use crate::operation::{Operation, OperationError};
use crate::settings::{SLOTS, TIMEOUT};

type Guarded = Result<u32, phalanx::Error<OperationError>>;

/// An adapter with its module, as in a service.
struct Adapter<O> {
    module: ResilienceModule,
    operation: O,
}

impl<O> Resilient for Adapter<O> {
    fn resilience(&self) -> &ResilienceModule {
        &self.module
    }
}

impl<O: Operation> Adapter<O> {
    fn new(operation: O) -> Result<Self, Box<dyn Error>> {
        let five = policy()
            .rate_limit(rate_limit_spec())
            .bulkhead(BulkheadSpec::fixed(SLOTS))
            .breaker(breaker_spec())
            .retry(retry_spec())
            .timeout(TIMEOUT);
        Ok(Self { module: ResilienceModule::in_memory().policy(five).build()?, operation })
    }

    #[resilient(policy = "bench", route = "peer")]
    async fn by_attribute(&self) -> Result<u32, phalanx::Error<OperationError>> {
        (self.operation)().await
    }

    async fn by_hand(&self) -> Guarded {
        self.module.run("bench", "peer", || async { (self.operation)().await }).await
    }
}

struct ByAttribute<O>(Adapter<O>);

impl<O: Operation> Caller for ByAttribute<O> {
    async fn call(&mut self) -> bool {
        self.0.by_attribute().await.is_ok()
    }
}

struct ByHand<O>(Adapter<O>);

impl<O: Operation> Caller for ByHand<O> {
    async fn call(&mut self) -> bool {
        self.0.by_hand().await.is_ok()
    }
}

/// Five stages through the attribute.
pub(crate) fn by_attribute<O: Operation>(operation: O) -> Result<impl Caller, Box<dyn Error>> {
    Adapter::new(operation).map(ByAttribute)
}

/// The same five stages through `module.run`.
pub(crate) fn by_hand<O: Operation>(operation: O) -> Result<impl Caller, Box<dyn Error>> {
    Adapter::new(operation).map(ByHand)
}
