//! What a keeper can still do when an attacker has taken it over: it makes the attacker's system calls, and asks the placer
//! for what the attacker likes, by a client that shares no code with either.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::helper::{bind, create, delete, directory_spec, unbind};
use bulkhead_tests::observe::{loops, mounts, processes};
use bulkhead_tests::pool::run;
use bulkhead_tests::rig::Rig;
use bulkhead_tests::takeover::Argument::{Bytes, Number};
use bulkhead_tests::takeover::{Outcome, Takeover};
use nix::errno::Errno;
use nix::libc;
use rustix::process::Signal;

cases! {
    a_keeper_that_is_taken_over_opens_nothing_beside_its_pools,
    what_a_keeper_that_is_taken_over_asks_for_is_checked: Bare,
    stopped_processes_end_with_a_keeper_that_is_killed: Bare,
}

/// What a pod must not lose: a token, say, that the kubelet projects.
const SECRET: &str = "token";

fn a_keeper_that_is_taken_over_opens_nothing_beside_its_pools(rig: &mut Rig) -> Result<()> {
    fs::write(rig.kubelet.pods().join(SECRET), "secret")?;
    let helper = rig.helper_pid()?;
    let directories = open_directories(helper)?;
    ensure!(!directories.is_empty(), "it has no directory open");
    let mut keeper = Takeover::of(thread_of(helper)?, rig.patience(Duration::from_secs(5)))?;
    let ways = ["", "/", "..", "../..", "/publish", "/publish/kubelet-pods", "/bulkhead-devices", "/proc", "/etc"];
    for directory in directories.into_iter().chain([libc::AT_FDCWD.into()]) {
        for way in ways.into_iter().filter(|way| !way.is_empty()) {
            for end in ["", "/publish/kubelet-pods/token", "/kubelet-pods/token", "/token"] {
                let path = format!("{way}{end}\0");
                let how = [u64::try_from(libc::O_RDONLY)?, 0, 0].map(u64::to_ne_bytes).concat();
                let arguments = [Number(directory), Bytes(path.as_bytes()), Bytes(&how), Number(24)];
                let opened = keeper.call(libc::SYS_openat2, &arguments)?;
                ensure!(matches!(opened, Outcome::Refused(_)), "{directory} {path:?}: {opened:?}");
            }
        }
    }
    // A pool is its own.
    let pool = b"/bulkhead-pools/default\0";
    let how = [u64::try_from(libc::O_RDONLY | libc::O_DIRECTORY)?, 0, 0].map(u64::to_ne_bytes).concat();
    let opened =
        keeper.call(libc::SYS_openat2, &[Number(libc::AT_FDCWD.into()), Bytes(pool), Bytes(&how), Number(24)])?;
    ensure!(matches!(opened, Outcome::Done(_)), "its own work is left to it: {opened:?}");
    // No capability can be raised.
    let header = [0x2008_0522_u32, 0].map(u32::to_ne_bytes).concat();
    for capability in [1_u32 << 21, 1 << 27, 1 << 1] {
        let data = [capability, capability, 0, 0, 0, 0].map(u32::to_ne_bytes).concat();
        let raised = keeper.call(libc::SYS_capset, &[Bytes(&header), Bytes(&data)])?;
        ensure!(raised == Outcome::Refused(Errno::EPERM), "{raised:?}");
    }
    let unmounted = keeper.call(libc::SYS_umount2, &[Bytes(pool), Number(8)])?;
    ensure!(unmounted == Outcome::Killed, "{unmounted:?}");
    drop(keeper);
    fs::remove_file(rig.kubelet.pods().join(SECRET))?;
    rig.abandon();
    rig.start_helper()
}

/// A thread of a process that waits for something, other than its first.
fn thread_of(process: i32) -> Result<i32> {
    let mut threads = Vec::new();
    for thread in fs::read_dir(format!("/proc/{process}/task"))? {
        threads.push(thread?.file_name().to_string_lossy().parse::<i32>()?);
    }
    threads.sort_unstable();
    threads.pop().context("it has a thread")
}

