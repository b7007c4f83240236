//! The dependency behind a replica: it answers as it is told to.

use std::time::Duration;

use phalanx::Kind;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::sleep;

/// How the dependency answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Behaviour {
    /// Well, at once.
    #[default]
    Well,
    /// Well, after a while.
    Slowly(Duration),
    /// With a failure, at once.
    Badly,
    /// Not before it is told to behave otherwise.
    Never,
}

#[derive(Debug, Default)]
pub(super) struct Dependency(watch::Sender<Behaviour>);

impl Dependency {
    pub(super) fn behave(&self, behaviour: Behaviour) {
        self.0.send_replace(behaviour);
    }

    pub(super) async fn answer(&self) -> Result<(), Kind> {
        let mut behaviour = self.0.subscribe();
        loop {
            let present = *behaviour.borrow_and_update();
            match present {
                Behaviour::Well => return Ok(()),
                Behaviour::Slowly(after) => {
                    sleep(after).await;
                    return Ok(());
                }
                Behaviour::Badly => return Err(Kind::Infrastructure),
                Behaviour::Never => behaviour.changed().await.expect("it is told by the one that asks"),
            }
        }
    }
}
