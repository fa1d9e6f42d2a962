//! Loop devices that earlier helpers have left. Only those with the helpers' own numbers are opened.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};

use super::Recovery;
use crate::log;
use crate::start::mounts::Mounts;
use crate::start::refusal::Refusal;
use crate::state::node;
use crate::sys::Errno;
use crate::sys::file::FileId;

/// What the devices have said of themselves.
#[derive(Debug, Default)]
pub struct Devices {
    pub(in crate::start) found: BTreeMap<u32, Found>,
    /// Those that were asked and have not answered.
    pub(in crate::start) silent: BTreeSet<u32>,
    /// Connections to processes that wait for one to answer.
    pub waiting: Vec<OwnedFd>,
}

/// What a device has said of itself.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::start) enum Found {
    /// It is bound to nothing.
    Unbound,
    /// It is bound to this image, or to the device with this number, under a label.
    Bound { image: ((u32, u32), u64), on: Option<u32>, label: String },
    /// It cannot be inspected.
    Failed(i32),
}

impl Devices {
    /// The labels of those that have not answered, as their holds have them: a hold is on the helper's own tmpfs, and
    /// always answers. What has none is no volume's, and a device that another helper has made since is none of these
    /// pools', which this one has claimed.
    pub fn silent(&self) -> BTreeSet<String> {
        let held = self.bound().filter(|(.., on, _)| on.is_some_and(|on| self.silent.contains(&on)));
        held.map(|(.., label)| label.to_owned()).collect()
    }

    fn bound(&self) -> impl Iterator<Item = (u32, FileId, Option<u32>, &str)> {
        self.found.iter().filter_map(|(number, found)| match found {
            Found::Bound { image: (device, inode), on, label } => {
                Some((*number, FileId { device: *device, inode: *inode }, *on, label.as_str()))
            }
            _ => None,
        })
    }
}

impl Recovery {
    /// Takes over the devices that are bound to images of ours, with the holds on them, and discards those that are bound
    /// to nothing.
    ///
    /// # Errors
    /// A sentence when one cannot be inspected: it may be a volume's.
    pub(super) fn find_devices(&mut self, devices: &Devices, mounts: &Mounts) -> Result<(), Refusal> {
        let shown: BTreeSet<u32> = mounts.values().filter_map(|mount| node(&self.nodes, mount)).collect();
        let (mut holds, mut labels) = (BTreeMap::<u32, Vec<u32>>::new(), BTreeMap::new());
        for (hold, _, on, label) in devices.bound() {
            if let Some(on) = on {
                holds.entry(on).or_default().push(hold);
                labels.insert(on, label);
            }
        }
        let held: BTreeSet<u32> = holds.keys().copied().collect();
        // If another program has attached an image a second time, the volume's device is the one that is published.
        let (published, others): (Vec<_>, Vec<_>) = devices.bound().partition(|(number, ..)| shown.contains(number));
        for (number, image, on, label) in published.into_iter().chain(others) {
            let Some(id) = self.owners.get(&image).cloned() else {
                // It may belong to a volume or a pool that is not served. Who has the device could change its own label;
                // one without a hold nobody has.
                if on.is_none() {
                    let label = labels.get(&number).copied().unwrap_or(label);
                    self.attached.entry(label.to_owned()).or_default().push(number);
                }
                continue;
            };
            self.devices.insert(number, id.clone());
            if self.volumes.get(&id).is_some_and(|volume| volume.device.is_some()) {
                log::error!("another program has attached a volume's image once more volume={id} number={number}");
                continue;
            }
            let fail = |error| format!("cannot take over loop device {number}: {error}");
            let device = self.loops.adopt(&id, number).map_err(fail)?;
            // Whose these are cannot be told: a tenant may have bound a number that was once its own to this device.
            holds.remove(&number).unwrap_or_default().into_iter().for_each(|hold| self.loops.give_up(hold));
            // Who has the device open can keep it from being as it was. It is tried again before anybody else gets it.
            let attached = self.loops.revive(&id, device, image);
            let device = attached.map(|attached| attached.map(|attached| attached.device())).unwrap_or_else(|error| {
                log::warning!("a loop device cannot be taken back from who has it open number={number} error={error}");
                Some(device)
            });
            self.volumes.change(&id, |volume| volume.device = device);
        }
        for (number, found) in &devices.found {
            match found {
                Found::Unbound => self.loops.discard(*number),
                // What has no hold nobody was given as a volume's: a tenant has bound a spent number to a file of its own.
                Found::Failed(errno) if held.contains(number) && may_be_a_volumes(Errno::from_raw_os_error(*errno)) => {
                    return Err(
                        format!("cannot look at loop device {number}: {}", Errno::from_raw_os_error(*errno)).into()
                    );
                }
                Found::Failed(errno) => {
                    let errno = Errno::from_raw_os_error(*errno);
                    log::warning!("the backing file of a loop device is out of reach number={number} error={errno}");
                }
                Found::Bound { .. } => {}
            }
        }
        Ok(())
    }
}

/// Returns whether a device that cannot be inspected may be a volume's. If its backing file is out of reach, it is not:
/// each volume's was within reach a moment ago. Any other failure proves nothing.
fn may_be_a_volumes(errno: Errno) -> bool {
    !matches!(errno, Errno::IO | Errno::STALE | Errno::NOENT | Errno::ACCESS | Errno::TIMEDOUT | Errno::HOSTDOWN)
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

    #[test]
    fn only_a_device_that_was_asked_and_has_not_answered_is_silent() {
        let hold = Found::Bound { image: ((0, 7), 1), on: Some(4), label: "vol-a".to_owned() };
        let mut devices = Devices { found: BTreeMap::from([(5, hold)]), ..Devices::default() };
        assert_eq!(devices.silent(), BTreeSet::new(), "another helper has made it since");
        devices.silent.insert(4);
        assert_eq!(devices.silent(), BTreeSet::from(["vol-a".to_owned()]));
    }
}
