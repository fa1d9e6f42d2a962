//! The kernel's state: mounts, loop devices, quotas, processes. It is never read through the programs under test.

pub mod loops;
pub mod mounts;
pub mod processes;
pub mod quotas;
