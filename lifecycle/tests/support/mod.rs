//! What the tests share: steps that write down what happens to them.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used)] // each test file uses its part; a test may unwrap

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use phalanx_lifecycle::Step;
use tokio::time::sleep;

pub const MS: Duration = Duration::from_millis(1);
pub const SECOND: Duration = Duration::from_secs(1);

/// What happened, in order.
#[derive(Clone, Default)]
pub struct Diary(Arc<Mutex<Vec<String>>>);

impl Diary {
    pub fn write(&self, line: impl Into<String>) {
        self.0.lock().unwrap().push(line.into());
    }

    /// Everything since the last look.
    pub fn read(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }

    /// A step that takes so long to start, and a millisecond to stop.
    pub fn step(&self, name: &'static str, time: Duration) -> Step {
        let (starting, stopping) = (self.clone(), self.clone());
        Step::new(name)
            .on_start(move || {
                let diary = starting.clone();
                diary.write(format!("+{name}"));
                async move {
                    sleep(time).await;
                    diary.write(format!("{name} up"));
                    io::Result::Ok(())
                }
            })
            .on_stop(move || {
                let diary = stopping.clone();
                diary.write(format!("-{name}"));
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
