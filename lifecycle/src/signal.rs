//! SIGTERM and Ctrl-C: the first one drains, the second one does not wait.

use crate::runtime::{Runtime, Shutdown, StartError};

/// What a shell reports of a process that ended by Ctrl-C.
const FORCED: i32 = 130;

impl Runtime {
    /// Starts, serves until SIGTERM or Ctrl-C (or [`Runtime::request_shutdown`]), drains and stops. A second signal
    /// meanwhile **exits the process** with status 130, whatever is still under way.
    ///
    /// # Errors
    /// As [`Runtime::start`].
    pub async fn run_until_signal(&self) -> Result<Shutdown, StartError> {
        let signals = Signals::new();
        let (first, second) = (signals.clone(), signals);
        let ended =
            self.run_until(async move { first.at_least(1).await }, async move { second.at_least(2).await }).await?;
        if ended.forced {
            std::process::exit(FORCED);
        }
        Ok(ended)
    }
}

/// Signals, counted from the moment this is made, so that none is missed between two looks.
#[derive(Clone)]
struct Signals(tokio::sync::watch::Receiver<u32>);

impl Signals {
    fn new() -> Self {
        let (count, counted) = tokio::sync::watch::channel(0);
        let mut next = Ear::new();
        tokio::spawn(async move {
            while next.hear().await && !count.is_closed() {
                count.send_modify(|count| *count += 1);
            }
        });
        Self(counted)
    }

    async fn at_least(mut self, number: u32) {
        if self.0.wait_for(|count| *count >= number).await.is_err() {
            std::future::pending().await // nobody can tell of signals here
        }
    }
}

/// Hears the signals that ask a process to go.
struct Ear {
    #[cfg(unix)]
    term: Option<tokio::signal::unix::Signal>,
    #[cfg(unix)]
    interrupt: Option<tokio::signal::unix::Signal>,
}

#[cfg(unix)]
impl Ear {
    fn new() -> Self {
        use tokio::signal::unix::{SignalKind, signal};
        Self { term: signal(SignalKind::terminate()).ok(), interrupt: signal(SignalKind::interrupt()).ok() }
    }

    /// Returns at the next signal; false if there is none to be heard of.
    async fn hear(&mut self) -> bool {
        let Self { term, interrupt } = self;
        let next = async |signal: &mut Option<tokio::signal::unix::Signal>| match signal {
            Some(signal) => signal.recv().await.is_some(),
            None => std::future::pending().await,
        };
        tokio::select! {
            heard = next(term) => heard,
            heard = next(interrupt) => heard,
        }
    }
}

#[cfg(not(unix))]
impl Ear {
    fn new() -> Self {
        Self {}
    }

    async fn hear(&mut self) -> bool {
        tokio::signal::ctrl_c().await.is_ok()
    }
}
