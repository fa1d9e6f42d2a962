//! A tenant alters its loop device in a way that cannot be undone while it has it open.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::attacker::node_like;
use bulkhead_tests::cases;
use bulkhead_tests::helper::*;
use bulkhead_tests::ids::own;
use bulkhead_tests::observe::loops;
use bulkhead_tests::rig::Rig;

cases! {
    a_device_whose_beginning_cannot_be_moved_back_does_not_keep_the_helper_from_starting,
    attempts_to_detach_a_device_whose_beginning_cannot_be_moved_back_leave_no_devices_behind,
    a_device_that_is_open_exclusively_does_not_keep_the_helper_from_starting,
}

const SIZE: u64 = 1 << 20;

/// A process without any capability that has moved the beginning of its device, and has a page of it mapped: the kernel
/// does not let the beginning be moved again (`EAGAIN`) as long as there are pages of the device in memory.
struct Tenant(Child);

impl Tenant {
    const MAP: &str = "
        open(my $device, '+<', $ARGV[0]) or exit 97;
        my $info = \"\\0\" x 232; ioctl($device, 0x4c05, $info) or exit 98;
        substr($info, 24, 8) = pack('Q', 4096);
        ioctl($device, 0x4c04, $info) or exit 96;
        syscall($ARGV[1], 0, 4096, 1, 0x8001, fileno($device), 0) != -1 or exit 95;
        $| = 1; print \"done\\n\"; <STDIN>;";
    /// O_RDWR | O_EXCL, after it has marked the device.
    const EXCLUSIVE: &str = "
        sysopen(my $device, $ARGV[0], 0202) or exit 97;
        my $info = \"\\0\" x 232; ioctl($device, 0x4c05, $info) or exit 98;
        substr($info, 52, 4) = pack('L', unpack('L', substr($info, 52, 4)) | 4);
        ioctl($device, 0x4c04, $info) or exit 96;
        $| = 1; print \"done\\n\"; <STDIN>;";

    fn start(script: &str, node: &Path) -> Result<Self> {
        let mmap = if cfg!(target_arch = "x86_64") { "9" } else { "222" };
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all", "--no-new-privs"]);
        command.args(["perl", "-e", script]).arg(node).arg(mmap);
        let mut tenant = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("run setpriv")?;
        let mut said = String::new();
        BufReader::new(tenant.stdout.take().context("its output")?).read_line(&mut said)?;
        if said != "done\n" {
            let status = tenant.wait()?;
            anyhow::bail!("the tenant ends with {status}");
        }
        Ok(Self(tenant))
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        // This closes its input first.
        let _ = self.0.wait();
    }
}

fn published(rig: &Rig) -> Result<PathBuf> {
    let helper = rig.helper()?;
    helper.ask_all([create(own("vol-a"), image_spec(SIZE)), attach(own("vol-a")), make_device(own("vol-a"), "a")])?;
    node_like(&rig.target("a"), &rig.work().join("own-node"))
}

fn take_down(rig: &Rig) -> Result<()> {
    let helper = rig.helper()?;
    helper.ask_all([remove_device(own("vol-a"), "a"), detach(own("vol-a"))])?;
    let left = loops::backed_by(&rig.pool().device()?)?;
    ensure!(left.is_empty(), "the device is said to be detached: {left:?}");
    helper.ask(&delete(own("vol-a"))).map(drop)
}

fn starts_beside(rig: &mut Rig, tenant: Tenant) -> Result<()> {
    rig.kill_helper()?;
    let started = rig.start_helper();
    if let Ok(()) = &started {
        let helper = rig.helper()?;
        helper.ask_all([create(own("vol-b"), directory_spec(SIZE)), bind(own("vol-b"), "b")])?;
        helper.ask_all([unbind(own("vol-b"), "b"), delete(own("vol-b"))])?;
    }
    drop(tenant);
    if started.is_err() {
        rig.abandon();
        rig.start_helper()?;
    }
    take_down(rig)?;
    started
}

fn a_device_whose_beginning_cannot_be_moved_back_does_not_keep_the_helper_from_starting(rig: &mut Rig) -> Result<()> {
    let node = published(rig)?;
    let tenant = Tenant::start(Tenant::MAP, &node)?;
    starts_beside(rig, tenant)
}

fn a_device_that_is_open_exclusively_does_not_keep_the_helper_from_starting(rig: &mut Rig) -> Result<()> {
    let node = published(rig)?;
    let tenant = Tenant::start(Tenant::EXCLUSIVE, &node)?;
    starts_beside(rig, tenant)
}

fn attempts_to_detach_a_device_whose_beginning_cannot_be_moved_back_leave_no_devices_behind(
    rig: &mut Rig,
) -> Result<()> {
    let node = published(rig)?;
    let helper = rig.helper()?;
    std::thread::sleep(Duration::from_millis(500));
    let first = rig.pool().only_device()?.number().context("a loop device without a number")?;
    let before = loops::made_since(first)?;
    let tenant = Tenant::start(Tenant::MAP, &node)?;
    helper.ask(&remove_device(own("vol-a"), "a"))?;
    for _ in 0..30 {
        let answer = helper.request(&detach(own("vol-a")))?;
        ensure!(answer.is_err(), "it is open");
    }
    // The kernel takes some time to remove them, the longer the more it has to do.
    let left = rig.eventually(10, || {
        let grown = loops::made_since(first)?.len().saturating_sub(before.len());
        ensure!(grown < 8, "{grown} more devices after 30 attempts");
        Ok(())
    });
    drop(tenant);
    let detached = rig.eventually(3, || helper.ask(&detach(own("vol-a"))).map(drop));
    if detached.is_err() {
        rig.restarted_helper()?.ask(&detach(own("vol-a")))?;
    }
    rig.helper()?.ask(&delete(own("vol-a")))?;
    left.with_context(|| format!("afterwards: {detached:?}"))?;
    detached.context("nobody has it open any more")
}
