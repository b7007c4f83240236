//! State that threads write at once, kept apart: a cache line for each stripe, and a stripe for each thread.
//!
//! Writing a cache line that another core has just written costs an order of magnitude more than writing one's own.
//! Counters that every call touches are therefore split into stripes, and each thread writes the stripe of its number.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::available_parallelism;

/// The fewest stripes: on one or two processors, threads still share a stripe only by chance.
pub const MIN_STRIPES: usize = 4;

/// The most stripes: more do not pay for their memory.
pub const MAX_STRIPES: usize = 16;

/// A value on cache lines of its own, so that writing it does not slow down readers of its neighbours.
///
/// 128 bytes, because x86-64 processors prefetch lines of 64 bytes in pairs and some ARM processors have lines of 128.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct CacheLine<T>(pub T);

/// Returns the number of this thread, counted from 0 in the order in which threads first call this.
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

/// A value for each stripe.
#[derive(Debug)]
pub struct Striped<T>(Box<[CacheLine<T>]>);

impl<T> Striped<T> {
    /// Creates twice as many stripes as there are processors, because threads are assigned to stripes by number and not
    /// by processor; at least [`MIN_STRIPES`] and at most [`MAX_STRIPES`].
    pub fn new(make: impl FnMut() -> T) -> Self {
        let processors = available_parallelism().map_or(1, usize::from);
        Self::with_stripes((2 * processors).clamp(MIN_STRIPES, MAX_STRIPES), make)
    }

    /// Creates this many stripes, rounded up to a power of two.
    pub fn with_stripes(stripes: usize, mut make: impl FnMut() -> T) -> Self {
        Self((0..stripes.next_power_of_two()).map(|_| CacheLine(make())).collect())
    }

    /// Returns the stripe of this thread. Threads with higher numbers than there are stripes share one.
    #[inline]
    pub fn mine(&self) -> &T {
        self.get(thread_number())
    }

    /// Returns the index of this thread's stripe, for [`get`](Self::get) from another thread.
    #[inline]
    pub fn index(&self) -> usize {
        thread_number() & (self.0.len() - 1)
    }

    /// Returns a stripe by its index; indices beyond the last one wrap around.
    #[inline]
    pub fn get(&self, index: usize) -> &T {
        &self.0[index & (self.0.len() - 1)].0
    }

    /// Returns every stripe.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|line| &line.0)
    }
}

#[cfg(all(test, not(phalanx_model)))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_its_stripe_and_stripes_are_a_power_of_two() {
        let striped = Striped::with_stripes(5, || AtomicUsize::new(0));
        assert_eq!(striped.iter().count(), 8);
        assert!(std::ptr::eq(striped.mine(), striped.mine()));
        let default = Striped::new(|| ()).iter().count();
        assert!((MIN_STRIPES..=MAX_STRIPES).contains(&default) && default.is_power_of_two());
    }

    #[test]
    fn stripes_of_different_threads_do_not_share_a_pair_of_cache_lines() {
        let striped = Striped::with_stripes(2, || 0_u8);
        let addresses: Vec<_> = striped.iter().map(|stripe| std::ptr::from_ref(stripe) as usize / 128).collect();
        assert_ne!(addresses[0], addresses[1]);
    }
}