/// The descriptors of a process that are directories.
fn open_directories(process: i32) -> Result<Vec<i64>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(format!("/proc/{process}/fd"))? {
        let entry = entry?;
        if fs::metadata(entry.path()).is_ok_and(|found| found.is_dir()) {
            found.push(entry.file_name().to_string_lossy().parse()?);
        }
    }
    Ok(found)
}

/// A line to the placer, in a keeper that is taken over.
struct Line {
    keeper: Takeover,
    line: i64,
}

/// The placer's requests by their numbers, as `privhelper/src/place/wire.rs` has them.
const BIND: u32 = 0;
const UNBIND: u32 = 1;
const LOOK: u32 = 2;
const IS_MOVED: u32 = 4;
const OPEN: u32 = 5;
const COMMAND: u32 = 6;
const SET_QUOTA: u32 = 9;
const FILESYSTEM: u32 = 10;

/// Why something is not done, by the numbers of the same file: it is refused, or a system call has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    Refused(u32),
    Kernel(u32),
}

const NO_PUBLISH_DIRECTORY: Failure = Failure::Refused(0);
const NO_FILESYSTEMS: Failure = Failure::Refused(2);
const SHAPE: Failure = Failure::Refused(3);
const RECORD_MISSING: Failure = Failure::Refused(4);
const MOUNTED: Failure = Failure::Refused(13);
const OF_NOBODY: Failure = Failure::Refused(20);
const REPLACED: Failure = Failure::Refused(22);

/// A packet: numbers in little endian, texts with their lengths before them.
#[derive(Default)]
struct Packet(Vec<u8>);

impl Packet {
    fn of(request: u32) -> Self {
        Self(request.to_le_bytes().to_vec())
    }

    fn byte(mut self, value: u8) -> Self {
        self.0.push(value);
        self
    }

    fn number(mut self, value: u32) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn long(mut self, value: u64) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn text(mut self, text: &str) -> Self {
        self.0.extend(u64::try_from(text.len()).unwrap_or_default().to_le_bytes());
        self.0.extend(text.as_bytes());
        self
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    fn target(self, directory: &str, path: &str) -> Self {
        self.text(directory).text(path)
    }

    /// A device, major and minor, and an inode.
    fn file(self, path: &Path) -> Result<Self> {
        let found = fs::metadata(path)?;
        let device = found.dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        Ok(self.number(major).number(minor).long(found.ino()))
    }

    /// What is bound: a pool, a kind, a file, and perhaps the number of a device.
    fn content(self, kind: u32, path: &Path, device: Option<u32>) -> Result<Self> {
        let content = self.text("default").number(kind).file(path)?;
        Ok(match device {
            Some(number) => content.byte(1).number(number),
            None => content.byte(0),
        })
    }
}

impl Line {
    /// Takes over a keeper, and finds a line.
    fn take(rig: &Rig) -> Result<Self> {
        let helper = rig.helper_pid()?;
        let mut keeper = Takeover::of(thread_of(helper)?, rig.patience(Duration::from_secs(5)))?;
        let mut sockets = Vec::new();
        for entry in fs::read_dir(format!("/proc/{helper}/fd"))? {
            let entry = entry?;
            if fs::read_link(entry.path()).is_ok_and(|link| link.to_string_lossy().starts_with("socket:")) {
                sockets.push(entry.file_name().to_string_lossy().parse::<i64>()?);
            }
        }
        sockets.sort_unstable();
        for line in sockets.into_iter().rev() {
            let mut candidate = Self { keeper, line };
            if candidate.ask(&Packet::of(IS_MOVED).text("work")).is_ok_and(|answer| answer.len() == 9) {
                return Ok(candidate);
            }
            keeper = candidate.keeper;
        }
        bail!("no line is found")
    }

