//! What loop devices say of themselves: a child of the start asks them that has no capability.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::fs::OFlags;

use crate::start::privileges::Unprivileged;
use crate::start::recover::Found;
use crate::sys::{Errno, Error as SysError, file, loopcontrol, packet, walk};

/// How long what has failed is left alone before it is asked again.
const PAUSE: Duration = Duration::from_millis(20);

/// Asks the devices with these numbers what they are bound to, by their nodes in this process's root, and says over the line
/// what each has answered. A failure may be transient. Each is asked before one is asked again, so that no start waits for
/// each of many.
pub fn ask(_: &Unprivileged, numbers: &BTreeSet<u32>, line: &OwnedFd) {
    let Ok(nodes) = walk::open_at_start("/", OFlags::RDONLY | OFlags::DIRECTORY) else { return };
    let mut left = numbers.clone();
    for _ in 0..4 {
        left.retain(|number| {
            let found = look(&nodes, *number);
            let answer = bulkhead_protocol::encode(&(*number, &found));
            let _ = answer.map(|packet| packet::send(line, &packet, None));
            matches!(found, Found::Failed(_))
        });
        std::thread::sleep(PAUSE.saturating_mul(u32::from(!left.is_empty())));
    }
}

fn look(nodes: &OwnedFd, number: u32) -> Found {
    let device = file::open(nodes, &*name(number), OFlags::RDONLY);
    match device.and_then(loopcontrol::binding) {
        Ok(found) => {
            let image = (found.image.device, found.image.inode);
            Found::Bound { image, on: found.on, label: found.label }
        }
        Err(SysError { errno: Errno::NXIO, .. }) => Found::Unbound,
        Err(error) => Found::Failed(error.errno.raw_os_error()),
    }
}

/// The name of the node by which a device is looked at.
pub fn name(number: u32) -> String {
    format!("look-at-{number}")
}
