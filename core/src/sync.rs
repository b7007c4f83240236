//! Atomics and the lock, as a program uses them or, under `--cfg phalanx_model`, as loom explores them (`make model`).

#[cfg(not(phalanx_model))]
pub(crate) use parking_lot::Mutex;
#[cfg(not(phalanx_model))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(phalanx_model)]
pub(crate) use self::model::Mutex;
#[cfg(phalanx_model)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};

#[cfg(phalanx_model)]
mod model {
    use loom::sync::MutexGuard;

    /// Loom's lock with the one method we use, without its poisoning.
    #[derive(Debug)]
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            match self.0.lock() {
                Ok(guard) => guard,
                Err(poisoned) => poisoned.into_inner(),
            }
        }
    }
}
