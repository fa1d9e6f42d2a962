//! The floor: the system calls behind each operation, made by a single process that communicates with no other.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use bulkhead_tests::bench::report::{Baseline, Unit};
use bulkhead_tests::bench::statistics::Summary;
use bulkhead_tests::pool::output;
use rustix::fs::{AtFlags, CWD, FallocateFlags, FileType, Mode, RenameFlags, XattrFlags};
use rustix::mount::{MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use serde::Deserialize;

use crate::driver::{Call, Kind};
use crate::options::Amount;
use crate::run::Run;

/// The size of an image, which is that of the measured volumes.
const SIZE: u64 = 1 << 20;

/// The system calls of an entire creation.
const CREATIONS: &str = "two mkdir, setxattr, rename, fsync";

/// The size of a volume's record.
const RECORD: [u8; 96] = [7; 96];

/// A raw operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Raw {
    MakeDirectory,
    MakeImage,
    GrowImage,
    Sync,
    SyncedRecord,
    BindDirectory,
    UnmountDirectory,
    BindNode,
    UnmountNode,
    Attach,
    Detach,
    Rename,
    RoundTrip,
}

impl Raw {
    pub fn name(self) -> &'static str {
        match self {
            Self::MakeDirectory => "two mkdir, setxattr, rename",
            Self::MakeImage => "mkdir, create, fallocate 1 MiB, setxattr, rename",
            Self::GrowImage => "fallocate 1 MiB, ftruncate",
            Self::Sync => "fsync after two mkdir, setxattr, rename",
            Self::SyncedRecord => "setxattr, fsync",
            Self::BindDirectory => "mkdir, open_tree, move_mount, flags",
            Self::UnmountDirectory => "umount, rmdir",
            Self::BindNode => "mknod, open_tree, move_mount, flags",
            Self::UnmountNode => "umount, unlink",
            Self::Attach => "loop attach",
            Self::Detach => "loop detach",
            Self::Rename => "rename",
            Self::RoundTrip => "seqpacket round trip",
        }
    }

    /// The raw operations that a call cannot avoid.
    fn behind(call: Call, kind: Kind, changes: bool) -> &'static [Self] {
        match (call, kind) {
            (Call::Create, Kind::Directory) => &[Self::MakeDirectory, Self::Sync],
            (Call::Create, Kind::Block) => &[Self::MakeImage, Self::Sync],
            (Call::Publish, _) if !changes => &[],
            (Call::Publish | Call::PublishExclusively, Kind::Directory) => &[Self::BindDirectory],
            (Call::Publish | Call::PublishExclusively, Kind::Block) => &[Self::Attach, Self::BindNode],
            (Call::Expand, Kind::Directory) => &[Self::SyncedRecord],
            (Call::Expand, Kind::Block) => &[Self::GrowImage, Self::SyncedRecord],
            (Call::Unpublish, Kind::Directory) => &[Self::UnmountDirectory],
            (Call::Unpublish, Kind::Block) => &[Self::UnmountNode, Self::Detach],
            (Call::Delete, _) => &[Self::Rename, Self::Sync],
            // Nearly all of their time goes into mounting, of which no part can be left out.
            (Call::Probe | Call::Stats, _) | (_, Kind::Image) => &[],
        }
    }
}

/// The operations that were measured.
#[derive(Debug, Default)]
pub struct Floor(Vec<(Raw, Summary)>);

impl Floor {
    /// The time of the system calls behind a call, and their names. `changes` is false if what the call asks for is
    /// already done.
    pub fn behind(&self, call: Call, kind: Kind, changes: bool) -> Baseline {
        let operations = Raw::behind(call, kind, changes);
        let summaries = operations.iter().filter_map(|raw| self.0.iter().find(|(own, _)| own == raw));
        let medians: Vec<(f64, f64)> =
            summaries.map(|(_, own)| (own.median, own.median * own.relative_error())).collect();
        let median: f64 = medians.iter().map(|(median, _)| median).sum();
        let error: f64 = medians.iter().map(|(_, error)| error * error).sum::<f64>().sqrt();
        let name = if operations.is_empty() { String::new() } else { "system calls".to_owned() };
        Baseline { name, median, relative_error: if median > 0.0 { error / median } else { 0.0 } }
    }
}

