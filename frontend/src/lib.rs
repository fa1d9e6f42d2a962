//! The unprivileged half of Bulkhead.
//!
//! A call arrives in [`csi`], becomes a use case in [`volumes`], and goes to the privileged helper through [`helper`];
//! nothing here touches a mount, a device or a pool itself. The controllers in [`kubernetes`] call the same use cases.

pub mod call_id;
pub mod changed_blocks;
mod crowd;
pub mod csi;
pub mod endpoint;
pub mod export;
mod findings;
pub mod helper;
pub mod inspection;
pub mod kubernetes;
pub mod listening;
pub mod metrics;
pub mod monitoring;
pub mod proto;
pub mod readiness;
pub mod registration;
pub mod sandbox;
pub mod server;
pub mod telemetry;
pub mod volumes;
