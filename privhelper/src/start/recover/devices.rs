//! Loop devices that earlier helpers have left, and published nodes of those that are gone.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use bulkhead_protocol::TargetPath;
use rustix::fs::FileType;

use super::Recovery;
use crate::log;
use crate::state::{Kind, PublishDirectory};
use crate::sys::file::{self, Status};
use crate::sys::loopdevice::{self, Binding, MAJOR};
use crate::sys::{Errno, Result as SysResult, mount, process};

impl Recovery {
    /// Takes over the loop devices that are bound to images of ours, and notes those that are free. `shown` are the
    /// numbers of those whose nodes are mounted somewhere on the host.
    ///
    /// # Errors
    /// A sentence when one cannot be inspected: it may be a volume's.
    pub(super) fn find_devices(&mut self, numbers: &[u32], shown: &BTreeSet<u32>) -> Result<(), String> {
        process::allow_all_descriptors().map_err(|errno| format!("cannot raise the limit of open files: {errno}"))?;
        self.vacant_devices = shown.iter().copied().filter(|number| !numbers.contains(number)).collect();
        // If another program has attached an image a second time, the volume's device is the one that is published.
        let (published, others): (Vec<u32>, Vec<u32>) = numbers.iter().partition(|number| shown.contains(number));
        for number in published.into_iter().chain(others) {
            let fail = |errno| format!("cannot look at loop device {number}: {errno}");
            let device = match self.state.loops.open_existing(number) {
                // It is being detached or removed.
                Err(Errno::NXIO) => {
                    self.vacant_devices.insert(number);
                    continue;
                }
                device => device.map_err(fail)?,
            };
            match look(&device) {
                Ok(binding) => self.take_over(number, device, binding).map_err(fail)?,
                // Anybody with that node, or a container's copy of it, would have access to the next volume.
                Err(Errno::NXIO) if shown.contains(&number) => {
                    log::warning!(
                        "a loop device is detached, but still published; it will not be used before the next start number={number}"
                    );
                    self.vacant_devices.insert(number);
                }
                Err(Errno::NXIO) => self.state.loops.note_idle(number),
                Err(errno) if may_be_a_volumes(errno) => return Err(fail(errno)),
                Err(errno) => {
                    log::warning!("the backing file of a loop device is out of reach number={number} errno={errno}");
                }
            }
        }
        Ok(())
    }

    /// Notes a bound device, if it is a volume's.
    fn take_over(&mut self, number: u32, device: OwnedFd, binding: Binding) -> SysResult<()> {
        let Some(id) = self.owners.get(&binding.image) else {
            // It may belong to a volume or a pool that is not served.
            if self.state.unserved.is_empty() && self.state.pools.iter().all(|pool| pool.state.is_ok()) {
                self.vacant_devices.insert(number);
            }
            return Ok(());
        };
        self.devices.insert(number, id.clone());
        if self.state.volumes.get(id).is_some_and(|volume| volume.device.is_some()) {
            log::error!("another program has attached a volume's image once more volume={id} number={number}");
            return Ok(());
        }
        if binding.exchangeable {
            log::warning!(
                "a volume's readers can exchange its image until it is unpublished: it was attached by an earlier release volume={id}"
            );
        }
        let device = self.state.loops.adopt(number, device)?;
        self.state.loops.revive(number, binding.image)?;
        self.state.volumes.update(id, |volume| volume.device = Some(device));
        Ok(())
    }

    /// Unmounts the node at a target if an earlier helper mounted it and its device certainly no longer belongs to a
    /// volume: it stands for something else, or will.
    pub(super) fn unmount_outlived(&self, directory: &PublishDirectory, target: &TargetPath) {
        if directory.check_shape(target, Kind::Block).is_err() {
            // The kubelet binds what we published again, at paths of its own.
            return;
        }
        let name = target.path.split_last().1;
        let parent = directory.open_parent(&target.path).map_err(|obstacle| obstacle.errno);
        let unmounted = parent.and_then(|parent| {
            if !self.is_outlived(&file::status_at(&parent, name)?) {
                return Ok(false);
            }
            mount::unmount_entry(parent.as_fd(), name).map(|()| true)
        });
        match unmounted {
            Ok(true) => log::warning!("unmounted the node of a loop device that was detached target={target}"),
            Ok(false) => {}
            Err(errno) => {
                log::error!("cannot unmount the node of a loop device that was detached target={target} errno={errno}");
            }
        }
    }

    fn is_outlived(&self, status: &Status) -> bool {
        let is_node = status.mount_root && status.file_type == FileType::BlockDevice && status.device.0 == MAJOR;
        is_node && is_made_as_ours(status) && self.vacant_devices.contains(&status.device.1)
    }
}

/// What a device is bound to. A failure may be transient, so this retries.
fn look(device: &OwnedFd) -> SysResult<Binding> {
    for _ in 0..3 {
        match loopdevice::binding(device) {
            Ok(binding) => return Ok(binding),
            Err(Errno::NXIO) => return Err(Errno::NXIO),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
    loopdevice::binding(device)
}

/// Whether a device that cannot be inspected may be a volume's. If its backing file is out of reach, it is not: each
/// volume's was within reach a moment ago. Any other failure proves nothing.
fn may_be_a_volumes(errno: Errno) -> bool {
    !matches!(errno, Errno::IO | Errno::STALE | Errno::NOENT | Errno::ACCESS | Errno::TIMEDOUT | Errno::HOSTDOWN)
}

/// Whether a node may be one that a helper made: those of device managers and container runtimes have other modes.
fn is_made_as_ours(status: &Status) -> bool {
    (status.uid, status.mode & 0o7777) == (0, 0o600)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_another_programs_only_if_its_backing_file_is_out_of_reach() {
        for errno in [Errno::IO, Errno::STALE, Errno::NOENT, Errno::ACCESS] {
            assert!(!may_be_a_volumes(errno), "{errno}");
        }
        for errno in [Errno::NOMEM, Errno::INTR, Errno::AGAIN, Errno::PERM, Errno::NOTTY, Errno::BADF] {
            assert!(may_be_a_volumes(errno), "{errno}");
        }
    }
}
