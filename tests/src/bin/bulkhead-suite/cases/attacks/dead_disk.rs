//! A pool whose disk dies, or whose filesystem accepts no more writes: every client is told, and the pool recovers.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bulkhead_tests::csi::requests;
use bulkhead_tests::helper::*;
use bulkhead_tests::observe::loops::{self, Loop};
use bulkhead_tests::observe::mounts;
use bulkhead_tests::pool::{Pool, format_image, mount_disk, mount_image, run};
use bulkhead_tests::rig::Rig;
use bulkhead_tests::run_options::{PoolFilesystem, RunOptions, program};
use bulkhead_tests::{cases, monitoring, wait};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

cases! {
    a_filesystem_that_becomes_read_only_after_an_error: Bare,
    a_disk_that_dies_and_comes_back: Bare + Quota,
    many_devices_of_a_disk_that_has_died_delay_no_start: Bare + Quota,
    hundreds_of_devices_of_a_disk_that_has_died_delay_no_start: Bare + Quota + Xfs + Long,
}

const HEALTHY: &str = "bulkhead_pool_abnormal_volumes{pool=\"default\"} 0";
const ABNORMAL: &str = "bulkhead_pool_abnormal_volumes{pool=\"default\"} 1";

/// As ext4 does when mounted with that option.
fn a_filesystem_that_becomes_read_only_after_an_error(rig: &mut Rig) -> Result<()> {
    let run_options = RunOptions { pool_fs: PoolFilesystem::Ext4, ..rig.run_options.clone() };
    let directory = rig.work().join("pools/default");
    rig.pools = vec![Pool::make(&run_options, rig.templates(), &directory, "default")?];
    run(Command::new("mount").args(["-o", "remount,errors=remount-ro"]).arg(&directory))?;
    let device = publish(rig)?;
    fs::write(format!("/sys/fs/ext4/{device}/trigger_fs_error"), "an error of the disk")?;
    rig.csi()?.get_capacity(Default::default())?;
    // Linux 6.12 and 6.13 shut it down instead.
    is_abnormal(rig, &["has become read-only", "has shut down"])?;
    let room = rig.csi()?.get_capacity(Default::default())?;
    ensure!(room.available_capacity == 0, "{room:?}");

    let image = directory.with_extension("disk");
    serves_again(rig, &device, || {
        // Its exit status says whether it repaired anything.
        let checked = Command::new("e2fsck").args(["-f", "-y"]).arg(&image).output()?;
        ensure!(checked.status.code().is_some_and(|code| code < 4), "{checked:?}");
        mount_image(&run_options, &image, &directory)
    })
}

fn a_disk_that_dies_and_comes_back(rig: &mut Rig) -> Result<()> {
    let run_options = rig.run_options.clone();
    let (disk, directory) = on_a_disk(rig)?;
    let device = publish(rig)?;

    disk.die()?;
    // A write makes the filesystem notice, and ext4 gives up at the next one.
    for name in ["vol-a/one", "vol-a/two"] {
        let _ = fs::write(rig.target(name), "content");
        let _ = rig.pool().sync();
    }
    // Without a request it is noticed within half a minute.
    let _ = rig.csi()?.get_capacity(Default::default());
    is_abnormal(rig, &[""])?;
    serves_again(rig, &device, || {
        disk.recover()?;
        mount_disk(&run_options, &disk.path(), &directory)
    })
}

fn many_devices_of_a_disk_that_has_died_delay_no_start(rig: &mut Rig) -> Result<()> {
    start_beside_dead_devices(rig, 60)
}

fn hundreds_of_devices_of_a_disk_that_has_died_delay_no_start(rig: &mut Rig) -> Result<()> {
    start_beside_dead_devices(rig, 600)
}

/// Every look at a device whose file is on a dead disk fails, and is tried again. A start waits for all of them together.
fn start_beside_dead_devices(rig: &mut Rig, volumes: u32) -> Result<()> {
    let (disk, directory) = on_a_disk(rig)?;
    rig.add_pool("other")?;
    let helper = rig.started_helper()?;
    for number in 0..volumes {
        let id = format!("vol-{number}");
        helper.ask_all([create(&id, image_spec(4096)), attach(&id), make_device(&id, &id)])?;
    }
    // The shorter of two: whatever else the machine does is not at both.
    let started = |rig: &mut Rig| {
        let mut start = || {
            rig.abandon();
            let begun = Instant::now();
            rig.start_helper()?;
            anyhow::Ok(begun.elapsed())
        };
        anyhow::Ok(start()?.min(start()?))
    };
    let alive = started(rig)?;
    let devices: Vec<_> = loops::backed_by(&rig.pool().device()?)?.into_iter().map(|device| device.path).collect();
    let is_hold =
        |found: &Loop| devices.iter().any(|device| Path::new(&found.backing_file).file_name() == device.file_name());
    let holds: Vec<_> = loops::all()?.into_iter().filter(is_hold).map(|hold| hold.path).collect();
    disk.die()?;
    // A write makes the filesystem notice.
    let _ = fs::write(directory.join("noticed"), "");
    let _ = rig.pool().sync();
    let dead = started(rig)?;
    println!("a start takes {alive:?} beside {volumes} devices, and {dead:?} once their disk is dead");
    rig.abandon();
    mounts::unmount_all(&rig.publish_directory())?;
    (0..volumes).try_for_each(|number| fs::remove_file(rig.target(&format!("vol-{number}"))))?;
    loops::remove(&holds)?;
    loops::remove(&devices)?;
    disk.recover()?;
    mounts::unmount_all(&directory)?;
    rig.pools.remove(0);
    // Had it waited for each alone, it would have been three times 20 ms.
    ensure!(dead < alive * 2 + Duration::from_millis(30) * volumes, "{dead:?} in place of {alive:?}");
    Ok(())
}

