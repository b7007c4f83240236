//! Shared by the behaviour tests: a scripted upstream, an error with a kind, an observer that records events, a temporary
//! folder.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used)] // each test file uses a part of it; tests may unwrap

use std::fs;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use phalanx::{
    Class, Classify, Error, Event, EventKind, Kind, ModuleBuilder, Observer, Policy, RejectionCode, ResilienceModule,
};

pub const MS: Duration = Duration::from_millis(1);
pub const SECOND: Duration = Duration::from_secs(1);

/// An error with a kind and an optional `Retry-After`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure(pub Kind, pub Option<Duration>);

impl Classify for Failure {
    fn classify(&self) -> Class {
        Class { kind: Some(self.0), retry_after: self.1 }
    }
}

pub const BROKEN: Failure = Failure(Kind::Infrastructure, None);

/// The code of the rejection; panics if it is none.
pub fn code<T: std::fmt::Debug>(answer: Result<T, Error<Failure>>) -> RejectionCode {
    answer.unwrap_err().rejection().expect("a rejection").code()
}

/// An upstream with scripted answers that counts its calls. The last answer is repeated.
#[derive(Clone)]
pub struct Upstream(Arc<(AtomicUsize, Vec<Result<u32, Failure>>)>);

impl Upstream {
    pub fn scripted(script: impl Into<Vec<Result<u32, Failure>>>) -> Self {
        Self(Arc::new((AtomicUsize::new(0), script.into())))
    }

    pub fn always(answer: Result<u32, Failure>) -> Self {
        Self::scripted([answer])
    }

    pub async fn call(&self) -> Result<u32, Failure> {
        let (calls, script) = &*self.0;
        let call = calls.fetch_add(1, Ordering::Relaxed);
        script[call.min(script.len() - 1)]
    }

    pub async fn call_owned(self) -> Result<u32, Failure> {
        self.call().await
    }

    pub fn calls(&self) -> usize {
        self.0.0.load(Ordering::Relaxed)
    }
}

/// An operation that never answers.
pub async fn hang() -> Result<u32, Failure> {
    std::future::pending().await
}

/// An operation that answers after a while.
pub async fn after(delay: Duration, answer: Result<u32, Failure>) -> Result<u32, Failure> {
    tokio::time::sleep(delay).await;
    answer
}

/// A module with one policy, called `p`.
pub fn module(policy: Policy) -> ResilienceModule {
    builder(policy).build().unwrap()
}

pub fn builder(policy: Policy) -> ModuleBuilder {
    ResilienceModule::in_memory().seed(7).policy(policy)
}

/// An observer that records every event as a line.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    pub fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    pub fn count(&self, start: &str) -> usize {
        self.lines().iter().filter(|line| line.starts_with(start)).count()
    }
}

impl Observer for Log {
    fn on_event(&self, event: &Event<'_>) {
        let line = match event.kind {
            EventKind::Finished { outcome, .. } => format!("finished {outcome:?}"),
            EventKind::Retry { attempt, delay, kind } => format!("retry after {attempt} in {delay:?} for {kind}"),
            EventKind::AttemptTimeout { attempt, .. } => format!("timeout of {attempt}"),
            EventKind::Transition(change) => format!("{} -> {}", change.from.name(), change.to.name()),
            other => format!("{other:?}"),
        };
        self.0.lock().unwrap().push(line);
    }
}

/// Polls a future once.
pub fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// A temporary folder, deleted when it is dropped.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("phalanx-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn root(&self) -> &Path {
        &self.0
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Replaces a file atomically, as a deployment does: writes another file and renames it over the old one.
    pub fn put(&self, name: &str, text: impl AsRef<[u8]>) {
        let next = self.path(&format!(".{name}.new"));
        fs::write(&next, text).unwrap();
        fs::rename(next, self.path(name)).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