/// Measures all operations in a pool, and adds them to the report.
pub fn measure(run: &mut Run, pool: &Path, targets: &Path, amount: &Amount) -> Result<Floor> {
    run.tell("the floor: system calls of one process");
    let place = Place::make(pool, targets)?;
    let measured =
        place.measure(run, amount.calls.min(200)).and_then(|raw| Ok((raw, place.creations(amount.calls, amount)?)));
    let removed = place.remove();
    let (raw, creations) = measured?;
    let floor = Floor(raw);
    removed?;
    for (raw, summary) in &floor.0 {
        run.add("floor", raw.name(), "", Unit::Microseconds, *summary, None);
    }
    for (threads, rate) in creations {
        let alone = run.report.find("floor", CREATIONS, &at_once(1)).map(|own| own.as_baseline("one at a time"));
        run.add("floor", CREATIONS, &at_once(threads), Unit::PerSecond, Summary::of(&[rate]), alone);
    }
    Ok(floor)
}

fn at_once(threads: usize) -> String {
    format!("{threads} at a time")
}

/// The times of one bind mount and one unmount, with everything else that is already mounted.
pub fn measure_mounts(pool: &Path, targets: &Path, rounds: usize) -> Result<[Summary; 2]> {
    let place = Place::make(pool, targets)?;
    let measured = place.make_all(rounds).and_then(|_| place.bind_and_unmount(rounds));
    place.remove()?;
    measured
}

struct Place {
    inside: PathBuf,
    targets: PathBuf,
}

impl Place {
    fn make(pool: &Path, targets: &Path) -> Result<Self> {
        // Does not clash with volumes: a volume id starts with a letter.
        let (inside, targets) = (pool.join(".floor"), targets.join(".floor"));
        fs::create_dir(&inside)?;
        fs::create_dir(&targets)?;
        Ok(Self { inside, targets })
    }

    fn remove(&self) -> Result<()> {
        bulkhead_tests::observe::mounts::unmount_all(&self.targets)?;
        fs::remove_dir_all(&self.inside)?;
        Ok(fs::remove_dir_all(&self.targets)?)
    }

    fn volume(&self, number: usize) -> PathBuf {
        self.inside.join(format!("d{number}"))
    }

    fn image(&self, number: usize) -> PathBuf {
        self.inside.join(format!("i{number}/image"))
    }

    fn measure(&self, run: &mut Run, rounds: usize) -> Result<Vec<(Raw, Summary)>> {
        let mut all = vec![(Raw::MakeDirectory, self.make_all(rounds)?)];
        all.push((Raw::MakeImage, repeat(rounds, |number| self.make_image(number))?));
        all.push((Raw::GrowImage, repeat(rounds, |number| grow(&self.image(number)))?));
        all.push((Raw::Sync, self.sync(rounds)?));
        all.push((Raw::SyncedRecord, repeat(rounds, |number| synced_record(&self.volume(number)))?));
        let [bound, unmounted] = self.bind_and_unmount(rounds)?;
        all.extend([(Raw::BindDirectory, bound), (Raw::UnmountDirectory, unmounted)]);
        let [bound, unmounted] = self.nodes(rounds)?;
        all.extend([(Raw::BindNode, bound), (Raw::UnmountNode, unmounted)]);
        match loop_devices(&self.image(0), rounds) {
            Ok([attached, detached]) => all.extend([(Raw::Attach, attached), (Raw::Detach, detached)]),
            Err(error) => run.leave_out(format!("system calls of loop devices: {error:#}")),
        }
        let renamed =
            repeat(rounds, |number| rename(&self.volume(number), &self.inside.join(format!(".gone{number}"))))?;
        all.push((Raw::Rename, renamed));
        all.push((Raw::RoundTrip, round_trips(rounds * 10)?));
        Ok(all)
    }

