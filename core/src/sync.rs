//! Atomics and the lock, as a program uses them or, under `--cfg phalanx_model`, as loom explores them (`make model`).

#[cfg(not(phalanx_model))]
pub use parking_lot::Mutex;
#[cfg(not(phalanx_model))]
pub use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(phalanx_model)]
pub use self::model::Mutex;
#[cfg(phalanx_model)]
pub use loom::sync::atomic::{AtomicU64, Ordering};

#[cfg(phalanx_model)]
mod model {
    use loom::sync::MutexGuard;

    /// Loom's lock with the one method we use, without its poisoning.
    #[derive(Debug)]
    pub struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        /// A lock around a value.
        pub fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        /// Waits for the lock.
        pub fn lock(&self) -> MutexGuard<'_, T> {
            match self.0.lock() {
                Ok(guard) => guard,
                Err(poisoned) => poisoned.into_inner(),
            }
        }
    }
}
