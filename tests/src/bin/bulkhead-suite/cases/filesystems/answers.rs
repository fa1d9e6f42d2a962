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

use super::{SIZE, check_detached, check_image, confined, make_pool, start};

cases! {
    a_mounter_chooses_neither_filesystem_nor_device_nor_option: Bare,
    what_is_not_the_mount_that_was_asked_for_ends_the_helper: Bare,
    nor_is_a_mount_placed_that_no_filter_has_prevented: Bare,
    an_error_with_whatever_comes_beside_it_is_an_error: Bare,
    a_mount_that_fails_with_an_input_output_error_is_tried_again: Bare,
    a_mount_with_something_beside_it_is_that_mount: Bare,
    a_mount_that_a_mounter_keeps_is_not_let_go_before_its_end: Bare,
}

/// Commands of fsconfig(2): a flag, a string, and to make the filesystem.
const FLAG: i64 = 0;
const STRING: i64 = 1;
const CREATE: i64 = 6;

/// A mounter that is taken over while it is asked for a mount.
pub(super) struct Taken {
    taken: Takeover,
    pid: i32,
    /// Its connection to the server.
    connection: i64,
    /// The line over which the server awaits the answer.
    line: i64,
    /// What the placer has configured.
    context: i64,
    /// The path of the device of which a mount is asked for.
    device: String,
    /// The connection on which that was asked.
    client: HelperClient,
}

impl Taken {
    /// Takes over the mounter, and then asks for vol-a's filesystem.
    pub(super) fn start(rig: &Rig) -> Result<Self> {
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
        let mut taken = Self { taken, pid, connection, line: 0, context: 0, device, client };
        (taken.line, taken.context) = taken.asked()?;
        Ok(taken)
    }

    /// Receives a line, and over it what is to become a mount.
    fn asked(&mut self) -> Result<(i64, i64)> {
        let line = self.received(self.connection, 1)?;
        Ok((line, self.received(line, 4)?))
    }

    /// Receives a packet of this length, and returns the descriptor that has come with it.
    fn received(&mut self, connection: i64, length: usize) -> Result<i64> {
        let before = open_numbers(self.pid)?;
        let packet = message(self.taken.address(), &[0; 16], &[0])?;
        let flags = Number(libc::MSG_CMSG_CLOEXEC.into());
        let received = self.call(libc::SYS_recvmsg, &[Number(connection), Bytes(&packet), flags])?;
        ensure!(usize::try_from(received)? == length, "{received} bytes were received");
        open_numbers(self.pid)?.into_iter().find(|number| !before.contains(number)).context("nothing has come with it")
    }

    /// Is asked for the filesystem of another volume besides, and hands over the mount of the first in its place.
    pub(super) fn exchange(mut self, rig: &Rig, volume: &str) -> Result<Option<Response>> {
        let other = rig.helper()?;
        other.send(&encode(&mount_filesystem(volume))?)?;
        let mount = self.asked_mount()?;
        (self.line, _) = self.asked()?;
        well(&mut self, mount)?;
        self.client = other;
        self.end(rig)
    }

    fn call(&mut self, call: i64, arguments: &[Argument]) -> Result<i64> {
        match self.taken.call(call, arguments)? {
            Outcome::Done(value) => Ok(value),
            other => bail!("call {call}: {other:?}"),
        }
    }

    /// Makes the mount that was asked for.
    fn asked_mount(&mut self) -> Result<i64> {
        self.made(self.context)
    }

    /// Makes a mount of what is configured.
    fn made(&mut self, context: i64) -> Result<i64> {
        self.call(libc::SYS_fsconfig, &[Number(context), Number(CREATE), Number(0), Number(0), Number(0)])?;
        self.call(libc::SYS_fsmount, &[Number(context), Number(1), Number(6)])
    }

