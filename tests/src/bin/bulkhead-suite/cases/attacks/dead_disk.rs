//! A pool whose disk dies, or whose filesystem accepts no more writes: every client is told, and the pool recovers.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::csi::requests;
use bulkhead_tests::observe::mounts;
use bulkhead_tests::pool::{Pool, format_image, mount_disk, mount_image, run};
use bulkhead_tests::setting::{PoolFilesystem, Setting, program};
use bulkhead_tests::stand::Stand;
use bulkhead_tests::{cases, monitoring, wait};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

cases! {
    a_filesystem_that_becomes_read_only_after_an_error: Bare + Kernel,
    a_disk_that_dies_and_comes_back: Bare + Quota,
}

const HEALTHY: &str = "bulkhead_pool_abnormal_volumes{pool=\"default\"} 0";
const ABNORMAL: &str = "bulkhead_pool_abnormal_volumes{pool=\"default\"} 1";

/// As ext4 does when mounted with that option.
fn a_filesystem_that_becomes_read_only_after_an_error(stand: &mut Stand) -> Result<()> {
    let setting = Setting { pool_fs: PoolFilesystem::Ext4, ..stand.setting.clone() };
    let directory = stand.work().join("pools/default");
    stand.pools = vec![Pool::make(&setting, stand.templates(), &directory, "default")?];
    run(Command::new("mount").args(["-o", "remount,errors=remount-ro"]).arg(&directory))?;
    let device = publish(stand)?;
    fs::write(format!("/sys/fs/ext4/{device}/trigger_fs_error"), "an error of the disk")?;
    stand.csi()?.get_capacity(Default::default())?;
    // Linux 6.12 and 6.13 shut it down instead.
    is_abnormal(stand, &["has become read-only", "has shut down"])?;
    let room = stand.csi()?.get_capacity(Default::default())?;
    ensure!(room.available_capacity == 0, "{room:?}");

    let image = directory.with_extension("disk");
    serves_again(stand, &device, || {
        // Its exit status says whether it repaired anything.
        let checked = Command::new("e2fsck").args(["-f", "-y"]).arg(&image).output()?;
        ensure!(checked.status.code().is_some_and(|code| code < 4), "{checked:?}");
        mount_image(&setting, &image, &directory)
    })
}

fn a_disk_that_dies_and_comes_back(stand: &mut Stand) -> Result<()> {
    let setting = stand.setting.clone();
    let directory = stand.work().join("pools/default");
    fs::create_dir_all(&directory)?;
    let image = directory.with_extension("disk");
    format_image(&setting, stand.templates(), &image)?;
    let disk = Disk::make(&image)?;
    mount_disk(&setting, &disk.path(), &directory)?;
    run(Command::new(program("bulkhead-setup")?).arg("init-pool").arg(&directory))?;
    stand.pools = vec![Pool::mounted(&setting, &directory, "default")];
    let device = publish(stand)?;

    disk.die()?;
    // A write makes the filesystem notice, and ext4 gives up at the next one.
    for name in ["vol-a/one", "vol-a/two"] {
        let _ = fs::write(stand.target(name), "content");
        rustix::fs::sync();
    }
    // Without a request it is noticed within half a minute.
    let _ = stand.csi()?.get_capacity(Default::default());
    is_abnormal(stand, &[""])?;
    serves_again(stand, &device, || {
        disk.recover()?;
        mount_disk(&setting, &disk.path(), &directory)
    })
}

/// Starts everything, and publishes a volume that contains data. Returns the name of the pool's device.
fn publish(stand: &mut Stand) -> Result<String> {
    stand.frontend_flags = monitoring::FLAGS.map(Into::into).to_vec();
    stand.start()?;
    let csi = stand.csi()?;
    csi.create_volume(requests::create("vol-a", requests::MIB, requests::mount()))?;
    csi.node_publish_volume(requests::publish("vol-a", &stand.target("vol-a"), requests::mount()))?;
    fs::write(stand.target("vol-a/file"), "content")?;
    rustix::fs::sync();
    shows(stand, HEALTHY)?;
    let device = fs::canonicalize(format!("/sys/dev/block/{}", stand.pool().device()?))?;
    Ok(device.file_name().and_then(OsStr::to_str).context("a device")?.to_owned())
}

