//! A Kubernetes node: Debian with containerd and a kubelet.
//!
//! The kubelet starts as soon as `/etc/kubernetes` contains `kubelet.conf` (its kubeconfig) and `node.env`, which sets
//! `NODE_NAME`, and `API_SERVER`, the address at which the machine reaches the host's API server. Both files outlive a
//! reboot.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use fs_err as fs;

use super::cpio::Archive;
use super::debian;
use super::kernel::Kernel;
use crate::process::{capture, command, run_quietly};

/// The filesystem label of the disk with the large parts, and its serial number.
pub const LABEL: &str = "node-parts";

/// The configuration of its container runtime, and what has to be different where SELinux enforces.
const CONTAINERD: (&str, &str) =
    ("overlay/etc/containerd/config.toml", include_str!("guest/node/overlay/etc/containerd/config.toml"));
const WITHOUT_LABELS: &str = "enable_selinux = false";
const WITH_LABELS: &str = "enable_selinux = true";

/// The kubelet's directories, whose labels SELinux's policy knows. Made by the kubelet, they would have others.
const KUBELET_DIRECTORIES: [&str; 3] = ["pods", "plugins", "plugins_registry"];

/// What turns the machine into a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The kubelet.
    pub kubelet: PathBuf,
    /// Archives of container images, which are imported at the first boot.
    pub images: Vec<PathBuf>,
    /// The kubelet's port, in the machine and on the host's loopback device.
    pub kubelet_port: u16,
    /// The port, likewise, at which the host reaches the pods' network.
    pub relay_port: u16,
    /// Whether SELinux enforces there.
    pub enforces: bool,
}

/// Where systemd finds its units.
const SYSTEM_UNITS: &str = "overlay/etc/systemd/system";

/// The units that start at every boot, each with the target that wants it.
const UNITS: [(&str, &str); 5] = [
    ("kubelet.service", "multi-user"),
    ("node-images.service", "multi-user"),
    ("node-network.service", "multi-user"),
    ("node-api.socket", "sockets"),
    ("node-pods.socket", "sockets"),
];

impl Node {
    /// What is on its disk.
    pub fn system(&self) -> debian::System {
        if self.enforces { debian::ENFORCING_NODE } else { debian::NODE }
    }

    /// The line of the large parts' disk in the machine's /etc/fstab. What is on it has no labels of its own.
    pub fn fstab(&self) -> String {
        let label = if self.enforces { ",context=system_u:object_r:bin_t:s0" } else { "" };
        format!("LABEL={LABEL} /opt/node ext4 ro{label} 0 0\n")
    }

    /// Makes the disk for the parts that are too large for the kernel's first root.
    pub fn make_disk(&self, kernel: &Kernel, directory: &Path) -> Result<PathBuf> {
        let tree = directory.join("node");
        fs::create_dir_all(tree.join("images"))?;
        fs::copy(&self.kubelet, tree.join("kubelet"))?;
        for (number, image) in self.images.iter().enumerate() {
            fs::copy(image, tree.join(format!("images/{number}.tar")))?;
        }
        if let Some(library) = &kernel.library {
            run_quietly(command("cp").arg("-r").arg(library).arg(tree.join("modules")))?;
        }
        let used = capture(command("du").arg("-sm").arg(&tree))?;
        let mebibytes: u64 = used.split_whitespace().next().context("du reported no size")?.parse()?;
        let image = directory.join(format!("{LABEL}.disk"));
        let size = format!("{}M", mebibytes + mebibytes / 4 + 64);
        run_quietly(command("mkfs.ext4").args(["-q", "-L", LABEL, "-d"]).arg(&tree).arg(&image).arg(size))?;
        fs::remove_dir_all(&tree)?;
        Ok(image)
    }

    /// Adds the files that are overlaid on Debian's root.
    pub fn add_files<W: Write>(&self, root: &mut Archive<W>, kernel: &Kernel) -> Result<()> {
        if self.enforces {
            let (path, text) = CONTAINERD;
            root.file(path, 0o644, text.replace(WITHOUT_LABELS, WITH_LABELS).as_bytes())?;
            root.tree("enforcing/root")?;
            for directory in KUBELET_DIRECTORIES {
                root.directory(&format!("overlay/var/lib/kubelet/{directory}"))?;
            }
        }
        root.tree("node")?;
        let configuration = format!("{}port: {}\n", include_str!("guest/kubelet.yaml"), self.kubelet_port);
        root.file("overlay/etc/kubernetes/kubelet.yaml", 0o644, configuration.as_bytes())?;
        let socket = format!("{}ListenStream={}\n", include_str!("guest/node-pods.socket"), self.relay_port);
        root.file(&format!("{SYSTEM_UNITS}/node-pods.socket"), 0o644, socket.as_bytes())?;
        for (unit, target) in UNITS {
            start_at_boot(root, unit, target)?;
        }
        root.directory("overlay/opt/node")?;
        if kernel.library.is_some() {
            root.symlink(&format!("overlay/usr/lib/modules/{}", kernel.release), "/opt/node/modules")?;
        }
        Ok(())
    }
}

/// Has a target of systemd want a unit.
pub fn start_at_boot<W: Write>(root: &mut Archive<W>, unit: &str, target: &str) -> io::Result<()> {
    root.symlink(&format!("{SYSTEM_UNITS}/{target}.target.wants/{unit}"), &format!("../{unit}"))
}
