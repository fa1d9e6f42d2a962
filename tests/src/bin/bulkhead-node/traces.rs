//! Nothing is left of volumes whose claims have been deleted.

use anyhow::{Result, ensure};
use bulkhead_tests::node::eventually;

use crate::deployment;
use crate::story::Story;

/// Commands that each print what is left over on the node.
const TRACES: [(&str, &str); 5] = [
    ("mounts", "grep -E 'kubernetes.io~csi|volumeDevices|/srv/bulkhead/default/' /proc/self/mountinfo || true"),
    ("loop devices", "losetup --list --noheadings"),
    ("files in the pool", "ls -A /srv/bulkhead/default | grep -vxE '[.]bulkhead' || true"),
    // The project after the last one has a limit above all that a filesystem can hold: it ends the kernel's walk.
    (
        "projects with a quota or files",
        "xfs_quota -x -c 'report -p -b -i -N -n' /srv/bulkhead/default | awk 'NF && $1 != \"#0\" && $4 < 2^40'",
    ),
    (
        "directories of the kubelet",
        "find /var/lib/kubelet/pods /var/lib/kubelet/plugins -path '*kubernetes.io~csi/pvc-*' -o -path '*volumeDevices/*pvc-*'",
    ),
];

/// Deletes everything that the story has created.
pub fn nothing_is_left(story: &mut Story<'_>) -> Result<()> {
    let (machine, kubectl) = (&story.node.machine, &story.node.kubectl);
    // Others are left of checks that failed.
    kubectl.delete(&["--ignore-not-found", "statefulset/set"])?;
    kubectl.delete(&["--all", "volumesnapshots"])?;
    kubectl.delete(&["--all", "pods"])?;
    kubectl.delete(&["--all", "pvc"])?;
    eventually(|| kubectl.gone(&["pv"]))?;
    eventually(|| kubectl.gone(&["volumesnapshotcontents"]))?;
    for (what, command) in TRACES {
        eventually(|| {
            let left = machine.run(command)?;
            ensure!(left.trim().is_empty(), "{what} are left over:\n{left}");
            Ok(())
        })?;
    }
    let before = story.room;
    eventually(|| {
        let now = deployment::room(story.node)?;
        // The filesystem's own usage varies a little.
        ensure!(now.abs_diff(before) < 8 << 20, "there was room for {before} bytes, and now for {now}");
        Ok(())
    })
}