    fn make_all(&self, rounds: usize) -> Result<Summary> {
        repeat(rounds, |number| self.make_directory(&format!("d{number}")))
    }

    fn make_directory(&self, name: &str) -> Result<()> {
        let unfinished = self.inside.join(format!(".{name}"));
        fs::create_dir(&unfinished)?;
        fs::create_dir(unfinished.join("data"))?;
        rustix::fs::setxattr(&unfinished, "trusted.bench", &RECORD, XattrFlags::empty())?;
        rename(&unfinished, &self.inside.join(name))
    }

    fn make_image(&self, number: usize) -> Result<()> {
        let unfinished = self.inside.join(format!(".i{number}"));
        fs::create_dir(&unfinished)?;
        rustix::fs::setxattr(&unfinished, "trusted.bench", &RECORD, XattrFlags::empty())?;
        let image = File::create(unfinished.join("image"))?;
        rustix::fs::fallocate(&image, FallocateFlags::empty(), 0, SIZE)?;
        rename(&unfinished, &self.inside.join(format!("i{number}")))
    }

    /// Returns how many volumes per second the system calls behind a creation can make, with as many threads as there
    /// are concurrent calls.
    fn creations(&self, each: usize, amount: &Amount) -> Result<Vec<(usize, f64)>> {
        let rate = |&threads: &usize| {
            let total = each.max(threads * 2);
            let next = AtomicUsize::new(0);
            let start = Instant::now();
            std::thread::scope(|scope| {
                let work = || -> Result<()> {
                    let directory = File::open(&self.inside)?;
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= total {
                            return Ok(());
                        }
                        self.make_directory(&format!("c{threads}-{number}"))?;
                        directory.sync_all()?;
                    }
                };
                let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
                workers.into_iter().try_for_each(|worker| worker.join().map_err(|_| anyhow!("a thread panicked"))?)
            })?;
            Ok((threads, total as f64 / start.elapsed().as_secs_f64()))
        };
        amount.in_flight.iter().map(rate).collect()
    }

    /// Only the sync is timed, not the changes that it makes durable.
    fn sync(&self, rounds: usize) -> Result<Summary> {
        let directory = File::open(&self.inside)?;
        let mut times = Vec::new();
        for number in 0..rounds {
            self.make_directory(&format!("s{number}"))?;
            let start = Instant::now();
            directory.sync_all()?;
            times.push(start.elapsed());
        }
        Ok(Summary::of_times(&times))
    }

    fn bind_and_unmount(&self, rounds: usize) -> Result<[Summary; 2]> {
        let target = |number| self.targets.join(format!("t{number}/mount"));
        self.make_parents(rounds, target)?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        let bound = repeat(rounds, |number| {
            fs::create_dir(target(number))?;
            bind(&self.volume(number).join("data"), &target(number), flags)
        })?;
        let unmounted = repeat(rounds, |number| {
            rustix::mount::unmount(target(number), UnmountFlags::NOFOLLOW)?;
            Ok(fs::remove_dir(target(number))?)
        })?;
        Ok([bound, unmounted])
    }

    /// A directory for each target, as a kubelet makes it: filesystems spread out directories, together with their
    /// contents.
    fn make_parents(&self, rounds: usize, target: impl Fn(usize) -> PathBuf) -> Result<()> {
        (0..rounds).try_for_each(|number| Ok(fs::create_dir(target(number).parent().context("a target's parent")?)?))
    }

    fn nodes(&self, rounds: usize) -> Result<[Summary; 2]> {
        let target = |number| self.targets.join(format!("n{number}/pod"));
        let node = |number| self.targets.join(format!(".n{number}"));
        self.make_parents(rounds, target)?;
        let (null, mode) = (rustix::fs::makedev(1, 3), Mode::RUSR | Mode::WUSR);
        let bound = repeat(rounds, |number| {
            rustix::fs::mknodat(CWD, node(number), FileType::CharacterDevice, mode, null)?;
            File::create(target(number))?;
            bind(&node(number), &target(number), MountFlags::NOSUID | MountFlags::NOEXEC)
        })?;
        let unmounted = repeat(rounds, |number| {
            rustix::mount::unmount(target(number), UnmountFlags::NOFOLLOW)?;
            Ok(fs::remove_file(target(number))?)
        })?;
        Ok([bound, unmounted])
    }
}

