//! Whether pushes work: this replica is subscribed, and the scripts that it runs may publish.
//!
//! Without pushes replicas still see each other's trips, but only when they ask. Nothing else fails, so the loss is an
//! event, one for each time, whatever causes it.

use parking_lot::Mutex;
use phalanx_core::event::{EventKind, Observers};

/// The state of both directions.
#[derive(Debug, Default)]
pub(crate) struct PushHealth(Mutex<Broken>);

#[derive(Debug, Default)]
struct Broken {
    receiving: bool,
    publishing: bool,
}

impl Broken {
    const fn any(&self) -> bool {
        self.receiving || self.publishing
    }
}

impl PushHealth {
    /// Whether pushes are lost in either direction.
    pub(crate) fn is_lost(&self) -> bool {
        self.0.lock().any()
    }

    /// Records that there is no subscription, for this reason.
    pub(crate) fn subscription_lost(&self, observers: &Observers, reason: &str) {
        self.change(observers, reason, |broken| broken.receiving = true);
    }

    /// Records that there is a subscription.
    pub(crate) fn subscribed(&self, observers: &Observers) {
        self.change(observers, "", |broken| broken.receiving = false);
    }

    /// Records whether a script that changed a breaker could publish the change. The user may lack the permission.
    pub(crate) fn published(&self, observers: &Observers, published: bool) {
        self.change(observers, "acl", |broken| broken.publishing = !published);
    }

    fn change(&self, observers: &Observers, reason: &str, change: impl FnOnce(&mut Broken)) {
        let mut broken = self.0.lock();
        let before = broken.any();
        change(&mut broken);
        let after = broken.any();
        drop(broken); // observers run outside the lock
        match (before, after) {
            (false, true) => observers.emit_all(EventKind::PushLost { reason }),
            (true, false) => observers.emit_all(EventKind::PushRestored),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use phalanx_core::event::Event;

    use super::*;

    #[test]
    fn a_loss_is_emitted_once_and_its_end_when_both_directions_work() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = seen.clone();
        let observers =
            Observers::new(vec![Arc::new(move |event: &Event<'_>| log.lock().push(format!("{:?}", event.kind)))]);
        let health = PushHealth::default();
        health.subscribed(&observers);
        health.published(&observers, true);
        assert!(seen.lock().is_empty() && !health.is_lost());
        health.subscription_lost(&observers, "acl");
        health.subscription_lost(&observers, "connection");
        health.published(&observers, false);
        health.subscribed(&observers);
        assert!(health.is_lost());
        health.published(&observers, true);
        assert_eq!(*seen.lock(), ["PushLost { reason: \"acl\" }", "PushRestored"]);
        assert!(!health.is_lost());
    }
}
