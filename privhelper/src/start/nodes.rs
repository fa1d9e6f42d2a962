//! The nodes by which loop devices that earlier helpers have left are looked at. They are made here, which takes a
//! capability; the devices are opened by processes without any, once this one has dropped its own.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};

use super::host::Host;
use super::refusal::Refusal;
use crate::sys::loopdevice::{self, OURS};
use crate::sys::{Result as SysResult, walk};

/// Nodes of devices.
#[derive(Debug)]
pub struct Nodes {
    /// The directory with them.
    pub directory: OwnedFd,
    /// The numbers of the devices.
    pub numbers: BTreeSet<u32>,
}

/// Makes a node for each loop device with a helpers' own number.
///
/// # Errors
/// A sentence on what failed.
pub fn make(host: &Host, directory: &OwnedFd) -> Result<Nodes, Refusal> {
    let numbers =
        list(&host.devices).map_err(|error| format!("cannot list the loop devices in /sys/block: {error}"))?;
    let make = || -> SysResult<OwnedFd> {
        for number in &numbers {
            loopdevice::make_node(directory.as_fd(), &name(*number), *number)?;
        }
        walk::duplicate(directory)
    };
    let directory = make().map_err(|error| format!("cannot make the nodes of loop devices: {error}"))?;
    Ok(Nodes { directory, numbers })
}

/// The name of the node by which a device is looked at.
pub fn name(number: u32) -> String {
    format!("look-at-{number}")
}

/// The numbers of the helpers' own devices.
fn list(block_devices: &OwnedFd) -> SysResult<BTreeSet<u32>> {
    let mut numbers = BTreeSet::new();
    walk::each_entry(block_devices, |name| {
        let number = name.to_bytes().strip_prefix(b"loop").and_then(|number| std::str::from_utf8(number).ok());
        numbers.extend(number.and_then(|number| number.parse().ok()).filter(|number| OURS.contains(number)));
        Ok(())
    })?;
    Ok(numbers)
}