fn repeat(rounds: usize, mut act: impl FnMut(usize) -> Result<()>) -> Result<Summary> {
    let mut times: Vec<Duration> = Vec::with_capacity(rounds);
    for number in 0..rounds {
        let start = Instant::now();
        act(number)?;
        times.push(start.elapsed());
    }
    Ok(Summary::of_times(&times))
}

fn rename(from: &Path, to: &Path) -> Result<()> {
    Ok(rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)?)
}

fn grow(image: &Path) -> Result<()> {
    let image = File::options().write(true).open(image)?;
    rustix::fs::fallocate(&image, FallocateFlags::KEEP_SIZE, SIZE, SIZE)?;
    Ok(rustix::fs::ftruncate(&image, 2 * SIZE)?)
}

fn synced_record(directory: &Path) -> Result<()> {
    let directory = File::open(directory)?;
    rustix::fs::fsetxattr(&directory, "trusted.bench", &RECORD, XattrFlags::empty())?;
    // Otherwise XFS finds nothing to write, as only the attribute has changed.
    let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
    let times = rustix::fs::Timestamps { last_access: now, last_modification: now };
    rustix::fs::utimensat(&directory, ".", &times, AtFlags::empty())?;
    Ok(directory.sync_all()?)
}

/// Sets flags by a remount, because mount_setattr(2) needs unsafe code: the two calls cost the same.
fn bind(source: &Path, target: &Path, flags: MountFlags) -> Result<()> {
    let clone = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let mount = rustix::mount::open_tree(CWD, source, clone)?;
    rustix::mount::move_mount(&mount, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    Ok(rustix::mount::mount_remount(target, MountFlags::BIND | flags, "")?)
}

#[derive(Deserialize)]
struct LoopTimes {
    attach: Vec<f64>,
    detach: Vec<f64>,
}

fn loop_devices(image: &Path, rounds: usize) -> Result<[Summary; 2]> {
    let script = include_str!("loop_devices.py");
    let mut command = Command::new("/usr/bin/python3");
    let printed = output(command.args(["-c", script]).arg(image).arg(rounds.to_string()))?;
    let times: LoopTimes = serde_json::from_str(&printed)?;
    Ok([Summary::of(&times.attach), Summary::of(&times.detach)])
}

/// A packet to another thread and one back, as small as most requests.
fn round_trips(rounds: usize) -> Result<Summary> {
    let (near, far) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let echo = std::thread::spawn(move || -> Result<()> {
        let mut packet = [0; 256];
        loop {
            let (length, _) = rustix::net::recv(&far, &mut packet, RecvFlags::empty())?;
            if length == 0 {
                return Ok(());
            }
            rustix::net::send(&far, &packet[..length], SendFlags::NOSIGNAL)?;
        }
    });
    let mut packet = [0; 256];
    let trips = repeat(rounds, |_| {
        rustix::net::send(&near, &RECORD, SendFlags::NOSIGNAL)?;
        rustix::net::recv(&near, &mut packet, RecvFlags::empty())?;
        Ok(())
    });
    drop(near);
    echo.join().map_err(|_| anyhow!("the other side panicked"))??;
    trips
}
