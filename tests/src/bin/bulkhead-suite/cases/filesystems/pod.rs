//! A pod that does all it can to the filesystem of its volume, with what a container has, and with more.

use std::fs::{self, File};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use bulkhead_protocol::ErrorKind;
use bulkhead_tests::cases;
use bulkhead_tests::expect::denied;
use bulkhead_tests::helper::*;
use bulkhead_tests::observe::mounts;
use bulkhead_tests::rig::Rig;

use super::{SIZE, end, start};
use crate::cases::attacks::frozen::Frozen;

cases! {
    what_a_container_may_do_stops_and_changes_no_filesystem: Bare,
    a_frozen_filesystem_holds_up_itself_only: Bare,
}

/// What container runtimes leave root in a container.
const CONTAINER: &str = "-all,+chown,+dac_override,+fsetid,+fowner,+mknod,+setgid,+setuid,+setfcap,+setpcap,\
                         +net_bind_service,+net_raw,+sys_chroot,+kill,+audit_write";

/// Runs a program on a target, as root with these capabilities and mounts of its own. Returns whether it says that it was
/// granted what it wanted.
fn granted(rig: &Rig, capabilities: &str, command: &[&str], target: &str) -> Result<bool> {
    let mut pod = Command::new("unshare");
    pod.args(["--mount", "--propagation", "private", "setpriv", "--bounding-set", capabilities]);
    let output = pod.args(command).arg(rig.target(target)).output().context("unshare")?;
    Ok(output.status.success() && output.stderr.is_empty())
}

fn what_a_container_may_do_stops_and_changes_no_filesystem(rig: &mut Rig) -> Result<()> {
    start(rig, 3)?;
    let helper = rig.helper()?;
    helper.ask_all([create("vol-a", filesystem_spec(SIZE)), mount_filesystem("vol-a"), bind("vol-a", "vol-a")])?;
    let seen = || Ok::<_, anyhow::Error>((mounts::at(&rig.target("vol-a"))?, helper.usage("vol-a", None)?));
    let before = seen()?;
    for command in [
        &["xfs_io", "-x", "-c", "shutdown"][..],
        &["xfs_io", "-x", "-c", "freeze"],
        &["xfs_io", "-x", "-c", "label -s name"],
        &["xfs_io", "-x", "-c", "resblks 100"],
        &["fsfreeze", "--freeze"],
        &["fstrim"],
        &["mount", "-o", "remount,bind,ro"],
        &["mount", "-o", "remount,bind,suid,dev"],
        &["umount"],
        &["chattr", "+i"],
        &["chattr", "+a"],
        &["setfattr", "-n", "trusted.bulkhead", "-v", "1"],
    ] {
        ensure!(!granted(rig, CONTAINER, command, "vol-a")?, "{command:?} is granted");
        File::create(rig.target("vol-a/file"))?.sync_all().with_context(|| format!("after {command:?}"))?;
    }
    fs::remove_file(rig.target("vol-a/file"))?;
    let after = seen()?;
    ensure!(before.0 == after.0 && before.1.spec == after.1.spec && after.1.condition.is_none(), "{after:?}");

    // Its top directory is its own. Nothing that it does to that is in the helper's way.
    let more = format!("{CONTAINER},+linux_immutable,+dac_read_search");
    for command in [&["chown", "1000:1000"][..], &["chmod", "0"], &["chattr", "-p", "7"], &["chattr", "+ai"]] {
        ensure!(granted(rig, &more, command, "vol-a")?, "{command:?} is refused");
    }
    helper.ask_all([bind("vol-a", "more"), grow_filesystem("vol-a", 2 * SIZE), unbind("vol-a", "more")])?;
    drop(helper);
    let helper = rig.restarted_helper()?;
    helper.ask_all([unbind("vol-a", "vol-a"), unmount_filesystem("vol-a"), grow_filesystem("vol-a", 3 * SIZE)])?;
    helper.ask_all([mount_filesystem("vol-a"), bind("vol-a", "vol-a")])?;
    end(rig, &helper, &["vol-a"])
}

/// Nine groups of such a small filesystem, and what is too little for a tenth: it never takes all of that.
const WITH_A_REST: u64 = ((9 * 75) << 20) + (100 << 10);

/// With CAP_SYS_ADMIN, as in a privileged pod.
fn a_frozen_filesystem_holds_up_itself_only(rig: &mut Rig) -> Result<()> {
    start(rig, 3)?;
    let helper = rig.helper()?;
    for id in ["vol-a", "vol-b"] {
        helper.ask_all([create(id, filesystem_spec(SIZE)), mount_filesystem(id), bind(id, id)])?;
    }
    fs::write(rig.target("vol-a/file"), "content")?;
    let frozen = Frozen::freeze(&rig.target("vol-a"))?;
    ensure!(helper.usage("vol-a", None)?.condition.is_none());
    helper.ask_all([bind("vol-a", "more"), unbind("vol-a", "more")])?;
    denied(helper.request(&grow_filesystem("vol-a", WITH_A_REST))?, ErrorKind::Busy, "frozen")?;
    helper.ask_all([grow_filesystem("vol-b", 2 * SIZE), bind("vol-b", "more"), unbind("vol-b", "more")])?;
    drop(frozen);
    helper.ask(&grow_filesystem("vol-a", WITH_A_REST))?;
    ensure!(fs::read(rig.target("vol-a/file"))? == b"content");
    // One that its pod has left frozen is published again, where it can be thawed.
    let frozen = Frozen::freeze(&rig.target("vol-a"))?;
    helper.ask(&unbind("vol-a", "vol-a"))?;
    denied(helper.request(&unmount_filesystem("vol-a"))?, ErrorKind::Busy, "vol-a")?;
    helper.ask_all([mount_filesystem("vol-a"), bind("vol-a", "vol-a")])?;
    drop(frozen);
    ensure!(fs::read(rig.target("vol-a/file"))? == b"content");
    fs::write(rig.target("vol-a/file"), "content")?;
    // A start finds it as it is.
    let frozen = Frozen::freeze(&rig.target("vol-a"))?;
    drop(helper);
    let helper = rig.restarted_helper()?;
    helper.ask_all([mount_filesystem("vol-a"), bind("vol-a", "more"), unbind("vol-a", "more")])?;
    drop(frozen);
    end(rig, &helper, &["vol-a", "vol-b"])
}
