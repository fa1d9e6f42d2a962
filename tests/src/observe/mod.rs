//! What the kernel says: mounts, loop devices, quotas, processes. Read by means of its own, never through the programs
//! under test.

pub mod loops;
pub mod mounts;
pub mod processes;
pub mod quotas;
