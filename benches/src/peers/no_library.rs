//! No library: the operation is awaited directly.

use crate::contender::Caller;
use crate::operation::Operation;

#[derive(Clone)]
pub(crate) struct Direct<O>(pub(crate) O);

impl<O: Operation> Caller for Direct<O> {
    async fn call(&mut self) -> bool {
        (self.0)().await.is_ok()
    }
}
