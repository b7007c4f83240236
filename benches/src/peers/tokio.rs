//! `tokio`: its timeout around the operation, and its semaphore.

use ::tokio::sync::Semaphore;

use crate::contender::Caller;
use crate::operation::Operation;
use crate::settings::{SLOTS, TIMEOUT};

pub(crate) struct Timed<O>(pub(crate) O);

impl<O: Operation> Caller for Timed<O> {
    async fn call(&mut self) -> bool {
        matches!(::tokio::time::timeout(TIMEOUT, (self.0)()).await, Ok(Ok(_)))
    }
}

/// Acquires and releases a permit.
pub(crate) fn semaphore() -> impl FnMut() -> bool {
    let semaphore = Semaphore::new(SLOTS as usize);
    move || semaphore.try_acquire().map(drop).is_ok()
}
