//! A helper that is started anew finds everything by targets, loop devices and images: nothing is written down.

use std::fs;

use anyhow::{Context, Result, ensure};
use bulkhead_protocol::Reply;
use bulkhead_tests::cases;
use bulkhead_tests::helper::*;
use bulkhead_tests::observe::loops;
use bulkhead_tests::stand::Stand;

use super::{SIZE, check_detached, check_image, start, usage};

cases! {
    a_restart_finds_what_is_published: Bare + Filesystem,
    a_restart_finds_what_is_only_mounted: Bare + Kernel,
}

fn a_restart_finds_what_is_published(stand: &mut Stand) -> Result<()> {
    start(stand, 3)?;
    let helper = stand.helper()?;
    helper.ask(&create("vol-a", filesystem_spec(SIZE)))?;
    helper.ask(&mount_filesystem("vol-a"))?;
    helper.ask(&bind("vol-a", "a"))?;
    fs::write(stand.target("a/file"), "content")?;
    drop(helper);
    for round in 0..3_u64 {
        stand.restart_helper()?;
        let helper = stand.helper()?;
        ensure!(fs::read(stand.target("a/file"))? == b"content");
        let found = usage(&helper, "vol-a", Some(target("work", "a")))?;
        ensure!(found.used_bytes.is_some() && found.targets == 1 && found.condition.is_none(), "{found:?}");
        let size = SIZE + (round + 1) * (16 << 20);
        ensure!(helper.ask(&grow_filesystem("vol-a", size))? == Reply::Size(bytes(size)));
        let after = usage(&helper, "vol-a", None)?;
        ensure!(after.available_bytes > found.available_bytes, "{after:?}");
        // The same again, and one more target.
        for request in [mount_filesystem("vol-a"), bind("vol-a", "a"), bind("vol-a", "b")] {
            helper.ask(&request)?;
        }
        ensure!(fs::read(stand.target("b/file"))? == b"content");
        helper.ask(&unbind("vol-a", "b"))?;
        let devices = loops::backed_by(&stand.pool().device()?)?;
        ensure!(devices.len() == 1, "{devices:?}");
    }
    stand.restart_helper()?;
    let helper = stand.helper()?;
    helper.ask(&unbind("vol-a", "a"))?;
    helper.ask(&unmount_filesystem("vol-a"))?;
    check_detached(stand)?;
    check_image(stand, "vol-a")?;
    helper.ask(&delete("vol-a")).map(drop)
}

fn a_restart_finds_what_is_only_mounted(stand: &mut Stand) -> Result<()> {
    start(stand, 3)?;
    stand.helper()?.ask(&create("vol-a", filesystem_spec(SIZE)))?;
    for request in [unmount_filesystem("vol-a"), mount_filesystem("vol-a")] {
        let helper = stand.helper()?;
        helper.ask(&mount_filesystem("vol-a"))?;
        drop(helper);
        stand.restart_helper()?;
        stand.helper()?.ask(&request).with_context(|| request.name())?;
    }
    let helper = stand.helper()?;
    helper.ask(&unmount_filesystem("vol-a"))?;
    check_detached(stand)?;
    check_image(stand, "vol-a")?;
    helper.ask(&mount_filesystem("vol-a"))?;
    drop(helper);
    stand.restart_helper()?;
    stand.helper()?.ask(&delete("vol-a"))?;
    check_detached(stand)
}
