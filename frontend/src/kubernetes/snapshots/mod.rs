//! From VolumeSnapshotContents to snapshots: the agent does for its node what a snapshotter beside the driver would do.
//!
//! A snapshot controller, which is not part of this project, turns users' VolumeSnapshots into these objects and binds the
//! two. Where the cluster has neither it nor the kind, snapshots are not served, and nothing else is affected.
//!
//! From top to bottom, each importing only from those below it:
//!
//! - [`controller`]: what an object needs, whatever state it is in
//! - `unheld`: saying that no node has it, and letting it go
//! - `adoption`: taking an object that no node has yet
//! - `taking`: takes a snapshot, or says what is known of one that exists
//! - `release`: deletes a snapshot, and lets its object go
//! - `attempt`: what is said about an attempt that failed, and when to repeat it
//! - `write`: changes to an object
//! - `decision`, `status` and [`bound`]: the pure parts
//! - `watch`: the objects that concern this node, which `scope` defines

mod adoption;
mod attempt;
pub mod bound;
pub mod controller;
mod decision;
#[cfg(test)]
pub mod fixtures;
mod release;
mod scope;
mod status;
mod taking;
mod unheld;
mod watch;
mod write;
