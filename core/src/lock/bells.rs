//! How waiters hear that a lock was released: a bell for each lock that somebody waits for.

use std::collections::HashMap;

use parking_lot::Mutex;
use tokio::sync::watch;

/// The bells of one process. Only those that somebody listens to are kept.
#[derive(Debug, Default)]
pub struct Bells(Mutex<HashMap<String, watch::Sender<()>>>);

/// An ear at one bell.
#[derive(Clone, Debug)]
pub struct Watch(Option<watch::Receiver<()>>);

impl Bells {
    /// Listens for this name from now on.
    pub fn watch(&self, name: &str) -> Watch {
        let mut bells = self.0.lock();
        bells.retain(|_, bell| bell.receiver_count() > 0);
        let bell = bells.entry(name.to_owned()).or_insert_with(|| watch::Sender::new(()));
        Watch(Some(bell.subscribe()))
    }

    /// Wakes all who listen for this name.
    pub fn ring(&self, name: &str) {
        if let Some(bell) = self.0.lock().get(name) {
            bell.send_replace(());
        }
    }
}

impl Watch {
    /// Hears nothing: for stores that cannot tell.
    pub const fn silent() -> Self {
        Self(None)
    }

    /// Returns when the bell has rung since this was last called, or since the watch was made.
    pub async fn changed(&mut self) {
        let rung = match &mut self.0 {
            Some(bell) => bell.changed().await.is_ok(),
            None => false,
        };
        if !rung {
            std::future::pending().await
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::now_or_never;

    mod futures {
        use std::pin::pin;
        use std::task::{Context, Poll, Waker};

        pub(super) fn now_or_never<T>(future: impl Future<Output = T>) -> Option<T> {
            match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(done) => Some(done),
                Poll::Pending => None,
            }
        }
    }

    #[test]
    fn a_bell_that_rang_before_one_listens_again_is_not_missed() {
        let bells = Bells::default();
        let (mut one, mut other) = (bells.watch("a"), bells.watch("b"));
        bells.ring("a");
        bells.ring("nobody's");
        assert_eq!(now_or_never(one.changed()), Some(()));
        assert_eq!(now_or_never(one.changed()), None);
        assert_eq!(now_or_never(other.changed()), None);
        assert_eq!(now_or_never(Watch::silent().changed()), None);
    }

    #[test]
    fn bells_that_nobody_listens_to_are_forgotten() {
        let bells = Bells::default();
        for n in 0..100 {
            drop(bells.watch(&n.to_string()));
        }
        assert_eq!(bells.0.lock().len(), 1);
    }
}