/// Waits until the metrics report the volume as abnormal, and checks that a kubelet is told one of these reasons.
fn is_abnormal(stand: &Stand, reasons: &[&str]) -> Result<()> {
    shows(stand, ABNORMAL)?;
    let stats = stand.csi()?.node_get_volume_stats(requests::stats("vol-a", &stand.target("vol-a")))?;
    let condition = stats.volume_condition.context("a condition")?;
    let known = reasons.iter().any(|reason| condition.message.contains(reason));
    ensure!(condition.abnormal && known, "{condition:?}");
    Ok(())
}

/// Recovers as documented, with `mend` repairing the filesystem, and checks that nothing that was written is lost.
fn serves_again(stand: &mut Stand, device: &str, mend: impl FnOnce() -> Result<()>) -> Result<()> {
    let (target, directory) = (stand.target("vol-a"), stand.pool().directory.clone());
    let patience = stand.patience(Duration::from_secs(15));
    stand.csi()?.node_unpublish_volume(requests::unpublish("vol-a", &target)).context("unpublish")?;
    stand.abandon();
    // The processes keep the old filesystem until they end.
    mounts::unmount_all(&directory)?;
    wait::until(patience, || {
        ensure!(!is_in_use(device)?, "the filesystem is still in use");
        Ok(())
    })?;
    mend()?;
    stand.start()?;
    let csi = stand.csi()?;
    csi.node_publish_volume(requests::publish("vol-a", &target, requests::mount()))?;
    ensure!(fs::read(stand.target("vol-a/file"))? == b"content", "what was written before is lost");
    shows(stand, HEALTHY)?;
    csi.node_unpublish_volume(requests::unpublish("vol-a", &target))?;
    csi.delete_volume(requests::delete("vol-a"))?;
    stand.abandon();
    wait::until(patience, || mounts::unmount_all(&directory))?;
    stand.pools.clear();
    Ok(())
}

/// Whether a block device is open for a filesystem.
fn is_in_use(device: &str) -> Result<bool> {
    match rustix::fs::open(Path::new("/dev").join(device), OFlags::RDONLY | OFlags::EXCL, Mode::empty()) {
        Err(Errno::BUSY) => Ok(true),
        opened => Ok(opened.map(|_| false)?),
    }
}

/// Waits until the metrics contain this line.
fn shows(stand: &Stand, line: &str) -> Result<()> {
    wait::until(stand.patience(Duration::from_secs(60)), || {
        let metrics = monitoring::get(stand, "/metrics")?.1;
        ensure!(metrics.contains(line), "no {line} in {metrics}");
        Ok(())
    })
}

/// A disk that can be made to return nothing but errors.
struct Disk {
    name: String,
    device: String,
    sectors: u64,
}

impl Disk {
    fn make(image: &Path) -> Result<Self> {
        let output = Command::new("losetup").args(["--find", "--show"]).arg(image).output()?;
        ensure!(output.status.success(), "losetup: {}", String::from_utf8_lossy(&output.stderr));
        let device = String::from_utf8(output.stdout)?.trim().to_owned();
        let name = format!("bulkhead-{}", device.trim_start_matches("/dev/"));
        let disk = Self { name, device, sectors: image.metadata()?.len() / 512 };
        disk.dmsetup(&["create", &disk.name, "--table", &disk.table()])?;
        // A small node has nothing else that does this.
        disk.dmsetup(&["mknodes", &disk.name])?;
        Ok(disk)
    }

    fn table(&self) -> String {
        format!("0 {} linear {} 0", self.sectors, self.device)
    }

    fn path(&self) -> PathBuf {
        Path::new("/dev/mapper").join(&self.name)
    }

    /// From now on every access fails with EIO.
    fn die(&self) -> Result<()> {
        self.change(&format!("0 {} error", self.sectors))
    }

    fn recover(&self) -> Result<()> {
        self.change(&self.table())
    }

    fn change(&self, table: &str) -> Result<()> {
        self.dmsetup(&["suspend", "--nolockfs", "--noflush", &self.name])?;
        self.dmsetup(&["load", &self.name, "--table", table])?;
        self.dmsetup(&["resume", &self.name])
    }

    fn dmsetup(&self, arguments: &[&str]) -> Result<()> {
        run(Command::new("dmsetup").arg("--noudevsync").args(arguments))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = self.dmsetup(&["remove", "--force", &self.name]);
        let _ = run(Command::new("losetup").arg("--detach").arg(&self.device));
    }
}
