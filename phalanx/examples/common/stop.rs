//! Waits for a signal that asks the process to end.

use std::io;

/// Waits for Ctrl-C or SIGTERM, which `docker stop` sends.
#[cfg(unix)]
pub(crate) async fn stopped() -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut term = signal(SignalKind::terminate())?;
    tokio::select! {
        pressed = tokio::signal::ctrl_c() => pressed,
        _ = term.recv() => Ok(()),
    }
}

#[cfg(not(unix))]
pub(crate) async fn stopped() -> io::Result<()> {
    tokio::signal::ctrl_c().await
}
