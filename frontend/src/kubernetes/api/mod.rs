//! Talking to the API server, whatever it is about.

pub mod access;
pub mod backoff;
pub mod events;
pub mod failure;
pub mod identity;
pub mod retry_after;
pub mod watch;
