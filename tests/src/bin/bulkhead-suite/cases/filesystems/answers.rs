//! Every answer that a mounter which was taken over can give: only the mount that was asked for is placed.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bulkhead_protocol::{ErrorKind, Response, decode, encode};
use bulkhead_tests::cases;
use bulkhead_tests::expect::denied;
use bulkhead_tests::helper::*;
use bulkhead_tests::observe::{mounts, processes};
use bulkhead_tests::rig::Rig;
use bulkhead_tests::takeover::Argument::{Bytes, Number};
use bulkhead_tests::takeover::{Argument, Outcome, Takeover};
use bulkhead_tests::wait;
use nix::libc;

use super::{SIZE, check_detached, check_image, confined, start};

cases! {
    what_is_not_the_mount_that_was_asked_for_ends_the_helper: Bare + Kernel,
    an_error_with_whatever_comes_beside_it_is_an_error: Bare,
    a_mount_with_something_beside_it_is_that_mount: Bare,
    a_mount_that_a_mounter_keeps_is_not_let_go_before_its_end: Bare + Kernel,
}

/// Commands of fsconfig(2): a flag, a string, and to make the filesystem.
const FLAG: i64 = 0;
const STRING: i64 = 1;
const CREATE: i64 = 6;

/// A mounter that is taken over while it is asked for a mount.
struct Taken {
    taken: Takeover,
    /// Its connection to the server.
    connection: i64,
    /// The line over which the server awaits the answer.
    line: i64,
    /// The path of the device of which a mount is asked for.
    device: String,
    /// The connection on which that was asked.
    client: HelperClient,
}

impl Taken {
    /// Takes over the mounter, and then asks for vol-a's filesystem.
    fn start(rig: &Rig) -> Result<Self> {
        let (pid, patience) = (confined(rig)?, rig.patience(Duration::from_secs(5)));
        let connection = *open_numbers(pid)?.first().context("a connection to the server")?;
        let mut taken = Takeover::of(pid, patience)?;
        // Version 3 of capset(2): CAP_SYS_ADMIN becomes effective.
        let header = [0x2008_0522_u32, 0].map(u32::to_ne_bytes).concat();
        let data = [1_u32 << 21, 1 << 21, 0, 0, 0, 0].map(u32::to_ne_bytes).concat();
        taken.call(libc::SYS_capset, &[Bytes(&header), Bytes(&data)])?;
        let client = rig.helper()?;
        client.send(&encode(&mount_filesystem("vol-a"))?)?;
        let device = wait::until(patience, || {
            let names = fs::read_dir(format!("/proc/{pid}/root"))?.map(|entry| Ok(entry?.file_name()));
            let names = names.collect::<Result<Vec<_>>>()?;
            let node = names.iter().filter_map(|name| name.to_str()).find(|name| name.starts_with("loop"));
            Ok(format!("/{}\0", node.context("there is no node yet")?))
        })?;
        let packet = message(taken.address(), &[0], &[0])?;
        let flags = Number(libc::MSG_CMSG_CLOEXEC.into());
        let received = taken.call(libc::SYS_recvmsg, &[Number(connection), Bytes(&packet), flags])?;
        ensure!(received == Outcome::Done(1), "{received:?}");
        let line = open_numbers(pid)?.into_iter().find(|number| *number != connection).context("a line")?;
        Ok(Self { taken, connection, line, device, client })
    }

    fn call(&mut self, call: i64, arguments: &[Argument]) -> Result<i64> {
        match self.taken.call(call, arguments)? {
            Outcome::Done(value) => Ok(value),
            other => bail!("call {call}: {other:?}"),
        }
    }

    /// Makes a mount of a filesystem with these options.
    fn mount(&mut self, filesystem: &str, options: &[(&str, Option<&str>)]) -> Result<i64> {
        let context = self.call(libc::SYS_fsopen, &[Bytes(format!("{filesystem}\0").as_bytes()), Number(1)])?;
        for (key, value) in options {
            let (key, value) = (format!("{key}\0"), value.map(|value| format!("{value}\0")));
            let command = Number(if value.is_some() { STRING } else { FLAG });
            let value = value.as_ref().map_or(Number(0), |value| Bytes(value.as_bytes()));
            self.call(libc::SYS_fsconfig, &[Number(context), command, Bytes(key.as_bytes()), value, Number(0)])?;
        }
        self.call(libc::SYS_fsconfig, &[Number(context), Number(CREATE), Number(0), Number(0), Number(0)])?;
        self.call(libc::SYS_fsmount, &[Number(context), Number(1), Number(6)])
    }

