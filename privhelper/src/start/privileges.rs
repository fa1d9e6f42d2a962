//! Step 7 of the helper's life: everything that serving does not need is dropped.

use crate::capabilities::SERVER;
use crate::sys::capability;

/// Drops everything but [`SERVER`] for this thread and those it starts, and reads it back.
///
/// # Errors
/// A sentence on what could not be dropped, or is still there.
pub fn drop_all() -> Result<(), String> {
    capability::drop_all_but(SERVER).map_err(|errno| format!("cannot drop privileges: {errno}"))?;
    verify()
}

/// Whether the calling thread has exactly what it is to have.
///
/// # Errors
/// A sentence on what differs.
pub fn verify() -> Result<(), String> {
    capability::verify_dropped(SERVER)
        .map_err(|what| format!("refusing to serve: {what} are not as they must be after the drop"))
}
