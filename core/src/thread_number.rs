//! A small number of each thread's own, for whatever is kept apart by thread.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of this thread, counted from 0 in the order in which threads first ask. Whoever has fewer places than
/// there are threads lets later ones wrap around.
#[inline]
pub fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    NUMBER.with(|number| {
        if number.get() == usize::MAX {
            number.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        number.get()
    })
}
