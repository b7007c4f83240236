//! `recloser`: its breaker around a synchronous function, which avoids the cost of a future.

use recloser::Recloser;

use crate::operation::OperationError;
use crate::settings::LONG_BREAK;

/// Closed, with the default ring of 100 outcomes.
pub(crate) fn closed() -> impl FnMut() -> bool {
    calls(Recloser::default())
}

/// Open for longer than any run: a ring of one outcome, filled with a failure, and a second failure that evaluates it.
pub(crate) fn open() -> impl FnMut() -> bool {
    let breaker = Recloser::custom().closed_len(1).open_wait(LONG_BREAK).build();
    for _ in 0..2 {
        let _failed = breaker.call(|| Err::<u32, _>(OperationError));
    }
    calls(breaker)
}

fn calls(breaker: Recloser) -> impl FnMut() -> bool {
    move || breaker.call(|| Ok::<u32, OperationError>(1)).is_ok()
}
