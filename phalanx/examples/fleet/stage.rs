//! Where the story is shown, and for how long: until it is over, or somebody presses Ctrl-C.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::board::Board;
use crate::ledger::Ledger;
use crate::lines::Lines;
use crate::screen;

/// How often the board is drawn: often enough to look alive, seldom enough to be read.
const FRAME: Duration = Duration::from_millis(125);

/// A moving picture, or lines.
pub(crate) enum Stage {
    Board(Board),
    Lines(Lines),
}

impl Stage {
    pub(crate) fn open(ledger: Arc<Ledger>) -> io::Result<Self> {
        Ok(if screen::is_live() { Self::Board(Board::open(ledger)?) } else { Self::Lines(Lines::new(ledger)) })
    }

    fn show(&mut self) -> io::Result<()> {
        match self {
            Self::Board(board) => board.draw(),
            Self::Lines(lines) => lines.print(&mut io::stdout().lock()),
        }
    }
}

/// A stage and somebody in front of it. Dropping it gives the cursor back.
pub(crate) struct Watch {
    stage: Stage,
    frames: Interval,
    stop: Pin<Box<dyn Future<Output = io::Result<()>>>>,
}

impl Watch {
    pub(crate) fn begin(stage: Stage) -> Self {
        let mut frames = interval(FRAME);
        frames.set_missed_tick_behavior(MissedTickBehavior::Skip);
        Self { stage, frames, stop: Box::pin(tokio::signal::ctrl_c()) }
    }

    /// Waits for the next frame, which is then drawn; none if the spectator has had enough.
    pub(crate) async fn next(&mut self) -> io::Result<Option<()>> {
        tokio::select! {
            biased;
            pressed = &mut self.stop => {
                pressed?;
                self.stage.show()?;
                Ok(None)
            }
            _ = self.frames.tick() => {
                self.stage.show()?;
                Ok(Some(()))
            }
        }
    }

    pub(crate) fn show(&mut self) -> io::Result<()> {
        self.stage.show()
    }
}
