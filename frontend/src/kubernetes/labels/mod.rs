//! Watching the objects that concern this node, and no others, by a label.
//!
//! An admission policy copies an object's node into a label, so that the API server sends an agent only what is its own.
//! Without that policy the agent watches all objects of the kind, and drops those that do not concern it as they arrive.
//!
//! From top to bottom, each importing only from those below it: [`watch`], [`unlabelled`], [`policy_watch`], [`watch_mode`],
//! [`policy`], [`scope`].

pub mod policy;
pub mod policy_watch;
pub mod scope;
pub mod unlabelled;
pub mod watch;
pub mod watch_mode;
