//! What is said of volumes, whoever says it: what may be asked for, why it cannot be had, and what is wrong.

mod access;
mod ailment;
mod attributes;
mod fault;
mod group;
mod inodes;
mod mount_options;
mod name;
mod parameters;
mod pool_condition;
mod provisioned;
mod size;
mod snapshot;
mod topology;
mod words;

pub use access::{Access, Mode, Sharing, check_filesystem};
pub use ailment::{Ailment, Effect};
pub use attributes::Attributes;
pub use fault::{Fault, FaultKind, Outlook};
pub use group::{before_those_of, group_of, identify_group, identify_snapshot, snapshot_in};
pub use inodes::InodeCount;
pub use mount_options::{MountOptions, no_label};
pub use name::identify;
pub use parameters::{Backing, Parameters};
pub use pool_condition::{ConditionKind, Identity, PoolCondition, Severity, Subject};
pub use provisioned::Provisioned;
pub use size::{MINIMUM_BYTES, MINIMUM_IMAGE_BYTES, SizeRange, default_inodes};
pub use snapshot::{check_group_parameters, check_snapshot_parameters};
pub use topology::Place;
