//! The end of a process that was asked to end.

use std::io;

/// Somebody wants this process to end in good order: Ctrl-C, or what `docker stop` sends.
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
