//! Shared by the tests: steps that record when they start and stop.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used)] // each test file uses a part of it; tests may unwrap

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use phalanx_lifecycle::Step;
use tokio::time::sleep;

pub const MS: Duration = Duration::from_millis(1);
pub const SECOND: Duration = Duration::from_secs(1);

/// Records what happened, in order.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    pub fn write(&self, line: impl Into<String>) {
        self.0.lock().unwrap().push(line.into());
    }

    /// Returns and removes all lines.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }

    /// A step that takes `start_time` to start and one millisecond to stop.
    pub fn step(&self, name: &'static str, start_time: Duration) -> Step {
        let (starting, stopping) = (self.clone(), self.clone());
        Step::new(name)
            .on_start(move || {
                let log = starting.clone();
                log.write(format!("+{name}"));
                async move {
                    sleep(start_time).await;
                    log.write(format!("{name} up"));
                    io::Result::Ok(())
                }
            })
            .on_stop(move || {
                let log = stopping.clone();
                log.write(format!("-{name}"));
                async {
                    sleep(MS).await;
                    io::Result::Ok(())
                }
            })
    }
}

/// A step that fails at once.
pub fn failing(name: &str) -> Step {
    Step::new(name).on_start(async || Err(io::Error::other("no such table")))
}
