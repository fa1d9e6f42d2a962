//! Whoever waits for a bundle may have enough of it.

use std::io;

/// Waits until the user, or the system, ends the program, from now on.
#[cfg(unix)]
pub fn awaited() -> io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};

    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// Waits until the user ends the program, from now on.
#[cfg(not(unix))]
pub fn awaited() -> io::Result<impl Future<Output = ()>> {
    let mut interrupt = tokio::signal::windows::ctrl_c()?;
    Ok(async move {
        interrupt.recv().await;
    })
}
