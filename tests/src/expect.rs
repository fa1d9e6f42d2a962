//! Checks that something is refused, and how.

use std::fmt::Debug;

use anyhow::{Result, bail, ensure};
use bulkhead_protocol::{Error, ErrorKind, Response};
use tonic::{Code, Status};

/// Checks that the call is refused with `code` and a message that contains `part`.
pub fn refused<T: Debug>(result: Result<T, Status>, code: Code, part: &str) -> Result<()> {
    let status = match result {
        Ok(value) => bail!("granted, not refused with {code:?}: {value:?}"),
        Err(status) => status,
    };
    ensure!(status.code() == code, "refused with {:?}, not {code:?}: {}", status.code(), status.message());
    ensure!(!status.message().is_empty(), "refused with {code:?} and no message");
    ensure!(status.details().is_empty(), "{code:?} comes with details, which must be empty");
    let (message, wanted) = (status.message().to_lowercase(), part.to_lowercase());
    ensure!(message.contains(&wanted), "message does not say {part:?}: {}", status.message());
    Ok(())
}

/// Checks that the helper refuses with `kind` and a message that contains `part`.
pub fn denied(response: Response, kind: ErrorKind, part: &str) -> Result<()> {
    let error = match response {
        Ok(reply) => bail!("granted, not refused with {kind:?}: {reply:?}"),
        Err(error) => error,
    };
    ensure!(error.kind == kind, "refused with {:?}, not {kind:?}: {error}", error.kind);
    let message = error.message.as_str().to_lowercase();
    ensure!(message.contains(&part.to_lowercase()), "message does not say {part:?}: {error}");
    Ok(())
}

/// Checks that the helper refuses because a pool cannot promise that much, and returns how much it can.
pub fn no_room(response: Response) -> Result<u64> {
    match response {
        Err(Error { kind: ErrorKind::NoRoom { room, wanted }, .. }) => {
            ensure!(room < wanted, "{wanted} bytes are refused although there is room for {room}");
            Ok(room)
        }
        other => bail!("not refused for want of room: {other:?}"),
    }
}

/// Checks that `found` is what was `wanted`.
pub fn same(what: &str, found: &serde_json::Value, wanted: serde_json::Value) -> Result<()> {
    ensure!(*found == wanted, "{what} is {found}, not {wanted}");
    Ok(())
}
