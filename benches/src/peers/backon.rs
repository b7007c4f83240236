//! `backon`: a retry around the operation. Its settings are copied into each call.

use backon::{ExponentialBuilder, Retryable};

use crate::contender::Caller;
use crate::operation::Operation;
use crate::settings::{ATTEMPTS, FIRST_BACKOFF, LONGEST_BACKOFF};

const BACKOFF: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(FIRST_BACKOFF)
    .with_max_delay(LONGEST_BACKOFF)
    .with_max_times(ATTEMPTS - 1);

pub(crate) struct Retried<O>(pub(crate) O);

impl<O: Operation> Caller for Retried<O> {
    async fn call(&mut self) -> bool {
        self.0.retry(BACKOFF).await.is_ok()
    }
}
