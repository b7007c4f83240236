//! The output while the scenario runs: a live dashboard on a terminal, plain lines elsewhere.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::dashboard::Dashboard;
use crate::lines::Lines;
use crate::recorder::Recorder;
use crate::screen;

/// How often the dashboard is drawn: often enough to look live, rarely enough to be read.
const FRAME_INTERVAL: Duration = Duration::from_millis(125);

/// The kind of output.
pub(crate) enum Output {
    Dashboard(Dashboard),
    Lines(Lines),
}

impl Output {
    pub(crate) fn open(recorder: Arc<Recorder>) -> io::Result<Self> {
        Ok(if screen::is_live() {
            Self::Dashboard(Dashboard::open(recorder)?)
        } else {
            Self::Lines(Lines::new(recorder))
        })
    }

    fn update(&mut self) -> io::Result<()> {
        match self {
            Self::Dashboard(dashboard) => dashboard.draw(),
            Self::Lines(lines) => lines.print(&mut io::stdout().lock()),
        }
    }
}

/// The output, updated frame by frame until Ctrl-C. Dropping it restores the cursor.
pub(crate) struct Display {
    output: Output,
    frames: Interval,
    stop: Pin<Box<dyn Future<Output = io::Result<()>>>>,
}

impl Display {
    pub(crate) fn start(output: Output) -> Self {
        let mut frames = interval(FRAME_INTERVAL);
        frames.set_missed_tick_behavior(MissedTickBehavior::Skip);
        Self { output, frames, stop: Box::pin(tokio::signal::ctrl_c()) }
    }

    /// Waits for the next frame and draws it. Returns `None` after Ctrl-C.
    pub(crate) async fn next(&mut self) -> io::Result<Option<()>> {
        tokio::select! {
            biased;
            pressed = &mut self.stop => {
                pressed?;
                self.output.update()?;
                Ok(None)
            }
            _ = self.frames.tick() => {
                self.output.update()?;
                Ok(Some(()))
            }
        }
    }

    pub(crate) fn update(&mut self) -> io::Result<()> {
        self.output.update()
    }
}