    /// A mount of the filesystem on the device.
    fn mount_of_device(&mut self, more: &[(&str, Option<&str>)]) -> Result<i64> {
        let device = self.device.trim_end_matches('\0').to_owned();
        self.mount("xfs", &[&[("source", Some(&*device)), ("nouuid", None)], more].concat())
    }

    /// Answers with these bytes and descriptors.
    fn answer(&mut self, text: &[u8], descriptors: &[i64]) -> Result<()> {
        let packet = message(self.taken.address(), text, descriptors)?;
        let sent = self.call(libc::SYS_sendmsg, &[Number(self.line), Bytes(&packet), Number(0)])?;
        ensure!(usize::try_from(sent)? == text.len(), "{sent} bytes were sent");
        Ok(())
    }

    /// Lets the mounter go on as it was, and returns what the client is answered, if anything.
    fn end(self, rig: &Rig) -> Result<Option<Response>> {
        let Self { taken, client, .. } = self;
        drop(taken);
        ensure!(client.is_answered(rig.patience(Duration::from_secs(10)))?, "no answer, and no end");
        let packet = client.receive()?;
        Ok(packet.map(|packet| decode(&packet)).transpose()?)
    }
}

/// The numbers of what a process has open besides what each has.
pub(super) fn open_numbers(pid: i32) -> Result<Vec<i64>> {
    let numbers = fs::read_dir(format!("/proc/{pid}/fd"))?;
    let numbers = numbers.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i64>().ok());
    Ok(numbers.filter(|number| *number > 2).collect())
}

/// `struct msghdr` at this address, and behind it all that it points to.
pub(super) fn message(address: u64, text: &[u8], descriptors: &[i64]) -> Result<Vec<u8>> {
    let (vector, content, control) = (address + 56, address + 72, address + 88);
    let length = u64::try_from(descriptors.len() * 4)? + 16;
    let has = !descriptors.is_empty();
    let mut padded = text.to_vec();
    padded.resize(16, 0);
    let words = [0, 0, vector, 1, control, if has { length.next_multiple_of(8) } else { 0 }, 0];
    let mut packet = words.map(u64::to_ne_bytes).concat();
    packet.extend([content, u64::try_from(text.len())?].map(u64::to_ne_bytes).concat());
    packet.extend(padded);
    packet.extend([length, u64::from(libc::SOL_SOCKET.cast_unsigned()) | 1 << 32].map(u64::to_ne_bytes).concat());
    for descriptor in descriptors {
        packet.extend(i32::try_from(*descriptor)?.to_ne_bytes());
    }
    packet.extend([0; 8]);
    Ok(packet)
}

