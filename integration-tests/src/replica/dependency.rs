//! The dependency that a replica calls, with a behaviour that the test sets.

use std::time::Duration;

use phalanx::Kind;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::sleep;

/// How the dependency behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DependencyBehavior {
    /// Succeeds at once.
    #[default]
    Succeed,
    /// Succeeds after this time.
    SucceedAfter(Duration),
    /// Fails at once.
    Fail,
    /// Hangs until another behaviour is set.
    Hang,
}

#[derive(Debug, Default)]
pub(super) struct Dependency(watch::Sender<DependencyBehavior>);

impl Dependency {
    pub(super) fn behave(&self, behaviour: DependencyBehavior) {
        self.0.send_replace(behaviour);
    }

    pub(super) async fn answer(&self) -> Result<(), Kind> {
        let mut behaviour = self.0.subscribe();
        loop {
            let present = *behaviour.borrow_and_update();
            match present {
                DependencyBehavior::Succeed => return Ok(()),
                DependencyBehavior::SucceedAfter(after) => {
                    sleep(after).await;
                    return Ok(());
                }
                DependencyBehavior::Fail => return Err(Kind::Infrastructure),
                DependencyBehavior::Hang => behaviour.changed().await.expect("the sender is in self"),
            }
        }
    }
}
