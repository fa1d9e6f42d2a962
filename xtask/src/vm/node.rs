//! A Kubernetes node: Debian with containerd and a kubelet.
//!
//! The kubelet starts as soon as `/etc/kubernetes` contains `kubelet.conf` (its kubeconfig) and `node.env`, which sets
//! `NODE_NAME`, and `API_SERVER`, the address at which the machine reaches the host's API server. Both files outlive a
//! reboot.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::cpio::Archive;
use super::kernel::Kernel;
use crate::process::{command, run_quietly};

/// The filesystem label of the disk with the large parts, and its serial number.
pub const LABEL: &str = "node-parts";

/// Its line in the machine's /etc/fstab.
pub const FSTAB: &str = "LABEL=node-parts /opt/node ext4 ro 0 0\n";

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
}

/// Where systemd finds its units.
const SYSTEM_UNITS: &str = "overlay/etc/systemd/system";

/// Where each file goes.
const FILES: [(&str, &[u8]); 4] = [
    ("etc/containerd/config.toml", include_bytes!("guest/node/containerd.toml")),
    ("etc/cni/net.d/node.conflist", include_bytes!("guest/node/network.conflist")),
    ("etc/systemd/system/node-api.service", include_bytes!("guest/node/node-api.service")),
    ("etc/systemd/system/node-pods@.service", include_bytes!("guest/node/node-pods@.service")),
];

/// The units that start at every boot, each with the target that wants it.
const UNITS: [(&str, &str, &[u8]); 4] = [
    ("kubelet.service", "multi-user", include_bytes!("guest/node/kubelet.service")),
    ("node-images.service", "multi-user", include_bytes!("guest/node/node-images.service")),
    ("node-network.service", "multi-user", include_bytes!("guest/node/node-network.service")),
    ("node-api.socket", "sockets", include_bytes!("guest/node/node-api.socket")),
];

impl Node {
    /// Makes the disk for the parts that are too large for the kernel's first root.
    pub fn make_disk(&self, kernel: &Kernel, directory: &Path) -> Result<PathBuf> {
        let tree = directory.join("node");
        fs::create_dir_all(tree.join("images"))?;
        let copy = |source: &Path, target: PathBuf| {
            fs::copy(source, target).with_context(|| format!("copy {}", source.display())).map(drop)
        };
        copy(&self.kubelet, tree.join("kubelet"))?;
        for (number, image) in self.images.iter().enumerate() {
            copy(image, tree.join(format!("images/{number}.tar")))?;
        }
        if let Some(library) = &kernel.library {
            run_quietly(command("cp").arg("-r").arg(library).arg(tree.join("modules")))?;
        }
        let used = command("du").args(["-sm"]).arg(&tree).output()?;
        let used = String::from_utf8_lossy(&used.stdout).split_whitespace().next().and_then(|text| text.parse().ok());
        let mebibytes: u64 = used.context("du reported no size")?;
        let image = directory.join("node-parts.disk");
        let size = format!("{}M", mebibytes + mebibytes / 4 + 64);
        run_quietly(command("mkfs.ext4").args(["-q", "-L", LABEL, "-d"]).arg(&tree).arg(&image).arg(size))?;
        fs::remove_dir_all(&tree)?;
        Ok(image)
    }

    /// Adds the files that are overlaid on Debian's root.
    pub fn add_files<W: Write>(&self, root: &mut Archive<W>, kernel: &Kernel) -> io::Result<()> {
        for (path, content) in FILES {
            root.file(&format!("overlay/{path}"), 0o644, content)?;
        }
        for (name, target, content) in UNITS {
            root.file(&format!("{SYSTEM_UNITS}/{name}"), 0o644, content)?;
            root.symlink(&format!("{SYSTEM_UNITS}/{target}.target.wants/{name}"), &format!("../{name}"))?;
        }
        let configuration = format!("{}port: {}\n", include_str!("guest/node/kubelet.yaml"), self.kubelet_port);
        root.file("overlay/etc/kubernetes/kubelet.yaml", 0o644, configuration.as_bytes())?;
        root.file("overlay/usr/local/lib/node-pods", 0o755, include_bytes!("guest/node/node-pods"))?;
        let socket = format!("{}ListenStream={}\n", include_str!("guest/node/node-pods.socket"), self.relay_port);
        root.file(&format!("{SYSTEM_UNITS}/node-pods.socket"), 0o644, socket.as_bytes())?;
        root.symlink(&format!("{SYSTEM_UNITS}/sockets.target.wants/node-pods.socket"), "../node-pods.socket")?;
        root.directory("overlay/opt/node")?;
        if kernel.library.is_some() {
            root.symlink(&format!("overlay/usr/lib/modules/{}", kernel.release), "/opt/node/modules")?;
        }
        Ok(())
    }
}
