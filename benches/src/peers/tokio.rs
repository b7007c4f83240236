//! `tokio::time::timeout` around the operation.

use crate::contender::Caller;
use crate::operation::Operation;
use crate::settings::TIMEOUT;

pub(crate) struct Timed<O>(pub(crate) O);

impl<O: Operation> Caller for Timed<O> {
    async fn call(&mut self) -> bool {
        matches!(::tokio::time::timeout(TIMEOUT, (self.0)()).await, Ok(Ok(_)))
    }
}
