//! Calls a tower service: `ready().await`, then `call`, as its contract requires.

use tower::util::ServiceExt;
use tower::{Service, service_fn};

use crate::contender::Caller;
use crate::operation::{Answer, Operation, OperationError};

#[derive(Clone)]
pub(crate) struct ServiceCaller<S>(pub(crate) S);

impl<S> Caller for ServiceCaller<S>
where
    S: Service<(), Response = u32, Error: Send, Future: Send> + Send + 'static,
{
    async fn call(&mut self) -> bool {
        match self.0.ready().await {
            Ok(service) => service.call(()).await.is_ok(),
            Err(_) => false,
        }
    }
}

/// The innermost service: the operation.
pub(crate) fn serve<O: Operation>(
    operation: O,
) -> impl Service<(), Response = u32, Error = OperationError, Future = impl Future<Output = Answer> + Send + 'static>
+ Clone
+ Send
+ 'static {
    service_fn(move |()| operation())
}
