//! Notifies callers that wait for a lock when it is released.

use std::collections::HashMap;

use parking_lot::Mutex;
use tokio::sync::watch;

/// Notifies the waiters of one process, by the lock's name. Names without a waiter are forgotten.
#[derive(Debug, Default)]
pub struct ReleaseNotifier(Mutex<HashMap<String, watch::Sender<()>>>);

/// A subscription to the releases of one lock.
#[derive(Clone, Debug)]
pub struct Watch(Option<watch::Receiver<()>>);

impl ReleaseNotifier {
    /// Subscribes to the releases of a lock from now on.
    pub fn watch(&self, name: &str) -> Watch {
        let mut senders = self.0.lock();
        senders.retain(|_, sender| sender.receiver_count() > 0);
        let sender = senders.entry(name.to_owned()).or_insert_with(|| watch::Sender::new(()));
        Watch(Some(sender.subscribe()))
    }

    /// Wakes every subscriber of a lock.
    pub fn notify(&self, name: &str) {
        if let Some(sender) = self.0.lock().get(name) {
            sender.send_replace(());
        }
    }
}

impl Watch {
    /// Creates a watch that never reports a release, for stores that have no notifications.
    pub const fn silent() -> Self {
        Self(None)
    }

    /// Whether it never reports a release.
    pub const fn is_silent(&self) -> bool {
        self.0.is_none()
    }

    /// Waits for a release since the last call of this method, or since the watch was made.
    pub async fn changed(&mut self) {
        let released = match &mut self.0 {
            Some(receiver) => receiver.changed().await.is_ok(),
            None => false,
        };
        if !released {
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
    fn a_release_between_two_waits_is_not_missed() {
        let notifier = ReleaseNotifier::default();
        let (mut one, mut other) = (notifier.watch("a"), notifier.watch("b"));
        notifier.notify("a");
        notifier.notify("without a waiter");
        assert_eq!(now_or_never(one.changed()), Some(()));
        assert_eq!(now_or_never(one.changed()), None);
        assert_eq!(now_or_never(other.changed()), None);
        assert_eq!(now_or_never(Watch::silent().changed()), None);
    }

    #[test]
    fn names_without_a_waiter_are_forgotten() {
        let notifier = ReleaseNotifier::default();
        for n in 0..100 {
            drop(notifier.watch(&n.to_string()));
        }
        assert_eq!(notifier.0.lock().len(), 1);
    }
}
