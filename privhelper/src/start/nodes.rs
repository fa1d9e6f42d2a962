//! Loop devices that earlier helpers have left: their nodes are made here, which takes a capability; they are opened by
//! children without any, which see nothing else: one that hangs keeps nothing mounted.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

use super::filter::OnViolation;
use super::host::Host;
use super::jail::NODES;
use super::patience::{self, Needs};
use super::recover::{Devices, Found};
use super::refusal::Refusal;
use crate::log;
use crate::sys::loopdevice::{self, OURS};
use crate::sys::{Errno, Error as SysError, Result as SysResult, file, loopcontrol, packet, walk};

/// How long a device may take to answer after others have used up the time of all.
const LEAST: Duration = Duration::from_millis(200);

/// How long what has failed is left alone before it is asked again.
const PAUSE: Duration = Duration::from_millis(20);

/// Asks the loop devices what they are bound to. A file behind one may be on a filesystem that does not answer: then the
/// others are asked by another process. None of them has a capability.
///
/// # Errors
/// A sentence when that is not possible.
pub fn look(host: &Host, directory: &OwnedFd, on_violation: OnViolation) -> Result<Devices, Refusal> {
    let made = make(host, directory)?;
    let mut numbers = made.clone();
    // Together, so that nobody can delay a start by many that do not answer.
    let needs = Needs { capabilities: &[], root: Some(NODES), on_violation };
    let (mut devices, begun) = (Devices::default(), Instant::now());
    while let Some(first) = numbers.first().copied() {
        let ask = |line: &OwnedFd| {
            let Ok(nodes) = walk::open_at_start("/", OFlags::RDONLY | OFlags::DIRECTORY) else { return };
            let mut left = numbers.clone();
            // A failure may be transient. Each is asked before one is asked again, so that no start waits for each of many.
            for _ in 0..4 {
                left.retain(|number| {
                    let found = look_at(&nodes, *number);
                    let answer = bulkhead_protocol::encode(&(*number, &found));
                    let _ = answer.map(|packet| packet::send(line, &packet, None));
                    matches!(found, Found::Failed(_))
                });
                std::thread::sleep(PAUSE.saturating_mul(u32::from(!left.is_empty())));
            }
        };
        let mut found = BTreeMap::new();
        let recorded = |packet: &[u8]| found.extend(bulkhead_protocol::decode::<(u32, Found)>(packet));
        let limit = patience::LIMIT.saturating_sub(begun.elapsed()).max(LEAST);
        let asked = patience::in_child(limit, needs, ask, recorded);
        numbers.retain(|number| !found.contains_key(number));
        devices.found.append(&mut found);
        match asked.map_err(|error| format!("cannot look at loop devices: {error}"))? {
            Ok(()) if numbers.is_empty() => {}
            Ok(()) => return Err(format!("cannot look at loop device {first}").into()),
            Err(waiting) => {
                // Without any, it is one that has failed before.
                if let Some(silent) = numbers.pop_first() {
                    log::error!(
                        "a loop device does not answer: its volume is not attached until it does number={silent}"
                    );
                    devices.silent.insert(silent);
                }
                devices.waiting.push(waiting);
            }
        }
    }
    for number in made {
        let removed = file::remove(directory, &*name(number));
        removed.map_err(|error| format!("cannot remove the node of loop device {number}: {error}"))?;
    }
    Ok(devices)
}

fn look_at(nodes: &OwnedFd, number: u32) -> Found {
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

/// Makes a node for each loop device with a helpers' own number, and returns those.
fn make(host: &Host, directory: &OwnedFd) -> Result<BTreeSet<u32>, Refusal> {
    let numbers =
        list(&host.devices).map_err(|error| format!("cannot list the loop devices in /sys/block: {error}"))?;
    for number in &numbers {
        let made = loopdevice::make_node(directory.as_fd(), &name(*number), *number);
        made.map_err(|error| format!("cannot make the nodes of loop devices: {error}"))?;
    }
    Ok(numbers)
}

/// The name of the node by which a device is looked at.
fn name(number: u32) -> String {
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