    /// Sends a packet, and returns the answer.
    fn ask(&mut self, packet: &Packet) -> Result<Vec<u8>> {
        let address = self.keeper.address();
        let message = super::super::filesystems::message(address, &packet.0)?;
        let sent = self.keeper.call(libc::SYS_sendmsg, &[Number(self.line), Bytes(&message), Number(0x40)])?;
        ensure!(matches!(sent, Outcome::Done(_)), "{sent:?}");
        let (room, mut tries) = (vec![0; 4096], 0);
        loop {
            let arguments = [Number(self.line), Bytes(&room), Number(4096), Number(0x40), Number(0), Number(0)];
            match self.keeper.call(libc::SYS_recvfrom, &arguments)? {
                Outcome::Done(length) => return self.keeper.read(usize::try_from(length)?),
                Outcome::Refused(Errno::EAGAIN) if tries < 100 => tries += 1,
                other => bail!("{other:?}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Checks that what a packet asks for is not done, for this reason.
    fn refused(&mut self, what: &str, packet: &Packet, expected: Failure) -> Result<()> {
        let answer = self.ask(packet).with_context(|| what.to_owned())?;
        let number =
            |at: usize| answer.get(at..at + 4).map(|four| u32::from_le_bytes([four[0], four[1], four[2], four[3]]));
        let failure = match [0, 4, 8].map(number) {
            [Some(1), Some(0), Some(refusal)] => Some(Failure::Refused(refusal)),
            [Some(1), Some(1), Some(errno)] => Some(Failure::Kernel(errno)),
            _ => None,
        };
        ensure!(failure == Some(expected), "{what}: {answer:?}");
        Ok(())
    }
}

fn what_a_keeper_that_is_taken_over_asks_for_is_checked(rig: &mut Rig) -> Result<()> {
    let helper = rig.started_helper()?;
    for volume in ["vol-a", "vol-b"] {
        helper.ask(&create(volume, directory_spec(1 << 20)))?;
    }
    helper.ask(&bind("vol-a", "a"))?;
    let (foreign, outside) = (rig.target("foreign"), rig.work().join("outside"));
    fs::create_dir(&foreign)?;
    fs::create_dir(&outside)?;
    run(std::process::Command::new("mount").args(["--bind"]).arg(&outside).arg(&foreign))?;
    let at = "pod-1/volumes/kubernetes.io~csi/pv-a/mount";
    fs::create_dir_all(rig.kubelet.pods().join("pod-1/volumes/kubernetes.io~csi/pv-a"))?;
    let data = rig.pool().volume("vol-a").join("data");
    let mut line = Line::take(rig)?;
    let none = |packet: Packet| packet.byte(0).byte(0).byte(0).byte(0);
    let bind_to = |directory: &str, path: &str, kind, content: &Path, device| -> Result<Packet> {
        Ok(none(Packet::of(BIND).text("vol-a").content(kind, content, device)?.target(directory, path)))
    };
    line.refused("without a record", &bind_to("kubelet-pods", at, 0, &data, None)?, RECORD_MISSING)?;
    line.refused("another path", &bind_to("kubelet-pods", "pod-1/x", 0, &data, None)?, SHAPE)?;
    line.refused("another directory", &bind_to("work", "b", 0, &outside, None)?, REPLACED)?;
    line.refused(
        "another's device",
        &bind_to("work", "b", 1, &data, Some(7))?,
        Failure::Kernel(libc::EPERM.cast_unsigned()),
    )?;
    line.refused("what is there", &bind_to("work", "foreign", 0, &data, None)?, MOUNTED)?;
    // A mount of the host, which the keeper claims was published: what the placer says of it lies between the directory that
    // holds it and the device that it is not.
    let looked = line.ask(&Packet::of(LOOK).target("work", "foreign").byte(0))?;
    let found = looked.get(24..looked.len() - 1).context("it is looked at")?;
    let unbind_found = |directory: &str, path: &str, found: &[u8]| {
        Packet::of(UNBIND).target(directory, path).number(0).bytes(found).byte(1)
    };
    line.refused("a mount of the host", &unbind_found("work", "foreign", found), OF_NOBODY)?;
    // What is mounted there is another one than the keeper says.
    let another = line.ask(&unbind_found("work", "a", found))?;
    ensure!(another.last() == Some(&0), "{another:?}");
    // A directory of somebody else's, at which nothing is mounted.
    let empty = rig.target("empty");
    fs::create_dir(&empty)?;
    line.ask(&unbind_found("work", "empty", &[0]))?;
    fs::remove_dir(&empty).context("what was not made for a volume is not removed")?;
    let scratch = unbind_found("kubelet-pods", "pod-1/volumes/kubernetes.io~empty-dir/scratch", &[0]);
    line.refused("another driver's directory", &scratch, SHAPE)?;
    for number in [0_u32, 7, 0x7_ffff, 0x10_0000] {
        let permission = Failure::Kernel(libc::EPERM.cast_unsigned());
        line.refused("another's device", &Packet::of(OPEN).number(number).number(2), permission)?;
        line.refused("its length", &Packet::of(COMMAND).number(number).number(2), permission)?;
    }
    // A device of another helper, and an image of its own, which is attached already.
    let image = outside.join("image");
    fs::File::create_new(&image)?.set_len(1 << 20)?;
    let other = loops::attach_as_helpers_do(&image, "vol-c")?;
    let name = other.file_name().context("a device has a name")?.to_string_lossy().into_owned();
    let number = name.trim_start_matches("loop").parse::<u32>()?;
    let is_busy = Failure::Kernel(libc::EBUSY.cast_unsigned());
    line.refused("another helper's device", &Packet::of(OPEN).number(number).number(2), is_busy)?;
    for command in [Packet::of(COMMAND).number(number).number(0).byte(1), Packet::of(COMMAND).number(number).number(1)]
    {
        line.refused("a change of another helper's device", &command, is_busy)?;
    }
    loops::remove(&[other])?;
    for project in [0_u32, 1, 99_999, 1_000_001, 1_048_577, u32::MAX] {
        let set = Packet::of(SET_QUOTA).text("default").number(project).long(1 << 20).long(1);
        line.refused("a project of others", &set, Failure::Kernel(libc::EPERM.cast_unsigned()))?;
    }
    let mount = Packet::of(FILESYSTEM).text("default").number(0x8_0000).number(1).text("vol-a").byte(0);
    line.refused("a mount where there are none", &mount, NO_FILESYSTEMS)?;
    line.refused("a directory that is none", &Packet::of(LOOK).target("other", "a").byte(0), NO_PUBLISH_DIRECTORY)?;
    // No type of the protocol has such a value: the line is closed.
    let closed = line.ask(&none(Packet::of(BIND).text("../vol-a").content(0, &data, None)?.target("work", "b")));
    ensure!(closed.as_ref().is_ok_and(Vec::is_empty), "{closed:?}");
    drop(line);
    ensure!(mounts::below(&rig.publish_directory())?.len() == 2, "{:?}", mounts::below(&rig.publish_directory())?);
    run(std::process::Command::new("umount").arg(&foreign))?;
    fs::remove_dir(&foreign)?;
    fs::remove_dir_all(rig.kubelet.pods().join("pod-1"))?;
    // The helper ends when it comes to the closed line.
    rig.abandon();
    rig.start_helper()?;
    let helper = rig.helper()?;
    helper.ask_all([unbind("vol-a", "a"), delete("vol-a"), delete("vol-b")])
}

fn stopped_processes_end_with_a_keeper_that_is_killed(rig: &mut Rig) -> Result<()> {
    rig.started_helper()?;
    let helper = rig.helper_pid()?;
    let others = processes::descendants(helper)?;
    ensure!(others.len() >= 2, "{others:?}");
    for other in &others {
        processes::signal(other.pid, Signal::STOP)?;
    }
    rig.kill_helper()?;
    rig.eventually(5, || {
        let lives = |pid| processes::status(pid, "State").is_ok_and(|state| !state.starts_with('Z'));
        let left: Vec<_> = others.iter().filter(|other| lives(other.pid)).collect();
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    })?;
    rig.start_helper()
}
