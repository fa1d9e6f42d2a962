//! What keeps the node's own programs from what pods write to devices.

use anyhow::{Result, ensure};
use bulkhead_tests::node::{Node, eventually};

use crate::story::Story;

/// The rule is there, and udev has gone by it for the devices of pods that run now: the helper's and the kubelet's.
pub fn udev_leaves_devices_alone(story: &mut Story<'_>) -> Result<()> {
    is_left_alone(story.node)
}

/// Likewise, without the story.
pub fn is_left_alone(node: &Node) -> Result<()> {
    let machine = &node.machine;
    eventually(|| {
        let devices = machine.run("losetup --list --noheadings --output NAME")?;
        let devices: Vec<_> = devices.split_whitespace().collect();
        ensure!(devices.len() >= 2, "a pod has a device: {devices:?}");
        for device in devices {
            let found = machine.run(&format!("udevadm info --query=property --name={device}"))?;
            let flag = "UDEV_DISABLE_PERSISTENT_STORAGE_RULES_FLAG=1";
            ensure!(found.lines().any(|line| line == flag), "{device}: {found}");
            ensure!(!found.contains("ID_FS_") && !found.contains("/dev/disk/"), "udev has read {device}: {found}");
        }
        Ok(())
    })?;
    // The pool is in use, which it says besides.
    let flags = "--pool default=/srv/bulkhead/default --kubelet-dir /var/lib/kubelet --allow-uid 10001";
    let told = machine.run(&format!("/opt/bulkhead/bin/bulkhead-setup check {flags} 2>&1 || true"))?;
    ensure!(told.contains("pool default") && !told.contains("udev"), "{told}");
    Ok(())
}