/// Makes the pool `default` on a disk that can die, and returns it with the pool's directory.
fn on_a_disk(rig: &mut Rig) -> Result<(Disk, PathBuf)> {
    let run_options = rig.run_options.clone();
    let directory = rig.work().join("pools/default");
    fs::create_dir_all(&directory)?;
    let image = directory.with_extension("disk");
    format_image(&run_options, rig.templates(), &image)?;
    let disk = Disk::make(&image)?;
    mount_disk(&run_options, &disk.path(), &directory)?;
    run(Command::new(program("bulkhead-setup")?).arg("init-pool").arg(&directory))?;
    rig.pools = vec![Pool::mounted(&run_options, &directory, "default")];
    Ok((disk, directory))
}

/// Starts everything, and publishes a volume that contains data. Returns the name of the pool's device.
fn publish(rig: &mut Rig) -> Result<String> {
    rig.frontend_flags = monitoring::FLAGS.map(Into::into).to_vec();
    let csi = rig.started_csi()?;
    csi.create_volume(requests::create("vol-a", requests::MIB, requests::mount()))?;
    csi.node_publish_volume(requests::publish("vol-a", &rig.target("vol-a"), requests::mount()))?;
    fs::write(rig.target("vol-a/file"), "content")?;
    rig.pool().sync()?;
    shows(rig, HEALTHY)?;
    let device = fs::canonicalize(format!("/sys/dev/block/{}", rig.pool().device()?))?;
    Ok(device.file_name().and_then(OsStr::to_str).context("a device")?.to_owned())
}

/// Waits until the metrics report the volume as abnormal, and checks that a kubelet is told one of these reasons.
fn is_abnormal(rig: &Rig, reasons: &[&str]) -> Result<()> {
    shows(rig, ABNORMAL)?;
    let stats = rig.csi()?.node_get_volume_stats(requests::stats("vol-a", &rig.target("vol-a")))?;
    let condition = stats.volume_condition.context("a condition")?;
    let known = reasons.iter().any(|reason| condition.message.contains(reason));
    ensure!(condition.abnormal && known, "{condition:?}");
    Ok(())
}

/// Recovers as documented, with `mend` repairing the filesystem, and checks that nothing that was written is lost.
fn serves_again(rig: &mut Rig, device: &str, mend: impl FnOnce() -> Result<()>) -> Result<()> {
    let (target, directory) = (rig.target("vol-a"), rig.pool().directory.clone());
    let patience = rig.patience(Duration::from_secs(15));
    rig.csi()?.node_unpublish_volume(requests::unpublish("vol-a", &target)).context("unpublish")?;
    rig.abandon();
    // The processes keep the old filesystem until they end.
    mounts::unmount_all(&directory)?;
    wait::until(patience, || {
        ensure!(!is_in_use(device)?, "the filesystem is still in use");
        Ok(())
    })?;
    mend()?;
    let csi = rig.started_csi()?;
    csi.node_publish_volume(requests::publish("vol-a", &target, requests::mount()))?;
    ensure!(fs::read(rig.target("vol-a/file"))? == b"content", "what was written before is lost");
    shows(rig, HEALTHY)?;
    csi.node_unpublish_volume(requests::unpublish("vol-a", &target))?;
    csi.delete_volume(requests::delete("vol-a"))?;
    rig.abandon();
    wait::until(patience, || mounts::unmount_all(&directory))?;
    rig.pools.clear();
    Ok(())
}

/// Returns whether a block device is open for a filesystem.
fn is_in_use(device: &str) -> Result<bool> {
    match rustix::fs::open(Path::new("/dev").join(device), OFlags::RDONLY | OFlags::EXCL, Mode::empty()) {
        Err(Errno::BUSY) => Ok(true),
        opened => Ok(opened.map(|_| false)?),
    }
}

/// Waits until the metrics contain this line.
fn shows(rig: &Rig, line: &str) -> Result<()> {
    rig.eventually(60, || {
        let metrics = monitoring::get(rig, "/metrics")?.1;
        ensure!(metrics.contains(line), "no {line} in {metrics}");
        Ok(())
    })
}

/// A disk that can be made to return nothing but errors.
struct Disk {
    name: String,
    device: PathBuf,
    sectors: u64,
}

impl Disk {
    fn make(image: &Path) -> Result<Self> {
        let device = loops::attach(image)?;
        let name = format!("bulkhead-{}", device.file_name().context("a device without a name")?.display());
        let disk = Self { name, device, sectors: image.metadata()?.len() / 512 };
        disk.dmsetup(&["create", &disk.name, "--table", &disk.table()])?;
        // A small node has nothing else that does this.
        disk.dmsetup(&["mknodes", &disk.name])?;
        Ok(disk)
    }

    fn table(&self) -> String {
        format!("0 {} linear {} 0", self.sectors, self.device.display())
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
        let _ = loops::detach(&self.device);
    }
}