/// Something that a mounter hands over as the answer.
type Answer = (&'static str, fn(&mut Taken) -> Result<()>);

/// That all went well, with a descriptor.
fn well(taken: &mut Taken, descriptor: i64) -> Result<()> {
    taken.answer(&[0; 4], &[descriptor])
}

/// A mount of another filesystem; a kernel that refuses to make it has a tmpfs handed over.
fn other(taken: &mut Taken, filesystem: &str) -> Result<()> {
    let mount = taken.mount(filesystem, &[]).or_else(|_| taken.mount("tmpfs", &[]))?;
    well(taken, mount)
}

const WRONG: [Answer; 14] = [
    ("nothing", |taken| taken.answer(&[0; 4], &[])),
    ("a short packet", |taken| taken.answer(&[0; 3], &[])),
    ("a long packet", |taken| taken.answer(&[0; 5], &[])),
    ("a long packet with the mount", |taken| {
        let mount = taken.mount_of_device(&[])?;
        taken.answer(&[0; 8], &[mount])
    }),
    ("its own connection", |taken| well(taken, taken.connection)),
    ("a context", |taken| {
        let context = taken.call(libc::SYS_fsopen, &[Bytes(b"xfs\0"), Number(1)])?;
        well(taken, context)
    }),
    ("standard error", |taken| well(taken, 2)),
    ("a tmpfs", |taken| {
        let mount = taken.mount("tmpfs", &[])?;
        well(taken, mount)
    }),
    ("processes", |taken| other(taken, "proc")),
    ("the kernel's objects", |taken| other(taken, "sysfs")),
    ("control groups", |taken| other(taken, "cgroup2")),
    ("terminals", |taken| other(taken, "devpts")),
    ("a read-only mount", |taken| {
        let mount = taken.mount_of_device(&[("ro", None)])?;
        well(taken, mount)
    }),
    ("one without recovery", |taken| {
        let mount = taken.mount_of_device(&[("ro", None), ("norecovery", None)])?;
        well(taken, mount)
    }),
];

fn what_is_not_the_mount_that_was_asked_for_ends_the_helper(rig: &mut Rig) -> Result<()> {
    start(rig, 3)?;
    rig.helper()?.ask(&create("vol-a", filesystem_spec(SIZE)))?;
    let mut said = 0;
    for (what, answer) in WRONG {
        let mut tried = || -> Result<()> {
            let mut taken = Taken::start(rig)?;
            answer(&mut taken)?;
            let answered = taken.end(rig)?;
            ensure!(answered.is_none(), "{answered:?}");
            rig.end_of_helper(rig.patience(Duration::from_secs(10)))?;
            let log = fs::read_to_string(rig.logs().join("helper.log"))?;
            ensure!(log[said..].contains("it cannot go on with a mounter"), "{log}");
            said = log.len();
            ensure!(mounts::below(&rig.publish_directory())?.is_empty());
            rig.start_helper()?;
            check_all_is_well(rig)
        };
        tried().context(what)?;
    }
    Ok(())
}

/// Starts the helper anew, with which everything is well again.
fn renew(rig: &mut Rig) -> Result<()> {
    rig.restart_helper()?;
    check_all_is_well(rig)
}

/// Checks that the volume can be used.
fn check_all_is_well(rig: &Rig) -> Result<()> {
    let helper = rig.helper()?;
    helper.ask_all([mount_filesystem("vol-a"), bind("vol-a", "a"), unbind("vol-a", "a")])?;
    helper.ask_patiently(&unmount_filesystem("vol-a"))?;
    check_detached(rig)?;
    check_image(rig, "vol-a")
}

fn an_error_with_whatever_comes_beside_it_is_an_error(rig: &mut Rig) -> Result<()> {
    start(rig, 3)?;
    rig.helper()?.ask(&create("vol-a", filesystem_spec(SIZE)))?;
    for (errno, wanted, with_mount) in [(5, 5, false), (-1, 1, false), (i32::MIN, 1, true), (i32::MAX, 4095, true)] {
        let mut taken = Taken::start(rig)?;
        let mount = if with_mount { Some(taken.mount_of_device(&[])?) } else { None };
        taken.answer(&errno.to_ne_bytes(), mount.as_slice())?;
        let Some(Err(error)) = taken.end(rig)? else { bail!("{errno}: no error") };
        ensure!(error.kind == ErrorKind::Io(wanted), "{errno}: {error:?}");
        renew(rig).with_context(|| errno.to_string())?;
    }
    Ok(())
}

fn a_mount_with_something_beside_it_is_that_mount(rig: &mut Rig) -> Result<()> {
    start(rig, 3)?;
    rig.helper()?.ask(&create("vol-a", filesystem_spec(SIZE)))?;
    let placer = processes::placer(rig.helper_pid()?)?;
    let mut taken = Taken::start(rig)?;
    let before = processes::descriptors(placer)?;
    let (mount, other) = (taken.mount_of_device(&[])?, taken.mount("tmpfs", &[])?);
    taken.answer(&[0; 4], &[mount, other, taken.line])?;
    let answered = taken.end(rig)?;
    ensure!(matches!(answered, Some(Ok(_))), "{answered:?}");
    ensure!(processes::descriptors(placer)? <= before, "the placer keeps what came beside it");
    renew(rig)
}

/// It can hold up the end of its own pool's filesystems. Nothing is attached twice for that.
fn a_mount_that_a_mounter_keeps_is_not_let_go_before_its_end(rig: &mut Rig) -> Result<()> {
    start(rig, 3)?;
    rig.helper()?.ask(&create("vol-a", filesystem_spec(SIZE)))?;
    let mut taken = Taken::start(rig)?;
    let (mount, kept) = (taken.mount_of_device(&[])?, taken.mount_of_device(&[])?);
    ensure!(mount != kept);
    well(&mut taken, mount)?;
    let answered = taken.end(rig)?;
    ensure!(matches!(answered, Some(Ok(_))), "{answered:?}");
    let helper = rig.helper()?;
    for _ in 0..2 {
        denied(helper.request(&delete("vol-a"))?, ErrorKind::Busy, "")?;
    }
    rig.pool().only_device()?;
    renew(rig)
}
