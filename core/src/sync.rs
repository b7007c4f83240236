//! Atomics and the mutex: the real ones or, under `--cfg phalanx_model`, those of loom (`make model`).

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

    /// Loom's mutex with the API of `parking_lot`, without poisoning.
    #[derive(Debug)]
    pub struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        /// Creates a mutex.
        pub fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        /// Locks the mutex.
        pub fn lock(&self) -> MutexGuard<'_, T> {
            match self.0.lock() {
                Ok(guard) => guard,
                Err(poisoned) => poisoned.into_inner(),
            }
        }
    }
}