    /// Makes a mount of a filesystem with these options, which its filter must only log.
    fn mount(&mut self, filesystem: &str, options: &[(&str, Option<&str>)]) -> Result<i64> {
        let context = self.call(libc::SYS_fsopen, &[Bytes(format!("{filesystem}\0").as_bytes()), Number(1)])?;
        for (key, value) in options {
            let (key, value) = (format!("{key}\0"), value.map(|value| format!("{value}\0")));
            let command = Number(if value.is_some() { STRING } else { FLAG });
            let value = value.as_ref().map_or(Number(0), |value| Bytes(value.as_bytes()));
            self.call(libc::SYS_fsconfig, &[Number(context), command, Bytes(key.as_bytes()), value, Number(0)])?;
        }
        self.made(context)
    }

    /// A mount of the filesystem on the device with these options besides, in the same way.
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

/// What `vol-a` is mounted with, as the kernel says it: the placer's options, and what is the kernel's own default.
const OPTIONS: [&str; 10] =
    ["rw", "nosuid", "nodev", "relatime", "nouuid", "attr2", "inode64", "noquota", "logbufs=8", "logbsize=32k"];

/// Its filter lets it make the mount that was asked for, and set nothing before that or afterwards.
fn a_mounter_chooses_neither_filesystem_nor_device_nor_option(rig: &mut Rig) -> Result<()> {
    start(rig, 3)?;
    rig.helper()?.ask(&create("vol-a", filesystem_spec(SIZE)))?;
    let (open, configure, mount) = (libc::SYS_fsopen, libc::SYS_fsconfig, libc::SYS_fsmount);
    let (xfs, device, nothing) = (Bytes(b"xfs\0"), Bytes(b"/loop0\0"), Number(0));
    let flag = |option: &'static [u8]| vec![Number(FLAG), Bytes(option), nothing, nothing];
    let string = |option: &'static [u8]| vec![Number(STRING), Bytes(option), device, nothing];
    let tries: [(&str, i64, Vec<Argument>); 11] = [
        ("another filesystem", open, vec![xfs, Number(1)]),
        ("discard", configure, flag(b"discard\0")),
        ("norecovery", configure, flag(b"norecovery\0")),
        ("sync", configure, flag(b"sync\0")),
        ("ro", configure, flag(b"ro\0")),
        ("another device", configure, string(b"source\0")),
        ("a log elsewhere", configure, string(b"logdev\0")),
        ("other options for what is mounted", configure, vec![Number(7), nothing, nothing, nothing]),
        ("with device nodes", mount, vec![Number(1), Number(2)]),
        ("what is mounted", libc::SYS_mount_setattr, vec![Bytes(b"\0"), Number(0x1000), Bytes(&[0; 32]), Number(32)]),
        ("the context of a mount", libc::SYS_fspick, vec![Bytes(b"\0"), Number(8)]),
    ];
    for (what, call, rest) in tries {
        let mut taken = Taken::start(rig)?;
        let arguments = if call == open { rest } else { [vec![Number(taken.context)], rest].concat() };
        let outcome = taken.taken.call(call, &arguments)?;
        ensure!(outcome == Outcome::Killed, "{what}: {outcome:?}");
        drop(taken);
        rig.end_of_helper(rig.patience(Duration::from_secs(10))).context(what)?;
        rig.start_helper()?;
    }
    check_all_is_well(rig)?;
    let helper = rig.helper()?;
    helper.ask_all([mount_filesystem("vol-a"), bind("vol-a", "a")])?;
    let shown = mounts::below(&rig.publish_directory())?;
    let [shown] = &shown[..] else { bail!("{shown:?}") };
    let all = shown.options.iter().chain(&shown.super_options);
    let other: Vec<_> = all.filter(|option| !OPTIONS.contains(&option.as_str())).collect();
    ensure!(other.is_empty(), "{other:?} in {shown:?}");
    helper.ask_all([unbind("vol-a", "a"), unmount_filesystem("vol-a"), delete("vol-a")])
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

const WRONG: [Answer; 8] = [
    ("nothing", |taken| taken.answer(&[0; 4], &[])),
    ("a short packet", |taken| taken.answer(&[0; 3], &[])),
    ("a long packet", |taken| taken.answer(&[0; 5], &[])),
    ("a long packet with the mount", |taken| {
        let mount = taken.asked_mount()?;
        taken.answer(&[0; 8], &[mount])
    }),
    ("its own connection", |taken| well(taken, taken.connection)),
    ("what was to be mounted", |taken| well(taken, taken.context)),
    ("the same, once it is mounted", |taken| {
        taken.asked_mount()?;
        well(taken, taken.context)
    }),
    ("standard error", |taken| well(taken, 2)),
];

/// What a mounter can make only while its filter logs what it does not allow.
const PREVENTED: [Answer; 7] = [
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
    check_refused(rig, &WRONG)
}

/// The placer checks a mount as if there were no filter.
fn nor_is_a_mount_placed_that_no_filter_has_prevented(rig: &mut Rig) -> Result<()> {
    make_pool(rig, 3)?;
    rig.helper_flags.push("--seccomp=log".to_owned());
    rig.start_helper()?;
    check_refused(rig, &PREVENTED)
}

/// Checks that the helper ends at each of these answers, and that the next one serves.
fn check_refused(rig: &mut Rig, answers: &[Answer]) -> Result<()> {
    rig.helper()?.ask(&create("vol-a", filesystem_spec(SIZE)))?;
    let mut said = 0;
    for (what, answer) in answers {
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
        tried().context(*what)?;
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
    for (errno, wanted, with_mount) in [(22, 22, false), (-1, 1, false), (i32::MIN, 1, true), (i32::MAX, 4095, true)] {
        let mut taken = Taken::start(rig)?;
        let mount = if with_mount { Some(taken.asked_mount()?) } else { None };
        taken.answer(&errno.to_ne_bytes(), mount.as_slice())?;
        let Some(Err(error)) = taken.end(rig)? else { bail!("{errno}: no error") };
        ensure!(error.kind == ErrorKind::Io(wanted), "{errno}: {error:?}");
        renew(rig).with_context(|| errno.to_string())?;
    }
    Ok(())
}

/// It may be the kernel's, which goes on at the next attempt: see docs/kernels.md.
fn a_mount_that_fails_with_an_input_output_error_is_tried_again(rig: &mut Rig) -> Result<()> {
    start(rig, 3)?;
    rig.helper()?.ask(&create("vol-a", filesystem_spec(SIZE)))?;
    let mut taken = Taken::start(rig)?;
    taken.answer(&5_i32.to_ne_bytes(), &[])?;
    let answered = taken.end(rig)?;
    ensure!(matches!(answered, Some(Ok(_))), "{answered:?}");
    renew(rig)
}

fn a_mount_with_something_beside_it_is_that_mount(rig: &mut Rig) -> Result<()> {
    start(rig, 3)?;
    rig.helper()?.ask(&create("vol-a", filesystem_spec(SIZE)))?;
    let placer = processes::placer(rig.helper_pid()?)?;
    let mut taken = Taken::start(rig)?;
    let before = processes::descriptors(placer)?;
    let mount = taken.asked_mount()?;
    taken.answer(&[0; 4], &[mount, taken.context, taken.line])?;
    let answered = taken.end(rig)?;
    ensure!(matches!(answered, Some(Ok(_))), "{answered:?}");
    ensure!(processes::descriptors(placer)? <= before, "the placer keeps what came beside it");
    renew(rig)
}

/// It can hold up the end of its own pool's filesystems. Nothing is attached twice for that.
fn a_mount_that_a_mounter_keeps_is_not_let_go_before_its_end(rig: &mut Rig) -> Result<()> {
    start(rig, 3)?;
    rig.helper()?.ask(&create("vol-a", filesystem_spec(SIZE)))?;
    // It says that there is none, and keeps it.
    let mut taken = Taken::start(rig)?;
    let kept = taken.asked_mount()?;
    taken.answer(&12_i32.to_ne_bytes(), &[])?;
    let answered = taken.end(rig)?;
    ensure!(matches!(answered, Some(Err(_))), "{answered:?}");
    ensure!(open_numbers(confined(rig)?)?.contains(&kept), "it is kept");
    let helper = rig.helper()?;
    helper.ask(&mount_filesystem("vol-a"))?;
    for _ in 0..2 {
        denied(helper.request(&delete("vol-a"))?, ErrorKind::Busy, "")?;
    }
    rig.pool().only_device()?;
    renew(rig)
}
