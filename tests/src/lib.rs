//! What the suites share: a runner that cleans up, a rig with the real processes on real pools, clients, and views of
//! the kernel's state.

pub mod another_helper;
pub mod attacker;
pub mod bench;
pub mod case;
pub mod cluster;
pub mod commands;
pub mod csi;
pub mod daemon;
pub mod documented;
pub mod expect;
pub mod fixture;
pub mod helper;
pub mod ids;
pub mod keeper;
pub mod kubelet;
pub mod leaks;
pub mod monitoring;
pub mod neighbour;
pub mod node;
pub mod observe;
pub mod pace;
pub mod pool;
pub mod random;
pub mod rig;
pub mod run_options;
pub mod runner;
pub mod snapshot_metadata;
pub mod strace;
pub mod takeover;
pub mod times;
pub mod turns;
pub mod undo;
pub mod wait;
