//! From VolumeSnapshotContents to snapshots, and from VolumeGroupSnapshotContents to groups of them: the agent does for its node
//! what a snapshotter beside the driver would do.
//!
//! A snapshot controller, which is not part of this project, turns users' VolumeSnapshots and VolumeGroupSnapshots into these
//! objects and binds them. Where the cluster has neither it nor the kind, snapshots are not served, and nothing else is
//! affected.
//!
//! From top to bottom, each importing only from those below it:
//!
//! - [`controller`]: what an object needs, whatever state it is in
//! - `unheld`: saying that no node has it, and letting it go
//! - `adoption`: taking an object that no node has yet
//! - `taking`: takes a snapshot or a group, or says what is known of one that exists
//! - `release`: deletes it, and lets its object go
//! - `watch`: the objects that concern this node, which `scope` defines
//! - `single` and `group`: what is done about the one kind, and about the other
//! - `kind`: what the two differ in; `classes`: what is asked of the class of either
//! - `attempt`: what is said about an attempt that failed, and when to repeat it
//! - `write`: changes to an object
//! - `decision`, `status` and [`bound`]: the pure parts

mod adoption;
mod attempt;
pub mod bound;
mod classes;
pub mod controller;
mod decision;
#[cfg(test)]
pub mod fixtures;
mod group;
mod kind;
mod release;
mod scope;
mod single;
mod status;
mod taking;
mod unheld;
mod watch;
mod write;
