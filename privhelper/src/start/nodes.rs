//! Loop devices that earlier helpers have left: their nodes are made here, which takes a capability; they are opened by
//! children without any, which see nothing else: one that hangs keeps nothing mounted.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use super::filter::OnViolation;
use super::host::Host;
use super::jail::NODES;
use super::judge::devices::{ask, name};
use super::patience::{self, Needs};
use super::privileges;
use super::recover::{Devices, Found};
use super::refusal::Refusal;
use crate::log;
use crate::sys::loopdevice::{self, OURS};
use crate::sys::{Result as SysResult, file, walk};

/// How long a device may take to answer after others have used up the time of all.
const LEAST: Duration = Duration::from_millis(200);

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
        // Where it cannot give up its capabilities, it asks nothing, and none has answered.
        let work = |line: &OwnedFd| privileges::give_up().map_or((), |proof| ask(&proof, &numbers, line));
        let recorded = |packet: &[u8]| devices.found.extend(bulkhead_protocol::decode::<(u32, Found)>(packet));
        let limit = patience::LIMIT.saturating_sub(begun.elapsed()).max(LEAST);
        let asked = patience::in_child(limit, needs, work, recorded);
        numbers.retain(|number| !devices.found.contains_key(number));
        match asked.map_err(|error| format!("cannot look at loop devices: {error}"))? {
            Ok(()) if numbers.is_empty() => {}
            Ok(()) => return Err(format!("cannot look at loop device {first}").into()),
            Err(waiting) => {
                devices.waiting.push(waiting);
                // Without any, it is one that has failed before.
                let Some(silent) = numbers.pop_first() else { continue };
                log::error!("a loop device does not answer: its volume is not attached until it does number={silent}");
                devices.silent.insert(silent);
            }
        }
    }
    for number in made {
        let removed = file::remove(directory, &*name(number));
        removed.map_err(|error| format!("cannot remove the node of loop device {number}: {error}"))?;
    }
    Ok(devices)
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
