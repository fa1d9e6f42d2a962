//! What a kubelet does in its own directory: parents of targets, its record of volumes, the global map of devices.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::json;

/// The driver's name, unless a test sets another.
pub const DRIVER: &str = "bulkhead.csi.local";

/// A directory laid out like a kubelet's.
#[derive(Debug)]
pub struct Kubelet {
    root: PathBuf,
    targets: RefCell<Vec<PathBuf>>,
}

impl Kubelet {
    /// Makes the directory.
    pub fn make(root: &Path) -> Result<Self> {
        for directory in ["pods", "plugins/kubernetes.io/csi", "plugins_registry", "pki"] {
            fs::create_dir_all(root.join(directory))?;
        }
        fs::write(root.join("pki/kubelet.key"), "secret of the node")?;
        Ok(Self { root: root.to_owned(), targets: RefCell::default() })
    }

    /// The directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns where it keeps everything that belongs to pods.
    pub fn pods(&self) -> PathBuf {
        self.root.join("pods")
    }

    /// Returns where it expects the CSI socket.
    pub fn csi_socket(&self) -> PathBuf {
        self.root.join(format!("plugins/{DRIVER}/csi.sock"))
    }

    /// Returns where it expects the registration socket.
    pub fn registration_socket(&self) -> PathBuf {
        self.root.join(format!("plugins_registry/{DRIVER}@reg.sock"))
    }

    /// Returns where the target of a directory volume is.
    pub fn pod_target_path(&self, volume_name: &str, pod: &str) -> PathBuf {
        self.root.join(format!("pods/{pod}/volumes/kubernetes.io~csi/{volume_name}/mount"))
    }

    /// Returns where the target of a block volume is.
    pub fn block_target_path(&self, volume_name: &str, pod: &str) -> PathBuf {
        self.devices().join(format!("publish/{volume_name}/{pod}"))
    }

    /// Creates the parent of a directory volume's target, but no record, and returns the target.
    pub fn pod_target(&self, volume_name: &str, pod: &str) -> Result<PathBuf> {
        let target = self.pod_target_path(volume_name, pod);
        fs::create_dir_all(target.parent().context("target without a parent")?)?;
        self.targets.borrow_mut().push(target.clone());
        Ok(target)
    }

    /// Writes the record next to a directory volume's target.
    pub fn record(&self, target: &Path, driver: &str, volume: &str) -> Result<()> {
        let parent = target.parent().context("target without a parent")?;
        write_record(parent, driver, volume)
    }

    /// Prepares the target of a directory volume as a kubelet does.
    pub fn prepare(&self, volume: &str, volume_name: &str, pod: &str) -> Result<PathBuf> {
        let target = self.pod_target(volume_name, pod)?;
        self.record(&target, DRIVER, volume)?;
        Ok(target)
    }

    /// Creates the parent of a block volume's target, but no record, and returns the target.
    pub fn block_target(&self, volume_name: &str, pod: &str) -> Result<PathBuf> {
        let target = self.block_target_path(volume_name, pod);
        fs::create_dir_all(target.parent().context("target without a parent")?)?;
        self.targets.borrow_mut().push(target.clone());
        Ok(target)
    }

    /// Writes the record of a block volume.
    pub fn block_record(&self, volume_name: &str, driver: &str, volume: &str) -> Result<()> {
        let directory = self.devices().join(format!("{volume_name}/data"));
        fs::create_dir_all(&directory)?;
        write_record(&directory, driver, volume)
    }

    /// Prepares the target of a block volume as a kubelet does.
    pub fn prepare_block(&self, volume: &str, volume_name: &str, pod: &str) -> Result<PathBuf> {
        self.block_record(volume_name, DRIVER, volume)?;
        self.block_target(volume_name, pod)
    }

    /// Binds a published device to the path at which the kubelet keeps all devices, and returns that path.
    pub fn map_globally(&self, target: &Path, volume_name: &str, pod: &str) -> Result<PathBuf> {
        let directory = self.devices().join(format!("{volume_name}/dev"));
        fs::create_dir_all(&directory)?;
        let path = directory.join(pod);
        fs::File::create(&path)?;
        rustix::mount::mount_bind(target, &path).context("bind a device to the global map path")?;
        Ok(path)
    }

    /// Undoes [`Self::map_globally`].
    pub fn unmap_globally(&self, path: &Path) -> Result<()> {
        rustix::mount::unmount(path, rustix::mount::UnmountFlags::NOFOLLOW)?;
        fs::remove_file(path)?;
        Ok(())
    }

    /// Checks that none of the targets handed out still exists.
    pub fn check_no_target_left(&self) -> Result<()> {
        for target in self.targets.borrow().iter() {
            ensure!(fs::symlink_metadata(target).is_err(), "target {} is left over", target.display());
        }
        Ok(())
    }

    fn devices(&self) -> PathBuf {
        self.root.join("plugins/kubernetes.io/csi/volumeDevices")
    }
}

/// The parts of a kubelet's record that matter, in the kubelet's own form.
fn write_record(directory: &Path, driver: &str, volume: &str) -> Result<()> {
    let record = json!({
        "attachmentID": "csi-0f4d5c6e7a8b9c0d1e2f",
        "driverName": driver,
        "nodeName": "node",
        "specVolID": directory.file_name().map(|name| name.to_string_lossy().into_owned()),
        "volumeHandle": volume,
        "volumeLifecycleMode": "Persistent",
    });
    fs::write(directory.join("vol_data.json"), format!("{record}\n"))?;
    Ok(())
}
