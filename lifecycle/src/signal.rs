//! SIGTERM and Ctrl-C: the first signal drains, the second one exits at once.

use tokio::sync::watch;

use crate::runtime::{Runtime, Shutdown, StartError};

/// The exit status that a shell reports for a process ended by Ctrl-C.
const FORCED_EXIT_STATUS: i32 = 130;

impl Runtime {
    /// Starts, serves until SIGTERM or Ctrl-C (or [`Runtime::request_shutdown`]), drains and stops.
    ///
    /// A second signal during the shutdown **exits the process** with status 130, whatever is still in flight.
    ///
    /// # Errors
    /// See [`Runtime::start`].
    pub async fn run_until_signal(&self) -> Result<Shutdown, StartError> {
        let signals = SignalCount::new();
        let (first, second) = (signals.clone(), signals);
        let shutdown =
            self.run_until(async move { first.at_least(1).await }, async move { second.at_least(2).await }).await?;
        if shutdown.forced {
            std::process::exit(FORCED_EXIT_STATUS);
        }
        Ok(shutdown)
    }
}

/// Counts signals from its creation on, so that none is missed between two waits.
#[derive(Clone)]
struct SignalCount(watch::Receiver<u32>);

impl SignalCount {
    fn new() -> Self {
        let (sender, receiver) = watch::channel(0);
        let mut signals = TerminationSignals::new();
        tokio::spawn(async move {
            while signals.recv().await && !sender.is_closed() {
                sender.send_modify(|count| *count += 1);
            }
        });
        Self(receiver)
    }

    /// Waits until this many signals have arrived.
    async fn at_least(mut self, number: u32) {
        if self.0.wait_for(|count| *count >= number).await.is_err() {
            std::future::pending().await // the platform delivers no signals
        }
    }
}

/// The signals that ask a process to terminate.
struct TerminationSignals {
    #[cfg(unix)]
    term: Option<tokio::signal::unix::Signal>,
    #[cfg(unix)]
    interrupt: Option<tokio::signal::unix::Signal>,
}

#[cfg(unix)]
impl TerminationSignals {
    fn new() -> Self {
        use tokio::signal::unix::{SignalKind, signal};
        Self { term: signal(SignalKind::terminate()).ok(), interrupt: signal(SignalKind::interrupt()).ok() }
    }

    /// Waits for the next signal. Returns false if no more signals can arrive.
    async fn recv(&mut self) -> bool {
        let Self { term, interrupt } = self;
        let next = async |signal: &mut Option<tokio::signal::unix::Signal>| match signal {
            Some(signal) => signal.recv().await.is_some(),
            None => std::future::pending().await,
        };
        tokio::select! {
            received = next(term) => received,
            received = next(interrupt) => received,
        }
    }
}

#[cfg(not(unix))]
impl TerminationSignals {
    fn new() -> Self {
        Self {}
    }

    async fn recv(&mut self) -> bool {
        tokio::signal::ctrl_c().await.is_ok()
    }
}
